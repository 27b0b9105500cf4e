//! Faults that the contract suite injects into this adapter, at the points where a broker and its client can fail.
//!
//! Made by a test and given to [`super::EmbeddedBus::open_with_faults`]; clones share one state. A bus without faults has
//! none of this on its path.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tidings_domain::Topic;

use super::producer::Report;
use crate::producer::{Confirmation, ProduceError};

/// What to break next.
#[derive(Clone, Default)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    orders: Vec<(Topic, Order)>,
    holding: bool,
    held: VecDeque<(Report, Result<Confirmation, ProduceError>)>,
    revoke: Option<Revoke>,
    failing_commits: usize,
}

/// What happens to one record.
#[derive(Debug, Clone)]
pub(super) enum Order {
    /// Written and confirmed.
    Obey,
    /// Not written, reported as this error.
    Lose(ProduceError),
    /// Written, reported as this error.
    FailReport(ProduceError),
    /// Written, confirmed without an offset.
    HideOffset,
}

/// A revocation that the next poll of a source reports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Revoke {
    pub(super) lost: bool,
}

impl Faults {
    /// No faults yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next record enqueued to `topic` is not written and reported with `error`; later records are written: a loss in
    /// the middle (seq:G3).
    pub fn lose_next(&self, topic: Topic, error: ProduceError) {
        self.state.lock().orders.push((topic, Order::Lose(error)));
    }

    /// The next record enqueued to `topic` is written, but reported with `error`: an outcome that is not known.
    pub fn fail_next_confirmation(&self, topic: Topic, error: ProduceError) {
        self.state.lock().orders.push((topic, Order::FailReport(error)));
    }

    /// The next record enqueued to `topic` is written and confirmed without an offset, as a duplicate is (seq:R8a).
    pub fn hide_next_offset(&self, topic: Topic) {
        self.state.lock().orders.push((topic, Order::HideOffset));
    }

    /// Reports are kept back until [`Faults::release_confirmations`]. Records are written meanwhile.
    pub fn hold_confirmations(&self) {
        self.state.lock().holding = true;
    }

    /// Delivers the reports kept back, in order, on this thread. Returns how many there were.
    pub fn release_confirmations(&self) -> usize {
        let mut released = 0;
        loop {
            // One by one, without the lock: a report may enqueue. Later reports queue up behind until none is left.
            let mut state = self.state.lock();
            let Some((report, result)) = state.held.pop_front() else {
                state.holding = false;
                return released;
            };
            drop(state);
            report.deliver(result);
            released += 1;
        }
    }

    /// Reports kept back now.
    #[must_use]
    pub fn held_confirmations(&self) -> usize {
        self.state.lock().held.len()
    }

    /// The next poll of a source reports all its partitions as revoked; after `finish_revoke` they are
    /// assigned again. `lost`: as if the group had given them away already, so commits are refused until then.
    pub fn revoke_next(&self, lost: bool) {
        self.state.lock().revoke = Some(Revoke { lost });
    }

    /// The next `count` commits of any source fail as unavailable, and write nothing.
    pub fn fail_commits(&self, count: usize) {
        self.state.lock().failing_commits = count;
    }

    pub(super) fn order_for(&self, topic: Topic) -> Order {
        let mut state = self.state.lock();
        match state.orders.iter().position(|(of, _)| *of == topic) {
            Some(at) => state.orders.remove(at).1,
            None => Order::Obey,
        }
    }

    pub(super) fn take_revoke(&self) -> Option<Revoke> {
        self.state.lock().revoke.take()
    }

    pub(super) fn take_failing_commit(&self) -> bool {
        let mut state = self.state.lock();
        let failing = state.failing_commits > 0;
        state.failing_commits = state.failing_commits.saturating_sub(1);
        failing
    }

    pub(super) fn deliver(&self, report: Report, order: Order, result: Result<Confirmation, ProduceError>) {
        let result = match order {
            Order::Obey => result,
            Order::Lose(error) | Order::FailReport(error) => Err(error),
            Order::HideOffset => result.map(|confirmation| Confirmation {
                offset: None,
                ..confirmation
            }),
        };
        let mut state = self.state.lock();
        if state.holding {
            state.held.push_back((report, result));
            return;
        }
        drop(state);
        report.deliver(result);
    }

    /// Reports a record that was not written. A client does so on its delivery thread, never within `enqueue`.
    pub(super) fn report_lost(report: Report, error: ProduceError) {
        thread::spawn(move || report.deliver(Err(error)));
    }
}
