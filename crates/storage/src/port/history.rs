//! What storage-consumer keeps: `history` and `locator`.

use async_trait::async_trait;
use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::{Conversation, MsgId, Uid};

use crate::Error;

/// One sequenced message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRow {
    /// Where.
    pub conversation: Conversation,
    /// Its number there.
    pub conv_seq: u64,
    /// Broker time of the action: the write timestamp.
    pub append_time: Millis,
    /// The encoded `Message`.
    pub message: Bytes,
}

/// Where a message of this id is. Two senders, or one sender in two conversations, may use the same id: a look-up lists
/// every match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatorRow {
    /// The id.
    pub msg_id: MsgId,
    /// Who sent it.
    pub sender: Uid,
    /// Where.
    pub conversation: Conversation,
    /// Its number there.
    pub conv_seq: u64,
    /// Broker time of the action: the write timestamp.
    pub append_time: Millis,
}

/// Conversation history.
#[async_trait]
pub trait HistoryStore: Send + Sync + 'static {
    /// Upserts rows. Result i is that of row i: one row's failure does not hide the others' success.
    async fn write_history(&self, rows: &[HistoryRow]) -> Vec<Result<(), Error>>;

    /// Upserts locator rows; result i is that of row i.
    async fn write_locators(&self, rows: &[LocatorRow]) -> Vec<Result<(), Error>>;

    /// Rows `from ..= to` of a conversation, ascending, at most `limit`.
    async fn history_range(
        &self,
        conversation: &Conversation,
        from: u64,
        to: u64,
        limit: usize,
    ) -> Result<Vec<HistoryRow>, Error>;

    /// The newest conv_seq that has a row; 0 if none.
    async fn newest_conv_seq(&self, conversation: &Conversation) -> Result<u64, Error>;

    /// Every message with this id.
    async fn locate(&self, msg_id: MsgId) -> Result<Vec<LocatorRow>, Error>;
}
