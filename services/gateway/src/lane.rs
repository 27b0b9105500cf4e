//! A lane: the order of one session's actions in one conversation (req:C2).
//!
//! Every action carries `lane_seq` 1, 2, 3 … of its lane; a resend within the session keeps it. Pure: no clock, no I/O.
//!
//! ```text
//!             offer(n)
//!   n == expected ─► Produce ─► accepted(n)  pending until reported ─► confirmed(tag) │ failed(tag) │ skipped
//!   n >  expected ─► OutOfOrder { expected }     (retryable; nothing happens until the expected one comes)
//!   n <  expected ─► pending with the same key and hash? Join : Produce as a record of its own
//! ```
//!
//! **Guarantee.** The producer gets the first records of lane numbers in ascending order: a number goes to the producer
//! only if every lower one was accepted by it or refused for good. What is refused for now, or fails later, makes the
//! lane wait: `expected` is then that number until it comes again. While a copy is pending, a resend of the same
//! content makes no second record (req:B7). Another content under a pending key is produced, so that the log can
//! answer `ID_CONFLICT` (req:A5).

use std::collections::BTreeSet;

use tidings_domain::{Action, ContentHash, MsgId, OpId};

/// An action within its lane: what of the idempotency key is not given by conversation and sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneKey {
    /// The message.
    pub msg_id: MsgId,
    /// What is done.
    pub action: Action,
    /// The action's own id, where it has one.
    pub op_id: Option<OpId>,
}

/// What to do with an offered action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Hand it to the producer, then call [`Lane::accepted`]; or [`Lane::skipped`] if it is refused for good; or
    /// nothing if it is refused for now.
    Produce,
    /// The copy with this tag is under way: its report answers both.
    Join(u64),
    /// Refuse; this number must come first.
    OutOfOrder {
        /// The number that is due.
        expected: u64,
    },
}

#[derive(Debug)]
struct Copy {
    lane_seq: u64,
    key: LaneKey,
    hash: ContentHash,
    tag: u64,
}

/// The state of one lane.
#[derive(Debug)]
pub struct Lane {
    /// The number after the highest that was accepted or refused for good.
    next: u64,
    /// Numbers below `next` whose produce failed: they must come again, lowest first.
    failed: BTreeSet<u64>,
    /// Copies at the producer; bounded by the session's limit of unacknowledged sends.
    pending: Vec<Copy>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            next: 1,
            failed: BTreeSet::new(),
            pending: Vec::new(),
        }
    }
}

