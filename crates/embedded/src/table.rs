//! Tables and batches.

use std::sync::Arc;

use bytes::Bytes;

use crate::database::Handle;
use crate::{Error, Options};

/// An ordered map from bytes to bytes. Clones are handles to the same table and keep the database open.
#[derive(Clone)]
pub struct Table {
    pub(crate) keyspace: fjall::Keyspace,
    _handle: Arc<Handle>,
}

/// Writes that become visible and durable together. Later writes of a key win over earlier ones.
///
/// Reads do not see a batch before it is committed.
#[must_use = "a batch does nothing until it is committed"]
pub struct Batch {
    pub(crate) writes: fjall::OwnedWriteBatch,
    _handle: Arc<Handle>,
}

/// Longest key in bytes: the engine stores the length in 16 bits.
const MAX_KEY_BYTES: usize = u16::MAX as usize;

/// Settings of a table's keyspace: LZ4 and bloom filters are the engine's defaults.
pub(crate) fn keyspace_options(options: &Options) -> fjall::KeyspaceCreateOptions {
    fjall::KeyspaceCreateOptions::default().max_memtable_size(options.memtable_bytes)
}

impl Table {
    pub(crate) fn new(keyspace: fjall::Keyspace, handle: Arc<Handle>) -> Self {
        Self {
            keyspace,
            _handle: handle,
        }
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        if key.len() > MAX_KEY_BYTES {
            return Ok(None);
        }
        let value = self.keyspace.get(key).map_err(|error| Error::engine("get", &error))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// Up to `limit` entries with `from` <= key < `to`, ascending.
    pub fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, Error> {
        if from >= to {
            return Ok(Vec::new());
        }
        collect(self.keyspace.range(from..to).take(limit))
    }

    /// Up to `limit` entries with `from` <= key < `to`, descending: the largest keys below `to`.
    pub fn range_rev(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, Error> {
        if from >= to {
            return Ok(Vec::new());
        }
        collect(self.keyspace.range(from..to).rev().take(limit))
    }
}

fn collect(entries: impl Iterator<Item = fjall::Guard>) -> Result<Vec<(Bytes, Bytes)>, Error> {
    entries
        .map(|entry| {
            let (key, value) = entry.into_inner().map_err(|error| Error::engine("range", &error))?;
            Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
        })
        .collect()
}

impl Batch {
    pub(crate) fn new(writes: fjall::OwnedWriteBatch, handle: Arc<Handle>) -> Self {
        Self {
            writes,
            _handle: handle,
        }
    }

    /// Sets `key` to `value`.
    ///
    /// # Panics
    /// If the key is empty or longer than 65,535 bytes.
    pub fn insert(&mut self, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let key = key.as_ref();
        check_key(key);
        self.writes.insert(&table.keyspace, key, value.as_ref());
    }

    /// Removes `key`, if it is there.
    ///
    /// # Panics
    /// If the key is empty or longer than 65,535 bytes.
    pub fn remove(&mut self, table: &Table, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        check_key(key);
        self.writes.remove(&table.keyspace, key);
    }

    /// Number of writes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

/// The engine would panic while it holds its journal; better here, in the caller's code.
fn check_key(key: &[u8]) {
    assert!(!key.is_empty(), "keys are not empty");
    assert!(
        key.len() <= MAX_KEY_BYTES,
        "a key has at most {MAX_KEY_BYTES} bytes, not {}",
        key.len()
    );
}
