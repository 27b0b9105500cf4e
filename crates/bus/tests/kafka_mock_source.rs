//! The Kafka source before a broker that misbehaves on order (librdkafka's mock cluster): positions are never guessed,
//! and no call waits without a bound.

#![cfg(feature = "kafka")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::bindings::rd_kafka_resp_err_t as Code;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::RDKafkaApiKey;
use tidings_bus::catalogue::{Durability, PartitionCounts};
use tidings_bus::kafka::{KafkaBus, KafkaConfig};
use tidings_bus::producer::{Confirmation, DeliverySink, ProduceError, ProducerProfile};
use tidings_bus::source::{AssignedPartition, Commit, CommitMode, Source, SourceEvent};
use tidings_bus::{Bus, Catalogue, ConsumerGroup, Error, Headers, OutRecord};
use tidings_domain::Topic;
use tidings_domain::clock::SystemClock;

/// The mock cluster lets a new group wait 3 s for further members.
const WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

struct Fixture {
    cluster: MockCluster<'static, DefaultProducerContext>,
    source: Box<dyn Source>,
}

impl Fixture {
    fn new(prepare: impl FnOnce(&MockCluster<'static, DefaultProducerContext>)) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        let catalogue = Catalogue::new(Durability::Single, PartitionCounts::DEV);
        for spec in catalogue.topics() {
            cluster
                .create_topic(&spec.name, i32::try_from(spec.partitions).unwrap(), 1)
                .unwrap();
        }
        let config = KafkaConfig::new([cluster.bootstrap_servers()]);
        let bus = KafkaBus::new(config, catalogue, Arc::new(SystemClock)).unwrap();
        write_one_each(&bus);
        prepare(&cluster);
        Self {
            source: bus.source(ConsumerGroup::Router).unwrap(),
            cluster,
        }
    }

    /// Polls until all four partitions are told; the faults met on the way.
    fn assigned(&mut self) -> (Vec<AssignedPartition>, Vec<Error>) {
        let begun = Instant::now();
        let mut assigned = Vec::new();
        let mut faults = Vec::new();
        while assigned.len() < 4 {
            assert!(begun.elapsed() < WITHIN, "assigned in time; faults: {faults:?}");
            let event = self.source.poll(POLL);
            if let SourceEvent::Assigned(partitions) = event {
                assigned.extend(partitions);
            } else if let SourceEvent::Fault(fault) = event {
                faults.push(fault);
            } else {
                assert!(matches!(event, SourceEvent::Idle), "{event:?}");
            }
        }
        (assigned, faults)
    }
}

/// One record in each partition, so that start and end of the log differ.
fn write_one_each(bus: &KafkaBus) {
    struct Confirmed;
    impl DeliverySink for Confirmed {
        fn delivered(&self, _: u64, result: Result<Confirmation, ProduceError>) {
            result.unwrap();
        }
    }
    let producer = bus.producer(ProducerProfile::Internal).unwrap();
    let sink: Arc<dyn DeliverySink> = Arc::new(Confirmed);
    for partition in 0..4 {
        let record = OutRecord {
            topic: Topic::Ingress,
            partition,
            key: None,
            value: Some(Bytes::from_static(b"value")),
            headers: Headers::new(),
        };
        producer.enqueue(record, &sink, 0).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    assert_eq!(runtime.block_on(producer.flush(WITHIN)), 0);
    assert_eq!(producer.health(), Ok(()));
}

fn commit(partition: u32, offset: u64) -> Commit {
    Commit {
        partition,
        offset,
        metadata: "v".to_owned(),
    }
}

#[test]
fn committed_positions_that_cannot_be_had_are_asked_for_again() {
    asked_again(
        RDKafkaApiKey::OffsetFetch,
        &[Code::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED],
    );
}

#[test]
fn log_bounds_that_cannot_be_had_are_asked_for_again() {
    // One is made up for by asking for each partition alone; then the request of one of these fails too.
    asked_again(
        RDKafkaApiKey::ListOffsets,
        &[Code::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 2],
    );
}

fn asked_again(api: RDKafkaApiKey, errors: &[Code]) {
    let mut fixture = Fixture::new(|cluster| cluster.request_errors(api, errors));
    let (assigned, faults) = fixture.assigned();
    assert!(!faults.is_empty(), "the injected error was met");
    assert!(
        faults.iter().all(|fault| matches!(fault, Error::NotSetUp { .. })),
        "{faults:?}"
    );
    for partition in assigned {
        assert_eq!(partition.committed, None);
        assert_eq!((partition.log_start, partition.log_end), (0, 1));
    }
    fixture.source.close(WITHIN);
}

#[test]
fn with_the_broker_away_neither_commit_nor_close_wait_for_ever() {
    let mut fixture = Fixture::new(|_| {});
    fixture.assigned();
    fixture.source.start(1, 0).unwrap();
    fixture.source.commit(&[commit(1, 0)], CommitMode::Sync).unwrap();
    fixture.cluster.broker_down(1).unwrap();
    let begun = Instant::now();
    let refused = fixture.source.commit(&[commit(1, 0)], CommitMode::Sync);
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "within what a revocation may take: {:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    fixture.source.close(Duration::from_secs(1));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn a_commit_the_group_refuses_is_fenced() {
    let mut fixture = Fixture::new(|_| {});
    fixture.assigned();
    fixture.cluster.request_errors(
        RDKafkaApiKey::OffsetCommit,
        &[Code::RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION],
    );
    let refused = fixture.source.commit(&[commit(0, 0)], CommitMode::Sync);
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    // One that is not waited for is told by the next poll.
    fixture.cluster.request_errors(
        RDKafkaApiKey::OffsetCommit,
        &[Code::RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION],
    );
    fixture.source.commit(&[commit(0, 0)], CommitMode::Async).unwrap();
    let begun = Instant::now();
    let fault = loop {
        assert!(begun.elapsed() < WITHIN, "told in time");
        if let SourceEvent::Fault(fault) = fixture.source.poll(POLL) {
            break fault;
        }
    };
    assert!(matches!(fault, Error::Fenced { .. }), "{fault}");
    fixture.source.close(WITHIN);
}
