//! What the consumer thread knows of one assigned partition, and the rules it follows. Pure but for the worker's handle.
//!
//! ```text
//! assigned ──► Beginning ──Begun──► Running ──failed──► BackingOff ──► Beginning …
//!                  └──────stop────────┴───► Stopped          (until assigned anew)
//! any of them ──revoke, shutdown──► Draining ──► gone
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidings_domain::clock::Millis;
use tidings_resilience::{Backoff, BackoffPolicy};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::config::QueueLimits;
use super::intake::Intake;
use super::worker::Progress;
use crate::record::LogRecord;
use crate::source::{AssignedPartition, Commit, Committed};

/// A worker as the thread holds it.
pub(super) struct Link {
    pub(super) intake: Arc<Intake>,
    pub(super) progress: Arc<Progress>,
    pub(super) drain: CancellationToken,
    pub(super) abort: AbortHandle,
}

/// Where a partition stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The worker has not said yet where to read from.
    Beginning,
    /// Records go to the worker.
    Running,
    /// The worker failed; another starts at this time.
    BackingOff {
        /// When.
        until: Instant,
    },
    /// Stopped until assigned anew.
    Stopped,
    /// Being given up.
    Draining,
}

pub(super) struct Partition {
    pub(super) number: u32,
    /// Of the current worker, or of the last one.
    pub(super) epoch: u64,
    pub(super) phase: Phase,
    /// Whether the source has been told to read it.
    pub(super) started: bool,
    /// Whether the source has been told to pause it.
    pub(super) paused: bool,
    pub(super) link: Option<Link>,
    /// The last settled position of this assignment, and what is beside it.
    pub(super) settled: Option<Commit>,
    /// To be committed, unless a later one replaces it.
    pub(super) uncommitted: Option<Commit>,
    pub(super) backoff: Backoff,
    assigned: AssignedPartition,
    /// Next offset that may come.
    next: u64,
    unsettled: VecDeque<(u64, Millis)>,
    /// The oldest unsettled record's time across a restart, until it is read again.
    held: Option<Millis>,
    watch: Watch,
}

/// For the stall watchdog.
#[derive(Debug, Clone, Copy)]
struct Watch {
    count: u64,
    since: Instant,
}

impl Partition {
    pub(super) fn new(assigned: AssignedPartition, policy: BackoffPolicy, seed: u64, now: Instant) -> Self {
        Self {
            number: assigned.partition,
            epoch: 0,
            phase: Phase::Beginning,
            started: false,
            paused: false,
            link: None,
            settled: None,
            uncommitted: None,
            backoff: Backoff::new(policy, seed ^ u64::from(assigned.partition)),
            next: 0,
            unsettled: VecDeque::new(),
            held: None,
            watch: Watch { count: 0, since: now },
            assigned,
        }
    }

    /// What the next worker starts from: the position of the last commit, with what stood beside it, in the log as it is
    /// known now.
    pub(super) fn assignment(&self) -> AssignedPartition {
        let mut assigned = self.assigned.clone();
        if let Some(settled) = &self.settled {
            assigned.committed = Some(Committed {
                offset: settled.offset,
                metadata: settled.metadata.clone(),
            });
        }
        assigned
    }

    /// A worker has been started.
    pub(super) fn begin(&mut self, epoch: u64, link: Link, now: Instant) {
        // Until the worker knows better.
        link.progress
            .set_settled(self.position().unwrap_or(self.assigned.log_start));
        self.epoch = epoch;
        self.link = Some(link);
        self.phase = Phase::Beginning;
        self.watch = Watch { count: 0, since: now };
    }

    /// The source delivers from `offset` on.
    pub(super) fn read_from(&mut self, offset: u64) {
        self.held = self.oldest_unsettled();
        self.unsettled.clear();
        self.next = offset;
        self.started = true;
        self.phase = Phase::Running;
    }

