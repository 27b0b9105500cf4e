//! The Kafka producer before a broker that misbehaves on order (librdkafka's mock cluster): what a report may and may
//! not say (req:B1, seq:G3, seq:R8a).

#![cfg(feature = "kafka")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use rdkafka::bindings::rd_kafka_resp_err_t as Code;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::RDKafkaApiKey;
use tidings_bus::catalogue::{Durability, MAX_RECORD_BYTES, PartitionCounts};
use tidings_bus::kafka::{KafkaBus, KafkaConfig};
use tidings_bus::producer::{Confirmation, DeliverySink, ProduceError, Producer, ProducerProfile};
use tidings_bus::{Bus, Catalogue, Headers, OutRecord};
use tidings_domain::Topic;
use tidings_domain::clock::SystemClock;

const WITHIN: Duration = Duration::from_secs(30);

type Report = Result<Confirmation, ProduceError>;

#[derive(Default)]
struct Reports(Mutex<BTreeMap<u64, Report>>);

impl DeliverySink for Reports {
    fn delivered(&self, tag: u64, result: Report) {
        let earlier = self.0.lock().insert(tag, result);
        assert!(earlier.is_none(), "two reports of record {tag}");
    }
}

impl Reports {
    fn count(&self) -> usize {
        self.0.lock().len()
    }

    fn of(&self, tag: u64) -> Report {
        self.0.lock()[&tag].clone()
    }
}

struct Fixture {
    cluster: MockCluster<'static, DefaultProducerContext>,
    producer: Arc<dyn Producer>,
    reports: Arc<Reports>,
    sink: Arc<dyn DeliverySink>,
}

impl Fixture {
    fn new(profile: ProducerProfile) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        let catalogue = Catalogue::new(Durability::Single, PartitionCounts::DEV);
        for spec in catalogue.topics() {
            cluster
                .create_topic(&spec.name, i32::try_from(spec.partitions).unwrap(), 1)
                .unwrap();
        }
        let config = KafkaConfig::new([cluster.bootstrap_servers()]);
        let bus = KafkaBus::new(config, catalogue, Arc::new(SystemClock)).unwrap();
        let reports = Arc::new(Reports::default());
        Self {
            cluster,
            producer: bus.producer(profile).unwrap(),
            sink: Arc::clone(&reports) as Arc<dyn DeliverySink>,
            reports,
        }
    }

    fn enqueue(&self, tag: u64) {
        self.producer.enqueue(record(b"value"), &self.sink, tag).unwrap();
    }

    async fn drained(&self) {
        assert_eq!(self.producer.flush(WITHIN).await, 0, "reports came");
    }
}

fn record(value: &'static [u8]) -> OutRecord {
    OutRecord {
        topic: Topic::Ingress,
        partition: 0,
        key: Some(Bytes::from_static(b"key")),
        value: Some(Bytes::from_static(value)),
        headers: Headers::new(),
    }
}

#[tokio::test]
async fn reports_tell_offsets_in_the_order_of_the_calls() {
    let fixture = Fixture::new(ProducerProfile::Internal);
    for tag in 0..200 {
        fixture.enqueue(tag);
    }
    fixture.drained().await;
    for tag in 0..200 {
        assert_eq!(fixture.reports.of(tag).unwrap().offset, Some(tag));
    }
    assert_eq!(fixture.producer.health(), Ok(()));
}

#[tokio::test]
async fn a_batch_known_only_as_a_duplicate_is_confirmed_without_offsets() {
    let fixture = Fixture::new(ProducerProfile::Internal);
    fixture.enqueue(0);
    fixture.drained().await;
    fixture.cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[Code::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER],
    );
    // One batch: the client counts offsets on from -1, so those of later records look like real ones.
    for tag in 1..=5 {
        fixture.enqueue(tag);
    }
    fixture.drained().await;
    let confirmations: Vec<Confirmation> = (1..=5).map(|tag| fixture.reports.of(tag).unwrap()).collect();
    assert!(
        confirmations.iter().any(|confirmation| confirmation.offset.is_none()),
        "the injected answer was met"
    );
    for (tag, confirmation) in (1..).zip(confirmations) {
        assert!(
            confirmation.offset.is_none_or(|offset| offset >= 1),
            "record {tag} was reported at the offset of another: {confirmation:?}"
        );
        assert_eq!(confirmation.offset.is_some(), confirmation.append_time.is_some());
    }
}

#[tokio::test]
async fn too_few_replicas_for_a_while_delay_reports_and_fail_none() {
    let fixture = Fixture::new(ProducerProfile::Ack);
    fixture.cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[
            Code::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            Code::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            Code::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            Code::RD_KAFKA_RESP_ERR__TRANSPORT,
        ],
    );
    for tag in 0..50 {
        fixture.enqueue(tag);
    }
    fixture.drained().await;
    let offsets: Vec<u64> = (0..50)
        .map(|tag| fixture.reports.of(tag).unwrap().offset.unwrap())
        .collect();
    assert!(offsets.is_sorted(), "order is kept over retries: {offsets:?}");
}

