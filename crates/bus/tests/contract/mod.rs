//! The contract of the bus and its consumer runtime, the same for every adapter (architecture.md section 5).
//!
//! An adapter's test file gives a [`Ground`] with topics of its own to each case of [`contract_cases`]. Faults come from
//! [`faults::FaultyBus`], at the same points whatever lies below.

pub(crate) mod faults;
pub(crate) mod folds;
pub(crate) mod handlers;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tidings_bus::handler::{Cause, Handler, Outcome};
use tidings_bus::metrics::Metrics;
use tidings_bus::producer::{Confirmation, DeliverySink, ProduceError, ProducerProfile};
use tidings_bus::runtime::{ConsumerHandle, FoldConfig, HandlerConfig, Runtime, RuntimeConfig, spawn_handler};
use tidings_bus::{Bus, ConsumerGroup, Headers, LogRecord, OutRecord};
use tidings_domain::Topic;
use tidings_domain::clock::SystemClock;
use tidings_resilience::BackoffPolicy;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::faults::FaultyBus;

/// For everything that should happen; a real broker on a loaded machine is slow to rebalance.
const DEADLINE: Duration = Duration::from_secs(60);

/// Topics of one case's own.
pub(crate) struct Ground {
    /// The adapter.
    pub(crate) bus: Arc<dyn Bus>,
    /// What lives as long as the case: directories, databases.
    pub(crate) _keep: Box<dyn std::any::Any + Send>,
}

/// A process: one runtime on a bus with faults. Several on one ground are members of the same groups.
pub(crate) struct Process {
    pub(crate) bus: FaultyBus,
    pub(crate) runtime: Runtime,
}

impl Process {
    pub(crate) fn new(ground: &Ground) -> Self {
        let bus = FaultyBus::new(Arc::clone(&ground.bus));
        let runtime = Runtime::new(
            Arc::new(bus.clone()),
            Arc::new(SystemClock),
            Metrics::default(),
            Handle::current(),
            CancellationToken::new(),
        );
        Self { bus, runtime }
    }

    /// Ends in order: drains, commits, leaves.
    pub(crate) async fn stop(&self, consumer: &ConsumerHandle) {
        self.runtime.stop.cancel();
        in_time("the consumer stops", consumer.stopped()).await;
    }

    /// Ends as after a crash: whatever is done from now on, the group never hears of it.
    pub(crate) async fn crash(&self, consumer: &ConsumerHandle) {
        self.bus.sever();
        self.stop(consumer).await;
    }
}

/// The defaults with shorter times.
pub(crate) fn quick() -> RuntimeConfig {
    RuntimeConfig {
        poll_timeout: Duration::from_millis(10),
        drain_deadline: Duration::from_secs(5),
        backoff: BackoffPolicy::new(Duration::from_millis(20), Duration::from_millis(100), 2.0, 0.5),
        fold: FoldConfig {
            idle_checkpoint: Duration::from_millis(20),
            ..FoldConfig::default()
        },
        handler: HandlerConfig {
            commit_interval: Duration::from_millis(20),
            ..HandlerConfig::default()
        },
        ..RuntimeConfig::default()
    }
}

pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(DEADLINE, wait).await.is_ok(),
        "not in time: {what}"
    );
}

pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(DEADLINE, future).await;
    result.unwrap_or_else(|_| panic!("not in time: {what}"))
}

pub(crate) fn out(topic: Topic, partition: u32, key: &str, value: impl Into<Bytes>) -> OutRecord {
    OutRecord {
        topic,
        partition,
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        value: Some(value.into()),
        headers: Headers::new(),
    }
}

#[derive(Default)]
struct Confirmations {
    results: Mutex<Vec<Result<Confirmation, ProduceError>>>,
    told: Notify,
}

impl DeliverySink for Confirmations {
    fn delivered(&self, _: u64, result: Result<Confirmation, ProduceError>) {
        self.results.lock().push(result);
        self.told.notify_one();
    }
}

