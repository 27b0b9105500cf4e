//! Handlers: order per key, contiguous commits, retries, dead letters, bounds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tidings_bus::dead_letter::{self, Rejection};
use tidings_bus::handler::Outcome;
use tidings_bus::metrics::{group_labels, partition_labels};
use tidings_bus::runtime::{HandlerConfig, RuntimeConfig, spawn_handler};
use tidings_bus::{ConsumerGroup, Headers, LogRecord, OutRecord, partition_for};
use tidings_domain::Topic;

use super::faults::Fault;
use super::{Ground, Process, Scripted, later, out, produce, quick, read, until};

const GROUP: ConsumerGroup = ConsumerGroup::StorageConsumer;
const TOPIC: Topic = Topic::History;

fn text(bytes: Option<&Bytes>) -> String {
    String::from_utf8_lossy(bytes.expect("is there")).into_owned()
}

/// `count` records of partition 0 with these keys in turn, their number as value.
fn numbered(count: usize, keys: &[&str]) -> Vec<OutRecord> {
    (0..count)
        .map(|n| out(TOPIC, 0, keys[n % keys.len()], n.to_string()))
        .collect()
}

/// Each key's values in the order of their first handling.
fn first_values(seen: &[LogRecord], key: &str) -> Vec<usize> {
    let mut known = BTreeSet::new();
    seen.iter()
        .filter(|record| record.key.as_deref() == Some(key.as_bytes()))
        .map(|record| text(record.value.as_ref()).parse().expect("a number"))
        .filter(|value| known.insert(*value))
        .collect()
}

pub(crate) async fn order_is_kept_per_key(ground: &Ground) {
    const RECORDS: usize = 3000;
    let partitions = ground.bus.catalogue().partitions(TOPIC);
    let keys: Vec<String> = (0..20).map(|n| format!("key-{n}")).collect();
    let records = (0..RECORDS)
        .map(|n| {
            let key = &keys[n % keys.len()];
            out(TOPIC, partition_for(key.as_bytes(), partitions), key, n.to_string())
        })
        .collect();
    produce(ground, records).await;
    let process = Process::new(ground);
    // Every 50th record waits once, so that keys do overtake each other.
    let handler = Scripted::new(|record, before| {
        if record.offset % 50 == 7 && before == 0 {
            later()
        } else {
            Outcome::Done
        }
    });
    let consumer = spawn_handler(&process.runtime, GROUP, handler.clone(), quick()).expect("a thread");
    let settled = || {
        process
            .runtime
            .metrics
            .settled
            .get_or_create(&group_labels(GROUP))
            .get()
    };
    until("all settled", || settled() == RECORDS as u64).await;
    process.stop(&consumer).await;
    let seen = handler.seen();
    for (n, key) in keys.iter().enumerate() {
        let expected: Vec<usize> = (n..RECORDS).step_by(keys.len()).collect();
        assert_eq!(first_values(&seen, key), expected, "{key}");
    }
    let used: BTreeSet<u32> = seen.iter().map(|record| record.partition).collect();
    assert!(used.len() > 1, "keys are spread: {used:?}");
}

/// Scenario B89: one of seven stalls, the others are done, the process dies.
pub(crate) async fn commits_only_the_contiguous_prefix_and_redelivers_from_it_after_a_crash(ground: &Ground) {
    produce(ground, numbered(7, &["a", "b", "c", "d", "e", "f", "g"])).await;
    let process = Process::new(ground);
    let handler = Scripted::new(|record, _| if record.offset == 3 { later() } else { Outcome::Done });
    let consumer = spawn_handler(&process.runtime, GROUP, handler.clone(), quick()).expect("a thread");
    let committed = || process.bus.committed(GROUP, 0).map(|commit| commit.offset);
    until("three tries of the one that stalls", || {
        handler.offsets().iter().filter(|offset| **offset == 3).count() >= 3
    })
    .await;
    until("the prefix is committed", || committed() == Some(3)).await;
    assert_eq!(
        handler.offsets().iter().filter(|offset| **offset == 6).count(),
        1,
        "later ones are done"
    );
    process.crash(&consumer).await;
    assert!(process.bus.commits(GROUP).iter().all(|commit| commit.offset <= 3));

    let process = Process::new(ground);
    let again = Scripted::done();
    let consumer = spawn_handler(&process.runtime, GROUP, again.clone(), quick()).expect("a thread");
    until("all committed", || {
        process.bus.committed(GROUP, 0).is_some_and(|commit| commit.offset == 7)
    })
    .await;
    process.stop(&consumer).await;
    assert_eq!(again.offsets(), [3, 4, 5, 6]);
}

