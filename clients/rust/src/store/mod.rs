//! The local database: the truth on the device.
//!
//! Guarantee (req:A2, req:A6, req:B3): a message to be sent is here before the network sees it; what came is here, with
//! the cursor and under its dedup keys, in one transaction before it is acknowledged or shown; a message has one row,
//! however often it came.

mod apply;
mod off_thread;
mod row;
mod schema;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use tidings_domain::clock::Millis;
use tidings_domain::{Action, ContentHash, Conversation, DeviceId, MsgId, Uid};
use tidings_proto::v1;

pub(crate) use apply::Change;
pub(crate) use off_thread::OffThread;
pub use row::StoredMessage;

use crate::config::Database;
use crate::error::Error;
use crate::outbox::Entry;
use crate::state::{Cause, MessageState};
use row::{MESSAGE_COLUMNS, blob, number, unsigned};

/// A message that the user wants to send.
#[derive(Debug, Clone)]
pub(crate) struct NewMessage {
    pub(crate) conversation: Conversation,
    pub(crate) msg_id: MsgId,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    pub(crate) content_hash: ContentHash,
    pub(crate) first_send_time: Millis,
}

/// The open database of one uid and device.
#[derive(Debug)]
pub(crate) struct Store {
    db: Connection,
    uid: Uid,
    device: DeviceId,
}

/// Adds what was to be done to a database error.
fn to<T>(what: &'static str, result: rusqlite::Result<T>) -> Result<T, Error> {
    result.map_err(|source| Error::Database { what, source })
}

impl Store {
    /// Opens or makes the database.
    pub(crate) fn open(database: &Database, uid: &Uid, device: &DeviceId) -> Result<Self, Error> {
        let mut db = match database {
            Database::File(path) => to("open", Connection::open(path))?,
            Database::Memory => to("open", Connection::open_in_memory())?,
        };
        to("make the tables", schema::prepare(&mut db))?;
        let store = Self {
            db,
            uid: uid.clone(),
            device: device.clone(),
        };
        store.check_account()?;
        Ok(store)
    }

