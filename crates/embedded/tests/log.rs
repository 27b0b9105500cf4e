//! The log: order, bounds, back-pressure, offsets, trimming, and what a reopened log knows.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tidings_embedded::log::{
    Appended, EncodedRecord, GroupCommit, GroupOffset, Log, LogConfig, Record, TopicConfig, Trimmed,
};
use tidings_embedded::{Database, Error, Options};

const WAIT: Duration = Duration::from_secs(20);
const GROUP: &str = "readers";

/// A clock that tests set.
#[derive(Clone, Default)]
struct TestClock(Arc<AtomicI64>);

impl TestClock {
    fn set(&self, millis: i64) {
        self.0.store(millis, Ordering::SeqCst);
    }
}

fn config(clock: &TestClock) -> LogConfig {
    let clock = clock.clone();
    let topic = |id, name: &str, partitions| TopicConfig {
        id,
        name: name.to_owned(),
        partitions,
        group: GROUP.to_owned(),
        retention: Duration::from_secs(1),
    };
    LogConfig::new(
        vec![topic(1, "one", 2), topic(7, "seven", 1)],
        Arc::new(move || clock.0.load(Ordering::SeqCst)),
    )
}

fn open(path: &Path, clock: &TestClock) -> Log {
    let database = Database::open(path, Options::default()).expect("database opens");
    database.log(config(clock)).expect("log opens")
}

fn record(value: &str) -> EncodedRecord {
    EncodedRecord::new(Some(b"k"), Some(value.as_bytes()), &[("h", b"x")]).expect("encodes")
}

/// Appends and waits for the place.
fn append(log: &Log, topic: u8, partition: u32, value: &str) -> Result<Appended, Error> {
    let (tx, rx) = mpsc::channel();
    log.append(
        topic,
        partition,
        record(value),
        Box::new(move |result| tx.send(result).expect("the test waits")),
    )?;
    rx.recv_timeout(WAIT).expect("completes")
}

fn values(records: &[Record]) -> Vec<(u64, String)> {
    records
        .iter()
        .map(|record| {
            let value = record.value.clone().expect("value");
            (record.offset, String::from_utf8(value.to_vec()).expect("text"))
        })
        .collect()
}

fn read(log: &Log, topic: u8, partition: u32, from: u64) -> Vec<(u64, String)> {
    values(&log.read(topic, partition, from, 100, usize::MAX).expect("reads"))
}

fn commit(log: &Log, partition: u32, offset: u64) -> Result<(), Error> {
    log.commit_offsets(
        GROUP,
        1,
        &[GroupCommit {
            partition,
            offset,
            metadata: format!("m{offset}"),
        }],
    )
}

#[test]
fn offsets_are_contiguous_per_partition_and_go_on_after_reopening() {
    let dir = tempfile::tempdir().expect("temp dir");
    let clock = TestClock::default();
    clock.set(5_000);
    let log = open(dir.path(), &clock);
    for (partition, value, offset) in [(0, "a", 0), (1, "b", 0), (0, "c", 1)] {
        let appended = append(&log, 1, partition, value).expect("appended");
        assert_eq!(
            appended,
            Appended {
                offset,
                append_time: 5_000
            }
        );
    }
    assert_eq!(append(&log, 7, 0, "z").expect("appended").offset, 0);
    drop(log);

    // The clock of the machine may have been set back: append times do not follow.
    clock.set(4_000);
    let log = open(dir.path(), &clock);
    assert_eq!(
        append(&log, 1, 0, "d").expect("appended"),
        Appended {
            offset: 2,
            append_time: 5_000
        }
    );
    assert_eq!(read(&log, 1, 0, 0), [(0, "a".into()), (1, "c".into()), (2, "d".into())]);
    assert_eq!(read(&log, 1, 1, 0), [(0, "b".into())]);
    assert_eq!(read(&log, 7, 0, 0), [(0, "z".into())]);
    assert_eq!((log.start(1, 0).expect("start"), log.end(1, 0).expect("end")), (0, 3));
    let whole = log.read(1, 0, 2, 1, usize::MAX).expect("reads").remove(0);
    assert_eq!(whole.key.as_deref(), Some(b"k".as_slice()));
    assert_eq!(whole.headers, [("h".into(), "x".into())]);
}

