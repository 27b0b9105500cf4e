//! The Kafka adapter on a real broker.
//!
//! Needs a running stack: `cargo xtask stack up`, then `TIDINGS_TEST_STACK=target/stack/default/stack.json`. Each test
//! has topics and groups of its own and deletes them.

#![cfg(feature = "kafka")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewPartitions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use tidings_bus::catalogue::{Durability, PartitionCounts};
use tidings_bus::kafka::{GroupProtocol, KafkaBus, KafkaConfig};
use tidings_bus::producer::{Confirmation, DeliverySink, ProduceError, ProducerProfile};
use tidings_bus::source::{AssignedPartition, Commit, CommitMode, Committed, Source, SourceEvent};
use tidings_bus::{Bus, Catalogue, ConsumerGroup, Error, Headers, LogRecord, OutRecord};
use tidings_domain::Topic;
use tidings_domain::clock::{Clock, Millis, SystemClock};

/// A broker on a busy machine gets this long for anything.
const WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
const CLOSE: Duration = Duration::from_secs(20);
/// Broker and test run on one machine, hence one clock; delivery takes a moment.
const CLOCK_ERROR: Duration = Duration::from_secs(5);

fn bootstrap() -> String {
    const REMEDY: &str = "start a stack with `cargo xtask stack up` and set TIDINGS_TEST_STACK to its stack.json";
    let path = std::env::var_os("TIDINGS_TEST_STACK").unwrap_or_else(|| panic!("no TIDINGS_TEST_STACK: {REMEDY}"));
    // A relative path is meant from the workspace, where people type it; tests run in the package.
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}; {REMEDY}", path.display()));
    let stack: serde_json::Value = serde_json::from_str(&text).expect("stack.json is JSON");
    stack["kafka"]["bootstrap"]
        .as_str()
        .unwrap_or_else(|| panic!("{} names no brokers; {REMEDY}", path.display()))
        .to_owned()
}

/// Topics and groups of one test.
struct Fixture {
    bus: KafkaBus,
    bootstrap: String,
}

impl Fixture {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut KafkaConfig)) -> Self {
        let fixture = Self::without_topics(change);
        let done = fixture.bus.apply_topics().await.unwrap();
        assert_eq!(done.len(), Topic::ALL.len(), "{done:?}");
        fixture
    }

    fn without_topics(change: impl FnOnce(&mut KafkaConfig)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!(
            "test-{}-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed),
            SystemClock.now().0
        );
        let bootstrap = bootstrap();
        let mut config = KafkaConfig::new([bootstrap.clone()]);
        change(&mut config);
        let catalogue = Catalogue::with_prefix(&prefix, Durability::Single, PartitionCounts::DEV);
        Self {
            bus: KafkaBus::new(config, catalogue, Arc::new(SystemClock)).unwrap(),
            bootstrap,
        }
    }

    fn name(&self, topic: Topic) -> &str {
        &self.bus.catalogue().spec(topic).name
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        ClientConfig::new()
            .set("bootstrap.servers", &self.bootstrap)
            .create()
            .unwrap()
    }

    fn member(&self, group: ConsumerGroup) -> Member {
        Member::new(self.bus.source(group).unwrap())
    }

    /// Writes the records and waits for all reports; the offsets in the order of the records.
    async fn write(&self, records: Vec<OutRecord>) -> Vec<Confirmation> {
        let producer = self.bus.producer(ProducerProfile::Internal).unwrap();
        let reports = Arc::new(Reports::default());
        let sink: Arc<dyn DeliverySink> = Arc::clone(&reports) as _;
        let count = records.len();
        for (tag, record) in (0..).zip(records) {
            producer.enqueue(record, &sink, tag).unwrap();
        }
        assert_eq!(producer.flush(WITHIN).await, 0);
        let reports = std::mem::take(&mut *reports.0.lock());
        assert_eq!(reports.len(), count);
        reports.into_values().map(Result::unwrap).collect()
    }

    async fn end(self) {
        let names: Vec<&str> = self
            .bus
            .catalogue()
            .topics()
            .iter()
            .map(|spec| spec.name.as_str())
            .collect();
        let results = self.admin().delete_topics(&names, &AdminOptions::new()).await.unwrap();
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
}

