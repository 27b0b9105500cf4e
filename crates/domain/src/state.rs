//! What the folds keep in the store: heads, intents, registers, checkpoints (sequencing.md section 1, architecture.md
//! section 6). Plain values; who writes them when is the folds' business, how they are stored that of the adapters.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::content_hash::ContentHash;
use crate::ids::Uid;
use crate::position::{Position, SourcePartition, SourcePosition};

/// `conv_head`: the newest number of a conversation and the ingress position up to which accepted records are applied.
/// A max-register, written with timestamp `head` (seq:R7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvHead {
    /// Newest `conv_seq`.
    pub head: u64,
    /// Newest `countable_seq`.
    pub countable: u64,
    /// Position of the last accepted record.
    pub applied: Position,
}

/// Why the log refused an action that was durably accepted. Numbers are those of `tidings.v1.RejectReason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum RejectReason {
    /// Same idempotency key, other content.
    IdConflict = 1,
    /// The sender is not a member.
    NotMember = 2,
    /// Too late to recall.
    RecallWindowOver = 3,
    /// The message to recall or edit does not exist.
    TargetUnknown = 4,
    /// The conversation does not exist.
    UnknownConversation = 5,
    /// This version of the fold does not know the action.
    Unsupported = 6,
}

impl RejectReason {
    /// The reason with this wire number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::IdConflict),
            2 => Some(Self::NotMember),
            3 => Some(Self::RecallWindowOver),
            4 => Some(Self::TargetUnknown),
            5 => Some(Self::UnknownConversation),
            6 => Some(Self::Unsupported),
            _ => None,
        }
    }
}

/// What the router's fold made of the first record of an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// Sequenced.
    Accepted {
        /// Its number in the conversation.
        conv_seq: u64,
        /// Its countable number (equal to the previous one for what unread does not count).
        countable_seq: u64,
    },
    /// Refused; the sender gets a rejection.
    Rejected(RejectReason),
}

/// `intent`: the outcome of an idempotency key, written for every first-of-key record (seq:R4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// What came of it.
    pub outcome: Outcome,
    /// Hash of the first copy.
    pub content_hash: ContentHash,
    /// Position of the first copy.
    pub off: Position,
    /// Broker time of the first copy.
    pub append_time: Millis,
}

/// `member`: `uid` sees `join_seq ..= leave_seq` (seq:G1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInterval {
    /// Who.
    pub uid: Uid,
    /// First conv_seq seen.
    pub join_seq: u64,
    /// Last conv_seq seen; `None` while a member.
    pub leave_seq: Option<u64>,
}

/// `inbox_head`: the newest number of a user's stream and the inbox position of its row. A max-register, written with
/// timestamp `seq` (seq:I8a).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboxHead {
    /// Newest `user_seq`.
    pub seq: u64,
    /// Inbox position that caused it.
    pub off: Position,
}

/// `inbox`: one event of a user's stream (seq:I4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxRow {
    /// Number in the stream.
    pub seq: u64,
    /// Inbox position it came from.
    pub off: Position,
    /// Source it was derived from; `None` for a dead letter replayed.
    pub src: Option<(SourcePartition, SourcePosition)>,
    /// Broker time of the inbox record: the row's write timestamp.
    pub append_time: Millis,
    /// An encoded `Event`.
    pub event: Bytes,
}

/// `ckpt`: where stage 2 of one inbox partition stands. One cell, written with timestamp `pos` (seq:I1, seq:I8b).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Version of the fold that wrote it.
    pub fold_version: u32,
    /// Offset of the next record to fold.
    pub next_offset: u64,
    /// V: per source partition the last source position folded. A list in the stored form: JSON maps need text keys.
    #[serde(with = "source_positions")]
    pub folded: BTreeMap<SourcePartition, SourcePosition>,
}

mod source_positions {
    use super::{BTreeMap, SourcePartition, SourcePosition};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        folded: &BTreeMap<SourcePartition, SourcePosition>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        folded.iter().collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<SourcePartition, SourcePosition>, D::Error> {
        Ok(Vec::<(SourcePartition, SourcePosition)>::deserialize(deserializer)?
            .into_iter()
            .collect())
    }
}

/// `device`: what one device has reported, with the inbox position of the last report applied (the register rule of
/// sequencing.md section 1). Written with timestamp `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRegister {
    /// Received up to this user_seq.
    pub delivered: u64,
    /// Stored up to this user_seq: the device's cursor (req:B3).
    pub stored: u64,
    /// Inbox position of the last record applied.
    pub off: Position,
}

/// `user_conv`: what a user has of one conversation (register rule, timestamp `off`). Numbers are `conv_seq`;
/// pairs are (conv_seq, countable_seq).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserConvRegister {
    /// Newest message appended to the user's stream.
    pub appended: ConvMark,
    /// Stored on at least one device.
    pub delivered: u64,
    /// Read on at least one device.
    pub read: ConvMark,
    /// Inbox position of the last record applied.
    pub off: Position,
}

/// A place in a conversation with its countable number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct ConvMark {
    /// Number in the conversation.
    pub conv_seq: u64,
    /// What unread counts up to there.
    pub countable_seq: u64,
}

/// `device_open`: where a device started. Written before `Connected` is sent; no fold reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOpen {
    /// user_seq the device started from.
    pub start_cursor: u64,
    /// When.
    pub opened_at: Millis,
}
