//! The hot window of one process: the newest events of the users seen last, in memory.
//!
//! Bounded three ways: events per user, users, and bytes in all. A user who is over the bounds of the whole goes as a
//! whole, the one appended to longest ago first. What is gone is read from the inbox rows.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tidings_domain::Uid;

use crate::Error;
use crate::port::{HotRead, HotWindow};

/// How much a window in memory may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotWindowLimits {
    /// Newest events kept of a user.
    pub events_per_user: usize,
    /// Users.
    pub users: usize,
    /// Encoded events of all users, in bytes.
    pub bytes: usize,
}

impl Default for HotWindowLimits {
    /// As much per user as in Redis, and 64 MiB in all: a machine that runs everything else too can spare it.
    fn default() -> Self {
        Self {
            events_per_user: 512,
            users: 100_000,
            bytes: 64 << 20,
        }
    }
}

/// The events of a user, contiguous, `hi` last.
struct Window {
    events: VecDeque<Bytes>,
    hi: u64,
    bytes: usize,
    /// Key in `by_age`.
    touched: u64,
}

impl Window {
    /// Lowest number held; `hi + 1` if nothing is.
    fn lo(&self) -> u64 {
        self.hi + 1 - self.events.len() as u64
    }
}

#[derive(Default)]
struct Windows {
    users: HashMap<Uid, Window>,
    /// Users by the time of their last append, on a counter of its own.
    by_age: BTreeMap<u64, Uid>,
    ticks: u64,
    bytes: usize,
}

impl Windows {
    fn append(&mut self, uid: &Uid, seq: u64, event: &Bytes, limits: &HotWindowLimits) {
        self.ticks += 1;
        let window = self.users.entry(uid.clone()).or_insert_with(|| Window {
            events: VecDeque::new(),
            hi: seq.saturating_sub(1),
            bytes: 0,
            touched: self.ticks,
        });
        if seq <= window.hi {
            return;
        }
        if seq != window.hi + 1 {
            self.bytes -= window.bytes;
            window.bytes = 0;
            window.events.clear();
        }
        window.hi = seq;
        window.bytes += event.len();
        self.bytes += event.len();
        window.events.push_back(event.clone());
        while window.events.len() > limits.events_per_user {
            let gone = window.events.pop_front().map_or(0, |event| event.len());
            window.bytes -= gone;
            self.bytes -= gone;
        }
        self.by_age.remove(&window.touched);
        window.touched = self.ticks;
        self.by_age.insert(self.ticks, uid.clone());
        while self.users.len() > limits.users || self.bytes > limits.bytes {
            let Some((_, oldest)) = self.by_age.pop_first() else {
                return;
            };
            if let Some(gone) = self.users.remove(&oldest) {
                self.bytes -= gone.bytes;
            }
        }
    }
}

/// A hot window in memory.
pub struct LocalHotWindow {
    limits: HotWindowLimits,
    windows: Mutex<Windows>,
}

impl fmt::Debug for LocalHotWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let windows = self.windows.lock();
        f.debug_struct("LocalHotWindow")
            .field("limits", &self.limits)
            .field("users", &windows.users.len())
            .field("bytes", &windows.bytes)
            .finish()
    }
}

impl LocalHotWindow {
    /// An empty window.
    #[must_use]
    pub fn new(limits: HotWindowLimits) -> Self {
        Self {
            limits,
            windows: Mutex::default(),
        }
    }
}

impl Default for LocalHotWindow {
    fn default() -> Self {
        Self::new(HotWindowLimits::default())
    }
}

#[async_trait]
impl HotWindow for LocalHotWindow {
    async fn append(&self, events: &[(Uid, u64, Bytes)]) -> Result<(), Error> {
        let mut windows = self.windows.lock();
        for (uid, seq, event) in events {
            windows.append(uid, *seq, event, &self.limits);
        }
        Ok(())
    }

    async fn read(&self, uid: &Uid, after: u64, limit: usize) -> Result<HotRead, Error> {
        let windows = self.windows.lock();
        let Some(window) = windows.users.get(uid) else {
            return Ok(HotRead::default());
        };
        let hi = window.hi;
        let lo = window.lo();
        if after >= hi || after + 1 < lo {
            return Ok(HotRead { events: Vec::new(), hi });
        }
        // Below the number of events held, so it fits.
        let skip = usize::try_from(after + 1 - lo).unwrap_or(usize::MAX);
        let events = (after + 1..)
            .zip(window.events.iter().skip(skip).take(limit).cloned())
            .collect();
        Ok(HotRead { events, hi })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(name: &str) -> Uid {
        Uid::parse(name).expect("valid")
    }

    #[tokio::test]
    async fn the_user_not_appended_to_for_longest_goes_first() {
        let window = LocalHotWindow::new(HotWindowLimits {
            events_per_user: 2,
            users: 10,
            bytes: 30,
        });
        let event = Bytes::from_static(&[7; 10]);
        for (name, seq) in [("a", 1), ("b", 1), ("a", 2), ("c", 1)] {
            let appended = window.append(&[(uid(name), seq, event.clone())]).await;
            appended.expect("in memory");
        }
        let hi = async |name| window.read(&uid(name), 0, 9).await.expect("in memory").hi;
        assert_eq!((hi("a").await, hi("b").await, hi("c").await), (2, 0, 1));
    }

    #[tokio::test]
    async fn an_event_larger_than_everything_leaves_an_empty_window() {
        let window = LocalHotWindow::new(HotWindowLimits {
            events_per_user: 2,
            users: 1,
            bytes: 5,
        });
        let event = Bytes::from_static(&[7; 10]);
        window.append(&[(uid("a"), 1, event)]).await.expect("in memory");
        let read = window.read(&uid("a"), 0, 9).await;
        assert_eq!(read, Ok(HotRead::default()));
    }
}
