//! The tables of the single-process mode, by the names of architecture.md section 6.

use bytes::Bytes;
use tidings_embedded::{Database, Table};

use super::{SCAN_PAGE, decode, failed, values::Value};
use crate::Error;

/// A table with its name.
pub(super) struct StoredTable {
    name: &'static str,
    table: Table,
}

impl StoredTable {
    fn open(database: &Database, name: &'static str) -> Result<Self, tidings_embedded::Error> {
        Ok(Self {
            name,
            table: database.table(name)?,
        })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    pub(super) fn get(&self, operation: &'static str, key: &[u8]) -> Result<Option<Bytes>, Error> {
        self.table.get(key).map_err(|error| failed(operation, &error))
    }

    pub(super) fn get_value<V: Value>(&self, operation: &'static str, key: &[u8]) -> Result<Option<V>, Error> {
        self.get(operation, key)?
            .map(|value| decode(operation, value))
            .transpose()
    }

    /// Entries of a range, ascending, at most `limit`.
    pub(super) fn range(
        &self,
        operation: &'static str,
        (from, to): &(Vec<u8>, Vec<u8>),
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Error> {
        self.table
            .range(from, to, limit)
            .map_err(|error| failed(operation, &error))
    }

    /// The last entry of a range.
    pub(super) fn last(
        &self,
        operation: &'static str,
        (from, to): &(Vec<u8>, Vec<u8>),
    ) -> Result<Option<(Bytes, Bytes)>, Error> {
        self.table
            .range_rev(from, to, 1)
            .map(|mut entries| entries.pop())
            .map_err(|error| failed(operation, &error))
    }

    /// Visits a range in ascending order, page by page, until `visit` answers false.
    pub(super) fn scan(
        &self,
        operation: &'static str,
        (mut from, to): (Vec<u8>, Vec<u8>),
        mut visit: impl FnMut(Bytes, Bytes) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        loop {
            let page = self
                .table
                .range(&from, &to, SCAN_PAGE)
                .map_err(|error| failed(operation, &error))?;
            let full = page.len() == SCAN_PAGE;
            for (key, value) in page {
                from.clear();
                from.extend_from_slice(&key);
                // The first key after this one.
                from.push(0);
                if !visit(key, value)? {
                    return Ok(());
                }
            }
            if !full {
                return Ok(());
            }
        }
    }
}

pub(super) struct Tables {
    pub(super) meta: StoredTable,
    pub(super) intent: StoredTable,
    pub(super) conv_head: StoredTable,
    pub(super) member: StoredTable,
    pub(super) history: StoredTable,
    pub(super) locator: StoredTable,
    pub(super) inbox: StoredTable,
    pub(super) inbox_head: StoredTable,
    pub(super) ckpt: StoredTable,
    pub(super) dlq_intent: StoredTable,
    pub(super) device: StoredTable,
    pub(super) user_conv: StoredTable,
    pub(super) device_open: StoredTable,
    pub(super) dead_letter: StoredTable,
    pub(super) fold_skip: StoredTable,
}

impl Tables {
    pub(super) fn open(database: &Database) -> Result<Self, tidings_embedded::Error> {
        let open = |name| StoredTable::open(database, name);
        Ok(Self {
            meta: open("meta")?,
            intent: open("intent")?,
            conv_head: open("conv_head")?,
            member: open("member")?,
            history: open("history")?,
            locator: open("locator")?,
            inbox: open("inbox")?,
            inbox_head: open("inbox_head")?,
            ckpt: open("ckpt")?,
            dlq_intent: open("dlq_intent")?,
            device: open("device")?,
            user_conv: open("user_conv")?,
            device_open: open("device_open")?,
            dead_letter: open("dead_letter")?,
            fold_skip: open("fold_skip")?,
        })
    }
}
