//! The window: what this run knows of idempotency keys without reading (seq:R3, seq:R10).
//!
//! A key that is not in the window and whose id is dated later than `W + margin` has no earlier copy: every copy that the
//! window does not hold was appended at or before W, and a gateway admits no id dated further ahead than the margin
//! allows. Such a key needs no read, which is what keeps reads off the hot path.
//!
//! The window is a ring under a byte cap. Evicting an entry moves W up to its broker time; it stays as far behind as the
//! cap allows, because every id dated at or before `W + margin` costs a read.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tidings_domain::clock::Millis;
use tidings_domain::state::{Intent, Outcome};
use tidings_domain::{ContentHash, DedupKeyHash, Position};

/// Bytes an entry takes in the map and in the ring, with the map's spare room.
const ENTRY_BYTES: usize = 192;

/// What is known of a key: its first copy and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) off: Position,
    pub(crate) content_hash: ContentHash,
    pub(crate) outcome: Outcome,
}

impl From<Intent> for Known {
    fn from(intent: Intent) -> Self {
        Self {
            off: intent.off,
            content_hash: intent.content_hash,
            outcome: intent.outcome,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Window {
    entries: HashMap<DedupKeyHash, Known>,
    /// Entries in the order they came, with the broker time of the record that brought them.
    order: VecDeque<(DedupKeyHash, Millis)>,
    cap: usize,
    w: Millis,
    margin: Duration,
}

impl Window {
    /// An empty window; `w` = -infinity (`None`) if nothing was ever folded.
    pub(crate) fn new(w: Option<Millis>, margin: Duration, bytes_cap: usize) -> Self {
        Self {
            entries: HashMap::new(),
            order: VecDeque::new(),
            cap: bytes_cap / ENTRY_BYTES,
            w: w.unwrap_or(Millis(i64::MIN)),
            margin,
        }
    }

    pub(crate) fn get(&self, key: &DedupKeyHash) -> Option<&Known> {
        self.entries.get(key)
    }

    /// Whether an earlier copy of an id of this time may exist outside the window.
    pub(crate) fn may_have_missed(&self, id_time: Millis) -> bool {
        id_time <= self.w.plus(self.margin)
    }

    pub(crate) fn insert(&mut self, key: DedupKeyHash, known: Known, append_time: Millis) {
        if self.entries.insert(key, known).is_none() {
            self.order.push_back((key, append_time));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Evicts the oldest entries over the cap, but none of the last `unacknowledged`: their intents (seq:R4) are not yet
    /// durable, so a duplicate would find neither.
    pub(crate) fn evict(&mut self, unacknowledged: usize) {
        while self.order.len() > self.cap.max(unacknowledged) {
            let Some((key, append_time)) = self.order.pop_front() else {
                return;
            };
            self.entries.remove(&key);
            self.w = self.w.max(append_time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_domain::LogEpoch;

    fn known(offset: u64) -> Known {
        Known {
            off: Position::new(LogEpoch::FIRST, offset),
            content_hash: ContentHash([0; 16]),
            outcome: Outcome::Accepted {
                conv_seq: 1,
                countable_seq: 1,
            },
        }
    }

    #[test]
    fn eviction_moves_w_and_spares_what_is_not_acknowledged() {
        let mut window = Window::new(None, Duration::from_secs(1), 2 * ENTRY_BYTES);
        assert!(!window.may_have_missed(Millis(0)));
        for i in 0..4u8 {
            window.insert(DedupKeyHash([i; 16]), known(u64::from(i)), Millis(1_000 * i64::from(i)));
        }
        window.evict(4);
        assert_eq!(window.len(), 4);
        window.evict(1);
        assert_eq!(window.len(), 2);
        assert_eq!(window.get(&DedupKeyHash([1; 16])), None);
        assert!(window.get(&DedupKeyHash([2; 16])).is_some());
        assert!(window.may_have_missed(Millis(2_000)));
        assert!(!window.may_have_missed(Millis(2_001)));
    }
}
