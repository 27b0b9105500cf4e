//! `intent`, `conv_head`, `member`.

use std::collections::HashMap;

use async_trait::async_trait;
use tidings_domain::clock::Millis;
use tidings_domain::state::{ConvHead, Intent, MemberInterval, Outcome, RejectReason};
use tidings_domain::{ContentHash, Conversation, DedupKey};
use uuid::Uuid;

use super::columns::{bigint, number, position, timestamp_of, tinyint, uid};
use super::session::{RowToWrite, all_of, in_order, read_all, read_one, write, write_partition};
use super::{CqlStore, errors};
use crate::Error;
use crate::codec::Malformed;
use crate::port::RouterStore;

type IntentColumns = (i8, i64, i64, Vec<u8>, i64, i64);

fn intent((outcome, conv_seq, countable_seq, hash, off, append_time): IntentColumns) -> Result<Intent, Malformed> {
    let outcome = match outcome {
        0 => Outcome::Accepted {
            conv_seq: number("conv_seq", conv_seq)?,
            countable_seq: number("countable_seq", countable_seq)?,
        },
        reason => Outcome::Rejected(
            RejectReason::from_number(reason.cast_unsigned())
                .ok_or_else(|| Malformed(format!("outcome is {reason}")))?,
        ),
    };
    Ok(Intent {
        outcome,
        content_hash: ContentHash::from_slice(&hash).ok_or_else(|| Malformed::new("content_hash is not 16 bytes"))?,
        off: position("off", off)?,
        append_time: Millis(append_time),
    })
}

fn op_id(key: &DedupKey) -> Uuid {
    key.op_id.map_or(Uuid::nil(), |op| op.uuid())
}

impl CqlStore {
    pub(super) async fn conv_head(
        &self,
        operation: &'static str,
        conversation: &Conversation,
    ) -> Result<Option<ConvHead>, Error> {
        let statement = &self.statements.conv_head;
        let row: Option<(i64, i64, i64)> =
            read_one(&self.session, operation, statement, (conversation.as_str(),)).await?;
        row.map(|(head, countable, applied)| {
            Ok(ConvHead {
                head: number("head", head)?,
                countable: number("countable", countable)?,
                applied: position("applied", applied)?,
            })
        })
        .transpose()
        .map_err(|error| errors::damaged(operation, error))
    }

    async fn members_of(&self, conversation: &Conversation) -> Result<Vec<MemberInterval>, Error> {
        const OPERATION: &str = "members";
        let statement = &self.statements.members;
        let rows: Vec<(String, i64, Option<i64>)> =
            read_all(&self.session, OPERATION, statement, (conversation.as_str(),)).await?;
        rows.into_iter()
            .map(|(member, join_seq, leave_seq)| {
                Ok(MemberInterval {
                    uid: uid("uid", &member)?,
                    join_seq: number("join_seq", join_seq)?,
                    leave_seq: leave_seq.map(|leave| number("leave_seq", leave)).transpose()?,
                })
            })
            .collect::<Result<_, _>>()
            .map_err(|error| errors::damaged(OPERATION, error))
    }

    async fn intent_of(&self, key: &DedupKey) -> Result<Option<Intent>, Error> {
        const OPERATION: &str = "intents";
        let values = (
            key.conversation.as_str(),
            key.sender.as_str(),
            key.msg_id.uuid(),
            tinyint(key.action.number()),
            op_id(key),
        );
        let row: Option<IntentColumns> = read_one(&self.session, OPERATION, &self.statements.intent, values).await?;
        row.map(intent)
            .transpose()
            .map_err(|error| errors::damaged(OPERATION, error))
    }

