//! The consumer thread: owns the source, feeds the workers, commits what they settle. `handover` gives partitions up,
//! `upkeep` pauses, measures and watches.
//!
//! **Loop.** Take the workers' messages, commit, answer rebalances that are due, start workers whose back-off has ended,
//! pause and resume, poll. Nothing in it waits for a worker: a revocation is answered when its workers have drained or
//! their time is up, and polling goes on meanwhile. It blocks only in the source itself.

mod handover;
mod upkeep;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::FutureExt;
use tidings_resilience::{Backoff, Classify};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::handover::Revocation;
use super::Runtime;
use super::config::RuntimeConfig;
use super::fold_worker;
use super::handle::{Board, ConsumerHandle, Failure};
use super::handler_worker::{self, panic_text};
use super::intake::Intake;
use super::partition::{Link, Partition, Phase};
use super::worker::{Body, End, FailureCause, Message, OUTBOX_CAPACITY, Outbox, Progress, Shared, WorkerContext};
use crate::Error;
use crate::catalogue::ConsumerGroup;
use crate::fold::FoldFactory;
use crate::handler::Handler;
use crate::metrics::{CauseLabels, group_labels, partition_labels};
use crate::record::LogRecord;
use crate::source::{AssignedPartition, Source, SourceEvent};

/// While the thread waits for a worker it looks for its message this often.
const BUSY_POLL: Duration = Duration::from_millis(5);
/// Metrics, the stall watchdog, and failed commits.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// While the source cannot be opened, the thread looks at the stop token this often.
const STOP_CHECK: Duration = Duration::from_millis(20);

/// What the workers do.
#[derive(Clone)]
pub(super) enum Mode {
    Fold(Arc<dyn FoldFactory>),
    Handler(Arc<dyn Handler>),
}

pub(super) fn spawn(
    runtime: &Runtime,
    group: ConsumerGroup,
    mode: Mode,
    config: RuntimeConfig,
) -> std::io::Result<ConsumerHandle> {
    runtime.metrics.begin(group);
    let board = Board::new();
    let handle = ConsumerHandle {
        group,
        board: Arc::clone(&board),
        producer: Arc::clone(&runtime.producer),
        heartbeat_limit: config.heartbeat_limit,
    };
    let (sender, messages) = mpsc::channel(OUTBOX_CAPACITY);
    let consumer = Consumer {
        shared: Arc::new(Shared {
            bus: Arc::clone(&runtime.bus),
            group,
            producer: Arc::clone(&runtime.producer),
            config,
            clock: Arc::clone(&runtime.clock),
            metrics: runtime.metrics.clone(),
        }),
        mode,
        tasks: runtime.handle.clone(),
        stop: runtime.stop.clone(),
        board: Arc::clone(&board),
        sender,
        messages,
        next_epoch: 1,
        partitions: BTreeMap::new(),
        revocations: Vec::new(),
        closing: None,
        housekeeping_at: Instant::now(),
    };
    std::thread::Builder::new()
        .name(format!("consumer-{}", group.name().trim_start_matches("tidings.")))
        .spawn(move || {
            match catch_unwind(AssertUnwindSafe(|| consumer.run())) {
                Ok(()) => board.stop(),
                Err(panic) => board.fail(Failure::Panicked {
                    group: group.name(),
                    reason: panic_text(panic.as_ref()),
                }),
            };
        })?;
    Ok(handle)
}

struct Consumer {
    shared: Arc<Shared>,
    mode: Mode,
    tasks: Handle,
    stop: CancellationToken,
    board: Arc<Board>,
    sender: mpsc::Sender<Message>,
    messages: mpsc::Receiver<Message>,
    next_epoch: u64,
    partitions: BTreeMap<u32, Partition>,
    revocations: Vec<Revocation>,
    /// Set once the process was told to stop: when the workers' time is up.
    closing: Option<Instant>,
    housekeeping_at: Instant,
}

/// How serving a source ended.
enum Served {
    Stopped,
    Died(Error),
}

impl Consumer {
    fn run(mut self) {
        let mut backoff = Backoff::new(self.shared.config.backoff, self.shared.config.seed);
        while let Some(source) = self.open(&mut backoff) {
            let opened = Instant::now();
            match self.serve(source) {
                Served::Stopped => return,
                Served::Died(error) => {
                    if opened.elapsed() > self.config().backoff.max {
                        backoff.reset();
                    }
                    tracing::error!(group = self.name(), %error, "the group member died and is made anew");
                    self.metrics()
                        .source_rebuilds
                        .get_or_create(&group_labels(self.group()))
                        .inc();
                    if !self.sleep(backoff.next_delay()) {
                        return;
                    }
                }
            }
        }
    }

    fn group(&self) -> ConsumerGroup {
        self.shared.group
    }

