//! What a worker and the consumer thread say to each other.
//!
//! A worker is one task for one partition and one *assignment epoch*; each assignment and each restart has a new epoch.
//! Everything a worker sends carries its epoch, and what does not carry the partition's current one is dropped: an
//! abandoned worker can no longer move a position.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidings_domain::clock::SharedClock;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::config::RuntimeConfig;
use super::intake::Intake;
use super::shared_producer::InternalProducer;
use crate::bus::Bus;
use crate::catalogue::ConsumerGroup;
use crate::metrics::Metrics;
use crate::source::AssignedPartition;

/// Messages of all workers of a consumer that the thread has not taken yet; a worker waits when it is full.
pub(super) const OUTBOX_CAPACITY: usize = 1024;

/// A worker's message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) partition: u32,
    pub(super) epoch: u64,
    pub(super) body: Body,
}

#[derive(Debug)]
pub(super) enum Body {
    /// Read from here.
    Begun { offset: u64 },
    /// Everything below is settled: commit it.
    Settled { offset: u64, metadata: String },
    /// The worker has ended.
    Ended(End),
}

/// Why a worker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// It was asked to, and has reported everything that is settled.
    Drained,
    /// Start again after a back-off.
    Failed { cause: FailureCause, reason: String },
    /// Never start again by itself.
    Stop { offset: u64, reason: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureCause {
    Transient,
    Producer,
    Panic,
}

impl FailureCause {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Producer => "producer",
            Self::Panic => "panic",
        }
    }
}

/// What the thread sees of a worker without a message.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// First offset not settled.
    settled: AtomicU64,
    /// Records settled so far; for the stall watchdog, since a handler may settle records behind one that waits.
    count: AtomicU64,
    /// Everything there is waits for a back-off or for `dlq`.
    waiting: AtomicBool,
}

impl Progress {
    pub(super) fn set_settled(&self, offset: u64) {
        self.settled.store(offset, Ordering::Release);
    }

    pub(super) fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    pub(super) fn add(&self, records: u64) {
        self.count.fetch_add(records, Ordering::AcqRel);
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Release);
    }

    pub(super) fn waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }
}

/// What all workers of a consumer share.
pub(super) struct Shared {
    pub(super) bus: Arc<dyn Bus>,
    pub(super) group: ConsumerGroup,
    pub(super) producer: Arc<InternalProducer>,
    pub(super) config: RuntimeConfig,
    pub(super) clock: SharedClock,
    pub(super) metrics: Metrics,
}

/// What one worker works with.
pub(super) struct WorkerContext {
    pub(super) shared: Arc<Shared>,
    pub(super) assigned: AssignedPartition,
    pub(super) intake: Arc<Intake>,
    pub(super) progress: Arc<Progress>,
    pub(super) outbox: Outbox,
    /// Cancelled: finish what runs, report it and end.
    pub(super) drain: CancellationToken,
}

/// Where a worker's messages go.
#[derive(Clone)]
pub(super) struct Outbox {
    pub(super) sender: mpsc::Sender<Message>,
    pub(super) partition: u32,
    pub(super) epoch: u64,
}

impl Outbox {
    pub(super) async fn send(&self, body: Body) {
        let message = Message {
            partition: self.partition,
            epoch: self.epoch,
            body,
        };
        if self.sender.send(message).await.is_err() {
            // The consumer thread is gone and takes no result any more; it aborts its workers.
            tracing::debug!(partition = self.partition, "a worker's message had no receiver");
        }
    }
}
