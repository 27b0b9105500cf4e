//! What stage 1 asks for and what it decides: the whole of its contract with the service.

use tidings_domain::clock::Millis;
use tidings_domain::state::{ConvHead, Intent, MemberInterval};
use tidings_domain::{Conversation, DedupKey};

use crate::record::{Output, Resolved, Undecodable};

use super::start::CommitMetadata;

/// What must be read before the batch can be decided. Quorum reads, one kind at a time, in the order asked for (seq:R2):
/// a conversation's head before its members before any intent, or another owner can slip its writes between the reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reads {
    /// `conv_head` of each.
    ConvHeads(Vec<Conversation>),
    /// All `member` rows of each.
    Members(Vec<Conversation>),
    /// `intent` of each.
    Intents(Vec<DedupKey>),
}

/// The answers to [`Reads`], of the same kind and in the same order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answers {
    /// To [`Reads::ConvHeads`].
    ConvHeads(Vec<Option<ConvHead>>),
    /// To [`Reads::Members`].
    Members(Vec<Vec<MemberInterval>>),
    /// To [`Reads::Intents`].
    Intents(Vec<Option<Intent>>),
}

/// What became of a batch's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouterStats {
    /// First-of-key records that got a number.
    pub accepted: u64,
    /// First-of-key records refused.
    pub rejected: u64,
    /// Later copies with the same content.
    pub duplicates: u64,
    /// Later copies with other content.
    pub conflicts: u64,
    /// First-of-key records (accepted or rejected) that an earlier run had decided already.
    pub refolded: u64,
    /// Records that go to `dlq`.
    pub undecodable: u64,
}

/// What a batch causes. Intents and member rows must be acknowledged before the next `decide`; outputs are emitted in
/// their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RouterPlan {
    /// To write (seq:R4).
    pub intents: Vec<(DedupKey, Intent)>,
    /// To write with them (seq:R5).
    pub members: Vec<(Conversation, MemberInterval)>,
    /// To emit (seq:R6), in source-offset order (seq:G3).
    pub outputs: Vec<Output>,
    /// To send to `dlq`; acknowledged before the commit (seq:R8).
    pub rejects: Vec<Undecodable>,
    /// Replays of dead letters that ended well; acknowledged before the commit.
    pub resolved: Vec<Resolved>,
    /// For metrics.
    pub stats: RouterStats,
}

/// What a checkpoint writes: the heads (seq:R7), and once they and everything emitted are acknowledged the position
/// with its metadata (seq:R8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterCheckpoint {
    /// Every conversation with an accepted record since the last checkpoint, advanced or not.
    pub conv_heads: Vec<(Conversation, ConvHead)>,
    /// The position to commit.
    pub next_offset: u64,
    /// Broker time of the last record folded.
    pub w: Millis,
    /// Version that decided.
    pub fold_version: u32,
}

impl RouterCheckpoint {
    /// What is committed beside the position.
    #[must_use]
    pub fn metadata(&self) -> CommitMetadata {
        CommitMetadata {
            fold_version: self.fold_version,
            w: self.w,
        }
    }
}