    fn name(&self) -> &'static str {
        self.shared.group.name()
    }

    fn metrics(&self) -> &crate::metrics::Metrics {
        &self.shared.metrics
    }

    fn config(&self) -> &RuntimeConfig {
        &self.shared.config
    }

    /// Opens a source, however long it takes; `None` if told to stop.
    fn open(&mut self, backoff: &mut Backoff) -> Option<Box<dyn Source>> {
        loop {
            if self.stop.is_cancelled() {
                return None;
            }
            self.board.beat();
            match self.shared.bus.source(self.group()) {
                Ok(source) => return Some(source),
                Err(error) => {
                    let delay = backoff.next_delay();
                    tracing::error!(group = self.name(), %error, ?delay, "the group cannot be joined");
                    if !self.sleep(delay) {
                        return None;
                    }
                }
            }
        }
    }

    /// Sleeps; false if told to stop.
    fn sleep(&self, delay: Duration) -> bool {
        let until = Instant::now() + delay;
        while Instant::now() < until {
            if self.stop.is_cancelled() {
                return false;
            }
            self.board.beat();
            std::thread::sleep(STOP_CHECK.min(until.saturating_duration_since(Instant::now())));
        }
        !self.stop.is_cancelled()
    }

    fn serve(&mut self, mut source: Box<dyn Source>) -> Served {
        loop {
            self.board.beat();
            self.take_messages(source.as_mut());
            self.commit(source.as_mut());
            self.end_revocations(source.as_mut());
            if self.stop.is_cancelled() && self.close_if_drained(source.as_mut()) {
                source.close(self.config().close_deadline);
                self.drop_partitions();
                return Served::Stopped;
            }
            self.start_due();
            self.pause_and_resume(source.as_mut());
            self.keep_house(source.as_ref());
            let timeout = self.poll_timeout();
            match source.poll(timeout) {
                SourceEvent::Records(records) => self.dispatch(records),
                SourceEvent::Assigned(assigned) => self.assign(assigned),
                SourceEvent::Revoked { partitions, lost } => self.revoke(source.as_mut(), partitions, lost),
                SourceEvent::Idle => {}
                SourceEvent::Fault(error) => {
                    tracing::warn!(group = self.name(), %error, class = %error.class(), "the log reports a fault");
                }
                SourceEvent::Fatal(error) => {
                    // Nothing can be committed with a dead client.
                    self.drop_partitions();
                    source.close(self.config().close_deadline);
                    return Served::Died(error);
                }
            }
        }
    }

    /// Short while a worker's message or a drained queue is awaited.
    fn poll_timeout(&self) -> Duration {
        let awaits = self.partitions.values().any(|partition| match partition.phase {
            Phase::Beginning | Phase::Draining => true,
            Phase::Running => partition.paused,
            Phase::BackingOff { .. } | Phase::Stopped => false,
        });
        if awaits {
            BUSY_POLL.min(self.config().poll_timeout)
        } else {
            self.config().poll_timeout
        }
    }

    fn dispatch(&mut self, records: Vec<LogRecord>) {
        let mut touched: Vec<u32> = Vec::new();
        for record in records {
            let number = record.partition;
            // Otherwise it is read again: from a seek after a restart, or by the next owner.
            if let Some(partition) = self.partitions.get_mut(&number)
                && partition.offer(record)
                && touched.last() != Some(&number)
            {
                touched.push(number);
            }
        }
        for number in touched {
            if let Some(link) = self
                .partitions
                .get(&number)
                .and_then(|partition| partition.link.as_ref())
            {
                link.intake.announce();
            }
        }
    }

    fn assign(&mut self, assigned: Vec<AssignedPartition>) {
        tracing::info!(group = self.name(), ?assigned, "partitions assigned");
        self.board.assigned_once.store(true, Ordering::Release);
        for partition in assigned {
            let number = partition.partition;
            let new = Partition::new(partition, self.config().backoff, self.config().seed, Instant::now());
            if self.partitions.insert(number, new).is_some() {
                tracing::error!(
                    group = self.name(),
                    partition = number,
                    "assigned twice without a revocation"
                );
            }
            if self.closing.is_some() {
                // Nothing is begun any more; leaving the group gives it up.
                if let Some(partition) = self.partitions.get_mut(&number) {
                    partition.drain();
                }
                continue;
            }
            self.start_worker(number);
        }
    }

    /// Starts a worker under a new epoch (seq:G6: it begins with nothing).
    fn start_worker(&mut self, number: u32) {
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let Some(partition) = self.partitions.get_mut(&number) else {
            return;
        };
        let intake = Arc::new(Intake::default());
        let progress = Arc::new(Progress::default());
        let drain = CancellationToken::new();
        let outbox = Outbox {
            sender: self.sender.clone(),
            partition: number,
            epoch,
        };
        let context = WorkerContext {
            shared: Arc::clone(&self.shared),
            assigned: partition.assignment(),
            intake: Arc::clone(&intake),
            progress: Arc::clone(&progress),
            outbox: outbox.clone(),
            drain: drain.clone(),
        };
        let mode = self.mode.clone();
        let shared = Arc::clone(&self.shared);
        let task = self.tasks.spawn(async move {
            let work = async move {
                match mode {
                    Mode::Fold(factory) => fold_worker::run(context, factory).await,
                    Mode::Handler(handler) => handler_worker::run(context, handler).await,
                }
            };
            let end = match AssertUnwindSafe(work).catch_unwind().await {
                Ok(end) => end,
                Err(panic) => {
                    shared.metrics.panics.get_or_create(&group_labels(shared.group)).inc();
                    End::Failed {
                        cause: FailureCause::Panic,
                        reason: panic_text(panic.as_ref()),
                    }
                }
            };
            outbox.send(Body::Ended(end)).await;
        });
        let link = Link {
            intake,
            progress,
            drain,
            abort: task.abort_handle(),
        };
        partition.begin(epoch, link, Instant::now());
    }

    /// Starts workers whose back-off has ended.
    fn start_due(&mut self) {
        if self.closing.is_some() {
            return;
        }
        let now = Instant::now();
        let due: Vec<u32> = self
            .partitions
            .values()
            .filter(|partition| matches!(partition.phase, Phase::BackingOff { until } if until <= now))
            .map(|partition| partition.number)
            .collect();
        for number in due {
            self.start_worker(number);
        }
    }

    fn take_messages(&mut self, source: &mut dyn Source) {
        // At most one channel's worth, so that polling goes on.
        for _ in 0..OUTBOX_CAPACITY {
            let Ok(message) = self.messages.try_recv() else { return };
            let current = self
                .partitions
                .get(&message.partition)
                .is_some_and(|partition| partition.epoch == message.epoch && partition.link.is_some());
            if !current {
                self.metrics()
                    .stale_results
                    .get_or_create(&group_labels(self.group()))
                    .inc();
                tracing::debug!(group = self.name(), ?message, "result of an earlier assignment dropped");
                continue;
            }
            match message.body {
                Body::Begun { offset } => self.begun(source, message.partition, offset),
                Body::Settled { offset, metadata } => {
                    if let Some(partition) = self.partitions.get_mut(&message.partition) {
                        partition.settle(offset, metadata);
                    }
                }
                Body::Ended(end) => self.ended(message.partition, end),
            }
        }
    }

    fn begun(&mut self, source: &mut dyn Source, number: u32, offset: u64) {
        let name = self.name();
        let Some(partition) = self.partitions.get_mut(&number) else {
            return;
        };
        if partition.phase != Phase::Beginning {
            return;
        }
        let result = if partition.started {
            source.seek(number, offset)
        } else {
            source.start(number, offset)
        };
        match result {
            Ok(()) => {
                tracing::info!(
                    group = name,
                    partition = number,
                    offset,
                    epoch = partition.epoch,
                    "reading"
                );
                partition.read_from(offset);
            }
            Err(error @ Error::NotSetUp { .. }) if matches!(self.mode, Mode::Fold(_)) => {
                // The log has moved since the assignment (scenario B97).
                let reason = error.to_string();
                self.ended(number, End::Stop { offset, reason });
            }
            Err(error) => {
                partition.unlink();
                let delay = partition.back_off(Instant::now());
                tracing::warn!(group = name, partition = number, offset, %error, ?delay, "cannot read from the position");
            }
        }
    }

    fn ended(&mut self, number: u32, end: End) {
        let (group, name) = (self.group(), self.name());
        let Some(partition) = self.partitions.get_mut(&number) else {
            return;
        };
        partition.unlink();
        let draining = partition.phase == Phase::Draining;
        match end {
            End::Drained => {}
            End::Failed { cause, reason } => {
                if draining {
                    tracing::warn!(group = name, partition = number, reason, "worker failed while draining");
                    return;
                }
                let delay = partition.back_off(Instant::now());
                self.shared
                    .metrics
                    .fold_restarts
                    .get_or_create(&CauseLabels {
                        group: name,
                        cause: cause.label(),
                    })
                    .inc();
                tracing::warn!(
                    group = name,
                    partition = number,
                    cause = cause.label(),
                    reason,
                    ?delay,
                    "worker ended, another starts from the committed position"
                );
            }
            End::Stop { offset, reason } => {
                if !draining {
                    partition.phase = Phase::Stopped;
                }
                self.shared
                    .metrics
                    .fold_stopped_partitions
                    .get_or_create(&partition_labels(group, number))
                    .set(1);
                tracing::error!(
                    page = true,
                    group = name,
                    topic = %group.topic(),
                    partition = number,
                    offset,
                    reason,
                    "fold stopped the partition: it waits for an operator"
                );
            }
        }
    }
}