impl Lane {
    /// The number that is due.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.failed.first().copied().unwrap_or(self.next)
    }

    /// Judges an action.
    #[must_use]
    pub fn offer(&self, lane_seq: u64, key: &LaneKey, hash: &ContentHash) -> Verdict {
        let same = |copy: &&Copy| copy.key == *key && copy.hash == *hash;
        if let Some(copy) = self.pending.iter().find(same) {
            return Verdict::Join(copy.tag);
        }
        let expected = self.expected();
        if lane_seq > expected {
            return Verdict::OutOfOrder { expected };
        }
        Verdict::Produce
    }

    /// The producer took it under `tag`.
    pub fn accepted(&mut self, lane_seq: u64, key: LaneKey, hash: ContentHash, tag: u64) {
        self.pass(lane_seq);
        self.pending.push(Copy {
            lane_seq,
            key,
            hash,
            tag,
        });
    }

    /// It was refused for good: the lane goes on without it.
    pub fn skipped(&mut self, lane_seq: u64) {
        self.pass(lane_seq);
    }

    /// The log has it, or refused it for good.
    pub fn confirmed(&mut self, tag: u64) {
        self.remove(tag);
    }

    /// The log may not have it: the lane waits for it to come again.
    pub fn failed(&mut self, tag: u64) {
        if let Some(copy) = self.remove(tag)
            // Another copy of the same number may still be under way.
            && !self.pending.iter().any(|other| other.lane_seq == copy.lane_seq)
        {
            self.failed.insert(copy.lane_seq);
        }
    }

    fn pass(&mut self, lane_seq: u64) {
        self.failed.remove(&lane_seq);
        if lane_seq == self.next {
            self.next += 1;
        }
    }

    fn remove(&mut self, tag: u64) -> Option<Copy> {
        let at = self.pending.iter().position(|copy| copy.tag == tag)?;
        // Order matters: `offer` joins the oldest copy.
        Some(self.pending.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidings_domain::ContentHasher;
    use tidings_domain::clock::Millis;

    use super::*;

    fn key(n: u64) -> LaneKey {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&n.to_be_bytes());
        LaneKey {
            msg_id: MsgId::mint(Millis(1_700_000_000_000), random),
            action: Action::Send,
            op_id: None,
        }
    }

    fn hash(text: &str) -> ContentHash {
        ContentHasher::new().part(text.as_bytes()).finish()
    }

    fn produce(lane: &mut Lane, n: u64) {
        assert_eq!(lane.offer(n, &key(n), &hash("a")), Verdict::Produce, "number {n}");
        lane.accepted(n, key(n), hash("a"), n);
    }

    #[test]
    fn a_number_beyond_the_next_is_refused_until_the_expected_one_comes() {
        let mut lane = Lane::default();
        produce(&mut lane, 1);
        assert_eq!(lane.offer(3, &key(3), &hash("a")), Verdict::OutOfOrder { expected: 2 });
        produce(&mut lane, 2);
        produce(&mut lane, 3);
    }

    #[test]
    fn a_resend_joins_the_pending_copy_and_is_produced_again_afterwards() {
        let mut lane = Lane::default();
        produce(&mut lane, 1);
        assert_eq!(lane.offer(1, &key(1), &hash("a")), Verdict::Join(1));
        lane.confirmed(1);
        assert_eq!(
            lane.offer(1, &key(1), &hash("a")),
            Verdict::Produce,
            "an ACK is never given from memory (req:B1)"
        );
        lane.accepted(1, key(1), hash("a"), 9);
        assert_eq!(lane.expected(), 2, "a repeated number does not move the lane");
    }

    #[test]
    fn other_content_under_a_pending_key_reaches_the_log() {
        let mut lane = Lane::default();
        produce(&mut lane, 1);
        assert_eq!(lane.offer(1, &key(1), &hash("b")), Verdict::Produce);
    }

    #[test]
    fn a_refusal_for_now_holds_the_lane_and_one_for_good_does_not() {
        let mut lane = Lane::default();
        assert_eq!(lane.offer(1, &key(1), &hash("a")), Verdict::Produce);
        // Refused for now (queue full): nothing is told to the lane.
        assert_eq!(lane.offer(2, &key(2), &hash("a")), Verdict::OutOfOrder { expected: 1 });
        lane.skipped(1);
        produce(&mut lane, 2);
    }

    #[test]
    fn after_a_failed_produce_the_lane_waits_for_that_number() {
        let mut lane = Lane::default();
        for n in 1..=3 {
            produce(&mut lane, n);
        }
        lane.failed(2);
        assert_eq!(lane.offer(4, &key(4), &hash("a")), Verdict::OutOfOrder { expected: 2 });
        assert_eq!(lane.offer(3, &key(3), &hash("a")), Verdict::Join(3), "still under way");
        produce(&mut lane, 2);
        lane.failed(3);
        assert_eq!(lane.offer(4, &key(4), &hash("a")), Verdict::OutOfOrder { expected: 3 });
        produce(&mut lane, 3);
        produce(&mut lane, 4);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Offer(u64),
        Full(u64),
        Refuse(u64),
        Confirm(usize),
        Fail(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..8u64).prop_map(Step::Offer),
            1 => (1..8u64).prop_map(Step::Full),
            1 => (1..8u64).prop_map(Step::Refuse),
            2 => (0..8usize).prop_map(Step::Confirm),
            1 => (0..8usize).prop_map(Step::Fail),
        ]
    }

    proptest! {
        /// Whatever comes in whatever order: a number is produced only when every lower one is settled (at the producer,
        /// confirmed or refused for good), and no two copies of one content are pending at once.
        #[test]
        fn numbers_reach_the_producer_in_order(steps in prop::collection::vec(step(), 0..120)) {
            let mut lane = Lane::default();
            let mut settled = BTreeSet::new();
            let mut pending: Vec<(u64, u64)> = Vec::new();
            let mut tags = 0;
            for step in steps {
                match step {
                    Step::Offer(n) | Step::Full(n) | Step::Refuse(n) => match lane.offer(n, &key(n), &hash("a")) {
                        Verdict::Produce => {
                            prop_assert!((1..n).all(|lower| settled.contains(&lower)), "{} before a lower one", n);
                            prop_assert!(pending.iter().all(|(m, _)| *m != n));
                            match step {
                                Step::Offer(_) => {
                                    tags += 1;
                                    lane.accepted(n, key(n), hash("a"), tags);
                                    pending.push((n, tags));
                                    settled.insert(n);
                                }
                                Step::Refuse(_) => {
                                    lane.skipped(n);
                                    settled.insert(n);
                                }
                                Step::Full(_) | Step::Confirm(_) | Step::Fail(_) => {}
                            }
                        }
                        Verdict::Join(tag) => prop_assert!(pending.contains(&(n, tag))),
                        Verdict::OutOfOrder { expected } => {
                            prop_assert!(expected < n);
                            prop_assert!(!settled.contains(&expected), "{} is already settled", expected);
                        }
                    },
                    Step::Confirm(at) if at < pending.len() => lane.confirmed(pending.remove(at).1),
                    Step::Fail(at) if at < pending.len() => {
                        let (n, tag) = pending.remove(at);
                        lane.failed(tag);
                        settled.remove(&n);
                    }
                    Step::Confirm(_) | Step::Fail(_) => {}
                }
            }
        }
    }
}
