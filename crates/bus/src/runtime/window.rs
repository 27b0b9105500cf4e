//! The window of a handler: which records may be handed over, which are settled, what may be committed.
//!
//! **Guarantee** (architecture.md section 3, decision 2). [`Window::committable`] is never above the first record that is
//! not settled, whatever order records settle in. Offsets are not dense: only received ones are tracked.
//! Records of one key are handed over in order: while one waits, the later ones of its key wait too, other keys go on.
//! Pure: time is a parameter, no I/O.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_resilience::{Backoff, BackoffPolicy};

use super::config::HandlerConfig;
use crate::dead_letter::{Attempts, Rejection};
use crate::handler::Outcome;
use crate::record::LogRecord;

/// Who waits together: the records of a key, or one record without a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Lane {
    Key(Bytes),
    Alone(u64),
}

#[derive(Debug)]
enum State {
    /// To be handed over, perhaps later.
    Waiting,
    /// With the handler.
    Running,
    /// Its record in `dlq` is being written.
    Writing,
    /// Nothing to do any more.
    Settled,
}

#[derive(Debug)]
struct Slot {
    offset: u64,
    lane: Lane,
    /// Gone once settled.
    record: Option<LogRecord>,
    state: State,
    /// Failures of its own.
    attempts: u32,
    /// Failures of any kind: first and last.
    failed: Option<(Millis, Millis)>,
    /// In a batch that panicked: handed over alone from now on, so that only the guilty one is blamed.
    suspect: bool,
}

#[derive(Debug)]
struct Pause {
    until: Instant,
    backoff: Backoff,
}

/// A record given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rejected {
    pub(super) record: LogRecord,
    pub(super) rejection: Rejection,
    pub(super) attempts: Attempts,
}

/// What came of a batch.
#[derive(Debug, Default)]
pub(super) struct Completed {
    /// Settled at once.
    pub(super) settled: u64,
    /// Done, but a record in `dlq` must say so before they settle.
    pub(super) to_resolve: Vec<LogRecord>,
    /// To be written to `dlq` before they settle.
    pub(super) rejected: Vec<Rejected>,
    /// Classes of those that wait for another attempt.
    pub(super) retried: Vec<&'static str>,
}

/// The records of one partition between the first not settled and the last read.
#[derive(Debug)]
pub(super) struct Window {
    slots: VecDeque<Slot>,
    /// Lanes in back-off.
    pauses: HashMap<Lane, Pause>,
    /// Bytes of records not settled.
    bytes: usize,
    running: Vec<u64>,
    committable: Option<u64>,
    limits: HandlerConfig,
    backoff: BackoffPolicy,
    seed: u64,
}

impl Window {
    pub(super) fn new(limits: HandlerConfig, backoff: BackoffPolicy, seed: u64) -> Self {
        Self {
            slots: VecDeque::new(),
            pauses: HashMap::new(),
            bytes: 0,
            running: Vec::new(),
            committable: None,
            limits,
            backoff,
            seed,
        }
    }

    /// Records that may still be added now; at least one if there is room at all.
    pub(super) fn room(&self) -> usize {
        let span = match (self.slots.front(), self.slots.back()) {
            (Some(first), Some(last)) => last.offset - first.offset,
            (Some(_) | None, _) => 0,
        };
        if self.bytes >= self.limits.window_bytes || span >= self.limits.window_span {
            return 0;
        }
        self.limits.window_records.saturating_sub(self.slots.len())
    }

