//! Events of the user's stream, applied to the local database: rows, states, dedup keys and cursor in one transaction.

use rusqlite::{OptionalExtension, Transaction, params};
use tidings_domain::clock::Millis;
use tidings_domain::state::RejectReason;
use tidings_domain::{Action, Conversation, MsgId, OpId, Uid};
use tidings_proto::v1;
use tidings_proto::v1::event::Kind;

use super::row::{StoredMessage, blob, number, unsigned};
use super::{Store, entry, message_by_id, move_state, to, write_cursor, write_read};
use crate::error::Error;
use crate::holes::Hole;
use crate::outbox::Entry;
use crate::state::{Cause, MessageState};
use crate::stream::Arrived;

/// What an event changed on this device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    /// A message that was not here.
    Shown(StoredMessage),
    /// An own message came further.
    State {
        conversation: Conversation,
        msg_id: MsgId,
        state: MessageState,
        reason: Option<RejectReason>,
    },
    /// The server has another message under this id; ours is sent again under a new one.
    Renewed { old: MsgId, entry: Entry },
    /// Numbers were passed over; told after the message behind them.
    Hole(Hole),
    /// The own read position as the server has it; it moved if another device reported it.
    ReadSync {
        conversation: Conversation,
        read: u64,
        moved: bool,
    },
    /// It was here already.
    Duplicate,
    /// Another message has this number, or another content this key: a fault of the server.
    Conflict { user_seq: u64 },
    /// An event of a kind or form that this version cannot read. It has its place all the same.
    Unreadable { user_seq: u64 },
}

/// What a batch of events came to.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    pub(crate) changes: Vec<Change>,
    /// Messages that are stored now, for the ACK.
    pub(crate) stored: Vec<(Conversation, u64)>,
}

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

impl Store {
    /// Applies events in the order of the stream and moves the cursor behind the last one. `mint` makes a new id and its
    /// time.
    pub(crate) fn apply(
        &mut self,
        epoch: u64,
        events: Vec<Arrived>,
        mint: &mut dyn FnMut() -> (MsgId, Millis),
    ) -> Result<Applied, Error> {
        let what = "store events";
        let uid = self.uid.clone();
        let tx = to(what, self.db.transaction())?;
        let mut applied = Applied::default();
        let mut last = None;
        for Arrived { user_seq, event } in events {
            last = Some(user_seq);
            let batch = Batch {
                tx: &tx,
                uid: &uid,
                epoch,
                user_seq,
            };
            match event {
                Some(Kind::Message(message)) => batch.message(message, &mut applied)?,
                Some(Kind::Rejection(rejection)) => batch.rejection(&rejection, mint, &mut applied)?,
                Some(Kind::Receipt(receipt)) => batch.receipt(&receipt, &mut applied)?,
                Some(Kind::ReadSync(sync)) => batch.read_sync(&sync, &mut applied)?,
                None => applied.changes.push(Change::Unreadable { user_seq }),
            }
        }
        if let Some(user_seq) = last {
            to(what, write_cursor(&tx, v1::Cursor { epoch, user_seq }))?;
        }
        to(what, tx.commit())?;
        Ok(applied)
    }
}

impl Store {
    /// Stores messages of history under their keys. The cursor stays: history is no part of the user's stream.
    pub(crate) fn apply_history(&mut self, epoch: u64, messages: Vec<v1::Message>) -> Result<Vec<Change>, Error> {
        let what = "store history";
        let uid = self.uid.clone();
        let tx = to(what, self.db.transaction())?;
        let mut applied = Applied::default();
        let batch = Batch {
            tx: &tx,
            uid: &uid,
            epoch,
            user_seq: 0,
        };
        for message in messages {
            batch.message(message, &mut applied)?;
        }
        to(what, tx.commit())?;
        Ok(applied.changes)
    }
}

struct Batch<'a> {
    tx: &'a Transaction<'a>,
    uid: &'a Uid,
    epoch: u64,
    user_seq: u64,
}

