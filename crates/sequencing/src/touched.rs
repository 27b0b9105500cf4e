//! What the next checkpoint must write, and what may be evicted after it (seq:R7, seq:R10, seq:I8a, seq:I9).
//!
//! A state is *touched* when a record was applied to it, advanced or not: its register must be written again, because the
//! value read at first touch may be a phantom. A state may leave memory only when a checkpoint issued after its last
//! touch is committed. Checkpoints may be in flight while the next batches are decided.

/// Number of the checkpoint a touch belongs to; 0: never touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Stamp(u64);

/// Keys touched since the last committed checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct Touched<K> {
    /// Checkpoint that collects now.
    current: u64,
    /// Newest checkpoint issued.
    issued: u64,
    /// Newest checkpoint committed.
    committed: u64,
    keys: Vec<(Stamp, K)>,
}

impl<K: Clone> Touched<K> {
    pub(crate) fn new() -> Self {
        Self {
            current: 1,
            issued: 0,
            committed: 0,
            keys: Vec::new(),
        }
    }

    /// Notes a touch; once per checkpoint and key.
    pub(crate) fn touch(&mut self, stamp: &mut Stamp, key: impl FnOnce() -> K) {
        if stamp.0 != self.current {
            *stamp = Stamp(self.current);
            self.keys.push((*stamp, key()));
        }
    }

    /// The keys to write now, in the order of their first touch: all that no committed checkpoint covers. The stamp is
    /// that of the touch; an older stamp than the state's own means that the key comes again.
    pub(crate) fn issue(&mut self) -> impl Iterator<Item = (Stamp, &K)> {
        self.issued = self.current;
        self.current += 1;
        self.keys.iter().map(|(stamp, key)| (*stamp, key))
    }

    /// The last checkpoint issued is durable.
    pub(crate) fn committed(&mut self) {
        self.committed = self.issued;
        let committed = Stamp(self.committed);
        self.keys.retain(|(stamp, _)| *stamp > committed);
    }

    /// Whether a state with this stamp is covered by a committed checkpoint.
    pub(crate) fn is_covered(&self, stamp: Stamp) -> bool {
        stamp.0 <= self.committed
    }

    /// The clock of use: grows by one with each checkpoint.
    pub(crate) fn now(&self) -> u64 {
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_between_issue_and_commit_is_kept_for_the_next_checkpoint() {
        let mut touched = Touched::new();
        let mut a = Stamp::default();
        let mut b = Stamp::default();
        touched.touch(&mut a, || "a");
        touched.touch(&mut a, || "a");
        touched.touch(&mut b, || "b");
        assert_eq!(touched.issue().map(|(_, k)| *k).collect::<Vec<_>>(), ["a", "b"]);
        touched.touch(&mut a, || "a");
        touched.committed();
        assert!(!touched.is_covered(a));
        assert!(touched.is_covered(b));
        assert_eq!(touched.issue().map(|(_, k)| *k).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn an_uncommitted_checkpoint_is_written_again() {
        let mut touched = Touched::new();
        let mut a = Stamp::default();
        touched.touch(&mut a, || "a");
        assert_eq!(touched.issue().count(), 1);
        assert_eq!(touched.issue().count(), 1);
        assert!(!touched.is_covered(a));
    }
}
