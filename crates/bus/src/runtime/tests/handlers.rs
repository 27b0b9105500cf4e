//! Handlers: dead letters, panics, revocations, bounds, the watchdog.

use super::*;

type Decide = dyn Fn(&LogRecord, usize) -> Outcome + Send + Sync;

/// Asks `decide` for each record, with how often it was given before.
struct Scripted {
    decide: Box<Decide>,
    seen: Mutex<Vec<u64>>,
    given: Mutex<HashMap<u64, usize>>,
    /// While set, `handle` waits to be told.
    gate: Option<Arc<Notify>>,
}

impl Scripted {
    fn new(decide: impl Fn(&LogRecord, usize) -> Outcome + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            decide: Box::new(decide),
            seen: Mutex::default(),
            given: Mutex::default(),
            gate: None,
        })
    }

    fn gated(gate: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self {
            decide: Box::new(|_, _| Outcome::Done),
            seen: Mutex::default(),
            given: Mutex::default(),
            gate: Some(gate),
        })
    }

    fn seen(&self) -> Vec<u64> {
        self.seen.lock().clone()
    }
}

#[async_trait]
impl Handler for Scripted {
    async fn handle(&self, batch: &[LogRecord]) -> Vec<Outcome> {
        let before: Vec<usize> = {
            let mut given = self.given.lock();
            let before = batch.iter().map(|record| {
                let times = given.entry(record.offset).or_insert(0);
                *times += 1;
                *times - 1
            });
            before.collect()
        };
        self.seen.lock().extend(batch.iter().map(|record| record.offset));
        if let Some(gate) = &self.gate {
            gate.notified().await;
        }
        batch
            .iter()
            .zip(before)
            .map(|(record, before)| (self.decide)(record, before))
            .collect()
    }
}

fn later() -> Outcome {
    Outcome::RetryLater(Cause {
        error_class: "test",
        detail: String::new(),
        dependency_down: true,
    })
}

