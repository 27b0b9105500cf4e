//! Folds: checkpoints, producer errors, crashes, positions outside the log.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tidings_bus::fold::{Emitter, Fold, FoldCommit, FoldError, FoldFactory, FoldStart};
use tidings_bus::metrics::{CauseLabels, KindLabels, partition_labels};
use tidings_bus::runtime::{ConsumerHandle, Phase, spawn_fold};
use tidings_bus::source::{AssignedPartition, Committed};
use tidings_bus::{ConsumerGroup, Headers, LogRecord, OutRecord};
use tidings_domain::{LogEpoch, SourcePartition, SourcePosition, Topic};
use tidings_proto::header::SourceLink;

use super::faults::Fault;
use super::{Ground, Process, out, produce, quick, read, until};

const GROUP: ConsumerGroup = ConsumerGroup::Router;
const TOPIC: Topic = Topic::Ingress;

/// Emits one linked record to `inbox` for each record of `ingress` (seq:G2, seq:G4).
struct Relay {
    world: Arc<World>,
    partition: u32,
    prev: Option<SourcePosition>,
    next: u64,
    applied: bool,
}

/// What the runs of a case tell and are told.
#[derive(Default)]
struct World {
    /// What each run began from, in order.
    begun: Mutex<Vec<AssignedPartition>>,
    /// Begins here instead.
    begin_past_end: bool,
}

impl World {
    fn runs(&self, partition: u32) -> Vec<Option<Committed>> {
        let begun = self.begun.lock();
        let of_partition = begun.iter().filter(|assigned| assigned.partition == partition);
        of_partition.map(|assigned| assigned.committed.clone()).collect()
    }
}

struct Relays(Arc<World>);

impl FoldFactory for Relays {
    fn new_run(&self, partition: u32) -> Box<dyn Fold> {
        Box::new(Relay {
            world: Arc::clone(&self.0),
            partition,
            prev: None,
            next: 0,
            applied: false,
        })
    }
}

#[async_trait]
impl Fold for Relay {
    async fn begin(&mut self, assigned: &AssignedPartition) -> Result<FoldStart, FoldError> {
        self.world.begun.lock().push(assigned.clone());
        let committed = assigned.committed.as_ref().map_or(0, |committed| committed.offset);
        self.next = if self.world.begin_past_end {
            assigned.log_end + 1
        } else {
            committed
        };
        Ok(FoldStart { offset: self.next })
    }

    async fn apply(&mut self, batch: &[LogRecord], emitter: &mut dyn Emitter) -> Result<(), FoldError> {
        for record in batch {
            let src = SourcePosition::first(record.position(LogEpoch::FIRST));
            let mut headers = Headers::new();
            headers.push_link(&SourceLink {
                source: SourcePartition {
                    topic: TOPIC,
                    partition: self.partition,
                },
                src,
                prev: self.prev.replace(src),
            });
            let output = OutRecord {
                topic: Topic::Inbox,
                partition: self.partition,
                key: record.key.clone(),
                value: record.value.clone(),
                headers,
            };
            emitter.emit(output).await?;
            self.next = record.offset + 1;
            self.applied = true;
        }
        Ok(())
    }

    async fn checkpoint(&mut self, emitter: &mut dyn Emitter) -> Result<Option<FoldCommit>, FoldError> {
        emitter.settled().await?;
        Ok(std::mem::take(&mut self.applied).then(|| FoldCommit {
            offset: self.next,
            metadata: format!("W={};next={}", self.partition, self.next),
        }))
    }
}

fn relay(process: &Process) -> (Arc<World>, ConsumerHandle) {
    let world = Arc::new(World::default());
    let consumer = spawn_fold(&process.runtime, GROUP, Arc::new(Relays(Arc::clone(&world))), quick());
    (world, consumer.expect("a thread"))
}

fn actions(partition: u32, from: usize, to: usize) -> Vec<OutRecord> {
    (from..to)
        .map(|n| out(TOPIC, partition, &format!("key-{partition}"), n.to_string()))
        .collect()
}

fn at(process: &Process, partition: u32) -> u64 {
    process
        .bus
        .committed(GROUP, partition)
        .map_or(0, |commit| commit.offset)
}

