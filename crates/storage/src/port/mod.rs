//! The ports, one file per writer (architecture.md section 6).
//!
//! Calls take slices and answer vectors in the order of the request: one call per batch, never one per record.

mod dead_letters;
mod history;
mod hot_window;
mod inbox;
mod router;
mod routes;
mod runtime;

pub use dead_letters::{DeadLetterFilter, DeadLetterRow, DeadLetterState, DeadLetterStore};
pub use history::{HistoryRow, HistoryStore, LocatorRow};
pub use hot_window::{HotRead, HotWindow};
pub use inbox::{BUCKET_BITS, CheckpointWrites, InboxReader, InboxStore, bucket_of};
pub use router::RouterStore;
pub use routes::{Registered, Route, RouteKey, Routes};
pub use runtime::{FoldSkip, RuntimeStore};