#[derive(Default)]
struct Reports(Mutex<BTreeMap<u64, Result<Confirmation, ProduceError>>>);

impl DeliverySink for Reports {
    fn delivered(&self, tag: u64, result: Result<Confirmation, ProduceError>) {
        self.0.lock().insert(tag, result);
    }
}

/// A runtime of the simplest kind: starts what it gets at the committed position or the start of the log.
struct Member {
    source: Option<Box<dyn Source>>,
    assigned: BTreeMap<u32, AssignedPartition>,
    records: Vec<LogRecord>,
    faults: Vec<Error>,
    revoked: BTreeSet<u32>,
    /// Its commits may be refused: the group has thrown it out, and it may not know yet.
    may_be_fenced: bool,
}

impl Member {
    fn new(source: Box<dyn Source>) -> Self {
        Self {
            source: Some(source),
            assigned: BTreeMap::new(),
            records: Vec::new(),
            faults: Vec::new(),
            revoked: BTreeSet::new(),
            may_be_fenced: false,
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        &mut **self.source.as_mut().expect("open")
    }

    /// Polls once and answers like a runtime, committing what was read of a revoked partition.
    fn turn(&mut self) {
        match self.source().poll(POLL) {
            SourceEvent::Records(records) => self.records.extend(records),
            SourceEvent::Assigned(partitions) => {
                for partition in partitions {
                    let offset = partition.committed.as_ref().map_or(partition.log_start, |c| c.offset);
                    self.source().start(partition.partition, offset).unwrap();
                    self.assigned.insert(partition.partition, partition);
                }
            }
            SourceEvent::Revoked { partitions, lost } => {
                assert!(!lost, "members poll in time");
                self.commit_read(&partitions);
                self.source().finish_revoke(&partitions).unwrap();
                for partition in partitions {
                    self.assigned.remove(&partition);
                    self.revoked.insert(partition);
                }
            }
            SourceEvent::Idle => {}
            SourceEvent::Fault(error) => self.faults.push(error),
            SourceEvent::Fatal(error) => panic!("{error}"),
        }
    }

    fn commit_read(&mut self, partitions: &[u32]) {
        let commits: Vec<Commit> = partitions
            .iter()
            .filter_map(|partition| {
                let last = self.records.iter().rfind(|record| record.partition == *partition)?;
                Some(Commit {
                    partition: *partition,
                    offset: last.offset + 1,
                    metadata: String::new(),
                })
            })
            .collect();
        match self.source().commit(&commits, CommitMode::Sync) {
            Err(Error::Fenced { .. }) if self.may_be_fenced => {}
            result => result.unwrap(),
        }
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(
                begun.elapsed() < WITHIN,
                "{what}: not in time; faults: {:?}",
                self.faults
            );
            self.turn();
        }
    }

    fn owned(&self) -> BTreeSet<u32> {
        self.assigned.keys().copied().collect()
    }

    fn values(&self, partition: u32) -> Vec<String> {
        self.records
            .iter()
            .filter(|record| record.partition == partition)
            .map(|record| String::from_utf8(record.value.clone().unwrap_or_default().to_vec()).unwrap())
            .collect()
    }

    fn close(&mut self) {
        let begun = Instant::now();
        self.source.take().expect("open").close(CLOSE);
        assert!(begun.elapsed() < CLOSE, "closed in time");
    }
}

fn record(topic: Topic, partition: u32, value: impl Into<String>) -> OutRecord {
    OutRecord {
        topic,
        partition,
        key: Some(Bytes::from_static(b"key")),
        value: Some(Bytes::from(value.into())),
        headers: Headers::new(),
    }
}

fn numbered(topic: Topic, partition: u32, numbers: std::ops::Range<u32>) -> Vec<OutRecord> {
    numbers
        .map(|number| record(topic, partition, format!("{number}")))
        .collect()
}

