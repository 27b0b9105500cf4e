//! The lock on the data directory: one process at a time.
//!
//! The kernel holds it for an open file, so it ends with its process, however that ends; a stale lock cannot exist.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use crate::Error;

const LOCK_FILE: &str = "tidings.lock";

/// Held while the database is open; released on drop.
pub(crate) struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    pub(crate) fn acquire(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(LOCK_FILE);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|source| Error::Io {
                operation: "open lock file",
                path: path.clone(),
                source,
            })?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(Error::Locked {
                path: directory.to_path_buf(),
                remedy: "stop the other process, or choose another data directory",
            }),
            Err(TryLockError::Error(source)) => Err(Error::Io {
                operation: "lock",
                path,
                source,
            }),
        }
    }
}
