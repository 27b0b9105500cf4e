//! The acknowledgements of one run (seq:G3, seq:R8a): counted, checked for order, watched for silence.
//!
//! A *run* is one fold owner of one partition from start to end. Each record it sends to a destination partition gets an
//! [`AckLedger::sent`], each report an [`AckLedger::acked`]. Pure: time is a parameter, no I/O.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tidings_domain::Topic;
use tidings_domain::clock::Millis;

use crate::producer::{Confirmation, ProduceError};

/// Why a run must end without committing any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AckFault {
    /// The producer reported an error.
    #[error("output to {topic}/{partition} failed: {error}")]
    Failed {
        /// Destination.
        topic: Topic,
        /// Destination.
        partition: u32,
        /// The report.
        error: ProduceError,
    },
    /// A report without an offset: the broker knew the sequence number already, where the record lies is not known.
    #[error("output to {topic}/{partition} was confirmed without an offset")]
    NoOffset {
        /// Destination.
        topic: Topic,
        /// Destination.
        partition: u32,
    },
    /// Offsets do not ascend in the order of sending.
    #[error("outputs to {topic}/{partition} landed out of order: offset {offset} after {previous}")]
    OutOfOrder {
        /// Destination.
        topic: Topic,
        /// Destination.
        partition: u32,
        /// Offset reported.
        offset: u64,
        /// Offset of the output sent before.
        previous: u64,
    },
    /// An output has waited for its report for too long.
    #[error("an output to {topic}/{partition} has waited {waited:?} for its confirmation")]
    Silent {
        /// Destination.
        topic: Topic,
        /// Destination.
        partition: u32,
        /// How long.
        waited: Duration,
    },
}

/// Outputs of one destination, in sending order.
#[derive(Debug, Default)]
struct Destination {
    /// Outputs without a report before the first of them, oldest first: (tag, sent at, offset once reported).
    pending: VecDeque<(u64, Millis, Option<u64>)>,
    /// Offset of the last output whose report, and those of all before it, have come.
    last_offset: Option<u64>,
}

/// The ledger of one run.
#[derive(Debug, Default)]
pub struct AckLedger {
    next_tag: u64,
    destinations: HashMap<(Topic, u32), Destination>,
    of_tag: HashMap<u64, (Topic, u32)>,
    fault: Option<AckFault>,
}

impl AckLedger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes an output just before it is enqueued; returns the tag for its report.
    pub fn sent(&mut self, topic: Topic, partition: u32, now: Millis) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.destinations
            .entry((topic, partition))
            .or_default()
            .pending
            .push_back((tag, now, None));
        self.of_tag.insert(tag, (topic, partition));
        tag
    }

    /// Takes an output back that the producer did not take (queue full): it was never sent.
    pub fn not_sent(&mut self, tag: u64) {
        if let Some(key) = self.of_tag.remove(&tag)
            && let Some(destination) = self.destinations.get_mut(&key)
        {
            destination.pending.retain(|(t, _, _)| *t != tag);
        }
    }

    /// Takes a report.
    pub fn acked(&mut self, tag: u64, result: Result<Confirmation, ProduceError>) {
        let Some((topic, partition)) = self.of_tag.remove(&tag) else {
            return;
        };
        let Some(destination) = self.destinations.get_mut(&(topic, partition)) else {
            return;
        };
        let fault = match result {
            Err(error) => Some(AckFault::Failed {
                topic,
                partition,
                error,
            }),
            Ok(Confirmation { offset: None, .. }) => Some(AckFault::NoOffset { topic, partition }),
            Ok(Confirmation {
                offset: Some(offset), ..
            }) => {
                if let Some(entry) = destination.pending.iter_mut().find(|(t, _, _)| *t == tag) {
                    entry.2 = Some(offset);
                }
                destination
                    .settle_prefix()
                    .map(|(offset, previous)| AckFault::OutOfOrder {
                        topic,
                        partition,
                        offset,
                        previous,
                    })
            }
        };
        if self.fault.is_none() {
            self.fault = fault;
        }
    }

    /// Outputs whose reports, or those of an output before them, are missing.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.destinations.values().map(|d| d.pending.len()).sum()
    }

    /// The first fault, if any: the run must end, and nothing may be committed.
    #[must_use]
    pub fn fault(&self) -> Option<&AckFault> {
        self.fault.as_ref()
    }

    /// The ack watchdog (seq:G3): an output unreported for longer than `limit` is a producer error.
    pub fn watch(&mut self, now: Millis, limit: Duration) {
        if self.fault.is_some() {
            return;
        }
        self.fault = self.destinations.iter().find_map(|((topic, partition), destination)| {
            let waited = now.since(destination.pending.front()?.1);
            (waited > limit).then_some(AckFault::Silent {
                topic: *topic,
                partition: *partition,
                waited,
            })
        });
    }
}

impl Destination {
    /// Drops the reported prefix; returns (offset, previous) at the first offset that does not ascend.
    fn settle_prefix(&mut self) -> Option<(u64, u64)> {
        while let Some((_, _, Some(offset))) = self.pending.front().copied() {
            if let Some(previous) = self.last_offset
                && offset <= previous
            {
                return Some((offset, previous));
            }
            self.last_offset = Some(offset);
            self.pending.pop_front();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u64) -> Result<Confirmation, ProduceError> {
        Ok(Confirmation {
            offset: Some(offset),
            append_time: None,
        })
    }

    #[test]
    fn reports_in_any_order_settle_if_the_offsets_ascend() {
        let mut ledger = AckLedger::new();
        let tags: Vec<_> = (0..3).map(|_| ledger.sent(Topic::Inbox, 1, Millis(0))).collect();
        ledger.acked(tags[2], at(12));
        assert_eq!(ledger.unsettled(), 3);
        ledger.acked(tags[0], at(10));
        ledger.acked(tags[1], at(11));
        assert_eq!(ledger.unsettled(), 0);
        assert_eq!(ledger.fault(), None);
    }

    #[test]
    fn a_swap_is_a_fault() {
        let mut ledger = AckLedger::new();
        let first = ledger.sent(Topic::Inbox, 1, Millis(0));
        let second = ledger.sent(Topic::Inbox, 1, Millis(0));
        ledger.acked(second, at(10));
        ledger.acked(first, at(11));
        assert!(matches!(
            ledger.fault(),
            Some(AckFault::OutOfOrder {
                offset: 10,
                previous: 11,
                ..
            })
        ));
    }

    #[test]
    fn destinations_do_not_mix() {
        let mut ledger = AckLedger::new();
        let one = ledger.sent(Topic::Inbox, 1, Millis(0));
        let two = ledger.sent(Topic::Inbox, 2, Millis(0));
        ledger.acked(one, at(100));
        ledger.acked(two, at(5));
        assert_eq!(ledger.fault(), None);
    }

    #[test]
    fn a_report_without_offset_or_a_missing_one_is_a_fault() {
        let mut ledger = AckLedger::new();
        let tag = ledger.sent(Topic::History, 0, Millis(0));
        ledger.acked(
            tag,
            Ok(Confirmation {
                offset: None,
                append_time: None,
            }),
        );
        assert!(matches!(ledger.fault(), Some(AckFault::NoOffset { .. })));

        let mut ledger = AckLedger::new();
        ledger.sent(Topic::History, 0, Millis(0));
        ledger.watch(Millis(90_000), Duration::from_secs(90));
        assert_eq!(ledger.fault(), None);
        ledger.watch(Millis(90_001), Duration::from_secs(90));
        assert!(matches!(ledger.fault(), Some(AckFault::Silent { .. })));
    }
}
