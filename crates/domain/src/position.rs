//! Log positions: the currency of the folds (sequencing.md section 0).
//!
//! Every `off`, `pos`, `applied`, `c`, V value and write timestamp of the folds is the [`Position`]
//! `log_epoch << 44 | offset`, so that a topic re-created under a new epoch sorts after the old one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of low bits that hold the offset.
const OFFSET_BITS: u32 = 44;
/// Largest offset a position can hold (17.6 trillion records in one partition).
const MAX_OFFSET: u64 = (1 << OFFSET_BITS) - 1;

/// The topics of the suite; each has exactly one consumer group (architecture.md section 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Topic {
    /// A user's actions, by conversation.
    Ingress = 1,
    /// Sequenced messages, by conversation.
    History = 2,
    /// Events for users and device states, by recipient uid.
    Inbox = 3,
    /// Durable events to push, same partition as the inbox.
    Push = 4,
    /// Hop stamps, by msg_id.
    Trace = 5,
    /// Dead letters, by origin key.
    Dlq = 6,
}

impl Topic {
    /// All topics, in the order of the way of a message.
    pub const ALL: [Self; 6] = [
        Self::Ingress,
        Self::History,
        Self::Inbox,
        Self::Push,
        Self::Trace,
        Self::Dlq,
    ];

    /// The short name, as in `tidings.<name>.v1`.
    #[must_use]
    pub const fn short_name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::History => "history",
            Self::Inbox => "inbox",
            Self::Push => "push",
            Self::Trace => "trace",
            Self::Dlq => "dlq",
        }
    }

    /// The topic with this wire number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Ingress),
            2 => Some(Self::History),
            3 => Some(Self::Inbox),
            4 => Some(Self::Push),
            5 => Some(Self::Trace),
            6 => Some(Self::Dlq),
            _ => None,
        }
    }

    /// The wire number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short_name())
    }
}

/// The version number of a topic's name, from 1: `tidings.ingress.v1` has epoch 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LogEpoch(pub u32);

impl LogEpoch {
    /// The epoch of the `v1` topics.
    pub const FIRST: Self = Self(1);
}

/// `log_epoch << 44 | offset` of a record in its partition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(u64);

impl Position {
    /// The position of `offset` in a partition of `epoch`.
    ///
    /// # Panics
    /// If the offset needs more than 44 bits or the epoch more than 19 (the sign bit of a CQL timestamp stays free):
    /// neither can be reached by a live log, so a larger value is a damaged one and must not be used.
    #[must_use]
    pub fn new(epoch: LogEpoch, offset: u64) -> Self {
        assert!(
            offset <= MAX_OFFSET,
            "offset {offset} does not fit into {OFFSET_BITS} bits"
        );
        assert!(epoch.0 < 1 << 19, "log epoch {} does not fit into 19 bits", epoch.0);
        Self(u64::from(epoch.0) << OFFSET_BITS | offset)
    }

    /// Takes a stored value.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The value as stored and as used for write timestamps.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The offset in the partition.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.0 & MAX_OFFSET
    }

    /// The epoch of the topic.
    #[must_use]
    pub const fn epoch(self) -> LogEpoch {
        // At most 20 bits are left after the shift.
        LogEpoch((self.0 >> OFFSET_BITS) as u32)
    }

    /// The position right after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@e{}", self.offset(), self.epoch().0)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A partition that records are derived from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourcePartition {
    /// The topic.
    pub topic: Topic,
    /// Its partition.
    pub partition: u32,
}

/// A position within a source partition; `idx` tells apart several outputs of one record to one destination
/// (seq:G2), compared lexicographically.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourcePosition {
    /// The record's position.
    pub pos: Position,
    /// 0 unless the output was split.
    pub idx: u32,
}

impl SourcePosition {
    /// The first (and normally only) output of the record at `pos`.
    #[must_use]
    pub const fn first(pos: Position) -> Self {
        Self { pos, idx: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_epoch_sorts_after_every_offset_of_an_earlier_one() {
        let last_of_first = Position::new(LogEpoch(1), MAX_OFFSET);
        let first_of_second = Position::new(LogEpoch(2), 0);
        assert!(last_of_first < first_of_second);
        assert_eq!(first_of_second.epoch(), LogEpoch(2));
        assert_eq!(last_of_first.offset(), MAX_OFFSET);
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn an_impossible_offset_is_refused() {
        let _ = Position::new(LogEpoch(1), 1 << 44);
    }
}