fn texts(numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn records_come_back_as_they_were_written() {
    let fixture = Fixture::new().await;
    let mut headers = Headers::new();
    headers.push("src", Bytes::from_static(&[0, 255, 3]));
    headers.push("other", Bytes::from_static(b""));
    let records = vec![
        OutRecord {
            headers: headers.clone(),
            ..record(Topic::Dlq, 0, "whole")
        },
        OutRecord {
            key: None,
            ..record(Topic::Dlq, 0, "no key")
        },
        OutRecord {
            value: None,
            ..record(Topic::Dlq, 0, "")
        },
        OutRecord {
            key: Some(Bytes::new()),
            value: Some(Bytes::new()),
            ..record(Topic::Dlq, 0, "")
        },
        OutRecord {
            value: Some(Bytes::from(vec![7; 2_000_000])),
            ..record(Topic::Dlq, 0, "")
        },
    ];
    let before = SystemClock.now();
    let confirmed = fixture.write(records.clone()).await;
    let mut member = fixture.member(ConsumerGroup::DeadLetterCompensator);
    member.until("all records", |member| member.records.len() == records.len());
    for ((offset, written), (read, confirmed)) in (0..).zip(records).zip(member.records.iter().zip(confirmed)) {
        assert_eq!((read.topic, read.partition, read.offset), (Topic::Dlq, 0, offset));
        assert_eq!(read.key, written.key);
        assert_eq!(read.value, written.value);
        assert_eq!(read.headers, written.headers);
        assert_eq!(confirmed.offset, Some(offset));
        assert_eq!(
            confirmed.append_time,
            Some(read.append_time),
            "the report tells the log's time"
        );
        assert!(read.append_time >= before.minus(CLOCK_ERROR));
    }
    member.close();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broker_time_is_measured_from_reports() {
    let fixture = Fixture::new().await;
    let ahead = tidings_domain::clock::ManualClock::at(Millis(SystemClock.now().0 + 3_600_000));
    let bus = KafkaBus::new(
        KafkaConfig::new([fixture.bootstrap.clone()]),
        fixture.bus.catalogue().clone(),
        Arc::new(ahead),
    )
    .unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    let probe = bus
        .spawn_time_probe(&tokio::runtime::Handle::current(), stop.clone())
        .unwrap();
    let begun = Instant::now();
    while bus.broker_time().now() > SystemClock.now().plus(CLOCK_ERROR) {
        assert!(begun.elapsed() < WITHIN, "an idle process learns the broker's time");
        tokio::time::sleep(POLL).await;
    }
    assert!(bus.broker_time().now() > SystemClock.now().minus(WITHIN));
    stop.cancel();
    probe.await.unwrap();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_with_their_metadata_are_read_back_and_reading_continues_there() {
    let fixture = Fixture::new().await;
    fixture.write(numbered(Topic::Ingress, 1, 0..10)).await;
    let mut member = fixture.member(ConsumerGroup::Router);
    member.until("all partitions and records", |member| {
        member.assigned.len() == 4 && member.records.len() == 10
    });
    assert!(member.assigned.values().all(|partition| partition.committed.is_none()));
    assert_eq!((member.assigned[&1].log_start, member.assigned[&1].log_end), (0, 10));
    let commit = |offset, metadata: &str| Commit {
        partition: 1,
        offset,
        metadata: metadata.to_owned(),
    };
    member
        .source()
        .commit(&[commit(3, "first")], CommitMode::Async)
        .unwrap();
    member
        .source()
        .commit(&[commit(6, "v=42;é")], CommitMode::Sync)
        .unwrap();
    let too_long = "m".repeat(4097);
    assert!(
        member
            .source()
            .commit(&[commit(7, &too_long)], CommitMode::Sync)
            .is_err()
    );
    assert!(member.faults.is_empty(), "{:?}", member.faults);
    member.close();

    let mut again = fixture.member(ConsumerGroup::Router);
    again.until("the rest", |member| member.records.len() == 4);
    assert_eq!(
        again.assigned[&1].committed,
        Some(Committed {
            offset: 6,
            metadata: "v=42;é".to_owned()
        })
    );
    assert_eq!(again.values(1), texts(6..10));
    again.close();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_member_takes_over_what_the_first_gave_up_and_committed() {
    two_members(Fixture::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_side_group_protocol_keeps_the_same_promise() {
    two_members(Fixture::with(|config| config.group_protocol = GroupProtocol::Consumer).await).await;
}

async fn two_members(fixture: Fixture) {
    let all: BTreeSet<u32> = (0..4).collect();
    let everywhere = |numbers: std::ops::Range<u32>| {
        (0..4)
            .flat_map(|p| numbered(Topic::History, p, numbers.clone()))
            .collect()
    };
    fixture.write(everywhere(0..50)).await;
    let mut first = fixture.member(ConsumerGroup::StorageConsumer);
    first.until("all to the first", |member| {
        member.owned() == all && member.records.len() == 200
    });

    let mut second = fixture.member(ConsumerGroup::StorageConsumer);
    let begun = Instant::now();
    while first.assigned.len() != 2 || second.assigned.len() != 2 {
        assert!(begun.elapsed() < WITHIN, "{:?} and {:?}", first.owned(), second.owned());
        first.turn();
        second.turn();
    }
    assert_eq!(first.revoked, second.owned(), "moved only after it was given up");
    assert!(first.owned().is_disjoint(&second.owned()));
    for partition in second.assigned.values() {
        assert_eq!(partition.committed.as_ref().map(|committed| committed.offset), Some(50));
    }
    let moved = *second.assigned.keys().next().unwrap();
    let refused = first.source().commit(
        &[Commit {
            partition: moved,
            offset: 1,
            metadata: String::new(),
        }],
        CommitMode::Sync,
    );
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");

    fixture.write(everywhere(50..80)).await;
    let begun = Instant::now();
    while first.records.len() < 260 || second.records.len() < 60 {
        assert!(
            begun.elapsed() < WITHIN,
            "{} and {}",
            first.records.len(),
            second.records.len()
        );
        first.turn();
        second.turn();
    }
    for partition in second.owned() {
        assert_eq!(
            second.values(partition),
            texts(50..80),
            "nothing twice, nothing left out"
        );
    }
    for partition in first.owned() {
        assert_eq!(first.values(partition), texts(0..80));
    }

    let leaving = second.owned();
    second.commit_read(&leaving.iter().copied().collect::<Vec<_>>());
    second.close();
    first.until("all to the first again", |member| member.owned() == all);
    for partition in leaving {
        let committed = first.assigned[&partition].committed.as_ref();
        assert_eq!(committed.map(|committed| committed.offset), Some(80));
    }
    assert!(first.faults.is_empty(), "{:?}", first.faults);
    first.close();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_read_before_the_start_and_a_revocation_waits_for_its_answer() {
    // Members learn of a rebalance by their heartbeat, every fourth of this.
    let fixture = Fixture::with(|config| config.session_timeout = Duration::from_secs(6)).await;
    fixture
        .write((0..4).flat_map(|p| numbered(Topic::Push, p, 0..5)).collect())
        .await;
    let mut first = fixture.bus.source(ConsumerGroup::PushFanout).unwrap();
    let begun = Instant::now();
    let assigned = loop {
        assert!(begun.elapsed() < WITHIN, "assigned in time");
        if let SourceEvent::Assigned(partitions) = first.poll(POLL) {
            break partitions;
        }
    };
    assert_eq!(assigned.len(), 4);
    let nothing = first.poll(Duration::from_secs(1));
    assert!(matches!(nothing, SourceEvent::Idle), "{nothing:?}");
    first.start(2, 1).unwrap();
    assert!(first.start(2, 1).is_err(), "started once");
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < WITHIN, "records in time");
        if let SourceEvent::Records(records) = first.poll(POLL) {
            assert!(records.iter().all(|record| record.partition == 2));
            assert_eq!(records[0].offset, 1);
            break;
        }
    }

    let mut second = fixture.member(ConsumerGroup::PushFanout);
    let begun = Instant::now();
    let revoked = loop {
        assert!(begun.elapsed() < WITHIN, "revoked in time");
        second.turn();
        if let SourceEvent::Revoked { partitions, lost } = first.poll(POLL) {
            assert!(!lost);
            break partitions;
        }
    };
    assert_eq!(revoked.len(), 2);
    for _ in 0..30 {
        second.turn();
        let waiting = first.poll(POLL);
        assert!(matches!(waiting, SourceEvent::Idle), "{waiting:?}");
    }
    assert!(second.assigned.is_empty(), "the group waits for the answer");
    first.finish_revoke(&revoked[..1]).unwrap();
    for _ in 0..30 {
        second.turn();
        first.poll(POLL);
    }
    assert!(second.assigned.is_empty(), "for the whole of it");
    first.finish_revoke(&revoked[1..]).unwrap();
    let begun = Instant::now();
    while second.owned() != revoked.iter().copied().collect() {
        assert!(begun.elapsed() < WITHIN, "taken over in time");
        second.turn();
        first.poll(POLL);
    }
    second.close();
    first.close(CLOSE);
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_polled_too_late_is_told_that_its_partitions_are_lost() {
    polled_too_late(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_polled_too_late_in_a_rebalance_is_told_that_its_partitions_are_lost() {
    polled_too_late(true).await;
}

async fn polled_too_late(in_rebalance: bool) {
    let fixture = Fixture::with(|config| {
        // The least that brokers allow.
        config.session_timeout = Duration::from_secs(6);
        config.max_poll_interval = Duration::from_secs(6);
    })
    .await;
    let all: BTreeSet<u32> = (0..4).collect();
    fixture.write(numbered(Topic::Ingress, 2, 0..3)).await;
    let mut late = fixture.member(ConsumerGroup::Router);
    late.until("all to the first", |member| {
        member.owned() == all && member.records.len() == 3
    });
    if !in_rebalance {
        let group = fixture.name(Topic::Ingress).replace("ingress.v1", "router");
        let admin = fixture.admin();
        let begun = Instant::now();
        let members = || {
            let groups = admin.inner().fetch_group_list(Some(&group), WITHIN).unwrap();
            groups.groups()[0].members().len()
        };
        while members() > 0 {
            assert!(begun.elapsed() < WITHIN, "thrown out in time");
            tokio::time::sleep(POLL).await;
        }
    }
    let mut other = fixture.member(ConsumerGroup::Router);
    other.until("all to the one that polls", |member| member.owned() == all);

    let begun = Instant::now();
    let mut lost_partitions = BTreeSet::new();
    while !lost_partitions.contains(&2) {
        assert!(begun.elapsed() < WITHIN, "revoked in time: {lost_partitions:?}");
        other.turn();
        if let SourceEvent::Revoked { partitions, lost } = late.source().poll(POLL) {
            assert!(lost);
            let commit = Commit {
                partition: partitions[0],
                offset: 0,
                metadata: String::new(),
            };
            let refused = late.source().commit(&[commit], CommitMode::Sync);
            assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
            late.source().finish_revoke(&partitions).unwrap();
            for partition in &partitions {
                late.assigned.remove(partition);
            }
            lost_partitions.extend(partitions);
        }
    }
    assert_eq!(lost_partitions, all);
    late.may_be_fenced = true;
    let begun = Instant::now();
    while late.assigned.len() != 2 || other.assigned.len() != 2 || !late.owned().is_disjoint(&other.owned()) {
        assert!(begun.elapsed() < WITHIN, "{:?} and {:?}", late.owned(), other.owned());
        late.turn();
        other.turn();
    }
    fixture
        .write((0..4).map(|p| record(Topic::Ingress, p, "after")).collect())
        .await;
    late.records.clear();
    other.records.clear();
    let begun = Instant::now();
    while late.records.len() + other.records.len() < 4 {
        assert!(begun.elapsed() < WITHIN, "{:?} and {:?}", late.records, other.records);
        late.turn();
        other.turn();
    }
    late.close();
    other.close();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_owes_the_group_answers_closes_in_time() {
    let fixture = Fixture::new().await;
    // Never polled; assigned and not started; and one whose revocation was not answered.
    fixture.bus.source(ConsumerGroup::Router).unwrap().close(CLOSE);
    let mut first = fixture.bus.source(ConsumerGroup::OfflineInbox).unwrap();
    let begun = Instant::now();
    while !matches!(first.poll(POLL), SourceEvent::Assigned(_)) {
        assert!(begun.elapsed() < WITHIN, "assigned in time");
    }
    let mut second = fixture.member(ConsumerGroup::OfflineInbox);
    while !matches!(first.poll(POLL), SourceEvent::Revoked { .. }) {
        assert!(begun.elapsed() < WITHIN, "revoked in time");
        second.turn();
    }
    let begun = Instant::now();
    first.close(CLOSE);
    assert!(begun.elapsed() < CLOSE);
    second.until("all to the one that stays", |member| member.assigned.len() == 4);
    // Dropped without a close: the group learns it as well.
    drop(second.source.take());
    let mut third = fixture.member(ConsumerGroup::OfflineInbox);
    third.until("all to the next", |member| member.assigned.len() == 4);
    third.close();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_partition_resumes_after_the_last_record_delivered_and_a_seek_moves_it() {
    let fixture = Fixture::new().await;
    fixture.write(numbered(Topic::Trace, 0, 0..3)).await;
    let mut member = fixture.member(ConsumerGroup::StorageConsumerTrace);
    member.until("the first records", |member| member.records.len() == 3);
    member.source().pause(&[0]).unwrap();
    fixture.write(numbered(Topic::Trace, 0, 3..6)).await;
    for _ in 0..20 {
        member.turn();
    }
    assert_eq!(member.values(0), texts(0..3), "nothing while paused");
    member.source().resume(&[0]).unwrap();
    member.source().resume(&[0]).unwrap();
    member.until("the rest", |member| member.records.len() == 6);
    assert_eq!(member.values(0), texts(0..6));

    member.records.clear();
    member.source().seek(0, 4).unwrap();
    member.until("again from there", |member| member.records.len() == 2);
    assert_eq!(member.values(0), texts(4..6));

    member.records.clear();
    member.source().pause(&[0]).unwrap();
    member.source().seek(0, 1).unwrap();
    member.source().resume(&[0]).unwrap();
    member.until("from the place sought while paused", |member| member.records.len() == 5);
    assert_eq!(member.values(0), texts(1..6));
    member.close();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seek_and_a_pause_right_after_the_start_hold() {
    let fixture = Fixture::new().await;
    fixture.write(numbered(Topic::Trace, 0, 0..20)).await;
    let mut source = fixture.bus.source(ConsumerGroup::StorageConsumerTrace).unwrap();
    let begun = Instant::now();
    while !matches!(source.poll(POLL), SourceEvent::Assigned(_)) {
        assert!(begun.elapsed() < WITHIN, "assigned in time");
    }
    assert!(source.seek(0, 1).is_err(), "not started");
    source.start(0, 3).unwrap();
    source.seek(0, 12).unwrap();
    source.pause(&[0]).unwrap();
    let nothing = source.poll(Duration::from_secs(1));
    assert!(matches!(nothing, SourceEvent::Idle), "{nothing:?}");
    source.resume(&[0]).unwrap();
    let mut member = Member::new(source);
    member.until("the rest", |member| member.records.len() == 8);
    assert_eq!(member.values(0), texts(12..20));
    member.close();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_ends_are_known_at_assignment_and_follow_what_others_write() {
    let fixture = Fixture::new().await;
    fixture.write(numbered(Topic::Inbox, 3, 0..7)).await;
    let mut member = fixture.member(ConsumerGroup::OfflineInbox);
    member.until("all partitions", |member| member.assigned.len() == 4);
    assert_eq!(member.source().log_ends(&[0, 3, 9]), vec![Some(0), Some(7), None]);
    fixture.write(numbered(Topic::Inbox, 3, 7..12)).await;
    fixture.write(numbered(Topic::Inbox, 0, 0..1)).await;
    let begun = Instant::now();
    while member.source().log_ends(&[0, 3]) != vec![Some(1), Some(12)] {
        assert!(begun.elapsed() < WITHIN, "{:?}", member.source().log_ends(&[0, 3]));
        member.turn();
    }
    member.close();
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fold_is_told_that_its_position_is_outside_the_log() {
    let fixture = Fixture::new().await;
    fixture.write(numbered(Topic::Ingress, 0, 0..10)).await;
    let mut source = fixture.bus.source(ConsumerGroup::Router).unwrap();
    let begun = Instant::now();
    while !matches!(source.poll(POLL), SourceEvent::Assigned(_)) {
        assert!(begun.elapsed() < WITHIN, "assigned in time");
    }
    let error = source.start(0, 11).unwrap_err();
    assert!(matches!(error, Error::NotSetUp { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("partition 0: offset 11 is outside the log, which has 0 to 10"),
        "{error}"
    );

    // The log's start moves past the position that was given at assignment.
    let mut list = rdkafka::TopicPartitionList::new();
    list.add_partition_offset(fixture.name(Topic::Ingress), 0, rdkafka::Offset::Offset(8))
        .unwrap();
    fixture
        .admin()
        .delete_records(&list, &AdminOptions::new())
        .await
        .unwrap();
    source.start(0, 5).unwrap();
    let begun = Instant::now();
    let fault = loop {
        assert!(begun.elapsed() < WITHIN, "the fault is told");
        let event = source.poll(POLL);
        if let SourceEvent::Fault(fault) = event {
            break fault;
        }
        assert!(matches!(event, SourceEvent::Idle), "{event:?}");
    };
    assert!(matches!(fault, Error::NotSetUp { .. }), "{fault}");
    assert!(
        fault
            .to_string()
            .contains("partition 0: offset 5 is outside the log, which has 8 to 10"),
        "{fault}"
    );
    source.close(CLOSE);
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_created_once_and_each_difference_is_named() {
    let fixture = Fixture::without_topics(|_| {});
    let name = |topic| fixture.name(topic).to_owned();
    assert_eq!(
        fixture.bus.check_topics(&[Topic::Push]).await.unwrap(),
        vec![format!("{}: the topic is missing", name(Topic::Push))]
    );
    let done = fixture.bus.apply_topics().await.unwrap();
    let created: Vec<String> = Topic::ALL
        .into_iter()
        .map(|topic| format!("created {}", name(topic)))
        .collect();
    assert_eq!(done, created);
    assert_eq!(fixture.bus.apply_topics().await.unwrap(), Vec::<String>::new());
    assert_eq!(
        fixture.bus.check_topics(&Topic::ALL).await.unwrap(),
        Vec::<String>::new()
    );

    let admin = fixture.admin();
    let push = name(Topic::Push);
    // Replaces all settings of the topic: those not named go back to the broker's defaults.
    let altered = AlterConfig::new(ResourceSpecifier::Topic(&push))
        .set("retention.ms", "1000")
        .set("message.timestamp.type", "LogAppendTime")
        .set("max.message.bytes", "1048576");
    admin.alter_configs([&altered], &AdminOptions::new()).await.unwrap();
    let trace = name(Topic::Trace);
    admin
        .create_partitions([&NewPartitions::new(&trace, 3)], &AdminOptions::new())
        .await
        .unwrap();
    let expected = vec![
        format!("{trace}: partitions should be 1, is 3"),
        format!("{push}: retention.ms should be 86400000, is 1000"),
    ];
    let begun = Instant::now();
    loop {
        let found = fixture.bus.check_topics(&[Topic::Push, Topic::Trace]).await.unwrap();
        if found == expected {
            break;
        }
        assert!(begun.elapsed() < WITHIN, "{found:?}");
        tokio::time::sleep(POLL).await;
    }
    let done = fixture.bus.apply_topics().await.unwrap();
    assert_eq!(done.len(), 2, "{done:?}");
    assert!(done.iter().all(|line| line.starts_with("not changed: ")), "{done:?}");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_without_its_topic_says_so_and_goes_on_when_it_is_there() {
    let fixture = Fixture::without_topics(|_| {});
    let mut member = fixture.member(ConsumerGroup::Router);
    member.until("a fault", |member| !member.faults.is_empty());
    assert!(
        matches!(member.faults[0], Error::NotSetUp { .. }),
        "{:?}",
        member.faults
    );
    fixture.bus.apply_topics().await.unwrap();
    member.until("assigned", |member| member.assigned.len() == 4);
    member.close();
    fixture.end().await;
}