pub(crate) async fn what_was_not_committed_is_redelivered_after_a_crash(ground: &Ground) {
    produce(ground, numbered(40, &["a", "b"])).await;
    let process = Process::new(ground);
    let handler = Scripted::done();
    let never = RuntimeConfig {
        handler: HandlerConfig {
            commit_interval: Duration::from_secs(3600),
            ..HandlerConfig::default()
        },
        ..quick()
    };
    let consumer = spawn_handler(&process.runtime, GROUP, handler.clone(), never).expect("a thread");
    until("all handled", || handler.count() == 40).await;
    process.crash(&consumer).await;

    let process = Process::new(ground);
    let again = Scripted::done();
    let consumer = spawn_handler(&process.runtime, GROUP, again.clone(), quick()).expect("a thread");
    until("all handled again", || again.count() == 40).await;
    process.stop(&consumer).await;
    assert_eq!(again.offsets(), (0..40).collect::<Vec<_>>());

    // Ended in order: nothing comes a third time.
    produce(ground, vec![out(TOPIC, 0, "a", "last")]).await;
    let seen = read(ground, GROUP, 1).await;
    assert_eq!(seen.len(), 1);
    assert_eq!(text(seen[0].value.as_ref()), "last");
}

pub(crate) async fn a_key_that_waits_keeps_its_order_and_lets_others_pass(ground: &Ground) {
    produce(ground, numbered(20, &["waits", "goes"])).await;
    let process = Process::new(ground);
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    let handler = Scripted::new(move |record, _| {
        if record.offset == 4 && !gate.load(Ordering::SeqCst) {
            later()
        } else {
            Outcome::Done
        }
    });
    let consumer = spawn_handler(&process.runtime, GROUP, handler.clone(), quick()).expect("a thread");
    until("the other key is done", || {
        first_values(&handler.seen(), "goes").len() == 10
    })
    .await;
    let committed = process.bus.committed(GROUP, 0).map_or(0, |commit| commit.offset);
    assert!(committed <= 4, "{committed}");
    open.store(true, Ordering::SeqCst);
    until("all committed", || {
        process
            .bus
            .committed(GROUP, 0)
            .is_some_and(|commit| commit.offset == 20)
    })
    .await;
    process.stop(&consumer).await;
    // The last handling of each is the one that counts: in order too.
    let seen = handler.seen();
    let mut last: Vec<u64> = Vec::new();
    for record in seen
        .iter()
        .rev()
        .filter(|record| record.key.as_deref() == Some(b"waits"))
    {
        if !last.contains(&record.offset) {
            last.push(record.offset);
        }
    }
    last.reverse();
    assert_eq!(last, (0..20).step_by(2).collect::<Vec<_>>());
}

fn rejection() -> Outcome {
    Outcome::Reject(Rejection {
        error_class: "decode",
        detail: "not a record of this topic".to_owned(),
        stage: "decode",
    })
}

pub(crate) async fn a_rejected_record_settles_when_its_dead_letter_is_confirmed(ground: &Ground) {
    produce(ground, numbered(3, &["k"])).await;
    let process = Process::new(ground);
    // Twice: what the first failure would wrongly settle shows in the commit after it.
    process.bus.order(Topic::Dlq, Fault::Lose);
    process.bus.order(Topic::Dlq, Fault::FailReport);
    let handler = Scripted::new(|record, _| if record.offset == 1 { rejection() } else { Outcome::Done });
    let config = RuntimeConfig {
        // Long enough to see what is committed while the letter is not confirmed.
        backoff: tidings_resilience::BackoffPolicy::new(
            Duration::from_millis(300),
            Duration::from_millis(300),
            1.0,
            0.0,
        ),
        ..quick()
    };
    let consumer = spawn_handler(&process.runtime, GROUP, handler.clone(), config).expect("a thread");
    let labels = group_labels(GROUP);
    let failures = || process.runtime.metrics.dlq_write_failures.get_or_create(&labels).get();
    until("two writes fail", || failures() == 2).await;
    process.bus.hold_reports(Topic::Dlq);
    until("the third write is under way", || process.bus.held_reports() == 1).await;
    assert!(process.bus.commits(GROUP).iter().all(|commit| commit.offset <= 1));
    process.bus.release_reports();
    until("all committed", || {
        process.bus.committed(GROUP, 0).is_some_and(|commit| commit.offset == 3)
    })
    .await;
    process.stop(&consumer).await;
    // The one whose outcome was not known lies there too, under the same identity.
    let letters = read(ground, ConsumerGroup::DeadLetterCompensator, 2).await;
    assert_eq!(letters.len(), 2);
    for letter in &letters {
        let id = dead_letter::text(&letter.headers, dead_letter::DLQ_ID);
        assert_eq!(id.as_deref(), Some("history/0/1/tidings.storage-consumer"));
    }
}

