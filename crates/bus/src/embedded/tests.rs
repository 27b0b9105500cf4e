//! The adapter's own behaviour; what all adapters share is in the contract suite.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidings_domain::Topic;
use tidings_domain::clock::{ManualClock, Millis};
use tidings_embedded::{Database, Options};

use super::{EmbeddedBus, Faults};
use crate::catalogue::{Catalogue, ConsumerGroup, Durability, MAX_RECORD_BYTES, PartitionCounts};
use crate::producer::{Confirmation, DeliverySink, ProduceError, Producer, ProducerProfile};
use crate::source::{Commit, CommitMode, Committed, Source, SourceEvent};
use crate::{Bus, Error, Headers, LogRecord, OutRecord};

const WAIT: Duration = Duration::from_secs(20);
/// For what should not come; too short can only hide a fault, never make one up.
const MOMENT: Duration = Duration::from_millis(30);
const NOW: Millis = Millis(1_700_000_000_000);

struct Fixture {
    _dir: tempfile::TempDir,
    bus: EmbeddedBus,
    faults: Faults,
}

type Report = (u64, Result<Confirmation, ProduceError>);

struct Sink(Mutex<Sender<Report>>);

impl DeliverySink for Sink {
    fn delivered(&self, tag: u64, result: Result<Confirmation, ProduceError>) {
        // A test that is over listens no more.
        let _ = self.0.lock().unwrap().send((tag, result));
    }
}

fn sink() -> (Arc<dyn DeliverySink>, Receiver<Report>) {
    let (tx, rx) = channel();
    (Arc::new(Sink(Mutex::new(tx))), rx)
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path(), Options::default()).unwrap();
    let faults = Faults::new();
    let bus = EmbeddedBus::open_with_faults(
        &database,
        Catalogue::new(Durability::Single, PartitionCounts::DEV),
        Arc::new(ManualClock::at(NOW)),
        faults.clone(),
    )
    .unwrap();
    Fixture { _dir: dir, bus, faults }
}

fn record(partition: u32, value: &str) -> OutRecord {
    OutRecord {
        topic: Topic::Ingress,
        partition,
        key: Some(Bytes::from_static(b"key")),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        headers: Headers::new(),
    }
}

fn confirmed(offset: u64) -> Result<Confirmation, ProduceError> {
    Ok(Confirmation {
        offset: Some(offset),
        append_time: Some(NOW),
    })
}

fn produce(producer: &dyn Producer, partition: u32, values: &[&str]) {
    let (sink, reports) = sink();
    for value in values {
        producer.enqueue(record(partition, value), &sink, 0).unwrap();
    }
    for _ in values {
        reports.recv_timeout(WAIT).unwrap().1.unwrap();
    }
}

/// A source with its partitions started at the beginning.
fn started(bus: &EmbeddedBus) -> Box<dyn Source> {
    let mut source = bus.source(ConsumerGroup::Router).unwrap();
    let SourceEvent::Assigned(assigned) = source.poll(Duration::ZERO) else {
        panic!("not assigned")
    };
    for partition in assigned {
        source.start(partition.partition, partition.log_start).unwrap();
    }
    source
}

fn poll_records(source: &mut dyn Source) -> Vec<LogRecord> {
    let event = source.poll(WAIT);
    let SourceEvent::Records(records) = event else {
        panic!("no records: {event:?}")
    };
    records
}

fn values(records: &[LogRecord]) -> Vec<&str> {
    records
        .iter()
        .map(|record| std::str::from_utf8(record.value.as_deref().unwrap()).unwrap())
        .collect()
}

fn assert_idle(source: &mut dyn Source) {
    let event = source.poll(Duration::ZERO);
    assert!(matches!(event, SourceEvent::Idle), "{event:?}");
}

#[test]
fn a_record_comes_back_as_it_was_sent() {
    let fixture = fixture();
    let producer = fixture.bus.producer(ProducerProfile::Internal).unwrap();
    let (sink, reports) = sink();
    let mut bare = record(2, "");
    (bare.topic, bare.partition, bare.key, bare.value) = (Topic::Dlq, 0, None, None);
    bare.headers.push("src", Bytes::from_static(b"\x00\xff"));
    bare.headers.push("x-own", Bytes::new());
    producer.enqueue(bare.clone(), &sink, 7).unwrap();
    assert_eq!(reports.recv_timeout(WAIT).unwrap(), (7, confirmed(0)));

    let mut source = fixture.bus.source(ConsumerGroup::DeadLetterCompensator).unwrap();
    let SourceEvent::Assigned(assigned) = source.poll(Duration::ZERO) else {
        panic!("not assigned")
    };
    assert_eq!(assigned.len(), 1);
    assert_eq!((assigned[0].log_start, assigned[0].log_end), (0, 1));
    assert_eq!(assigned[0].committed, None);
    assert_idle(source.as_mut());
    source.start(0, 0).unwrap();
    let expected = LogRecord {
        topic: Topic::Dlq,
        partition: 0,
        offset: 0,
        append_time: NOW,
        key: None,
        value: None,
        headers: bare.headers,
    };
    assert_eq!(poll_records(source.as_mut()), [expected]);
}

