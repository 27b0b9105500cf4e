//! The bounded queue between those who append and the committer.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

use super::LogLimits;
use super::record::EncodedRecord;
use super::topic::Place;
use crate::Error;

/// Where a record lies, durably.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Its offset.
    pub offset: u64,
    /// Its append time in milliseconds since the Unix epoch.
    pub append_time: i64,
}

/// Called once with what became of a record.
pub type Completion = Box<dyn FnOnce(Result<Appended, Error>) + Send>;

/// A record that waits.
pub(super) struct Pending {
    pub(super) place: Place,
    pub(super) record: EncodedRecord,
    pub(super) completion: Completion,
}

pub(super) struct Queue {
    limits: LogLimits,
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    records: VecDeque<Pending>,
    bytes: usize,
    closed: bool,
    failed: bool,
}

impl Queue {
    pub(super) fn new(limits: LogLimits) -> Self {
        Self {
            limits,
            state: Mutex::new(State::default()),
            filled: Condvar::new(),
        }
    }

    pub(super) fn push(&self, place: Place, record: EncodedRecord, completion: Completion) -> Result<(), Error> {
        let size = record.size();
        let mut state = self.state.lock();
        if state.failed {
            // Whoever failed the queue has answered what was in it, and nobody would answer this one.
            return Err(Error::Poisoned {
                reason: "the committer has ended".to_owned(),
            });
        }
        // One record of any size fits into an empty queue.
        let full = state.records.len() >= self.limits.queue_records
            || (state.bytes > 0 && state.bytes + size > self.limits.queue_bytes);
        if full {
            return Err(Error::QueueFull {
                records: state.records.len(),
                bytes: state.bytes,
            });
        }
        state.bytes += size;
        state.records.push_back(Pending {
            place,
            record,
            completion,
        });
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for records and takes what is there, up to the limits of a commit. `None` when closed and empty.
    pub(super) fn take(&self) -> Option<Vec<Pending>> {
        let mut state = self.state.lock();
        self.filled
            .wait_while(&mut state, |state| state.records.is_empty() && !state.closed);
        let mut count = 0;
        let mut bytes = 0;
        for pending in state.records.iter().take(self.limits.batch_records.max(1)) {
            let size = pending.record.size();
            if count > 0 && bytes + size > self.limits.batch_bytes {
                break;
            }
            count += 1;
            bytes += size;
        }
        if count == 0 {
            return None;
        }
        state.bytes -= bytes;
        Some(state.records.drain(..count).collect())
    }

    /// Takes everything, and refuses all that comes from now on; for the poisoned log.
    pub(super) fn fail(&self) -> VecDeque<Pending> {
        let mut state = self.state.lock();
        state.bytes = 0;
        state.failed = true;
        std::mem::take(&mut state.records)
    }

    /// No more records will come.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
    }

    /// Records and bytes that wait.
    pub(super) fn depth(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.records.len(), state.bytes)
    }
}
