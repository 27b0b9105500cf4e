//! What the rest of the process sees of a consumer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::partition::Phase;
use super::shared_producer::InternalProducer;
use crate::catalogue::ConsumerGroup;

/// How often a waiting [`ConsumerHandle::failed`] looks at the heartbeat.
const HEARTBEAT_CHECK: Duration = Duration::from_secs(1);

/// Why a consumer has failed; the process should end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is lag and nothing settles.
    #[error("{group} partition {partition}: lag {lag} and nothing settled for {stalled_for:?}")]
    Stalled {
        /// The group's name.
        group: &'static str,
        /// Which partition.
        partition: u32,
        /// Records not settled.
        lag: u64,
        /// How long.
        stalled_for: Duration,
    },
    /// The poll thread shows no sign of life.
    #[error("{group}: the poll thread has been silent for {silent_for:?}")]
    Silent {
        /// The group's name.
        group: &'static str,
        /// How long.
        silent_for: Duration,
    },
    /// The poll thread panicked.
    #[error("{group}: the poll thread panicked: {reason}")]
    Panicked {
        /// The group's name.
        group: &'static str,
        /// The message.
        reason: String,
    },
}

/// Where a consumer stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    Stopped,
    Failed(Failure),
}

/// One partition as of the last look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionView {
    /// Which.
    pub partition: u32,
    /// Where it stands.
    pub phase: Phase,
    /// Whether delivery is paused.
    pub paused: bool,
    /// First offset not settled, if known.
    pub position: Option<u64>,
    /// Offset after the last record.
    pub log_end: u64,
    /// Records waiting for the worker.
    pub queued: usize,
}

/// A snapshot of a consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsumerStatus {
    /// Assigned partitions, ascending.
    pub partitions: Vec<PartitionView>,
}

/// Shared by the thread and the handles.
pub(super) struct Board {
    pub(super) life: watch::Sender<Life>,
    pub(super) assigned_once: AtomicBool,
    pub(super) status: Mutex<ConsumerStatus>,
    started: Instant,
    /// Milliseconds from `started` to the last sign of life.
    heartbeat: AtomicU64,
}

impl Board {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            life: watch::Sender::new(Life::Running),
            assigned_once: AtomicBool::new(false),
            status: Mutex::new(ConsumerStatus::default()),
            started: Instant::now(),
            heartbeat: AtomicU64::new(0),
        })
    }

    pub(super) fn beat(&self) {
        let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heartbeat.store(millis, Ordering::Relaxed);
    }

    fn silent_for(&self) -> Duration {
        let last = Duration::from_millis(self.heartbeat.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last)
    }

    /// The first failure stays.
    pub(super) fn fail(&self, failure: Failure) {
        self.life.send_if_modified(|life| {
            let first = *life == Life::Running;
            if first {
                *life = Life::Failed(failure);
            }
            first
        });
    }

    pub(super) fn stop(&self) {
        self.life.send_if_modified(|life| {
            let first = *life == Life::Running;
            if first {
                *life = Life::Stopped;
            }
            first
        });
    }
}

/// A running consumer; clones are handles on the same one. Dropping it stops nothing.
#[derive(Clone)]
pub struct ConsumerHandle {
    pub(super) group: ConsumerGroup,
    pub(super) board: Arc<Board>,
    pub(super) producer: Arc<InternalProducer>,
    pub(super) heartbeat_limit: Duration,
}

impl ConsumerHandle {
    /// The group it is a member of.
    #[must_use]
    pub const fn group(&self) -> ConsumerGroup {
        self.group
    }

    /// Waits until the consumer has left its group and its thread is about to end, or until it has failed.
    pub async fn stopped(&self) {
        let mut life = self.board.life.subscribe();
        // The sender lives in `self.board`, so the channel cannot close.
        let _ = life.wait_for(|life| *life != Life::Running).await;
    }

    /// Waits for a failure that should end the process; never returns after an ordinary stop.
    pub async fn failed(&self) -> Failure {
        let mut life = self.board.life.subscribe();
        loop {
            match &*life.borrow_and_update() {
                Life::Failed(failure) => return failure.clone(),
                Life::Running => {
                    let silent_for = self.board.silent_for();
                    if silent_for > self.heartbeat_limit {
                        return Failure::Silent {
                            group: self.group.name(),
                            silent_for,
                        };
                    }
                }
                Life::Stopped => {}
            }
            tokio::select! {
                // The sender lives in `self.board`.
                _ = life.changed() => {}
                () = tokio::time::sleep(HEARTBEAT_CHECK) => {}
            }
        }
    }

    /// Whether the poll thread and all it needs are alive (liveness).
    #[must_use]
    pub fn alive(&self) -> bool {
        *self.board.life.borrow() == Life::Running && self.board.silent_for() <= self.heartbeat_limit
    }

    /// Whether partitions have been assigned once and records can be written (readiness). The text says why not.
    pub fn readiness(&self) -> Result<(), String> {
        if !self.board.assigned_once.load(Ordering::Acquire) {
            return Err(format!("{}: no partition assigned yet", self.group.name()));
        }
        self.producer.health()
    }

    /// [`Self::readiness`] as yes or no.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.readiness().is_ok()
    }

    /// The consumer as of its last look, at most about a second old.
    #[must_use]
    pub fn status(&self) -> ConsumerStatus {
        self.board.status.lock().clone()
    }
}
