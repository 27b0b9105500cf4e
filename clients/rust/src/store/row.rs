//! Rows and values of the local database.

use bytes::Bytes;
use rusqlite::Row;
use tidings_domain::clock::Millis;
use tidings_domain::{Action, Conversation, DedupKey, MsgId, OpId, Uid};

use crate::error::Error;
use crate::state::MessageState;

/// A message as it lies in the local database.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMessage {
    /// Where.
    pub conversation: Conversation,
    /// Its number there: the order everybody sees. `None` until the echo came.
    pub conv_seq: Option<u64>,
    /// Who.
    pub sender: Uid,
    /// From which of the sender's devices.
    pub device: String,
    /// Which.
    pub msg_id: MsgId,
    /// What.
    pub action: Action,
    /// The action's own id, where it has one.
    pub op_id: Option<OpId>,
    /// `text`, `image`, ...
    pub content_type: String,
    /// Opaque.
    pub body: Bytes,
    /// When the server took it. `None` until the echo came.
    pub append_time: Option<Millis>,
    /// When the sender pressed send, by the sender's clock.
    pub first_send_time: Millis,
    /// How far an own message has come; `None` for those of others.
    pub state: Option<MessageState>,
}

impl StoredMessage {
    /// The stable idempotency key: what the app can use to do a side effect once (req:G8).
    #[must_use]
    pub fn key(&self) -> DedupKey {
        DedupKey {
            conversation: self.conversation.clone(),
            sender: self.sender.clone(),
            msg_id: self.msg_id,
            action: self.action,
            op_id: self.op_id,
        }
    }
}

/// What [`message`] reads, from `messages m`.
pub(super) const MESSAGE_COLUMNS: &str = "m.id, m.conversation, m.conv_seq, m.sender, m.device, m.msg_id, m.action, \
     m.op_id, m.content_type, m.body, m.append_time, m.first_send_time, m.state";

/// A row before its ids are parsed.
pub(super) struct RawMessage {
    pub(super) local_id: i64,
    conversation: String,
    conv_seq: Option<i64>,
    sender: String,
    device: String,
    msg_id: Vec<u8>,
    action: i32,
    op_id: Vec<u8>,
    content_type: String,
    body: Vec<u8>,
    append_time: Option<i64>,
    first_send_time: i64,
    state: Option<u8>,
}

pub(super) fn message(row: &Row<'_>) -> rusqlite::Result<RawMessage> {
    Ok(RawMessage {
        local_id: row.get(0)?,
        conversation: row.get(1)?,
        conv_seq: row.get(2)?,
        sender: row.get(3)?,
        device: row.get(4)?,
        msg_id: row.get(5)?,
        action: row.get(6)?,
        op_id: row.get(7)?,
        content_type: row.get(8)?,
        body: row.get(9)?,
        append_time: row.get(10)?,
        first_send_time: row.get(11)?,
        state: row.get(12)?,
    })
}

impl RawMessage {
    pub(super) fn parse(self) -> Result<StoredMessage, Error> {
        let corrupt = |_| Error::Corrupt { what: "a message" };
        Ok(StoredMessage {
            conversation: Conversation::parse(&self.conversation).map_err(corrupt)?,
            conv_seq: self.conv_seq.map(unsigned),
            sender: Uid::parse(&self.sender).map_err(corrupt)?,
            device: self.device,
            msg_id: MsgId::from_slice(&self.msg_id).map_err(corrupt)?,
            action: Action::from_number(self.action).ok_or(Error::Corrupt { what: "a message" })?,
            op_id: if self.op_id.is_empty() {
                None
            } else {
                Some(OpId::from_slice(&self.op_id).map_err(corrupt)?)
            },
            content_type: self.content_type,
            body: self.body.into(),
            append_time: self.append_time.map(Millis),
            first_send_time: Millis(self.first_send_time),
            state: match self.state {
                None => None,
                Some(stored) => Some(MessageState::from_number(stored).ok_or(Error::Corrupt { what: "a state" })?),
            },
        })
    }
}

/// SQLite has signed integers; the bits are kept.
pub(super) const fn number(value: u64) -> i64 {
    value.cast_signed()
}

/// The value that [`number`] stored.
pub(super) const fn unsigned(stored: i64) -> u64 {
    stored.cast_unsigned()
}

/// A slice as a BLOB.
pub(super) const fn blob(bytes: &[u8]) -> &[u8] {
    bytes
}