#[test]
fn poll_sleeps_until_a_record_comes_or_the_time_is_over() {
    let fixture = fixture();
    let producer = fixture.bus.producer(ProducerProfile::Ack).unwrap();
    let mut source = started(&fixture.bus);
    let began = Instant::now();
    let event = source.poll(MOMENT);
    assert!(matches!(event, SourceEvent::Idle), "{event:?}");
    assert!(began.elapsed() >= MOMENT);

    let poller = thread::spawn(move || {
        let records = poll_records(source.as_mut());
        values(&records).join(",")
    });
    produce(producer.as_ref(), 3, &["wakes"]);
    assert_eq!(poller.join().unwrap(), "wakes");
}

#[test]
fn partitions_take_turns_pause_and_go_back() {
    let fixture = fixture();
    let producer = fixture.bus.producer(ProducerProfile::Ack).unwrap();
    let mut source = started(&fixture.bus);
    produce(producer.as_ref(), 0, &["a", "b"]);
    produce(producer.as_ref(), 1, &["c"]);
    assert_eq!(values(&poll_records(source.as_mut())), ["a", "b"]);
    produce(producer.as_ref(), 0, &["d"]);
    assert_eq!(
        values(&poll_records(source.as_mut())),
        ["c"],
        "partition 1 has its turn"
    );
    source.pause(&[0]).unwrap();
    assert_idle(source.as_mut());
    source.resume(&[0]).unwrap();
    assert_eq!(values(&poll_records(source.as_mut())), ["d"]);
    source.seek(0, 1).unwrap();
    assert_eq!(values(&poll_records(source.as_mut())), ["b", "d"]);
    assert_idle(source.as_mut());
    assert_eq!(source.log_ends(&[0, 1, 2, 9]), [Some(3), Some(1), Some(0), None]);
    assert!(matches!(source.seek(0, 4), Err(Error::NotSetUp { .. })));
    assert!(matches!(source.pause(&[9]), Err(Error::Fenced { .. })));
}

#[test]
fn a_group_has_one_member_and_the_next_goes_on_where_it_committed() {
    let fixture = fixture();
    let producer = fixture.bus.producer(ProducerProfile::Ack).unwrap();
    produce(producer.as_ref(), 0, &["a", "b"]);
    let mut source = started(&fixture.bus);
    let second = fixture.bus.source(ConsumerGroup::Router).err().unwrap();
    assert!(matches!(second, Error::Fenced { .. }), "{second}");
    let commit = |offset| Commit {
        partition: 0,
        offset,
        metadata: "beside".to_owned(),
    };
    source.commit(&[commit(1)], CommitMode::Async).unwrap();
    fixture.faults.fail_commits(1);
    let failed = source.commit(&[commit(2)], CommitMode::Sync).unwrap_err();
    assert!(matches!(failed, Error::Unavailable { .. }), "{failed}");
    assert!(source.commit(&[commit(3)], CommitMode::Sync).is_err(), "beyond the end");
    source.close(WAIT);

    let mut source = fixture.bus.source(ConsumerGroup::Router).unwrap();
    let SourceEvent::Assigned(assigned) = source.poll(Duration::ZERO) else {
        panic!("not assigned")
    };
    let expected = Committed {
        offset: 1,
        metadata: "beside".to_owned(),
    };
    assert_eq!(assigned[0].committed, Some(expected));
    assert_eq!(assigned[1].committed, None);
}

#[test]
fn a_revoked_source_delivers_nothing_until_assigned_again() {
    let fixture = fixture();
    let producer = fixture.bus.producer(ProducerProfile::Ack).unwrap();
    produce(producer.as_ref(), 0, &["a"]);
    for lost in [false, true] {
        let mut source = started(&fixture.bus);
        fixture.faults.revoke_next(lost);
        let SourceEvent::Revoked { partitions, lost: told } = source.poll(Duration::ZERO) else {
            panic!("not revoked")
        };
        assert_eq!((partitions.as_slice(), told), ([0, 1, 2, 3].as_slice(), lost));
        assert_idle(source.as_mut());
        let commit = Commit {
            partition: 0,
            offset: 1,
            metadata: String::new(),
        };
        assert_eq!(source.commit(&[commit], CommitMode::Sync).is_err(), lost);
        assert!(source.start(0, 0).is_err());
        source.finish_revoke(&partitions).unwrap();
        let event = source.poll(Duration::ZERO);
        assert!(matches!(event, SourceEvent::Assigned(_)), "{event:?}");
    }
}

