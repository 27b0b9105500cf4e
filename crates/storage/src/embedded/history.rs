//! `history` and `locator`.

use async_trait::async_trait;
use tidings_domain::{Conversation, MsgId, Uid};

use super::keys::{Key, KeyReader};
use super::values::{Located, Message, Value};
use super::{EmbeddedStore, damaged, decode};
use crate::Error;
use crate::codec::Malformed;
use crate::port::{HistoryRow, HistoryStore, LocatorRow};

fn conversation_key(conversation: &Conversation) -> Key {
    Key::default().text(conversation.as_str())
}

/// The number in a key (conversation, conv_seq).
fn conv_seq_of(key: &[u8]) -> Result<u64, Malformed> {
    let mut reader = KeyReader::new(key);
    reader.text()?;
    reader.u64()
}

/// What follows the id in a key of `locator`.
fn place_of(key: &[u8]) -> Result<(Conversation, Uid, u64), Malformed> {
    let mut reader = KeyReader::new(key.get(16..).unwrap_or_default());
    let conversation = Conversation::parse(&reader.text()?).map_err(|error| Malformed(error.to_string()))?;
    let sender = Uid::parse(&reader.text()?).map_err(|error| Malformed(error.to_string()))?;
    Ok((conversation, sender, reader.u64()?))
}

/// One commit holds all rows, so one outcome is that of each.
fn each(outcome: Result<(), Error>, rows: usize) -> Vec<Result<(), Error>> {
    vec![outcome; rows]
}

#[async_trait]
impl HistoryStore for EmbeddedStore {
    async fn write_history(&self, rows: &[HistoryRow]) -> Vec<Result<(), Error>> {
        let outcome = self.insert_all(
            "write_history",
            rows.iter().map(|row| {
                let key = conversation_key(&row.conversation).u64(row.conv_seq).finish();
                let value = Message {
                    append_time: row.append_time,
                    message: row.message.clone(),
                };
                (&self.tables().history, key, value.encode())
            }),
        );
        each(outcome, rows.len())
    }

    async fn write_locators(&self, rows: &[LocatorRow]) -> Vec<Result<(), Error>> {
        let outcome = self.insert_all(
            "write_locators",
            rows.iter().map(|row| {
                let key = Key::default()
                    .uuid(row.msg_id.uuid())
                    .text(row.conversation.as_str())
                    .text(row.sender.as_str())
                    .u64(row.conv_seq)
                    .finish();
                (&self.tables().locator, key, Located(row.append_time).encode())
            }),
        );
        each(outcome, rows.len())
    }

    async fn history_range(
        &self,
        conversation: &Conversation,
        from: u64,
        to: u64,
        limit: usize,
    ) -> Result<Vec<HistoryRow>, Error> {
        const OPERATION: &str = "history_range";
        if from > to {
            return Ok(Vec::new());
        }
        let range = conversation_key(conversation).number_range(from, to);
        self.tables()
            .history
            .range(OPERATION, &range, limit)?
            .into_iter()
            .map(|(key, value)| {
                let message: Message = decode(OPERATION, value)?;
                Ok(HistoryRow {
                    conversation: conversation.clone(),
                    conv_seq: conv_seq_of(&key).map_err(|error| damaged(OPERATION, error))?,
                    append_time: message.append_time,
                    message: message.message,
                })
            })
            .collect()
    }

    async fn newest_conv_seq(&self, conversation: &Conversation) -> Result<u64, Error> {
        const OPERATION: &str = "newest_conv_seq";
        match self
            .tables()
            .history
            .last(OPERATION, &conversation_key(conversation).range())?
        {
            Some((key, _)) => conv_seq_of(&key).map_err(|error| damaged(OPERATION, error)),
            None => Ok(0),
        }
    }

    async fn locate(&self, msg_id: MsgId) -> Result<Vec<LocatorRow>, Error> {
        const OPERATION: &str = "locate";
        let mut rows = Vec::new();
        let range = Key::default().uuid(msg_id.uuid()).range();
        self.tables().locator.scan(OPERATION, range, |key, value| {
            let (conversation, sender, conv_seq) = place_of(&key).map_err(|error| damaged(OPERATION, error))?;
            rows.push(LocatorRow {
                msg_id,
                sender,
                conversation,
                conv_seq,
                append_time: decode::<Located>(OPERATION, value)?.0,
            });
            Ok(true)
        })?;
        Ok(rows)
    }
}