#[tokio::test]
async fn while_the_broker_is_down_reports_stay_out_and_come_when_it_is_back() {
    let fixture = Fixture::new(ProducerProfile::Ack);
    fixture.enqueue(0);
    fixture.drained().await;
    fixture.cluster.broker_down(1).unwrap();
    for tag in 1..=10 {
        fixture.enqueue(tag);
    }
    assert_eq!(
        fixture.producer.flush(Duration::from_secs(3)).await,
        10,
        "nothing is given up"
    );
    assert_eq!(fixture.reports.count(), 1);
    fixture.cluster.broker_up(1).unwrap();
    fixture.drained().await;
    for tag in 1..=10 {
        assert_eq!(fixture.reports.of(tag).unwrap().offset, Some(tag));
    }
}

#[tokio::test]
async fn a_record_that_is_too_large_fails_alone_and_at_once() {
    let fixture = Fixture::new(ProducerProfile::Internal);
    fixture.enqueue(0);
    let mut large = record(b"");
    large.value = Some(Bytes::from(vec![7; MAX_RECORD_BYTES as usize]));
    let refused = fixture.producer.enqueue(large.clone(), &fixture.sink, 1).unwrap_err();
    assert!(
        matches!(refused.error, ProduceError::TooLarge(_)),
        "{:?}",
        refused.error
    );
    assert_eq!(refused.record, large, "the record is given back");
    fixture.enqueue(2);
    // The same bytes fit in a dead letter.
    large.topic = Topic::Dlq;
    fixture.producer.enqueue(large, &fixture.sink, 3).unwrap();
    fixture.drained().await;
    assert_eq!(fixture.reports.of(0).unwrap().offset, Some(0));
    assert_eq!(fixture.reports.of(2).unwrap().offset, Some(1));
    assert_eq!(fixture.reports.of(3).unwrap().offset, Some(0));
    assert_eq!(fixture.reports.count(), 3, "none of the refused one");
}

#[tokio::test]
async fn a_record_the_broker_refuses_is_reported_and_later_ones_go_on() {
    let fixture = Fixture::new(ProducerProfile::Ack);
    fixture
        .cluster
        .request_errors(RDKafkaApiKey::Produce, &[Code::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
    fixture.enqueue(0);
    fixture.drained().await;
    assert!(matches!(fixture.reports.of(0), Err(ProduceError::TooLarge(_))));
    fixture.enqueue(1);
    fixture.drained().await;
    assert_eq!(fixture.reports.of(1).unwrap().offset, Some(0));
}

#[tokio::test]
async fn a_partition_the_topic_does_not_have_is_refused() {
    let fixture = Fixture::new(ProducerProfile::Ack);
    let mut elsewhere = record(b"value");
    elsewhere.partition = 4;
    let refused = fixture.producer.enqueue(elsewhere, &fixture.sink, 0).unwrap_err();
    assert!(
        matches!(&refused.error, ProduceError::Refused(reason) if reason.contains("partitions 0 to 3")),
        "{:?}",
        refused.error
    );
}

#[tokio::test]
async fn a_full_queue_is_told_at_once_and_keeps_what_it_has() {
    let fixture = Fixture::new(ProducerProfile::Ack);
    fixture.enqueue(0);
    fixture.drained().await;
    fixture.cluster.broker_down(1).unwrap();
    let mut accepted = 0;
    let refused = loop {
        match fixture.producer.enqueue(record(b"value"), &fixture.sink, 1 + accepted) {
            Ok(()) => accepted += 1,
            Err(refused) => break refused,
        }
        assert!(accepted <= 50_000, "the queue is bounded");
    };
    assert_eq!(refused.error, ProduceError::QueueFull);
    assert_eq!(fixture.producer.in_flight() as u64, accepted);
    fixture.cluster.broker_up(1).unwrap();
    fixture.drained().await;
    assert_eq!(fixture.reports.count() as u64, 1 + accepted);
}

#[tokio::test]
async fn records_under_way_when_the_producer_is_dropped_are_reported_all_the_same() {
    let Fixture {
        cluster: _cluster,
        producer,
        reports,
        sink,
    } = Fixture::new(ProducerProfile::Ack);
    for tag in 0..20 {
        producer.enqueue(record(b"value"), &sink, tag).unwrap();
    }
    let begun = Instant::now();
    drop(producer);
    assert!(begun.elapsed() < Duration::from_secs(1), "the drop does not wait");
    while reports.count() < 20 {
        assert!(begun.elapsed() < WITHIN, "all records are reported");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for tag in 0..20 {
        assert_eq!(reports.of(tag).unwrap().offset, Some(tag));
    }
}

#[tokio::test]
async fn a_dead_producer_is_unhealthy_takes_nothing_and_reports_what_it_had() {
    let fixture = Fixture::new(ProducerProfile::Internal);
    fixture.cluster.request_errors(
        RDKafkaApiKey::InitProducerId,
        &[Code::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 10],
    );
    let begun = Instant::now();
    let mut accepted = 0;
    let refused = loop {
        match fixture.producer.enqueue(record(b"value"), &fixture.sink, accepted) {
            Ok(()) => accepted += 1,
            Err(refused) => break refused,
        }
        assert!(begun.elapsed() < WITHIN, "the producer dies");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(matches!(refused.error, ProduceError::Fatal(_)), "{:?}", refused.error);
    assert!(fixture.producer.health().unwrap_err().contains("dead"));
    fixture.drained().await;
    for tag in 0..accepted {
        assert!(fixture.reports.of(tag).is_err());
    }
}
