//! The one database of the single-process mode: tables for the storage adapters and the log for the bus adapter, in one
//! fjall database under a file lock (architecture.md section 7).
//!
//! **Guarantee.** Log appends are durable (fsync, group commit) before they are confirmed. Table batches are atomic and
//! go into the same journal without a sync of their own; a persist tick makes them durable every second. What survives
//! a crash is a prefix of what was written, so an offset never survives without the effects written before it.
//!
//! **Why a prefix.** Every batch, of tables or of the log, is appended to the one journal under its writer lock, and a
//! sync covers everything before it. A memtable is written out only after the journal was synced, so no table file runs
//! ahead of the journal either.
//!
//! **Failure.** The first write or sync that fails poisons the whole database: every later write is refused, and
//! [`Database::healthy`] says why. After a failed fsync nobody knows what reached the disk (the kernel may drop the dirty
//! pages), so the only honest continuation is a restart, which reads back what is really there.
//!
//! **Damage.** A journal with a torn tail opens with the whole batches before it. Flipped bits in the journal are refused or
//! cut off with everything behind them; `tests/breakage/torn_journal.rs` has the cases, and the one that no checksum
//! covers. Readers of the log check that offsets are contiguous, so a lost record is an error and never a silent gap.
//!
//! - [`Database`], [`Table`], [`Batch`]: ordered key-value tables.
//! - [`log`]: topics of partitions of records, with consumer offsets.

mod database;
mod error;
mod health;
mod lock;
pub mod log;
mod options;
mod persist;
mod table;
mod upkeep;

pub use database::Database;
pub use error::Error;
pub use options::Options;
pub use table::{Batch, Table};
