//! Messages of the stream and of history: rows under both unique keys, echoes, holes.

use rusqlite::{OptionalExtension, params};
use tidings_domain::clock::Millis;
use tidings_domain::{Action, Conversation, MsgId, OpId, Uid};
use tidings_proto::v1;

use super::{Applied, Batch, Change};
use crate::error::Error;
use crate::holes::Hole;
use crate::state::{Cause, MessageState};
use crate::store::row::{StoredMessage, blob, number, unsigned};
use crate::store::{move_state, to};

/// A message whose ids are valid.
struct Parsed {
    conversation: Conversation,
    sender: Uid,
    msg_id: MsgId,
    action: Action,
    op_id: Option<OpId>,
    raw: v1::Message,
}

impl Parsed {
    fn new(raw: v1::Message) -> Option<Self> {
        if raw.conv_seq == 0 {
            return None;
        }
        Some(Self {
            conversation: Conversation::parse(&raw.conversation).ok()?,
            sender: Uid::parse(&raw.sender).ok()?,
            msg_id: MsgId::from_slice(&raw.msg_id).ok()?,
            action: Action::from_number(raw.action)?,
            op_id: if raw.op_id.is_empty() {
                None
            } else {
                Some(OpId::from_slice(&raw.op_id).ok()?)
            },
            raw,
        })
    }
}

/// A row under the idempotency key of a message that came.
struct Known {
    local_id: i64,
    epoch: Option<i64>,
    conv_seq: Option<i64>,
    content_hash: Vec<u8>,
    own: bool,
}

impl Batch<'_> {
    pub(super) fn message(&self, raw: v1::Message, applied: &mut Applied) -> Result<(), Error> {
        let Some(message) = Parsed::new(raw) else {
            applied.changes.push(Change::Unreadable {
                user_seq: self.user_seq,
            });
            return Ok(());
        };
        applied
            .stored
            .push((message.conversation.clone(), message.raw.conv_seq));
        let hole = to("look for a hole", self.hole_before(&message))?;
        let change = match to("look a message up", self.known(&message))? {
            Some(known) => self.came_again(&message, &known)?,
            None => self.came_first(message)?,
        };
        applied.changes.push(change);
        applied.changes.extend(hole.map(Change::Hole));
        Ok(())
    }

    /// The numbers between the newest message of the conversation and this one. The first message that a device has of
    /// a conversation is no hole: what is older is loaded on demand.
    fn hole_before(&self, message: &Parsed) -> rusqlite::Result<Option<Hole>> {
        let newest: Option<i64> = self
            .tx
            .prepare_cached("SELECT max(conv_seq) FROM messages WHERE epoch = ?1 AND conversation = ?2")?
            .query_row(params![number(self.epoch), message.conversation.as_str()], |row| {
                row.get(0)
            })?;
        Ok(newest.map(unsigned).and_then(|newest| {
            let (from, to) = (newest.saturating_add(1), message.raw.conv_seq.saturating_sub(1));
            (from <= to).then(|| Hole {
                conversation: message.conversation.clone(),
                from,
                to,
            })
        }))
    }

    fn known(&self, message: &Parsed) -> rusqlite::Result<Option<Known>> {
        self.tx
            .prepare_cached(
                "SELECT id, epoch, conv_seq, content_hash, state IS NOT NULL FROM messages
                 WHERE conversation = ?1 AND sender = ?2 AND msg_id = ?3 AND action = ?4 AND op_id = ?5",
            )?
            .query_row(
                params![
                    message.conversation.as_str(),
                    message.sender.as_str(),
                    blob(message.msg_id.as_bytes()),
                    message.action.number(),
                    blob(&message.raw.op_id),
                ],
                |row| {
                    Ok(Known {
                        local_id: row.get(0)?,
                        epoch: row.get(1)?,
                        conv_seq: row.get(2)?,
                        content_hash: row.get(3)?,
                        own: row.get(4)?,
                    })
                },
            )
            .optional()
    }

    /// The echo of an own message, or a repetition.
    fn came_again(&self, message: &Parsed, known: &Known) -> Result<Change, Error> {
        let same_number =
            known.epoch == Some(number(self.epoch)) && known.conv_seq == Some(number(message.raw.conv_seq));
        if same_number {
            return Ok(Change::Duplicate);
        }
        let hash = &message.raw.content_hash;
        if !hash.is_empty() && *hash != known.content_hash {
            // Somebody else's content under the same key: ours is answered by a rejection that names its hash.
            return Ok(Change::Conflict {
                user_seq: self.user_seq,
            });
        }
        let numbered_before = known.conv_seq.is_some() && known.epoch == Some(number(self.epoch));
        if numbered_before {
            // Two numbers for one message: the first stays, and it is shown once (req:A6).
            return Ok(Change::Conflict {
                user_seq: self.user_seq,
            });
        }
        let renumbered = to(
            "number a message",
            self.tx
                .prepare_cached(
                    "UPDATE OR IGNORE messages SET epoch = ?2, conv_seq = ?3, append_time = ?4 WHERE id = ?1",
                )
                .and_then(|mut statement| {
                    statement.execute(params![
                        known.local_id,
                        number(self.epoch),
                        number(message.raw.conv_seq),
                        message.raw.append_time,
                    ])
                }),
        )?;
        if renumbered == 0 {
            return Ok(Change::Conflict {
                user_seq: self.user_seq,
            });
        }
        if !known.own {
            return Ok(Change::Duplicate);
        }
        Ok(match move_state(self.tx, known.local_id, Cause::Echo)? {
            Some(state) => Change::State {
                conversation: message.conversation.clone(),
                msg_id: message.msg_id,
                state,
                reason: None,
            },
            None => Change::Duplicate,
        })
    }

    fn came_first(&self, message: Parsed) -> Result<Change, Error> {
        let state = (message.sender == *self.uid).then_some(MessageState::Stored);
        let inserted = to(
            "store a message",
            self.tx
                .prepare_cached(
                    "INSERT INTO messages (epoch, conversation, conv_seq, sender, device, msg_id, action, op_id,
                         content_type, body, content_hash, append_time, first_send_time, state)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
                     ON CONFLICT DO NOTHING",
                )
                .and_then(|mut statement| {
                    statement.execute(params![
                        number(self.epoch),
                        message.conversation.as_str(),
                        number(message.raw.conv_seq),
                        message.sender.as_str(),
                        message.raw.device,
                        blob(message.msg_id.as_bytes()),
                        message.action.number(),
                        blob(&message.raw.op_id),
                        message.raw.content_type,
                        blob(&message.raw.body),
                        blob(&message.raw.content_hash),
                        message.raw.append_time,
                        message.raw.first_send_time,
                        state.map(MessageState::number),
                    ])
                }),
        )?;
        if inserted == 0 {
            // The number is another message's.
            return Ok(Change::Conflict {
                user_seq: self.user_seq,
            });
        }
        Ok(Change::Shown(StoredMessage {
            conversation: message.conversation,
            conv_seq: Some(message.raw.conv_seq),
            sender: message.sender,
            device: message.raw.device,
            msg_id: message.msg_id,
            action: message.action,
            op_id: message.op_id,
            content_type: message.raw.content_type,
            body: message.raw.body,
            append_time: Some(Millis(message.raw.append_time)),
            first_send_time: Millis(message.raw.first_send_time),
            state,
        }))
    }
}