#[test]
fn records_that_cannot_be_taken_are_given_back() {
    let fixture = fixture();
    let producer = fixture.bus.producer(ProducerProfile::Ack).unwrap();
    let (sink, reports) = sink();
    let mut large = record(0, "");
    large.value = Some(Bytes::from(vec![0; MAX_RECORD_BYTES as usize + 1]));
    let refused = producer.enqueue(large.clone(), &sink, 1).unwrap_err();
    assert!(matches!(refused.error, ProduceError::TooLarge(_)), "{}", refused.error);
    assert_eq!(refused.record, large);
    let refused = producer.enqueue(record(4, "x"), &sink, 2).unwrap_err();
    assert!(matches!(refused.error, ProduceError::Refused(_)), "{}", refused.error);
    assert_eq!(producer.in_flight(), 0);
    // The same record fits into dlq with its failure headers.
    (large.topic, large.partition) = (Topic::Dlq, 0);
    producer.enqueue(large, &sink, 3).unwrap();
    assert_eq!(reports.recv_timeout(WAIT).unwrap(), (3, confirmed(0)));
}

#[test]
fn faults_hit_one_record_and_not_the_next() {
    let fixture = fixture();
    let producer = fixture.bus.producer(ProducerProfile::Internal).unwrap();
    let lost = ProduceError::Unknown("lost".to_owned());
    let unknown = ProduceError::Unknown("written".to_owned());
    let (sink, reports) = sink();
    let report = || reports.recv_timeout(WAIT).unwrap();

    fixture.faults.lose_next(Topic::Ingress, lost.clone());
    producer.enqueue(record(0, "lost"), &sink, 1).unwrap();
    assert_eq!(report(), (1, Err(lost)));
    fixture.faults.fail_next_confirmation(Topic::Ingress, unknown.clone());
    producer.enqueue(record(0, "unknown"), &sink, 2).unwrap();
    assert_eq!(report(), (2, Err(unknown)));
    fixture.faults.hide_next_offset(Topic::Ingress);
    producer.enqueue(record(0, "hidden"), &sink, 3).unwrap();
    let hidden = Confirmation {
        offset: None,
        append_time: Some(NOW),
    };
    assert_eq!(report(), (3, Ok(hidden)));
    producer.enqueue(record(0, "fine"), &sink, 4).unwrap();
    assert_eq!(report(), (4, confirmed(2)));

    let mut source = started(&fixture.bus);
    let records = poll_records(source.as_mut());
    assert_eq!(values(&records), ["unknown", "hidden", "fine"]);
}

#[tokio::test]
async fn held_confirmations_keep_their_order_and_flush_waits_for_them() {
    let fixture = fixture();
    let producer = fixture.bus.producer(ProducerProfile::Ack).unwrap();
    let (sink, reports) = sink();
    fixture.faults.hold_confirmations();
    for tag in 0..3 {
        producer.enqueue(record(0, "held"), &sink, tag).unwrap();
    }
    // Written and readable, not confirmed.
    let mut source = started(&fixture.bus);
    let mut seen = 0;
    while seen < 3 {
        seen += poll_records(source.as_mut()).len();
    }
    assert_eq!(producer.flush(MOMENT).await, 3);
    assert_eq!(reports.recv_timeout(MOMENT), Err(RecvTimeoutError::Timeout));
    let mut released = 0;
    while released < 3 {
        released += fixture.faults.release_confirmations();
    }
    producer.enqueue(record(0, "after"), &sink, 3).unwrap();
    for tag in 0..4 {
        assert_eq!(reports.recv_timeout(WAIT).unwrap(), (tag, confirmed(tag)));
    }
    assert_eq!(producer.flush(WAIT).await, 0);
    producer.health().unwrap();
}

#[test]
fn traces_cannot_fill_the_queue() {
    let fixture = fixture();
    let lossy = fixture.bus.producer(ProducerProfile::Lossy).unwrap();
    let ack = fixture.bus.producer(ProducerProfile::Ack).unwrap();
    let (sink, _reports) = sink();
    fixture.faults.hold_confirmations();
    let mut trace = record(0, "hop");
    trace.topic = Topic::Trace;
    let mut taken = 0;
    let refused = loop {
        match lossy.enqueue(trace.clone(), &sink, 0) {
            Ok(()) => taken += 1,
            Err(refused) => break refused.error,
        }
    };
    assert_eq!((refused, taken), (ProduceError::QueueFull, lossy.in_flight()));
    ack.enqueue(record(0, "message"), &sink, 0).unwrap();
}