    /// Hands a record to the worker; false if nobody wants it: it will be read again, or it was delivered twice.
    pub(super) fn offer(&mut self, record: LogRecord) -> bool {
        self.know_log_end(record.offset + 1);
        if self.phase != Phase::Running || record.offset < self.next {
            return false;
        }
        let Some(link) = &self.link else { return false };
        self.next = record.offset + 1;
        self.unsettled.push_back((record.offset, record.append_time));
        self.held = None;
        link.intake.push(record);
        true
    }

    /// Takes a settled position.
    pub(super) fn settle(&mut self, offset: u64, metadata: String) {
        let commit = Commit {
            partition: self.number,
            offset,
            metadata,
        };
        self.settled = Some(commit.clone());
        self.uncommitted = Some(commit);
        self.backoff.reset();
    }

    /// The worker is gone: aborts what is left of it.
    pub(super) fn unlink(&mut self) {
        if let Some(link) = self.link.take() {
            link.abort.abort();
        }
    }

    /// Waits before another worker starts; returns how long.
    pub(super) fn back_off(&mut self, now: Instant) -> Duration {
        let delay = self.backoff.next_delay();
        self.phase = Phase::BackingOff { until: now + delay };
        delay
    }

    /// Asks the worker to finish. Without a worker there is nothing to wait for.
    pub(super) fn drain(&mut self) {
        self.phase = Phase::Draining;
        if let Some(link) = &self.link {
            link.drain.cancel();
        }
    }

    /// Whether the source should hold this partition's records back.
    pub(super) fn wants_pause(&self, limits: &QueueLimits) -> bool {
        match self.phase {
            Phase::Running => self
                .link
                .as_ref()
                .is_some_and(|link| link.intake.over(limits, self.paused)),
            Phase::Beginning | Phase::BackingOff { .. } | Phase::Stopped | Phase::Draining => true,
        }
    }

    pub(super) fn know_log_end(&mut self, log_end: u64) {
        self.assigned.log_end = self.assigned.log_end.max(log_end);
    }

    pub(super) const fn log_end(&self) -> u64 {
        self.assigned.log_end
    }

    /// First offset not settled; `None` while that is not known.
    pub(super) fn position(&self) -> Option<u64> {
        match &self.link {
            Some(link) if self.started => Some(link.progress.settled()),
            Some(_) | None => {
                let settled = self.settled.as_ref().map(|commit| commit.offset);
                settled.or_else(|| self.assigned.committed.as_ref().map(|committed| committed.offset))
            }
        }
    }

    /// Records in the log and not settled.
    pub(super) fn lag(&self) -> u64 {
        let position = self.position().unwrap_or(self.assigned.log_start);
        self.assigned.log_end.saturating_sub(position)
    }

    /// Broker time of the oldest record that was read and is not settled.
    pub(super) fn oldest_unsettled(&mut self) -> Option<Millis> {
        if let Some(position) = self.position() {
            while self.unsettled.pop_front_if(|(offset, _)| *offset < position).is_some() {}
        }
        self.unsettled.front().map(|(_, time)| *time).or(self.held)
    }

    /// How long nothing has settled although there is something to do and no reason to wait.
    pub(super) fn stalled_for(&mut self, now: Instant) -> Duration {
        let (count, waiting) = self
            .link
            .as_ref()
            .map_or((0, true), |link| (link.progress.count(), link.progress.waiting()));
        let excused = match self.phase {
            Phase::Beginning | Phase::Running => waiting || self.lag() == 0,
            Phase::BackingOff { .. } | Phase::Stopped | Phase::Draining => true,
        };
        if excused || count != self.watch.count {
            self.watch = Watch { count, since: now };
        }
        now.saturating_duration_since(self.watch.since)
    }

    pub(super) fn queued(&self) -> usize {
        self.link.as_ref().map_or(0, |link| link.intake.size().0)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        self.unlink();
    }
}
