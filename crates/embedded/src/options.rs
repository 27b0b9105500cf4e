//! Settings of the database.

use std::time::Duration;

/// Settings of the database. The defaults are the measured ones; sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Cache of table blocks, shared by all tables.
    pub block_cache_bytes: u64,
    /// All journals together. Bounds the time to reopen after a crash (0.36 s for 128 MiB); at least 64 MiB.
    pub max_journaling_bytes: u64,
    /// Memory of one table before it is written out.
    pub memtable_bytes: u64,
    /// Threads that write memtables out and compact; at least 1.
    pub worker_threads: usize,
    /// How often table batches are made durable: what a power failure can cost, to be replayed from the log.
    pub persist_interval: Duration,
}

const MIB: u64 = 1 << 20;

impl Default for Options {
    fn default() -> Self {
        Self {
            block_cache_bytes: 128 * MIB,
            max_journaling_bytes: 128 * MIB,
            memtable_bytes: 16 * MIB,
            worker_threads: 2,
            persist_interval: Duration::from_secs(1),
        }
    }
}

impl Options {
    /// What is wrong with these settings, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.max_journaling_bytes < 64 * MIB {
            return Err(format!(
                "max_journaling_bytes is {}, the least is {}",
                self.max_journaling_bytes,
                64 * MIB
            ));
        }
        if self.worker_threads == 0 {
            return Err("worker_threads is 0, the least is 1".to_owned());
        }
        if self.persist_interval.is_zero() {
            return Err("persist_interval is 0".to_owned());
        }
        Ok(())
    }
}