    fn check_account(&self) -> Result<(), Error> {
        to(
            "claim",
            self.db.execute(
                "INSERT INTO account (one, uid, device_id) VALUES (1, ?1, ?2) ON CONFLICT DO NOTHING",
                params![self.uid.as_str(), self.device.as_str()],
            ),
        )?;
        let (uid, device): (String, String) = to(
            "read the account",
            self.db.query_row("SELECT uid, device_id FROM account", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            }),
        )?;
        if uid == self.uid.as_str() && device == self.device.as_str() {
            return Ok(());
        }
        Err(Error::OtherAccount {
            uid: Uid::parse(&uid).map_err(|_| Error::Corrupt { what: "the account" })?,
            device_id: DeviceId::parse(&device).map_err(|_| Error::Corrupt { what: "the account" })?,
        })
    }

    /// Where the device stands; `None` if it is fresh.
    pub(crate) fn cursor(&self) -> Result<Option<v1::Cursor>, Error> {
        to(
            "read the cursor",
            self.db
                .query_row("SELECT epoch, user_seq FROM cursor", [], |row| {
                    Ok(v1::Cursor {
                        epoch: unsigned(row.get(0)?),
                        user_seq: unsigned(row.get(1)?),
                    })
                })
                .optional(),
        )
    }

    /// Sets the cursor where the server said that the stream begins or goes on.
    pub(crate) fn set_cursor(&mut self, cursor: v1::Cursor) -> Result<(), Error> {
        to("set the cursor", write_cursor(&self.db, cursor))
    }

    /// What is still to be sent, in the order in which the user pressed send (req:A2).
    pub(crate) fn outbox(&self) -> Result<Vec<Entry>, Error> {
        let sql = format!(
            "SELECT {MESSAGE_COLUMNS}, o.retry_count, o.since FROM outbox o JOIN messages m ON m.id = o.message ORDER BY m.id"
        );
        let what = "read the outbox";
        let mut statement = to(what, self.db.prepare_cached(&sql))?;
        let rows = to(
            what,
            statement.query_map([], |row| {
                Ok((
                    row::message(row)?,
                    row.get::<_, u32>("retry_count")?,
                    row.get::<_, i64>("since")?,
                ))
            }),
        )?;
        rows.map(|row| {
            let (raw, retry_count, since) = to(what, row)?;
            let local_id = raw.local_id;
            Ok(Entry {
                retry_count,
                since: Millis(since),
                ..entry(local_id, raw.parse()?)
            })
        })
        .collect()
    }

    /// Stores messages to be sent, as `SENDING`, in one transaction.
    pub(crate) fn add_outgoing(&mut self, messages: &[NewMessage]) -> Result<Vec<(Entry, StoredMessage)>, Error> {
        let what = "store messages to be sent";
        let tx = to(what, self.db.transaction())?;
        let mut added = Vec::with_capacity(messages.len());
        for message in messages {
            let local_id = to(what, insert_outgoing(&tx, message, &self.uid, &self.device))?;
            let stored = StoredMessage {
                conversation: message.conversation.clone(),
                conv_seq: None,
                sender: self.uid.clone(),
                device: self.device.as_str().to_owned(),
                msg_id: message.msg_id,
                action: Action::Send,
                op_id: None,
                content_type: message.content_type.clone(),
                body: message.body.clone(),
                append_time: None,
                first_send_time: message.first_send_time,
                state: Some(MessageState::Sending),
            };
            let entry = Entry {
                tried: false,
                ..entry(local_id, stored.clone())
            };
            added.push((entry, stored));
        }
        to(what, tx.commit())?;
        Ok(added)
    }

    /// Notes the count of resends, so that it goes on after a restart.
    pub(crate) fn note_resends(&mut self, resends: &[(i64, u32)]) -> Result<(), Error> {
        let what = "note resends";
        let tx = to(what, self.db.transaction())?;
        for (local_id, retry_count) in resends {
            to(
                what,
                tx.prepare_cached("UPDATE outbox SET retry_count = ?2 WHERE message = ?1")
                    .and_then(|mut statement| statement.execute(params![local_id, retry_count])),
            )?;
        }
        to(what, tx.commit())
    }

    /// Moves the states of own messages, each after its cause; gives those that changed.
    pub(crate) fn move_states(&mut self, moves: &[(i64, Cause)]) -> Result<Vec<(i64, MessageState)>, Error> {
        let what = "change states";
        let tx = to(what, self.db.transaction())?;
        let mut changed = Vec::new();
        for (local_id, cause) in moves {
            if let Some(state) = move_state(&tx, *local_id, *cause)? {
                changed.push((*local_id, state));
            }
        }
        to(what, tx.commit())?;
        Ok(changed)
    }

    /// Gives a message that the server never took another id, to be sent as a new one.
    pub(crate) fn renew_id(&mut self, local_id: i64, msg_id: MsgId, first_send_time: Millis) -> Result<Entry, Error> {
        let what = "renew an id";
        let tx = to(what, self.db.transaction())?;
        let entry = apply::renew(&tx, local_id, msg_id, first_send_time)?;
        to(what, tx.commit())?;
        Ok(entry)
    }

    /// Puts a failed message back into the outbox; `None` if there is none.
    pub(crate) fn resend_by_hand(&mut self, msg_id: MsgId, now: Millis) -> Result<Option<Entry>, Error> {
        let what = "send again";
        let tx = to(what, self.db.transaction())?;
        let Some(local_id) = to(what, own_message(&tx, msg_id))? else {
            return Ok(None);
        };
        if move_state(&tx, local_id, Cause::ResendByHand)?.is_none() {
            return Ok(None);
        }
        // The count starts again; that the message was tried before is known from being here.
        to(
            what,
            tx.execute(
                "INSERT INTO outbox (message, retry_count, since) VALUES (?1, 0, ?2)",
                params![local_id, now.get()],
            ),
        )?;
        let stored = message_by_id(&tx, local_id)?;
        to(what, tx.commit())?;
        Ok(Some(Entry {
            since: now,
            ..entry(local_id, stored)
        }))
    }

    /// Notes that the user has read up to here; never back (scenario B47).
    pub(crate) fn read(&mut self, conversation: &Conversation, read: u64) -> Result<(), Error> {
        to("store a read position", write_read(&self.db, conversation, read, 0))?;
        Ok(())
    }

    /// What the user has read and the server has not confirmed, for the newest `limit` conversations.
    pub(crate) fn unconfirmed_reads(&self, limit: u32) -> Result<Vec<(Conversation, u64)>, Error> {
        let what = "read the read positions";
        let rows: Vec<(String, i64)> = to(
            what,
            self.db
                .prepare_cached(
                    "SELECT conversation, conv_seq FROM read_positions WHERE conv_seq > confirmed
                     ORDER BY rowid DESC LIMIT ?1",
                )
                .and_then(|mut statement| {
                    statement
                        .query_map([limit], |row| Ok((row.get(0)?, row.get(1)?)))?
                        .collect()
                }),
        )?;
        rows.into_iter()
            .map(|(conversation, read)| {
                let conversation = Conversation::parse(&conversation).map_err(|_| Error::Corrupt {
                    what: "a read position",
                })?;
                Ok((conversation, unsigned(read)))
            })
            .collect()
    }

    /// The row of an own message.
    pub(crate) fn own(&self, msg_id: MsgId) -> Result<Option<(i64, StoredMessage)>, Error> {
        match to("find a message", own_message(&self.db, msg_id))? {
            Some(local_id) => Ok(Some((local_id, message_by_id(&self.db, local_id)?))),
            None => Ok(None),
        }
    }

    /// The newest `limit` messages of a conversation, oldest first: numbered ones by number, then those to be sent.
    pub(crate) fn messages(&self, conversation: &Conversation, limit: u32) -> Result<Vec<StoredMessage>, Error> {
        let sql = format!(
            "SELECT {MESSAGE_COLUMNS} FROM messages m WHERE m.conversation = ?1
             ORDER BY m.conv_seq IS NULL DESC, m.conv_seq DESC, m.id DESC LIMIT ?2"
        );
        let what = "read messages";
        let mut statement = to(what, self.db.prepare_cached(&sql))?;
        let rows = to(
            what,
            statement.query_map(params![conversation.as_str(), limit], row::message),
        )?;
        let mut messages = rows
            .map(|row| to(what, row)?.parse())
            .collect::<Result<Vec<_>, Error>>()?;
        messages.reverse();
        Ok(messages)
    }
}