impl Batch<'_> {
    fn message(&self, raw: v1::Message, applied: &mut Applied) -> Result<(), Error> {
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

    /// Applied only if the own copy has the hash that was refused (architecture.md section 3, decision 4).
    fn rejection(
        &self,
        rejection: &v1::Rejection,
        mint: &mut dyn FnMut() -> (MsgId, Millis),
        applied: &mut Applied,
    ) -> Result<(), Error> {
        let ids = Conversation::parse(&rejection.conversation)
            .ok()
            .zip(MsgId::from_slice(&rejection.msg_id).ok());
        let reason = u8::try_from(rejection.reason).ok().and_then(RejectReason::from_number);
        let Some((conversation, old)) = ids else {
            applied.changes.push(Change::Unreadable {
                user_seq: self.user_seq,
            });
            return Ok(());
        };
        let local_id: Option<i64> = to(
            "look a rejected message up",
            self.tx
                .prepare_cached(
                    "SELECT id FROM messages WHERE conversation = ?1 AND sender = ?2 AND msg_id = ?3 AND action = ?4
                         AND op_id = ?5 AND content_hash = ?6",
                )
                .and_then(|mut statement| {
                    statement
                        .query_row(
                            params![
                                conversation.as_str(),
                                self.uid.as_str(),
                                blob(&rejection.msg_id),
                                rejection.action,
                                blob(&rejection.op_id),
                                blob(&rejection.content_hash),
                            ],
                            |row| row.get(0),
                        )
                        .optional()
                }),
        )?;
        let Some(local_id) = local_id else {
            return Ok(());
        };
        let Some(state) = move_state(self.tx, local_id, Cause::Refusal)? else {
            return Ok(());
        };
        applied.changes.push(if reason == Some(RejectReason::IdConflict) {
            let (msg_id, first_send_time) = mint();
            Change::Renewed {
                old,
                entry: renew(self.tx, local_id, msg_id, first_send_time)?,
            }
        } else {
            Change::State {
                conversation,
                msg_id: old,
                state,
                reason,
            }
        });
        Ok(())
    }

    fn receipt(&self, receipt: &v1::Receipt, applied: &mut Applied) -> Result<(), Error> {
        let Ok(conversation) = Conversation::parse(&receipt.conversation) else {
            applied.changes.push(Change::Unreadable {
                user_seq: self.user_seq,
            });
            return Ok(());
        };
        for (up_to, cause) in [
            (receipt.delivered, Cause::DeliveredReceipt),
            (receipt.read, Cause::ReadReceipt),
        ] {
            if up_to == 0 {
                continue;
            }
            for (local_id, msg_id) in self.own_up_to(&conversation, up_to, cause)? {
                if let Some(state) = move_state(self.tx, local_id, cause)? {
                    applied.changes.push(Change::State {
                        conversation: conversation.clone(),
                        msg_id,
                        state,
                        reason: None,
                    });
                }
            }
        }
        Ok(())
    }

    /// Own numbered messages that `cause` moves. Through the index of open states, so that the cost does not grow with
    /// the length of the conversation.
    fn own_up_to(&self, conversation: &Conversation, up_to: u64, cause: Cause) -> Result<Vec<(i64, MsgId)>, Error> {
        let what = "find messages of a receipt";
        let mut found = Vec::new();
        for state in MessageState::ALL
            .into_iter()
            .filter(|state| state.after(cause).is_some())
        {
            let rows: Vec<(i64, Vec<u8>)> = to(
                what,
                self.tx
                    .prepare_cached(
                        "SELECT id, msg_id FROM messages
                         WHERE conversation = ?1 AND state = ?2 AND conv_seq <= ?3 AND epoch = ?4 ORDER BY conv_seq",
                    )
                    .and_then(|mut statement| {
                        statement
                            .query_map(
                                params![conversation.as_str(), state.number(), number(up_to), number(self.epoch)],
                                |row| Ok((row.get(0)?, row.get(1)?)),
                            )?
                            .collect()
                    }),
            )?;
            for (local_id, msg_id) in rows {
                let msg_id = MsgId::from_slice(&msg_id).map_err(|_| Error::Corrupt { what: "a message" })?;
                found.push((local_id, msg_id));
            }
        }
        Ok(found)
    }

    fn read_sync(&self, sync: &v1::ReadSync, applied: &mut Applied) -> Result<(), Error> {
        let Ok(conversation) = Conversation::parse(&sync.conversation) else {
            applied.changes.push(Change::Unreadable {
                user_seq: self.user_seq,
            });
            return Ok(());
        };
        let moved = to(
            "store a read position",
            write_read(self.tx, &conversation, sync.read, sync.read),
        )?;
        applied.changes.push(Change::ReadSync {
            conversation,
            read: sync.read,
            moved,
        });
        Ok(())
    }
}

/// Gives a message another id and puts it into the outbox as one that was never sent.
pub(super) fn renew(
    tx: &Transaction<'_>,
    local_id: i64,
    msg_id: MsgId,
    first_send_time: Millis,
) -> Result<Entry, Error> {
    let what = "renew an id";
    to(
        what,
        tx.execute(
            "UPDATE messages SET msg_id = ?2, first_send_time = ?3, state = ?4 WHERE id = ?1",
            params![
                local_id,
                blob(msg_id.as_bytes()),
                first_send_time.get(),
                MessageState::Sending.number()
            ],
        ),
    )?;
    to(
        what,
        tx.execute(
            "INSERT INTO outbox (message, retry_count, since) VALUES (?1, 0, ?2)
             ON CONFLICT DO UPDATE SET retry_count = 0, since = excluded.since",
            params![local_id, first_send_time.get()],
        ),
    )?;
    Ok(Entry {
        tried: false,
        ..entry(local_id, message_by_id(tx, local_id)?)
    })
}
