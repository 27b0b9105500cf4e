//! What the router's fold keeps: `intent`, `conv_head`, `member`.

use async_trait::async_trait;
use tidings_domain::state::{ConvHead, Intent, MemberInterval};
use tidings_domain::{Conversation, DedupKey};

use crate::Error;

/// Store of the router's fold. Quorum reads and writes.
#[async_trait]
pub trait RouterStore: Send + Sync + 'static {
    /// `conv_head` of each conversation; `None` if it never had one.
    async fn conv_heads(&self, conversations: &[Conversation]) -> Result<Vec<Option<ConvHead>>, Error>;

    /// All membership intervals of each conversation.
    async fn members(&self, conversations: &[Conversation]) -> Result<Vec<Vec<MemberInterval>>, Error>;

    /// `intent` of each key.
    async fn intents(&self, keys: &[DedupKey]) -> Result<Vec<Option<Intent>>, Error>;

    /// Upserts intents (seq:R4), with the TTL of the table; the write timestamp is the record's append time, so that a
    /// refold writes the same cells.
    async fn write_intents(&self, intents: &[(DedupKey, Intent)]) -> Result<(), Error>;

    /// Upserts membership intervals (seq:R5). Max-register: timestamp is `leave_seq` if there is one, else `join_seq`.
    async fn write_members(&self, intervals: &[(Conversation, MemberInterval)]) -> Result<(), Error>;

    /// Upserts heads (seq:R7). Max-register: timestamp is `head`.
    async fn write_conv_heads(&self, heads: &[(Conversation, ConvHead)]) -> Result<(), Error>;
}
