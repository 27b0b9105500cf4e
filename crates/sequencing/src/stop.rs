//! Broken invariants. A fold that meets one stops its partition: it never skips and never guesses (seq:G5).

use std::time::Duration;

use tidings_domain::state::Outcome;
use tidings_domain::{Position, Uid};
use tidings_proto::header::LinkError;
use tidings_resilience::{Classify, ErrorClass};

/// Why a run must end and page, with the offset of the record that cannot be folded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// An intent names a later first copy than the record at hand: the log or the store was rewritten (seq:R3).
    #[error("offset {offset}: the intent of its key says that the first copy is at {first}, which is later")]
    IntentAhead {
        /// The record.
        offset: u64,
        /// Where the intent says the first copy is.
        first: Position,
    },
    /// The intent of this very record has another content hash: the record changed after it was folded (seq:R3).
    #[error("offset {offset}: the intent written for this record has another content hash")]
    SameOffsetOtherHash {
        /// The record.
        offset: u64,
    },
    /// The conversation is applied beyond this record, but the record has no intent (seq:R3).
    #[error("offset {offset}: the conversation is applied up to {applied}, but this record has no intent")]
    IntentMissing {
        /// The record.
        offset: u64,
        /// Position of the last accepted record of the conversation.
        applied: Position,
    },
    /// Folding the record again gives another outcome than the one stored (seq:R3).
    #[error("offset {offset}: folded to {folded:?}, stored is {stored:?}")]
    OutcomeDiffers {
        /// The record.
        offset: u64,
        /// What the intent says.
        stored: Outcome,
        /// What this run decides.
        folded: Outcome,
    },
    /// The user's head is at or beyond this record, but its row is gone: the lag exceeds the rows' TTL (seq:I3).
    #[error("offset {offset}: the stream of {uid} is at {head}, but the row of this record is not there")]
    RowMissing {
        /// The record.
        offset: u64,
        /// Whose stream.
        uid: Uid,
        /// The head's number.
        head: u64,
    },
    /// The user's head is at or beyond this device report, but the device's register is not: registers are written
    /// before heads, so one of them was lost (seq:I8a).
    #[error("offset {offset}: the stream of {uid} is at {head}, but the register of this report's device is older")]
    RegisterBehindHead {
        /// The record.
        offset: u64,
        /// Whose device.
        uid: Uid,
        /// Position of the head.
        head: Position,
    },
    /// A dead letter's first copy is later than the copy at hand (seq:I2).
    #[error("offset {offset}: the first copy of dead letter {dlq_id} is said to be at {first}, which is later")]
    DlqIntentAhead {
        /// The record.
        offset: u64,
        /// The dead letter.
        dlq_id: String,
        /// Where its first copy is said to be.
        first: Position,
    },
    /// The headers `src` and `prev` are damaged; passing over the record would lose what follows in its chain (seq:G4).
    #[error("offset {offset}: {source}")]
    DamagedLink {
        /// The record.
        offset: u64,
        /// What is wrong.
        source: LinkError,
    },
    /// The record is older than what the memory of ids and rows covers (seq:G7).
    #[error("offset {offset}: the record is {age:?} old, the limit is {limit:?}")]
    GuardLimit {
        /// The oldest record of the batch.
        offset: u64,
        /// Its age.
        age: Duration,
        /// LIMIT.
        limit: Duration,
    },
    /// The checkpoint was written by another version of the fold.
    #[error("offset {offset}: checkpoint of fold version {found}, this binary folds version {supported}")]
    FoldVersion {
        /// The next record.
        offset: u64,
        /// Version in the checkpoint.
        found: u32,
        /// Version of this binary.
        supported: u32,
    },
    /// Records do not ascend, or come from below the position of the run.
    #[error("offset {offset}: expected {expected} or later")]
    OffsetOrder {
        /// The record.
        offset: u64,
        /// Smallest offset that may come.
        expected: u64,
    },
    /// The driver of the fold broke its contract: something was decided that has not been read.
    #[error("offset {offset}: {what} was needed but not read")]
    NotRead {
        /// The record.
        offset: u64,
        /// What is missing.
        what: &'static str,
    },
}

impl Stop {
    /// Offset of the record that cannot be folded.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        match self {
            Self::IntentAhead { offset, .. }
            | Self::SameOffsetOtherHash { offset }
            | Self::IntentMissing { offset, .. }
            | Self::OutcomeDiffers { offset, .. }
            | Self::RowMissing { offset, .. }
            | Self::RegisterBehindHead { offset, .. }
            | Self::DlqIntentAhead { offset, .. }
            | Self::DamagedLink { offset, .. }
            | Self::GuardLimit { offset, .. }
            | Self::FoldVersion { offset, .. }
            | Self::OffsetOrder { offset, .. }
            | Self::NotRead { offset, .. } => *offset,
        }
    }

    /// Stable name of the invariant, for metrics and runbooks.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::IntentAhead { .. } => "intent_ahead",
            Self::SameOffsetOtherHash { .. } => "same_offset_other_hash",
            Self::IntentMissing { .. } => "intent_missing",
            Self::OutcomeDiffers { .. } => "outcome_differs",
            Self::RowMissing { .. } => "row_missing",
            Self::RegisterBehindHead { .. } => "register_behind_head",
            Self::DlqIntentAhead { .. } => "dlq_intent_ahead",
            Self::DamagedLink { .. } => "damaged_link",
            Self::GuardLimit { .. } => "guard_limit",
            Self::FoldVersion { .. } => "fold_version",
            Self::OffsetOrder { .. } => "offset_order",
            Self::NotRead { .. } => "not_read",
        }
    }
}

impl Classify for Stop {
    fn class(&self) -> ErrorClass {
        match self {
            Self::IntentAhead { .. }
            | Self::SameOffsetOtherHash { .. }
            | Self::IntentMissing { .. }
            | Self::OutcomeDiffers { .. }
            | Self::RowMissing { .. }
            | Self::RegisterBehindHead { .. }
            | Self::DlqIntentAhead { .. }
            | Self::DamagedLink { .. }
            | Self::GuardLimit { .. }
            | Self::FoldVersion { .. }
            | Self::OffsetOrder { .. }
            | Self::NotRead { .. } => ErrorClass::Permanent,
        }
    }
}
