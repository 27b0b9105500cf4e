//! Records as the folds see them: what comes in, what goes out, what cannot be folded.

use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::{IdError, Topic, Uid};
use tidings_proto::header::{LinkError, SourceLink};
use tidings_proto::record::DecodeError;

/// A record of the source log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Its offset.
    pub offset: u64,
    /// Broker time (LogAppendTime).
    pub append_time: Millis,
    /// The key; the folds go by the value.
    pub key: Option<Bytes>,
    /// The value.
    pub value: Option<Bytes>,
    /// Headers `src` and `prev`.
    pub link: Result<Option<SourceLink>, LinkError>,
    /// Header `tidings-dlq-id`: set if this is the replay of a dead letter.
    pub dlq_id: Option<String>,
}

/// A record to emit. Outputs are enqueued in the order of the plan (seq:G3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Where.
    pub topic: Topic,
    /// Which partition.
    pub partition: u32,
    /// Conversation (`history`) or first recipient (`inbox`, `push`): for people, the partition is explicit.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// Its source, and this run's output before it to the same destination.
    pub link: SourceLink,
}

/// A record that goes to `dlq`, and nothing else of it anywhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Undecodable {
    /// Which.
    pub offset: u64,
    /// Why: a function of the record alone, so every owner says the same.
    pub cause: RejectCause,
}

/// Why a record cannot be folded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RejectCause {
    /// The value is not a valid record of the topic.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The event of an append is not a valid event.
    #[error("the event is not valid: {0}")]
    Event(prost::DecodeError),
    /// The event is of a kind this version does not know.
    #[error("the event is of an unknown kind")]
    UnknownEvent,
    /// The message in the event names no valid conversation.
    #[error("the event's conversation: {0}")]
    EventConversation(IdError),
    /// The message in the event has no number.
    #[error("the event's message has no conv_seq")]
    EventUnsequenced,
    /// The record belongs to another partition: two owners would number the same conversation or stream.
    #[error("the record belongs to partition {expected}")]
    Misplaced {
        /// Where it belongs.
        expected: u32,
    },
    /// A recipient stands twice in one record (seq:G2).
    #[error("{0} is named twice")]
    RepeatedUid(Uid),
    /// An append that no fold emitted: without a source position nothing can tell its copies apart.
    #[error("an append without a source position")]
    AppendWithoutSource,
    /// A device state with a source position: device states come from gateways only.
    #[error("a device state with a source position")]
    DeviceStateWithSource,
}

impl RejectCause {
    /// Stable name for the dead letter's error class.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Decode(_) => "decode",
            Self::Event(_) | Self::UnknownEvent | Self::EventConversation(_) | Self::EventUnsequenced => "decode_event",
            Self::Misplaced { .. } => "misplaced",
            Self::RepeatedUid(_) => "repeated_uid",
            Self::AppendWithoutSource => "append_without_source",
            Self::DeviceStateWithSource => "device_state_with_source",
        }
    }
}

/// The replay of a dead letter that ended well: its `Resolved` record must be acknowledged before the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Offset of the replay.
    pub offset: u64,
    /// Identity of the dead letter.
    pub dlq_id: String,
}
