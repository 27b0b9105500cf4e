//! The stores of the single-process mode, on the one database of `tidings-embedded` (architecture.md section 7).
//!
//! Scheme: one table per table of architecture.md section 6, keys that sort like their parts ([`keys`]), one commit per
//! call. A commit is atomic and in the journal when the call returns; the database's persist tick makes it durable, and
//! what survives a crash is a prefix of the commits of the process. There is no write timestamp in the database, so a
//! register is compared before it is written, under one lock per writer; every other write is a plain upsert.
//!
//! Calls block for the time of a few look-ups and one journal append, which is shorter than handing them to another
//! thread; those that scan without a small bound run on the blocking pool.
//!
//! Routes and the hot window are kept in memory of the process: they may vanish at any time (architecture.md section 3,
//! decision 6), and do with it.
//!
//! Rows are not expired yet. The key and value forms let a sweep do it: an expiring row's value begins with its append
//! time, and the rows of one stream lie in the order of their age.

mod dead_letters;
mod history;
mod hot_window;
mod inbox_reader;
mod inbox_store;
mod keys;
mod router;
mod routes;
mod runtime;
mod tables;
mod values;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_embedded::Database;

pub use self::hot_window::{HotWindowLimits, LocalHotWindow};
use self::keys::Key;
pub use self::routes::LocalRoutes;
use self::tables::{StoredTable, Tables};
use self::values::Value;
use crate::Error;
use crate::codec::{Malformed, Reader, Writer};

/// Rows per step of a scan: bounds what one look into the database holds in memory.
const SCAN_PAGE: usize = 512;

/// All table stores of the single-process mode. Clones share the database.
#[derive(Clone)]
pub struct EmbeddedStore {
    inner: Arc<Inner>,
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedStore")
            .field("cursor_epoch", &self.inner.cursor_epoch)
            .finish_non_exhaustive()
    }
}

struct Inner {
    database: Database,
    tables: Tables,
    /// One per writer: held from the comparison of registers to their commit.
    router_registers: Mutex<()>,
    inbox_registers: Mutex<()>,
    dead_letters: Mutex<()>,
    cursor_epoch: u64,
}

/// One register to write if it is newer than what is stored.
struct RegisterWrite<'a> {
    table: &'a StoredTable,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl EmbeddedStore {
    /// Opens the tables in `database`. `fresh_cursor_epoch` is a random number that becomes the cursor epoch if the data
    /// directory is new; an old one keeps its own.
    pub fn open(database: &Database, fresh_cursor_epoch: u64) -> Result<Self, Error> {
        const OPERATION: &str = "open";
        let tables = Tables::open(database).map_err(|error| failed(OPERATION, &error))?;
        let key = Key::default().text("cursor_epoch").finish();
        let stored = tables.meta.get(OPERATION, &key)?;
        let cursor_epoch = match stored {
            Some(value) => {
                let mut reader = Reader::new(value);
                let epoch = reader.u64("cursor epoch").map_err(|error| damaged(OPERATION, error))?;
                reader.end().map_err(|error| damaged(OPERATION, error))?;
                epoch
            }
            None => {
                let mut batch = database.batch();
                let value = Writer::default().u64(fresh_cursor_epoch).finish();
                batch.insert(tables.meta.table(), key, value);
                database.commit(batch).map_err(|error| failed(OPERATION, &error))?;
                // Clients keep this number: it must not change because the machine lost power in the first second.
                database.persist().map_err(|error| failed(OPERATION, &error))?;
                fresh_cursor_epoch
            }
        };
        Ok(Self {
            inner: Arc::new(Inner {
                database: database.clone(),
                tables,
                router_registers: Mutex::new(()),
                inbox_registers: Mutex::new(()),
                dead_letters: Mutex::new(()),
                cursor_epoch,
            }),
        })
    }

    fn tables(&self) -> &Tables {
        &self.inner.tables
    }

    /// Upserts rows in one commit.
    fn insert_all<'a>(
        &self,
        operation: &'static str,
        rows: impl IntoIterator<Item = (&'a StoredTable, Vec<u8>, Vec<u8>)>,
    ) -> Result<(), Error> {
        let mut batch = self.inner.database.batch();
        for (table, key, value) in rows {
            batch.insert(table.table(), key, value);
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.inner
            .database
            .commit(batch)
            .map_err(|error| failed(operation, &error))
    }

    /// Writes registers in one commit, each only if its value is larger than the stored one: the stamp leads every
    /// value, so this is the newer one, and of two with one stamp always the same.
    fn raise_registers(
        &self,
        operation: &'static str,
        writer: &Mutex<()>,
        mut writes: Vec<RegisterWrite<'_>>,
    ) -> Result<(), Error> {
        // Of several writes of one register in a call only the largest may reach the batch, whose last one would win.
        writes.sort_by(|a, b| (a.table.name(), &a.key, &b.value).cmp(&(b.table.name(), &b.key, &a.value)));
        writes.dedup_by(|later, first| later.table.name() == first.table.name() && later.key == first.key);
        let _writing = writer.lock();
        let mut newer = Vec::with_capacity(writes.len());
        for write in writes {
            let stored = write.table.get(operation, &write.key)?;
            if stored.is_none_or(|stored| stored.as_ref() < write.value.as_slice()) {
                newer.push((write.table, write.key, write.value));
            }
        }
        self.insert_all(operation, newer)
    }
}

/// A stored value, decoded.
fn decode<V: Value>(operation: &'static str, value: bytes::Bytes) -> Result<V, Error> {
    V::decode(value).map_err(|error| damaged(operation, error))
}

fn damaged(operation: &'static str, error: Malformed) -> Error {
    Error::Damaged {
        operation,
        reason: error.0,
    }
}

fn failed(operation: &'static str, error: &tidings_embedded::Error) -> Error {
    use tidings_embedded::Error as Cause;
    let reason = error.to_string();
    match error {
        Cause::Locked { .. }
        | Cause::Io { .. }
        | Cause::Engine { .. }
        | Cause::Poisoned { .. }
        | Cause::QueueFull { .. } => Error::Unavailable { operation, reason },
        Cause::Damaged { .. } => Error::Damaged { operation, reason },
        Cause::OutOfRange { .. } | Cause::Refused { .. } => Error::Refused { operation, reason },
    }
}
