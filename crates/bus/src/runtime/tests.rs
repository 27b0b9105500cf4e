//! The runtime on a log in memory: what cannot be provoked on a real one, or not quickly. The rest is in the contract
//! suite.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use tidings_domain::Topic;
use tidings_domain::clock::SystemClock;
use tidings_proto::v1::DlqResolved;
use tidings_resilience::BackoffPolicy;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::testing::{FakeBus, Fault};
use super::*;
use crate::acks::AckFault;
use crate::dead_letter::{self, Rejection};
use crate::fold::{Emitter, Fold, FoldCommit, FoldError, FoldStart};
use crate::handler::{Cause, Outcome};
use crate::metrics::{CauseLabels, KindLabels, group_labels, partition_labels};
use crate::producer::ProduceError;
use crate::source::{AssignedPartition, CommitMode, SourceEvent};
use crate::{Error, Headers, LogRecord, OutRecord};

const DEADLINE: Duration = Duration::from_secs(20);
const HANDLERS: ConsumerGroup = ConsumerGroup::StorageConsumer;
const FOLDS: ConsumerGroup = ConsumerGroup::Router;

struct Setup {
    bus: FakeBus,
    runtime: Runtime,
}

fn setup() -> Setup {
    let bus = FakeBus::new();
    let runtime = Runtime::new(
        Arc::new(bus.clone()),
        Arc::new(SystemClock),
        Metrics::default(),
        Handle::current(),
        CancellationToken::new(),
    );
    Setup { bus, runtime }
}

fn quick() -> RuntimeConfig {
    RuntimeConfig {
        poll_timeout: Duration::from_millis(5),
        drain_deadline: Duration::from_millis(300),
        backoff: BackoffPolicy::new(Duration::from_millis(10), Duration::from_millis(50), 2.0, 0.5),
        fold: FoldConfig {
            idle_checkpoint: Duration::from_millis(5),
            ..FoldConfig::default()
        },
        handler: HandlerConfig {
            commit_interval: Duration::from_millis(10),
            ..HandlerConfig::default()
        },
        ..RuntimeConfig::default()
    }
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, wait).await.is_ok(), "in time: {what}");
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("in time: {what}"))
}

// --- handlers ---

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