#[test]
fn reads_are_bounded_and_refused_outside_the_log() {
    let dir = tempfile::tempdir().expect("temp dir");
    let log = open(dir.path(), &TestClock::default());
    for value in ["a", "b", "c"] {
        append(&log, 1, 0, value).expect("appended");
    }
    let size = record("a").size();
    assert_eq!(log.read(1, 0, 0, 2, usize::MAX).expect("reads").len(), 2);
    assert_eq!(log.read(1, 0, 0, 100, 2 * size).expect("reads").len(), 2);
    assert_eq!(
        log.read(1, 0, 1, 100, 0).expect("reads").len(),
        1,
        "a first record always fits"
    );
    assert!(log.read(1, 0, 3, 100, usize::MAX).expect("reads").is_empty());
    let error = log.read(1, 0, 4, 100, usize::MAX).expect_err("beyond the end");
    assert!(
        matches!(
            error,
            Error::OutOfRange {
                offset: 4,
                start: 0,
                end: 3,
                ..
            }
        ),
        "{error}"
    );
    for (topic, partition) in [(1, 2), (2, 0)] {
        assert!(matches!(
            log.read(topic, partition, 0, 1, 1),
            Err(Error::Refused { .. })
        ));
        assert!(matches!(
            append(&log, topic, partition, "x"),
            Err(Error::Refused { .. })
        ));
    }
}

#[test]
fn completions_come_in_order_and_after_the_records_are_visible() {
    let dir = tempfile::tempdir().expect("temp dir");
    let log = open(dir.path(), &TestClock::default());
    let (tx, rx) = mpsc::channel();
    for i in 0..2_000_u64 {
        let tx = tx.clone();
        let reader = log.clone();
        let completion = Box::new(move |result: Result<Appended, Error>| {
            let offset = result.expect("appended").offset;
            let end = reader.end(1, 0).expect("end");
            tx.send((i, offset, end)).expect("the test waits");
        });
        log.append(1, 0, record("v"), completion).expect("queued");
    }
    drop(log);
    for i in 0..2_000 {
        let (index, offset, end) = rx.recv_timeout(WAIT).expect("completes");
        assert_eq!((index, offset), (i, i));
        assert!(end > offset, "confirmed before it was visible");
    }
}

#[test]
fn a_full_queue_refuses_until_the_committer_has_room() {
    let dir = tempfile::tempdir().expect("temp dir");
    let database = Database::open(dir.path(), Options::default()).expect("database opens");
    let mut config = config(&TestClock::default());
    config.limits.queue_records = 3;
    config.limits.batch_records = 1;
    let log = database.log(config).expect("log opens");
    // The first completion holds the committer until told.
    let (release, held) = mpsc::channel::<()>();
    let (entered, waiting) = mpsc::channel();
    let (tx, rx) = mpsc::channel();
    let hold = tx.clone();
    log.append(
        1,
        0,
        record("0"),
        Box::new(move |result| {
            entered.send(()).expect("the test waits");
            held.recv_timeout(WAIT).expect("released");
            hold.send(result.map(|appended| appended.offset))
                .expect("the test waits");
        }),
    )
    .expect("queued");
    waiting.recv_timeout(WAIT).expect("the committer is held");
    let push = || {
        let tx = tx.clone();
        log.append(
            1,
            0,
            record("n"),
            Box::new(move |result| tx.send(result.map(|appended| appended.offset)).expect("the test waits")),
        )
    };
    for _ in 0..3 {
        push().expect("queued");
    }
    let error = push().expect_err("full");
    assert!(matches!(error, Error::QueueFull { records: 3, .. }), "{error}");
    assert_eq!(log.stats().queued_records, 3);
    release.send(()).expect("the committer waits");
    for offset in 0..4 {
        assert_eq!(rx.recv_timeout(WAIT).expect("completes").expect("appended"), offset);
    }
    push().expect("room again");
    assert_eq!(rx.recv_timeout(WAIT).expect("completes").expect("appended"), 4);
    assert_eq!(log.stats().appended_records, 5);
}

#[test]
fn subscribers_wake_for_their_topic_only() {
    let dir = tempfile::tempdir().expect("temp dir");
    let log = open(dir.path(), &TestClock::default());
    append(&log, 1, 0, "before").expect("appended");
    let mut one = log.subscribe(1).expect("subscribes");
    let mut seven = log.subscribe(7).expect("subscribes");
    assert!(!one.wait(Duration::ZERO));
    append(&log, 1, 1, "a").expect("appended");
    append(&log, 1, 0, "b").expect("appended");
    assert!(one.wait(Duration::ZERO));
    assert!(!one.wait(Duration::ZERO));
    assert!(!seven.wait(Duration::ZERO));

    let waiter = std::thread::spawn(move || seven.wait(WAIT));
    append(&log, 7, 0, "c").expect("appended");
    assert!(waiter.join().expect("joins"));
}

