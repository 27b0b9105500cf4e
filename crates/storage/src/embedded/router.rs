//! `intent`, `conv_head`, `member`.

use async_trait::async_trait;
use tidings_domain::state::{ConvHead, Intent, MemberInterval};
use tidings_domain::{Conversation, DedupKey, Uid};

use super::keys::{Key, KeyReader};
use super::values::{Leave, Value};
use super::{EmbeddedStore, RegisterWrite, damaged, decode};
use crate::Error;
use crate::codec::Malformed;
use crate::port::RouterStore;

fn conversation_key(conversation: &Conversation) -> Key {
    Key::default().text(conversation.as_str())
}

fn intent_key(key: &DedupKey) -> Vec<u8> {
    conversation_key(&key.conversation)
        .text(key.sender.as_str())
        .uuid(key.msg_id.uuid())
        .u8(key.action.number())
        .uuid(key.op_id.map_or(uuid::Uuid::nil(), |op| op.uuid()))
        .finish()
}

/// The member's name in a key (conversation, uid, join_seq).
fn member_of(key: &[u8]) -> Result<Uid, Malformed> {
    let mut reader = KeyReader::new(key);
    reader.text()?;
    let uid = reader.text()?;
    Uid::parse(&uid).map_err(|error| Malformed(error.to_string()))
}

#[async_trait]
impl RouterStore for EmbeddedStore {
    async fn conv_heads(&self, conversations: &[Conversation]) -> Result<Vec<Option<ConvHead>>, Error> {
        let table = &self.tables().conv_head;
        conversations
            .iter()
            .map(|conversation| table.get_value("conv_heads", &conversation_key(conversation).finish()))
            .collect()
    }

    async fn members(&self, conversations: &[Conversation]) -> Result<Vec<Vec<MemberInterval>>, Error> {
        const OPERATION: &str = "members";
        let mut all = Vec::with_capacity(conversations.len());
        for conversation in conversations {
            let mut intervals = Vec::new();
            self.tables()
                .member
                .scan(OPERATION, conversation_key(conversation).range(), |key, value| {
                    let uid = member_of(&key).map_err(|error| damaged(OPERATION, error))?;
                    intervals.push(decode::<Leave>(OPERATION, value)?.interval(uid));
                    Ok(true)
                })?;
            all.push(intervals);
        }
        Ok(all)
    }

    async fn intents(&self, keys: &[DedupKey]) -> Result<Vec<Option<Intent>>, Error> {
        let table = &self.tables().intent;
        keys.iter()
            .map(|key| table.get_value("intents", &intent_key(key)))
            .collect()
    }

    async fn write_intents(&self, intents: &[(DedupKey, Intent)]) -> Result<(), Error> {
        let table = &self.tables().intent;
        self.insert_all(
            "write_intents",
            intents
                .iter()
                .map(|(key, intent)| (table, intent_key(key), intent.encode())),
        )
    }

    async fn write_members(&self, intervals: &[(Conversation, MemberInterval)]) -> Result<(), Error> {
        let writes = intervals
            .iter()
            .map(|(conversation, interval)| RegisterWrite {
                table: &self.tables().member,
                key: conversation_key(conversation)
                    .text(interval.uid.as_str())
                    .u64(interval.join_seq)
                    .finish(),
                value: Leave::of(interval).encode(),
            })
            .collect();
        self.raise_registers("write_members", &self.inner.router_registers, writes)
    }

    async fn write_conv_heads(&self, heads: &[(Conversation, ConvHead)]) -> Result<(), Error> {
        let writes = heads
            .iter()
            .map(|(conversation, head)| RegisterWrite {
                table: &self.tables().conv_head,
                key: conversation_key(conversation).finish(),
                value: head.encode(),
            })
            .collect();
        self.raise_registers("write_conv_heads", &self.inner.router_registers, writes)
    }
}