/// Writes records in order and waits until all are confirmed.
pub(crate) async fn produce(ground: &Ground, records: Vec<OutRecord>) {
    let producer = ground.bus.producer(ProducerProfile::Ack).expect("a producer");
    let confirmations = Arc::new(Confirmations::default());
    let sink: Arc<dyn DeliverySink> = Arc::clone(&confirmations) as Arc<dyn DeliverySink>;
    let count = records.len();
    for record in records {
        let mut record = record;
        while let Err(refused) = producer.enqueue(record, &sink, 0) {
            assert_eq!(refused.error, ProduceError::QueueFull);
            record = refused.record;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    in_time("confirmations", async {
        while confirmations.results.lock().len() < count {
            confirmations.told.notified().await;
        }
    })
    .await;
    for result in confirmations.results.lock().iter() {
        assert!(result.is_ok(), "{result:?}");
    }
}

type Decide = dyn Fn(&LogRecord, usize) -> Outcome + Send + Sync;

/// Asks a closure for each record and how often it was given before; remembers what it was given.
pub(crate) struct Scripted {
    decide: Box<Decide>,
    seen: Mutex<Vec<LogRecord>>,
    given: Mutex<HashMap<(u32, u64), usize>>,
}

impl Scripted {
    pub(crate) fn new(decide: impl Fn(&LogRecord, usize) -> Outcome + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            decide: Box::new(decide),
            seen: Mutex::default(),
            given: Mutex::default(),
        })
    }

    pub(crate) fn done() -> Arc<Self> {
        Self::new(|_, _| Outcome::Done)
    }

    /// Everything given, in order.
    pub(crate) fn seen(&self) -> Vec<LogRecord> {
        self.seen.lock().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().len()
    }

    /// Offsets given, in order.
    pub(crate) fn offsets(&self) -> Vec<u64> {
        self.seen.lock().iter().map(|record| record.offset).collect()
    }
}

#[async_trait]
impl Handler for Scripted {
    async fn handle(&self, batch: &[LogRecord]) -> Vec<Outcome> {
        let outcomes = batch.iter().map(|record| {
            let before = {
                let mut given = self.given.lock();
                let times = given.entry((record.partition, record.offset)).or_insert(0);
                *times += 1;
                *times - 1
            };
            (self.decide)(record, before)
        });
        let outcomes = outcomes.collect();
        self.seen.lock().extend_from_slice(batch);
        outcomes
    }
}

pub(crate) fn later() -> Outcome {
    Outcome::RetryLater(Cause {
        error_class: "test",
        detail: "ordered by the test".to_owned(),
        dependency_down: true,
    })
}

/// Reads `count` records of a topic with its group.
pub(crate) async fn read(ground: &Ground, group: ConsumerGroup, count: usize) -> Vec<LogRecord> {
    let process = Process::new(ground);
    let handler = Scripted::done();
    let consumer = spawn_handler(&process.runtime, group, handler.clone(), quick()).expect("a thread");
    until("records to read", || handler.count() >= count).await;
    process.stop(&consumer).await;
    handler.seen()
}

/// One test per case of the contract, on the grounds that `$ground` makes.
macro_rules! contract_cases {
    ($ground:path) => {
        contract_cases! {
            $ground;
            handlers: order_is_kept_per_key,
            handlers: commits_only_the_contiguous_prefix_and_redelivers_from_it_after_a_crash,
            handlers: what_was_not_committed_is_redelivered_after_a_crash,
            handlers: a_key_that_waits_keeps_its_order_and_lets_others_pass,
            handlers: a_rejected_record_settles_when_its_dead_letter_is_confirmed,
            handlers: null_empty_and_garbage_values_and_large_headers_come_through_dlq_unchanged,
            handlers: a_slow_handler_bounds_what_is_in_memory,
            folds: offset_and_metadata_come_back_as_committed,
            folds: a_checkpoint_waits_for_confirmations,
            folds: a_producer_error_ends_all_runs_and_no_output_is_lost_or_doubled,
            folds: a_confirmation_without_offset_is_a_producer_error,
            folds: an_outcome_that_is_not_known_is_a_producer_error,
            folds: what_was_not_checkpointed_is_folded_again_after_a_crash,
            folds: a_position_outside_the_log_stops_the_partition,
        }
    };
    ($ground:path; $($module:ident: $case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                contract::$module::$case(&$ground().await).await;
            }
        )*
    };
}
pub(crate) use contract_cases;