#[test]
fn offsets_of_groups_survive_and_cannot_pass_the_end() {
    let dir = tempfile::tempdir().expect("temp dir");
    let clock = TestClock::default();
    let log = open(dir.path(), &clock);
    for value in ["a", "b"] {
        append(&log, 1, 1, value).expect("appended");
    }
    assert_eq!(log.committed(GROUP, 1, 1).expect("reads"), None);
    commit(&log, 1, 1).expect("commits");
    commit(&log, 1, 2).expect("commits");
    assert!(matches!(commit(&log, 1, 3), Err(Error::OutOfRange { .. })));
    let long = GroupCommit {
        partition: 1,
        offset: 2,
        metadata: "x".repeat(4_097),
    };
    assert!(matches!(
        log.commit_offsets(GROUP, 1, &[long]),
        Err(Error::Refused { .. })
    ));
    drop(log);
    let log = open(dir.path(), &clock);
    let committed = Some(GroupOffset {
        offset: 2,
        metadata: "m2".to_owned(),
    });
    assert_eq!(log.committed(GROUP, 1, 1).expect("reads"), committed);
    assert_eq!(log.committed(GROUP, 1, 0).expect("reads"), None);
    assert_eq!(log.committed("other", 1, 1).expect("reads"), None);
}

#[test]
fn only_old_and_consumed_records_are_trimmed() {
    let dir = tempfile::tempdir().expect("temp dir");
    let clock = TestClock::default();
    let log = open(dir.path(), &clock);
    for i in 0..10 {
        clock.set(1_000 * i);
        append(&log, 1, 0, &i.to_string()).expect("appended");
    }
    let removed = |now| log.trim(now).expect("trims");
    assert_eq!(removed(i64::MAX), Trimmed::default(), "nobody has consumed");
    commit(&log, 0, 6).expect("commits");
    // Older than one second at 4,000: those of 0, 1,000 and 2,000.
    assert_eq!(
        removed(4_000),
        Trimmed {
            records: 3,
            more: false
        }
    );
    assert_eq!(
        removed(i64::MAX),
        Trimmed {
            records: 3,
            more: false
        },
        "not beyond the committed offset"
    );
    assert_eq!(log.start(1, 0).expect("start"), 6);
    assert!(matches!(
        log.read(1, 0, 5, 1, 1),
        Err(Error::OutOfRange { start: 6, .. })
    ));
    assert_eq!(read(&log, 1, 0, 6).len(), 4);
    commit(&log, 0, 10).expect("commits");
    assert_eq!(removed(i64::MAX).records, 4);
    drop(log);

    // An emptied partition goes on where it was, in offsets and in time.
    clock.set(0);
    let log = open(dir.path(), &clock);
    assert_eq!((log.start(1, 0).expect("start"), log.end(1, 0).expect("end")), (10, 10));
    assert_eq!(
        append(&log, 1, 0, "next").expect("appended"),
        Appended {
            offset: 10,
            append_time: 9_000
        }
    );
    assert_eq!(read(&log, 1, 0, 10), [(10, "next".into())]);
}

#[test]
fn the_persist_thread_trims_by_itself() {
    let dir = tempfile::tempdir().expect("temp dir");
    let options = Options {
        persist_interval: Duration::from_millis(5),
        ..Options::default()
    };
    let database = Database::open(dir.path(), options).expect("database opens");
    let clock = TestClock::default();
    let mut config = config(&clock);
    config.trim_interval = Duration::from_millis(5);
    let log = database.log(config).expect("log opens");
    append(&log, 1, 0, "old").expect("appended");
    commit(&log, 0, 1).expect("commits");
    clock.set(10_000);
    let deadline = std::time::Instant::now() + WAIT;
    while log.start(1, 0).expect("start") == 0 {
        assert!(std::time::Instant::now() < deadline, "nothing was trimmed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_panicking_completion_leaves_nobody_waiting() {
    let dir = tempfile::tempdir().expect("temp dir");
    let log = open(dir.path(), &TestClock::default());
    let (held, hold) = mpsc::channel::<()>();
    log.append(
        1,
        0,
        record("a"),
        Box::new(move |_| {
            hold.recv_timeout(WAIT).expect("released");
            panic!("a completion that panics, on purpose");
        }),
    )
    .expect("queued");
    let (tx, rx) = mpsc::channel();
    let send = Box::new(move |result| tx.send(result).expect("the test waits"));
    log.append(1, 0, record("b"), send).expect("queued");
    held.send(()).expect("the completion waits");
    let result: Result<Appended, Error> = rx.recv_timeout(WAIT).expect("completes");
    assert!(matches!(result, Err(Error::Poisoned { .. })), "{result:?}");
    assert!(matches!(append(&log, 1, 0, "c"), Err(Error::Poisoned { .. })));
    log.healthy().expect_err("poisoned");
}

#[test]
fn one_log_per_database_and_topics_keep_their_shape() {
    let dir = tempfile::tempdir().expect("temp dir");
    let clock = TestClock::default();
    let database = Database::open(dir.path(), Options::default()).expect("database opens");
    let log = database.log(config(&clock)).expect("log opens");
    assert!(matches!(database.log(config(&clock)), Err(Error::Refused { .. })));
    drop(log);
    let mut other = config(&clock);
    other.topics[0].partitions = 3;
    let error = database.log(other).err().expect("refused");
    assert!(error.to_string().contains("one with 3 partitions"), "{error}");
    database.log(config(&clock)).expect("log opens again");
}