/// Scenario B99.
pub(crate) async fn null_empty_and_garbage_values_and_large_headers_come_through_dlq_unchanged(ground: &Ground) {
    let garbage = Bytes::from_static(&[0xff, 0x00, 0xfe, 0x80]);
    let large = Bytes::from(vec![b'h'; 60_000]);
    let mut with_header = out(TOPIC, 0, "k", "good but for its header");
    with_header.headers.push("x-large", large.clone());
    let bad = vec![
        OutRecord {
            value: None,
            ..out(TOPIC, 0, "k", "")
        },
        out(TOPIC, 0, "k", Bytes::new()),
        OutRecord {
            key: None,
            ..out(TOPIC, 0, "", garbage.clone())
        },
        out(TOPIC, 0, "k", vec![b'v'; 900_000]),
        with_header,
    ];
    let count = bad.len();
    let mut records = bad.clone();
    records.push(out(TOPIC, 0, "k", "good"));
    produce(ground, records).await;
    let process = Process::new(ground);
    let handler = Scripted::new(|record, _| {
        if record.value.as_deref() == Some(b"good") {
            Outcome::Done
        } else {
            rejection()
        }
    });
    let consumer = spawn_handler(&process.runtime, GROUP, handler.clone(), quick()).expect("a thread");
    until("all committed", || {
        process.bus.committed(GROUP, 0).is_some_and(|commit| commit.offset == 6)
    })
    .await;
    process.stop(&consumer).await;
    let mut letters = read(ground, ConsumerGroup::DeadLetterCompensator, count).await;
    assert_eq!(letters.len(), count, "each once");
    let origin = |letter: &LogRecord| dead_letter::decimal(&letter.headers, dead_letter::ORIG_OFFSET);
    letters.sort_by_key(origin);
    for (letter, original) in letters.iter().zip(&bad) {
        assert_eq!((&letter.key, &letter.value), (&original.key, &original.value));
    }
    let kept: &Headers = &letters[4].headers;
    assert_eq!(kept.get("x-large"), Some(&large));
}

pub(crate) async fn a_slow_handler_bounds_what_is_in_memory(ground: &Ground) {
    const RECORDS: usize = 50_000;
    /// What one poll of any adapter returns at most.
    const ONE_POLL: usize = 500;
    let keys: Vec<String> = (0..100).map(|n| format!("key-{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    produce(ground, numbered(RECORDS, &keys)).await;
    let process = Process::new(ground);
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    let handler = Scripted::new(move |_, _| {
        if gate.load(Ordering::SeqCst) {
            Outcome::Done
        } else {
            later()
        }
    });
    let config = quick();
    let bound = config.queue.high_records + ONE_POLL + config.handler.window_records;
    let consumer = spawn_handler(&process.runtime, GROUP, handler.clone(), config).expect("a thread");
    let paused = || {
        let status = consumer.status();
        status.partitions.iter().any(|view| view.paused && view.queued > 0)
    };
    until("paused", paused).await;
    until("everybody has waited", || handler.count() > 10_000).await;
    assert!(
        process.bus.delivered() <= bound,
        "{} in memory",
        process.bus.delivered()
    );
    open.store(true, Ordering::SeqCst);
    until("all committed", || {
        process
            .bus
            .committed(GROUP, 0)
            .is_some_and(|commit| commit.offset == RECORDS as u64)
    })
    .await;
    let labels = partition_labels(GROUP, 0);
    until("no lag", || {
        process.runtime.metrics.lag_records.get_or_create(&labels).get() == 0
    })
    .await;
    process.stop(&consumer).await;
}