    async fn write_intent(&self, key: &DedupKey, intent: &Intent) -> Result<(), Error> {
        let (outcome, conv_seq, countable_seq) = match intent.outcome {
            Outcome::Accepted {
                conv_seq,
                countable_seq,
            } => (0, conv_seq, countable_seq),
            Outcome::Rejected(reason) => (tinyint(reason as u8), 0, 0),
        };
        let values = (
            key.conversation.as_str(),
            key.sender.as_str(),
            key.msg_id.uuid(),
            tinyint(key.action.number()),
            op_id(key),
            outcome,
            bigint(conv_seq),
            bigint(countable_seq),
            intent.content_hash.as_bytes().as_slice(),
            bigint(intent.off.raw()),
            intent.append_time.get(),
            timestamp_of(intent.append_time),
        );
        write(&self.session, "write_intents", &self.statements.write_intent, values).await
    }

    async fn write_conv_head(&self, conversation: &Conversation, head: &ConvHead) -> Result<(), Error> {
        let values = (
            conversation.as_str(),
            bigint(head.head),
            bigint(head.countable),
            bigint(head.applied.raw()),
            bigint(head.head),
        );
        write(
            &self.session,
            "write_conv_heads",
            &self.statements.write_conv_head,
            values,
        )
        .await
    }

    /// A join writes no `leave_seq` at all: a null would be a tombstone.
    async fn write_members_of(&self, conversation: &str, intervals: Vec<&MemberInterval>) -> Result<(), Error> {
        const OPERATION: &str = "write_members";
        const BYTES: usize = 96;
        let mut joins = Vec::new();
        let mut leaves = Vec::new();
        for interval in intervals {
            let uid = interval.uid.as_str();
            let join = bigint(interval.join_seq);
            match interval.leave_seq.map(bigint) {
                None => joins.push(RowToWrite {
                    values: (conversation, uid, join, join),
                    bytes: BYTES,
                }),
                Some(leave) => leaves.push(RowToWrite {
                    values: (conversation, uid, join, leave, leave),
                    bytes: BYTES,
                }),
            }
        }
        write_partition(&self.session, OPERATION, &self.statements.write_join, joins).await?;
        write_partition(&self.session, OPERATION, &self.statements.write_leave, leaves).await
    }
}

#[async_trait]
impl RouterStore for CqlStore {
    async fn conv_heads(&self, conversations: &[Conversation]) -> Result<Vec<Option<ConvHead>>, Error> {
        let reads = conversations
            .iter()
            .map(|conversation| self.conv_head("conv_heads", conversation));
        in_order(reads.collect()).await.into_iter().collect()
    }

    async fn members(&self, conversations: &[Conversation]) -> Result<Vec<Vec<MemberInterval>>, Error> {
        let reads = conversations.iter().map(|conversation| self.members_of(conversation));
        in_order(reads.collect()).await.into_iter().collect()
    }

    async fn intents(&self, keys: &[DedupKey]) -> Result<Vec<Option<Intent>>, Error> {
        let reads = keys.iter().map(|key| self.intent_of(key));
        in_order(reads.collect()).await.into_iter().collect()
    }

    async fn write_intents(&self, intents: &[(DedupKey, Intent)]) -> Result<(), Error> {
        let writes = intents.iter().map(|(key, intent)| self.write_intent(key, intent));
        all_of(writes.collect()).await
    }

    async fn write_members(&self, intervals: &[(Conversation, MemberInterval)]) -> Result<(), Error> {
        let mut by_conversation: HashMap<&str, Vec<&MemberInterval>> = HashMap::new();
        for (conversation, interval) in intervals {
            by_conversation.entry(conversation.as_str()).or_default().push(interval);
        }
        let writes = by_conversation
            .into_iter()
            .map(|(conversation, intervals)| self.write_members_of(conversation, intervals));
        all_of(writes.collect()).await
    }

    async fn write_conv_heads(&self, heads: &[(Conversation, ConvHead)]) -> Result<(), Error> {
        let writes = heads
            .iter()
            .map(|(conversation, head)| self.write_conv_head(conversation, head));
        all_of(writes.collect()).await
    }
}