/// The next stage (seq:I2): what of `records` is fresh, as source offsets, in order.
fn fresh(records: &[LogRecord], partition: u32) -> Vec<u64> {
    let mut folded: HashMap<SourcePartition, Option<SourcePosition>> = HashMap::new();
    let mut fresh = Vec::new();
    for record in records.iter().filter(|record| record.partition == partition) {
        let link = record.link().expect("a link").expect("there");
        let last = folded.entry(link.source).or_default();
        if last.is_none_or(|last| link.src > last) && (link.prev.is_none() || link.prev <= *last) {
            *last = Some(link.src);
            fresh.push(link.src.pos.offset());
        }
    }
    fresh
}

pub(crate) async fn offset_and_metadata_come_back_as_committed(ground: &Ground) {
    produce(ground, actions(0, 0, 10)).await;
    let process = Process::new(ground);
    let (_, consumer) = relay(&process);
    until("committed", || at(&process, 0) == 10).await;
    process.stop(&consumer).await;

    let process = Process::new(ground);
    let (world, consumer) = relay(&process);
    until("began", || !world.runs(0).is_empty()).await;
    process.stop(&consumer).await;
    let expected = Committed {
        offset: 10,
        metadata: "W=0;next=10".to_owned(),
    };
    assert_eq!(world.runs(0)[0], Some(expected));
    assert_eq!(
        read(ground, ConsumerGroup::OfflineInbox, 10).await.len(),
        10,
        "nothing was folded twice"
    );
}

pub(crate) async fn a_checkpoint_waits_for_confirmations(ground: &Ground) {
    let process = Process::new(ground);
    process.bus.hold_reports(Topic::Inbox);
    let (_, consumer) = relay(&process);
    produce(ground, actions(0, 0, 10)).await;
    until("all emitted", || process.bus.held_reports() == 10).await;
    // For what should not come: too short could only hide a fault, never make one up.
    tokio::time::sleep(quick().fold.idle_checkpoint * 10).await;
    assert_eq!(at(&process, 0), 0);
    process.bus.release_reports();
    until("committed", || at(&process, 0) == 10).await;
    process.stop(&consumer).await;
}

/// Seq:G3 and seq:G4: a loss in the middle ends every run of the process; each starts at its committed position with a
/// chain that begins at *none*, so the next stage sees every record once.
pub(crate) async fn a_producer_error_ends_all_runs_and_no_output_is_lost_or_doubled(ground: &Ground) {
    for partition in 0..2 {
        produce(ground, actions(partition, 0, 20)).await;
    }
    let process = Process::new(ground);
    let (world, consumer) = relay(&process);
    until("committed", || at(&process, 0) == 20 && at(&process, 1) == 20).await;
    assert_eq!(process.bus.producers(), 1);
    let runs = || (world.runs(0), world.runs(1));
    assert_eq!((runs().0.len(), runs().1.len()), (1, 1));
    process.bus.order(Topic::Inbox, Fault::Lose);
    produce(ground, actions(0, 20, 60)).await;
    until("committed", || at(&process, 0) == 60).await;
    until("the other run began anew", || runs().1.len() == 2).await;
    let began = runs().1[1].clone().expect("committed");
    assert_eq!(began.offset, 20);
    produce(ground, actions(1, 20, 30)).await;
    until("committed", || at(&process, 1) == 30).await;
    assert_eq!(process.bus.producers(), 2);
    let labels = CauseLabels {
        group: GROUP.name(),
        cause: "producer",
    };
    let partitions = u64::from(ground.bus.catalogue().partitions(TOPIC));
    let restarts = process.runtime.metrics.fold_restarts.get_or_create(&labels).get();
    assert_eq!(restarts, partitions, "each run ended once");
    process.stop(&consumer).await;
    // The first try left at least the records before the loss, so there are more than 60; all of them are read.
    let ends = read_all_outputs(ground, 59 + 30).await;
    assert_eq!(fresh(&ends, 0), (0..60).collect::<Vec<_>>());
    assert_eq!(fresh(&ends, 1), (0..30).collect::<Vec<_>>());
    let restarted = ends.iter().filter(|record| {
        record.partition == 0 && record.link().expect("a link").is_some_and(|link| link.prev.is_none())
    });
    assert_eq!(restarted.count(), 2, "one chain per run");
}