    /// Adds a record; offsets ascend.
    pub(super) fn add(&mut self, record: LogRecord) {
        debug_assert!(self.slots.back().is_none_or(|last| last.offset < record.offset));
        self.bytes += record.size();
        self.slots.push_back(Slot {
            offset: record.offset,
            lane: match &record.key {
                Some(key) => Lane::Key(key.clone()),
                None => Lane::Alone(record.offset),
            },
            record: Some(record),
            state: State::Waiting,
            attempts: 0,
            failed: None,
            suspect: false,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes the next batch: in offset order, what may run now. Empty if nothing may. One batch is out at a time.
    pub(super) fn take_ready(&mut self, now: Instant) -> Vec<LogRecord> {
        debug_assert!(self.running.is_empty());
        let mut batch: Vec<LogRecord> = Vec::new();
        let mut bytes = 0;
        let mut passed_over: HashSet<&Lane> = HashSet::new();
        for slot in &mut self.slots {
            let waits = match slot.state {
                State::Settled => continue,
                State::Writing | State::Running => true,
                State::Waiting => self.pauses.get(&slot.lane).is_some_and(|pause| pause.until > now),
            };
            // A suspect runs alone, so it is left for the next batch if this one has begun.
            if waits || passed_over.contains(&slot.lane) || (slot.suspect && !batch.is_empty()) {
                passed_over.insert(&slot.lane);
                continue;
            }
            let Some(record) = &slot.record else { continue };
            if batch.len() >= self.limits.batch_records || bytes >= self.limits.batch_bytes {
                break;
            }
            bytes += record.size();
            batch.push(record.clone());
            self.running.push(slot.offset);
            slot.state = State::Running;
            if slot.suspect {
                break;
            }
        }
        batch
    }

    /// When the next back-off after `now` ends, if a record waits for one.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.pauses
            .values()
            .map(|pause| pause.until)
            .filter(|until| *until > now)
            .min()
    }

    /// Takes the outcomes of the batch under way, one per record in its order. `resolves`: whether a record that is done
    /// must be reported to `dlq`.
    pub(super) fn complete(
        &mut self,
        outcomes: Vec<Outcome>,
        now: Instant,
        at: Millis,
        resolves: impl Fn(&LogRecord) -> bool,
    ) -> Completed {
        let running = std::mem::take(&mut self.running);
        let mut completed = Completed::default();
        let mut waiting: HashSet<Lane> = HashSet::new();
        let mut outcomes = outcomes.into_iter();
        for offset in running {
            // A handler that answers too little has said nothing about the rest: a failure of the record.
            let outcome = outcomes.next().unwrap_or_else(|| {
                Outcome::RetryLater(crate::handler::Cause {
                    error_class: "no_outcome",
                    detail: "the handler gave no outcome for this record".to_owned(),
                    dependency_down: false,
                })
            });
            let Some(index) = self.index(offset) else { continue };
            let slot = &mut self.slots[index];
            slot.state = State::Waiting;
            // Later ones of a key that waits are given again, whatever was said of them.
            if waiting.contains(&slot.lane) {
                continue;
            }
            match outcome {
                Outcome::Done => {
                    self.pauses.remove(&self.slots[index].lane);
                    match self.slots[index].record.clone() {
                        Some(record) if resolves(&record) => {
                            self.slots[index].state = State::Writing;
                            completed.to_resolve.push(record);
                        }
                        Some(_) | None => {
                            self.settle_at(index);
                            completed.settled += 1;
                        }
                    }
                }
                Outcome::RetryLater(cause) => {
                    let attempts = self.fail(index, at, u32::from(!cause.dependency_down));
                    if !cause.dependency_down && attempts.count >= self.limits.max_attempts {
                        let rejection = Rejection {
                            error_class: cause.error_class,
                            detail: cause.detail,
                            stage: "handle",
                        };
                        self.reject(index, rejection, attempts, &mut completed);
                    } else {
                        waiting.insert(self.slots[index].lane.clone());
                        self.pause(index, now);
                        completed.retried.push(cause.error_class);
                    }
                }
                Outcome::Reject(rejection) => {
                    let attempts = self.fail(index, at, 1);
                    self.reject(index, rejection, attempts, &mut completed);
                }
            }
        }
        self.advance();
        completed
    }

    /// The handler panicked: an attempt for each record of the batch. They are given again one by one, and only a record
    /// that was alone is blamed.
    pub(super) fn panicked(&mut self, reason: &str, now: Instant, at: Millis) -> Completed {
        let running = std::mem::take(&mut self.running);
        let mut completed = Completed::default();
        let alone = running.len() == 1;
        for offset in running {
            let Some(index) = self.index(offset) else { continue };
            self.slots[index].state = State::Waiting;
            self.slots[index].suspect = true;
            let attempts = self.fail(index, at, 1);
            if alone && attempts.count >= self.limits.max_attempts {
                let rejection = Rejection {
                    error_class: "panic",
                    detail: reason.to_owned(),
                    stage: "handle",
                };
                self.reject(index, rejection, attempts, &mut completed);
            } else {
                if !alone {
                    // The others of the batch may be guilty: the last attempt is always made alone.
                    let slot = &mut self.slots[index];
                    slot.attempts = slot.attempts.min(self.limits.max_attempts.saturating_sub(1));
                }
                self.pause(index, now);
                completed.retried.push("panic");
            }
        }
        completed
    }

    /// The record of `offset` is confirmed in `dlq`.
    pub(super) fn written(&mut self, offset: u64) {
        if let Some(index) = self.index(offset) {
            self.settle_at(index);
            self.advance();
        }
    }

    /// Offset to commit: everything received below it is settled. `None` until the first record settles in order.
    pub(super) const fn committable(&self) -> Option<u64> {
        self.committable
    }

    fn index(&self, offset: u64) -> Option<usize> {
        self.slots.binary_search_by_key(&offset, |slot| slot.offset).ok()
    }

    fn settle_at(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.state = State::Settled;
        if let Some(record) = slot.record.take() {
            self.bytes -= record.size();
        }
    }

    fn advance(&mut self) {
        while let Some(slot) = self.slots.pop_front_if(|slot| matches!(slot.state, State::Settled)) {
            self.committable = Some(slot.offset + 1);
        }
    }

    fn fail(&mut self, index: usize, at: Millis, attempts: u32) -> Attempts {
        let slot = &mut self.slots[index];
        slot.attempts += attempts;
        let first = slot.failed.map_or(at, |(first, _)| first);
        slot.failed = Some((first, at));
        Attempts {
            count: slot.attempts,
            first,
            last: at,
        }
    }

    fn reject(&mut self, index: usize, rejection: Rejection, attempts: Attempts, completed: &mut Completed) {
        let slot = &mut self.slots[index];
        slot.state = State::Writing;
        self.pauses.remove(&slot.lane);
        if let Some(record) = slot.record.clone() {
            completed.rejected.push(Rejected {
                record,
                rejection,
                attempts,
            });
        }
    }

    fn pause(&mut self, index: usize, now: Instant) {
        let slot = &self.slots[index];
        let seed = self.seed ^ slot.offset;
        let pause = self.pauses.entry(slot.lane.clone()).or_insert_with(|| Pause {
            until: now,
            backoff: Backoff::new(self.backoff, seed),
        });
        // Several records of the lane may fail at once (a panic): one step.
        if pause.until <= now {
            pause.until = now + pause.backoff.next_delay().max(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
