//! Events of the user's stream, applied to the local database: rows, states, dedup keys and cursor in one transaction.

mod message;

use rusqlite::{OptionalExtension, Transaction, params};
use tidings_domain::clock::Millis;
use tidings_domain::state::RejectReason;
use tidings_domain::{Conversation, MsgId, Uid};
use tidings_proto::v1;
use tidings_proto::v1::event::Kind;

use super::row::{StoredMessage, blob, number};
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