/// Reads all of `inbox`; there are at least `count` records, the last one in each partition is known to be fresh.
async fn read_all_outputs(ground: &Ground, count: usize) -> Vec<LogRecord> {
    const MARK: &str = "mark";
    let mut marks = Vec::new();
    for partition in 0..ground.bus.catalogue().partitions(Topic::Inbox) {
        marks.push(out(Topic::Inbox, partition, MARK, Bytes::new()));
    }
    let total = count + marks.len();
    produce(ground, marks.clone()).await;
    let is_mark = |record: &LogRecord| record.key.as_deref() == Some(MARK.as_bytes());
    let process = Process::new(ground);
    let handler = super::Scripted::done();
    let consumer =
        tidings_bus::runtime::spawn_handler(&process.runtime, ConsumerGroup::OfflineInbox, handler.clone(), quick())
            .expect("a thread");
    until("all marks", || {
        handler.seen().iter().filter(|record| is_mark(record)).count() == marks.len()
    })
    .await;
    process.stop(&consumer).await;
    let seen = handler.seen();
    assert!(seen.len() >= total, "{} of {total}", seen.len());
    seen.into_iter().filter(|record| !is_mark(record)).collect()
}

pub(crate) async fn a_confirmation_without_offset_is_a_producer_error(ground: &Ground) {
    written_but_not_believed(ground, Fault::HideOffset, "no_offset").await;
}

pub(crate) async fn an_outcome_that_is_not_known_is_a_producer_error(ground: &Ground) {
    written_but_not_believed(ground, Fault::FailReport, "failed").await;
}

/// The first output is written, its report is no good: it is written again, and the next stage passes over the second.
async fn written_but_not_believed(ground: &Ground, fault: Fault, kind: &'static str) {
    let process = Process::new(ground);
    process.bus.order(Topic::Inbox, fault);
    let (world, consumer) = relay(&process);
    produce(ground, actions(0, 0, 10)).await;
    until("committed", || at(&process, 0) == 10).await;
    let labels = KindLabels { kind };
    let faults = process.runtime.metrics.fold_ack_faults.get_or_create(&labels).get();
    assert_eq!((faults, world.runs(0).len()), (1, 2));
    process.stop(&consumer).await;
    let outputs = read_all_outputs(ground, 11).await;
    assert_eq!(fresh(&outputs, 0), (0..10).collect::<Vec<_>>());
}

pub(crate) async fn what_was_not_checkpointed_is_folded_again_after_a_crash(ground: &Ground) {
    let process = Process::new(ground);
    let (_, consumer) = relay(&process);
    produce(ground, actions(0, 0, 5)).await;
    until("committed", || at(&process, 0) == 5).await;
    process.bus.sever();
    process.bus.hold_reports(Topic::Inbox);
    produce(ground, actions(0, 5, 10)).await;
    until("all emitted", || process.bus.held_reports() == 5).await;
    process.bus.release_reports();
    process.crash(&consumer).await;

    let process = Process::new(ground);
    let (world, consumer) = relay(&process);
    until("committed", || at(&process, 0) == 10).await;
    process.stop(&consumer).await;
    assert_eq!(world.runs(0)[0].as_ref().map(|committed| committed.offset), Some(5));
    let outputs = read_all_outputs(ground, 15).await;
    assert_eq!(outputs.len(), 15, "five were emitted twice");
    assert_eq!(fresh(&outputs, 0), (0..10).collect::<Vec<_>>());
}

/// Scenario B97.
pub(crate) async fn a_position_outside_the_log_stops_the_partition(ground: &Ground) {
    produce(ground, actions(0, 0, 3)).await;
    let process = Process::new(ground);
    let world = Arc::new(World {
        begin_past_end: true,
        ..World::default()
    });
    let consumer = spawn_fold(&process.runtime, GROUP, Arc::new(Relays(Arc::clone(&world))), quick());
    let consumer = consumer.expect("a thread");
    let labels = partition_labels(GROUP, 0);
    let stopped = || {
        process
            .runtime
            .metrics
            .fold_stopped_partitions
            .get_or_create(&labels)
            .get()
            == 1
    };
    until("stopped", stopped).await;
    until("shown as stopped", || {
        let partitions = consumer.status().partitions;
        partitions
            .iter()
            .any(|view| view.partition == 0 && view.phase == Phase::Stopped)
    })
    .await;
    assert_eq!(process.bus.commits(GROUP), []);
    assert_eq!(world.runs(0).len(), 1, "it does not try again by itself");
    assert!(consumer.alive());
    process.stop(&consumer).await;
}