/// The worker's result is on its way while the thread learns that the partition is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_of_an_earlier_assignment_is_dropped() {
    let Setup { bus, runtime } = setup();
    let config = RuntimeConfig {
        handler: HandlerConfig {
            batch_records: 1,
            commit_interval: Duration::ZERO,
            ..HandlerConfig::default()
        },
        ..quick()
    };
    let gate = Arc::new(Notify::new());
    let handler = Scripted::gated(Arc::clone(&gate));
    bus.append(Topic::History, 0, Some("k"), "a");
    bus.append(Topic::History, 0, Some("k"), "b");
    let consumer = spawn_handler(&runtime, HANDLERS, handler.clone(), config).unwrap();
    until("handed over", || handler.seen() == [0]).await;
    let worker = handler.clone();
    bus.inject_after(move || {
        gate.notify_one();
        // The position of the first is sent before the second is handed over.
        let deadline = std::time::Instant::now() + DEADLINE;
        while worker.seen().len() < 2 && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        SourceEvent::Revoked {
            partitions: vec![0],
            lost: true,
        }
    });
    // The same partition again, at once: the number alone does not tell the assignments apart.
    bus.inject(SourceEvent::Assigned(vec![AssignedPartition {
        partition: 0,
        committed: None,
        log_start: 0,
        log_end: 2,
    }]));
    let stale = || {
        runtime
            .metrics
            .stale_results
            .get_or_create(&group_labels(HANDLERS))
            .get()
    };
    until("dropped", || stale() == 1).await;
    until("given again", || handler.seen() == [0, 1, 0]).await;
    assert_eq!(bus.commits(), []);
    assert!(consumer.alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_partition_is_dropped_without_a_commit() {
    let Setup { bus, runtime } = setup();
    let config = RuntimeConfig {
        handler: HandlerConfig {
            commit_interval: Duration::from_secs(3600),
            ..HandlerConfig::default()
        },
        ..quick()
    };
    bus.append(Topic::History, 0, Some("k"), "a");
    let _consumer = spawn_handler(&runtime, HANDLERS, Scripted::new(|_, _| Outcome::Done), config).unwrap();
    let labels = group_labels(HANDLERS);
    until("settled", || runtime.metrics.settled.get_or_create(&labels).get() == 1).await;
    bus.inject(SourceEvent::Revoked {
        partitions: vec![0, 1],
        lost: true,
    });
    until("given up", || bus.revoked() == [vec![0, 1]]).await;
    assert_eq!(bus.commits(), []);
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

// --- folds ---

/// Counts records, emits each with the run's number, and remembers what it was told.
struct Counting {
    world: Arc<World>,
    run: usize,
    next: u64,
    applied: bool,
}

#[derive(Default)]
struct World {
    runs: AtomicUsize,
    starts: Mutex<Vec<AssignedPartition>>,
    begin_at: Mutex<Option<u64>>,
    fail_applies: Mutex<Vec<FoldError>>,
    panic_once: Mutex<bool>,
    applied: Mutex<Vec<u64>>,
}

struct Factory(Arc<World>);

impl FoldFactory for Factory {
    fn new_run(&self, _: u32) -> Box<dyn Fold> {
        Box::new(Counting {
            world: Arc::clone(&self.0),
            run: self.0.runs.fetch_add(1, Ordering::SeqCst) + 1,
            next: 0,
            applied: false,
        })
    }
}

#[async_trait]
impl Fold for Counting {
    async fn begin(&mut self, assigned: &AssignedPartition) -> Result<FoldStart, FoldError> {
        let committed = assigned.committed.as_ref();
        self.world.starts.lock().push(assigned.clone());
        let offset = self.world.begin_at.lock().unwrap_or(committed.map_or(0, |c| c.offset));
        self.next = offset;
        Ok(FoldStart { offset })
    }

    async fn apply(&mut self, batch: &[LogRecord], emitter: &mut dyn Emitter) -> Result<(), FoldError> {
        if std::mem::take(&mut *self.world.panic_once.lock()) {
            panic!("ordered by the test");
        }
        if let Some(error) = self.world.fail_applies.lock().pop() {
            return Err(error);
        }
        for record in batch {
            emitter
                .emit(OutRecord {
                    topic: Topic::Inbox,
                    partition: record.partition,
                    key: record.key.clone(),
                    value: Some(Bytes::from(format!("{}:{}", self.run, record.offset))),
                    headers: Headers::new(),
                })
                .await?;
            self.next = record.offset + 1;
            self.applied = true;
            self.world.applied.lock().push(record.offset);
        }
        Ok(())
    }

    async fn checkpoint(&mut self, emitter: &mut dyn Emitter) -> Result<Option<FoldCommit>, FoldError> {
        emitter.settled().await?;
        let applied = std::mem::take(&mut self.applied);
        Ok(applied.then(|| FoldCommit {
            offset: self.next,
            metadata: format!("run {} at {}", self.run, self.next),
        }))
    }
}

fn spawn_counting(runtime: &Runtime, config: RuntimeConfig) -> (Arc<World>, ConsumerHandle) {
    let world = Arc::new(World::default());
    let consumer = spawn_fold(runtime, FOLDS, Arc::new(Factory(Arc::clone(&world))), config).unwrap();
    (world, consumer)
}

fn restarts(runtime: &Runtime, cause: &'static str) -> u64 {
    let labels = CauseLabels {
        group: FOLDS.name(),
        cause,
    };
    runtime.metrics.fold_restarts.get_or_create(&labels).get()
}

fn at(bus: &FakeBus, partition: u32) -> u64 {
    bus.committed(FOLDS, partition).map_or(0, |c| c.offset)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fold_commits_offset_and_metadata_of_its_checkpoints() {
    let Setup { bus, runtime } = setup();
    for n in 0..1200 {
        bus.append(Topic::Ingress, 0, Some("k"), &n.to_string());
    }
    let (world, consumer) = spawn_counting(&runtime, quick());
    until("committed", || at(&bus, 0) == 1200).await;
    assert_eq!(bus.records(Topic::Inbox, 0).len(), 1200);
    bus.append(Topic::Ingress, 0, Some("k"), "last");
    until("committed when idle", || at(&bus, 0) == 1201).await;
    runtime.stop.cancel();
    in_time("stop", consumer.stopped()).await;
    let metadata = bus.committed(FOLDS, 0).unwrap().metadata;
    assert!(metadata.ends_with("at 1201"), "{metadata}");
    assert_eq!(*world.applied.lock(), (0..=1200).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fold_drains_with_a_last_checkpoint() {
    let Setup { bus, runtime } = setup();
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    let config = RuntimeConfig {
        fold: FoldConfig {
            idle_checkpoint: Duration::from_secs(3600),
            checkpoint_interval: Duration::from_secs(3600),
            ..FoldConfig::default()
        },
        ..quick()
    };
    let (world, consumer) = spawn_counting(&runtime, config);
    until("applied", || world.applied.lock().len() == 1).await;
    assert_eq!(at(&bus, 0), 0);
    runtime.stop.cancel();
    in_time("stop", consumer.stopped()).await;
    assert_eq!(at(&bus, 0), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_error_ends_all_runs_and_each_starts_from_its_committed_position() {
    let Setup { bus, runtime } = setup();
    for partition in 0..2 {
        for n in 0..10 {
            bus.append(Topic::Ingress, partition, Some("k"), &n.to_string());
        }
    }
    let (world, consumer) = spawn_counting(&runtime, quick());
    until("committed", || at(&bus, 0) == 10 && at(&bus, 1) == 10).await;
    assert_eq!((world.runs.load(Ordering::SeqCst), bus.producers()), (2, 1));
    bus.fault(Topic::Inbox, Fault::Lose(ProduceError::Unknown("ordered".to_owned())));
    for n in 10..20 {
        bus.append(Topic::Ingress, 0, Some("k"), &n.to_string());
    }
    until("committed after", || at(&bus, 0) == 20).await;
    until("both began anew", || world.runs.load(Ordering::SeqCst) == 4).await;
    assert_eq!(bus.producers(), 2);
    assert_eq!(restarts(&runtime, "producer"), 2);
    let seeks = bus.seeks();
    assert!(seeks.contains(&(0, 10)) && seeks.contains(&(1, 10)), "{seeks:?}");
    let mut again: Vec<_> = world.starts.lock()[2..]
        .iter()
        .map(|s| (s.partition, s.committed.as_ref().unwrap().offset))
        .collect();
    again.sort_unstable();
    assert_eq!(again, [(0, 10), (1, 10)]);
    // Everything from the committed position on was emitted by the new run, in order.
    let by_new_run: Vec<String> = bus
        .records(Topic::Inbox, 0)
        .iter()
        .map(|record| String::from_utf8_lossy(record.value.as_ref().unwrap()).into_owned())
        .filter(|value| value.starts_with("3:") || value.starts_with("4:"))
        .map(|value| value[2..].to_owned())
        .collect();
    assert_eq!(by_new_run, (10..20).map(|n: u64| n.to_string()).collect::<Vec<_>>());
    assert!(consumer.alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_report_is_a_producer_error_after_the_watchdogs_time() {
    let Setup { bus, runtime } = setup();
    bus.fault(Topic::Inbox, Fault::Silence);
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    let config = RuntimeConfig {
        ack_watchdog: Duration::from_millis(100),
        ..quick()
    };
    let _fold = spawn_counting(&runtime, config);
    until("committed", || at(&bus, 0) == 1).await;
    let labels = KindLabels { kind: "silent" };
    assert_eq!(runtime.metrics.fold_ack_faults.get_or_create(&labels).get(), 1);
    assert_eq!(bus.producers(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_waited_for() {
    let Setup { bus, runtime } = setup();
    for _ in 0..5 {
        bus.fault(Topic::Inbox, Fault::Refuse(ProduceError::QueueFull));
    }
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    let (world, _consumer) = spawn_counting(&runtime, quick());
    until("committed", || at(&bus, 0) == 1).await;
    assert_eq!(world.applied.lock().len(), 1);
    assert_eq!(bus.producers(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_errors_and_panics_start_the_run_again_and_nothing_else() {
    let Setup { bus, runtime } = setup();
    let (world, consumer) = spawn_counting(&runtime, quick());
    world
        .fail_applies
        .lock()
        .push(FoldError::Transient("ordered".to_owned()));
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    until("committed", || at(&bus, 0) == 1).await;
    *world.panic_once.lock() = true;
    bus.append(Topic::Ingress, 0, Some("k"), "b");
    until("committed", || at(&bus, 0) == 2).await;
    assert_eq!((restarts(&runtime, "transient"), restarts(&runtime, "panic")), (1, 1));
    assert_eq!(
        world.runs.load(Ordering::SeqCst),
        4,
        "the other partition's run was left alone"
    );
    assert_eq!(bus.producers(), 1);
    assert!(consumer.alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_partition_stays_stopped_and_others_go_on() {
    let Setup { bus, runtime } = setup();
    let (world, consumer) = spawn_counting(&runtime, quick());
    until("began", || {
        consumer
            .status()
            .partitions
            .iter()
            .filter(|p| p.phase == Phase::Running)
            .count()
            == 2
    })
    .await;
    world.fail_applies.lock().push(FoldError::Stop {
        offset: 0,
        reason: "ordered".to_owned(),
    });
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    let labels = partition_labels(FOLDS, 0);
    let stopped = || runtime.metrics.fold_stopped_partitions.get_or_create(&labels).get() == 1;
    until("stopped", stopped).await;
    bus.append(Topic::Ingress, 1, Some("k"), "a");
    until("other committed", || at(&bus, 1) == 1).await;
    until("paused", || {
        consumer
            .status()
            .partitions
            .iter()
            .any(|p| p.paused && p.phase == Phase::Stopped)
    })
    .await;
    assert_eq!(at(&bus, 0), 0);
    assert!(consumer.alive() && consumer.ready());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fold_whose_position_is_outside_the_log_stops() {
    for begin_at in [3, 11] {
        let Setup { bus, runtime } = setup();
        for n in 0..10 {
            bus.append(Topic::Ingress, 0, Some("k"), &n.to_string());
        }
        bus.trim(Topic::Ingress, 0, 5);
        let world = Arc::new(World::default());
        *world.begin_at.lock() = Some(begin_at);
        let _consumer = spawn_fold(&runtime, FOLDS, Arc::new(Factory(Arc::clone(&world))), quick()).unwrap();
        let labels = partition_labels(FOLDS, 0);
        let stopped = || runtime.metrics.fold_stopped_partitions.get_or_create(&labels).get() == 1;
        until("stopped", stopped).await;
        assert!(world.applied.lock().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_the_fold_wraps_still_counts_as_the_producers() {
    let Setup { bus, runtime } = setup();
    let (world, _consumer) = spawn_counting(&runtime, quick());
    world.fail_applies.lock().push(FoldError::Producer(AckFault::NoOffset {
        topic: Topic::Inbox,
        partition: 0,
    }));
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    until("committed", || at(&bus, 0) == 1).await;
    assert_eq!(restarts(&runtime, "producer"), 1);
}