fn reject() -> Outcome {
    Outcome::Reject(Rejection {
        error_class: "decode",
        detail: "garbage".to_owned(),
        stage: "decode",
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_commits_what_is_done_and_ends_when_told() {
    let Setup { bus, runtime } = setup();
    for n in 0..500 {
        bus.append(Topic::History, 0, Some("k"), &n.to_string());
    }
    let handler = Scripted::new(|_, _| Outcome::Done);
    let consumer = spawn_handler(&runtime, HANDLERS, handler.clone(), quick()).unwrap();
    until("all committed", || {
        bus.committed(HANDLERS, 0).is_some_and(|c| c.offset == 500)
    })
    .await;
    assert!(consumer.ready() && consumer.alive());
    assert_eq!(handler.seen(), (0..500).collect::<Vec<_>>());
    runtime.stop.cancel();
    in_time("stop", consumer.stopped()).await;
    assert_eq!(bus.closed(), 1);
    assert_eq!(bus.commits().last().unwrap().1, CommitMode::Sync);
    let settled = runtime.metrics.settled.get_or_create(&group_labels(HANDLERS)).get();
    assert_eq!(settled, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_confirmed_before_its_record_settles() {
    let Setup { bus, runtime } = setup();
    bus.fault(Topic::Dlq, Fault::Lose(ProduceError::Unknown("ordered".to_owned())));
    bus.fault(Topic::Dlq, Fault::Refuse(ProduceError::QueueFull));
    bus.append(Topic::History, 0, Some("k"), "bad");
    bus.append(Topic::History, 0, Some("k"), "good");
    let handler = Scripted::new(|record, _| if record.offset == 0 { reject() } else { Outcome::Done });
    let _consumer = spawn_handler(&runtime, HANDLERS, handler, quick()).unwrap();
    until("committed", || {
        bus.committed(HANDLERS, 0).is_some_and(|c| c.offset == 2)
    })
    .await;
    let letters = bus.records(Topic::Dlq, 0);
    assert_eq!(letters.len(), 1);
    assert_eq!(
        dead_letter::text(&letters[0].headers, dead_letter::DLQ_ID).as_deref(),
        Some("history/0/0/tidings.storage-consumer")
    );
    let labels = group_labels(HANDLERS);
    assert_eq!(runtime.metrics.dlq_write_failures.get_or_create(&labels).get(), 2);
    assert_eq!(bus.producers(), 2, "the one that lost a record was replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_dlq_cannot_be_written_nothing_is_committed_past_the_record() {
    let Setup { bus, runtime } = setup();
    for _ in 0..10_000 {
        bus.fault(Topic::Dlq, Fault::Refuse(ProduceError::QueueFull));
    }
    bus.append(Topic::History, 0, Some("k"), "good");
    bus.append(Topic::History, 0, Some("k"), "bad");
    let handler = Scripted::new(|record, _| if record.offset == 1 { reject() } else { Outcome::Done });
    let consumer = spawn_handler(&runtime, HANDLERS, handler, quick()).unwrap();
    let labels = group_labels(HANDLERS);
    until("dlq failed", || {
        runtime.metrics.dlq_write_failures.get_or_create(&labels).get() > 3
    })
    .await;
    runtime.stop.cancel();
    in_time("stop", consumer.stopped()).await;
    assert_eq!(bus.committed(HANDLERS, 0).unwrap().offset, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_good_end_of_a_replay_is_reported_before_it_settles() {
    let Setup { bus, runtime } = setup();
    let mut headers = Headers::new();
    headers.push(dead_letter::DLQ_ID, "history/0/7/g");
    headers.push(dead_letter::REPLAY_RUN, "run-3");
    bus.append_with(Topic::History, 0, Some("k"), "replayed", headers);
    bus.fault(Topic::Dlq, Fault::Lose(ProduceError::Unknown("ordered".to_owned())));
    let _consumer = spawn_handler(&runtime, HANDLERS, Scripted::new(|_, _| Outcome::Done), quick()).unwrap();
    until("committed", || {
        bus.committed(HANDLERS, 0).is_some_and(|c| c.offset == 1)
    })
    .await;
    let notices = bus.records(Topic::Dlq, 0);
    assert_eq!(notices.len(), 1);
    assert!(notices[0].headers.get(dead_letter::RESOLVED).is_some());
    let value = DlqResolved::decode(notices[0].value.clone().unwrap()).unwrap();
    assert_eq!(
        (value.dlq_id.as_str(), value.replay_run.as_str()),
        ("history/0/7/g", "run-3")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_refused_again_does_not_go_round_in_dlq() {
    let Setup { bus, runtime } = setup();
    let group = ConsumerGroup::DeadLetterCompensator;
    let mut headers = Headers::new();
    headers.push(dead_letter::DLQ_ID, "history/0/7/g");
    bus.append_with(Topic::Dlq, 0, Some("k"), "letter", headers.clone());
    bus.append_with(Topic::Dlq, 0, Some("k"), "letter", headers);
    let handler = Scripted::new(|record, _| if record.offset == 0 { reject() } else { Outcome::Done });
    let _consumer = spawn_handler(&runtime, group, handler, quick()).unwrap();
    until("committed", || bus.committed(group, 0).is_some_and(|c| c.offset == 2)).await;
    assert_eq!(
        bus.records(Topic::Dlq, 0).len(),
        2,
        "neither a second letter nor a notice"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_record_that_panics_is_dead_lettered() {
    let Setup { bus, runtime } = setup();
    for n in 0..20 {
        bus.append(Topic::History, 0, Some(&format!("k{n}")), &n.to_string());
    }
    let handler = Scripted::new(|record, _| {
        assert_ne!(record.offset, 7, "ordered by the test");
        Outcome::Done
    });
    let consumer = spawn_handler(&runtime, HANDLERS, handler, quick()).unwrap();
    until("committed", || {
        bus.committed(HANDLERS, 0).is_some_and(|c| c.offset == 20)
    })
    .await;
    let letters = bus.records(Topic::Dlq, 0);
    assert_eq!(letters.len(), 1);
    assert_eq!(
        dead_letter::decimal(&letters[0].headers, dead_letter::ORIG_OFFSET),
        Some(7)
    );
    assert_eq!(
        dead_letter::text(&letters[0].headers, dead_letter::ERROR_CLASS).as_deref(),
        Some("panic")
    );
    assert!(consumer.alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_whose_position_left_the_log_goes_on_and_tells() {
    let Setup { bus, runtime } = setup();
    for n in 0..600 {
        bus.append(Topic::History, 0, Some("k"), &n.to_string());
    }
    bus.trim(Topic::History, 0, 500);
    bus.set_committed(HANDLERS, 0, 300);
    let handler = Scripted::new(|_, _| Outcome::Done);
    let _consumer = spawn_handler(&runtime, HANDLERS, handler.clone(), quick()).unwrap();
    until("committed", || {
        bus.committed(HANDLERS, 0).is_some_and(|c| c.offset == 600)
    })
    .await;
    assert_eq!(handler.seen()[0], 500);
    let labels = partition_labels(HANDLERS, 0);
    assert_eq!(runtime.metrics.missing_range.get_or_create(&labels).get(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_worker_finishes_what_runs_and_its_result_is_committed() {
    let Setup { bus, runtime } = setup();
    bus.append(Topic::History, 0, Some("k"), "a");
    let gate = Arc::new(Notify::new());
    let handler = Scripted::gated(Arc::clone(&gate));
    let _consumer = spawn_handler(&runtime, HANDLERS, handler.clone(), quick()).unwrap();
    until("handed over", || handler.seen().len() == 1).await;
    bus.inject(SourceEvent::Revoked {
        partitions: vec![0, 1],
        lost: false,
    });
    bus.append(Topic::History, 0, Some("k"), "b");
    gate.notify_one();
    until("given up", || bus.revoked() == [vec![0, 1]]).await;
    let (commit, mode) = bus.commits().pop().unwrap();
    assert_eq!((commit.offset, mode), (1, CommitMode::Sync));
    assert_eq!(handler.seen(), [0], "intake has stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_finish_is_abandoned_and_its_result_dropped() {
    let Setup { bus, runtime } = setup();
    bus.append(Topic::History, 0, Some("k"), "a");
    let gate = Arc::new(Notify::new());
    let handler = Scripted::gated(Arc::clone(&gate));
    let consumer = spawn_handler(&runtime, HANDLERS, handler.clone(), quick()).unwrap();
    until("handed over", || handler.seen().len() == 1).await;
    bus.inject(SourceEvent::Revoked {
        partitions: vec![0, 1],
        lost: false,
    });
    until("given up", || bus.revoked() == [vec![0, 1]]).await;
    gate.notify_one();
    // Assigned anew: the record is given again, from the committed position.
    bus.inject(SourceEvent::Assigned(vec![AssignedPartition {
        partition: 0,
        committed: None,
        log_start: 0,
        log_end: 1,
    }]));
    until("given again", || handler.seen().len() == 2).await;
    assert_eq!(bus.committed(HANDLERS, 0), None);
    gate.notify_one();
    until("committed", || {
        bus.committed(HANDLERS, 0).is_some_and(|c| c.offset == 1)
    })
    .await;
    assert!(consumer.alive());
}

/// A worker that does not yield cannot be aborted: its result comes when the partition is assigned anew already.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_of_an_earlier_assignment_is_dropped() {
    let Setup { bus, runtime } = setup();
    let config = RuntimeConfig {
        handler: HandlerConfig {
            commit_interval: Duration::ZERO,
            ..HandlerConfig::default()
        },
        ..quick()
    };
    let (release, held) = std::sync::mpsc::channel();
    let held = Mutex::new(held);
    let handler = Scripted::new(move |_, before| {
        if before > 0 {
            return later();
        }
        held.lock().recv_timeout(DEADLINE).expect("released");
        Outcome::Done
    });
    bus.append(Topic::History, 0, Some("k"), "a");
    let consumer = spawn_handler(&runtime, HANDLERS, handler.clone(), config).unwrap();
    until("handed over", || handler.seen() == [0]).await;
    bus.inject(SourceEvent::Revoked {
        partitions: vec![0],
        lost: true,
    });
    bus.inject(SourceEvent::Assigned(vec![AssignedPartition {
        partition: 0,
        committed: None,
        log_start: 0,
        log_end: 1,
    }]));
    until("given again", || handler.seen().len() > 1).await;
    release.send(()).expect("held");
    let labels = group_labels(HANDLERS);
    let stale = || runtime.metrics.stale_results.get_or_create(&labels).get();
    until("dropped", || stale() == 1).await;
    assert_eq!(bus.commits(), []);
    assert!(consumer.alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_partition_is_dropped_without_a_commit() {
    let Setup { bus, runtime } = setup();
    bus.append(Topic::History, 0, Some("k"), "a");
    let _consumer = spawn_handler(&runtime, HANDLERS, Scripted::new(|_, _| Outcome::Done), quick()).unwrap();
    until("committed", || bus.commits().len() == 1).await;
    bus.inject(SourceEvent::Revoked {
        partitions: vec![0, 1],
        lost: true,
    });
    until("given up", || bus.revoked() == [vec![0, 1]]).await;
    assert_eq!(bus.commits().len(), 1, "not once more, as when it is given up in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_source_is_made_anew_and_a_failed_commit_is_made_up_for() {
    let Setup { bus, runtime } = setup();
    bus.fail_commits(1);
    bus.append(Topic::History, 0, Some("k"), "a");
    let consumer = spawn_handler(&runtime, HANDLERS, Scripted::new(|_, _| Outcome::Done), quick()).unwrap();
    let labels = group_labels(HANDLERS);
    until("commit failed", || {
        runtime.metrics.commit_failures.get_or_create(&labels).get() == 1
    })
    .await;
    bus.inject(SourceEvent::Fatal(Error::Fatal {
        operation: "polling",
        reason: "ordered by the test".to_owned(),
    }));
    until("made anew", || bus.sources() == 2).await;
    until("committed", || {
        bus.committed(HANDLERS, 0).is_some_and(|c| c.offset == 1)
    })
    .await;
    assert_eq!(bus.closed(), 1);
    assert!(consumer.alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_handler_holds_delivery_back() {
    const RECORDS: usize = 50_000;
    let Setup { bus, runtime } = setup();
    for n in 0..RECORDS {
        bus.append(Topic::History, 0, Some(&format!("k{}", n % 100)), "value");
    }
    let gate = Arc::new(Notify::new());
    let config = quick();
    let bound = config.queue.high_records + 100 + config.handler.window_records;
    let handler = Scripted::gated(Arc::clone(&gate));
    let consumer = spawn_handler(&runtime, HANDLERS, handler, config).unwrap();
    let paused = || consumer.status().partitions.iter().any(|partition| partition.paused);
    until("paused", paused).await;
    assert!(bus.deliveries() <= bound, "{} of {bound}", bus.deliveries());
    until("all handled", || {
        gate.notify_one();
        bus.committed(HANDLERS, 0).is_some_and(|c| c.offset == RECORDS as u64)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lag_without_progress_is_a_failure_unless_it_waits_for_a_reason() {
    let Setup { bus, runtime } = setup();
    let config = RuntimeConfig {
        stall_limit: Duration::from_millis(1500),
        ..quick()
    };
    bus.append(Topic::History, 0, Some("k"), "a");
    let waiting = spawn_handler(&runtime, HANDLERS, Scripted::new(|_, _| later()), config.clone()).unwrap();
    bus.append(Topic::Push, 0, Some("k"), "a");
    let stuck = Scripted::gated(Arc::new(Notify::new()));
    let hanging = spawn_handler(&runtime, ConsumerGroup::PushFanout, stuck, config).unwrap();
    let failure = in_time("failure", hanging.failed()).await;
    assert!(
        matches!(
            failure,
            Failure::Stalled {
                partition: 0,
                lag: 1,
                ..
            }
        ),
        "{failure}"
    );
    assert!(!hanging.alive());
    assert!(waiting.alive(), "a back-off is no stall");
}