/// A message to be sent, about which nothing is known but that it lies here.
fn entry(local_id: i64, message: StoredMessage) -> Entry {
    Entry {
        local_id,
        conversation: message.conversation,
        msg_id: message.msg_id,
        content_type: message.content_type,
        body: message.body,
        first_send_time: message.first_send_time,
        since: message.first_send_time,
        retry_count: 0,
        tried: true,
        renewals: 0,
    }
}

fn write_cursor(db: &Connection, cursor: v1::Cursor) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO cursor (one, epoch, user_seq) VALUES (1, ?1, ?2)
         ON CONFLICT DO UPDATE SET epoch = excluded.epoch, user_seq = excluded.user_seq",
    )?
    .execute(params![number(cursor.epoch), number(cursor.user_seq)])?;
    Ok(())
}

/// Moves a read position forward; tells whether it moved.
fn write_read(db: &Connection, conversation: &Conversation, read: u64, confirmed: u64) -> rusqlite::Result<bool> {
    let before: Option<i64> = db
        .prepare_cached("SELECT conv_seq FROM read_positions WHERE conversation = ?1")?
        .query_row([conversation.as_str()], |row| row.get(0))
        .optional()?;
    db.prepare_cached(
        "INSERT INTO read_positions (conversation, conv_seq, confirmed) VALUES (?1, ?2, ?3)
         ON CONFLICT DO UPDATE SET conv_seq = max(conv_seq, excluded.conv_seq),
             confirmed = max(confirmed, excluded.confirmed)",
    )?
    .execute(params![conversation.as_str(), number(read), number(confirmed)])?;
    Ok(before.is_none_or(|before| unsigned(before) < read))
}

fn insert_outgoing(tx: &Transaction<'_>, message: &NewMessage, uid: &Uid, device: &DeviceId) -> rusqlite::Result<i64> {
    tx.prepare_cached(
        "INSERT INTO messages (conversation, sender, device, msg_id, action, op_id, content_type, body, content_hash,
             first_send_time, state)
         VALUES (?1, ?2, ?3, ?4, ?5, x'', ?6, ?7, ?8, ?9, ?10)",
    )?
    .execute(params![
        message.conversation.as_str(),
        uid.as_str(),
        device.as_str(),
        blob(message.msg_id.as_bytes()),
        Action::Send.number(),
        message.content_type,
        blob(&message.body),
        blob(message.content_hash.as_bytes()),
        message.first_send_time.get(),
        MessageState::Sending.number(),
    ])?;
    let local_id = tx.last_insert_rowid();
    tx.prepare_cached("INSERT INTO outbox (message, retry_count, since) VALUES (?1, 0, ?2)")?
        .execute(params![local_id, message.first_send_time.get()])?;
    Ok(local_id)
}

/// Moves one state; a message that is no longer to be sent leaves the outbox.
fn move_state(tx: &Transaction<'_>, local_id: i64, cause: Cause) -> Result<Option<MessageState>, Error> {
    let what = "change a state";
    let stored: Option<Option<u8>> = to(
        what,
        tx.prepare_cached("SELECT state FROM messages WHERE id = ?1")
            .and_then(|mut statement| statement.query_row([local_id], |row| row.get(0)).optional()),
    )?;
    let Some(Some(stored)) = stored else {
        return Ok(None);
    };
    let state = MessageState::from_number(stored).ok_or(Error::Corrupt { what: "a state" })?;
    let Some(next) = state.after(cause) else {
        return Ok(None);
    };
    to(
        what,
        tx.prepare_cached("UPDATE messages SET state = ?2 WHERE id = ?1")
            .and_then(|mut statement| statement.execute(params![local_id, next.number()])),
    )?;
    if next != MessageState::Sending {
        to(
            what,
            tx.prepare_cached("DELETE FROM outbox WHERE message = ?1")
                .and_then(|mut statement| statement.execute([local_id])),
        )?;
    }
    Ok(Some(next))
}

fn own_message(db: &Connection, msg_id: MsgId) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT id FROM messages WHERE msg_id = ?1 AND state IS NOT NULL")?
        .query_row([blob(msg_id.as_bytes())], |row| row.get(0))
        .optional()
}

fn message_by_id(db: &Connection, local_id: i64) -> Result<StoredMessage, Error> {
    let sql = format!("SELECT {MESSAGE_COLUMNS} FROM messages m WHERE m.id = ?1");
    to(
        "read a message",
        db.prepare_cached(&sql)
            .and_then(|mut statement| statement.query_row([local_id], row::message)),
    )?
    .parse()
}

#[cfg(test)]
mod tests;
