//! The hot window: the newest events of a user, contiguous `[lo..hi]`, best effort (architecture.md section 3,
//! decision 6). Losing it changes speed only; every reader verifies contiguity and the cold head.

use async_trait::async_trait;
use bytes::Bytes;
use tidings_domain::Uid;

use crate::Error;

/// What the window has of a stream above a cursor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HotRead {
    /// (user_seq, encoded Event), ascending and contiguous; empty if the window does not reach down to the cursor.
    pub events: Vec<(u64, Bytes)>,
    /// Highest number in the window; 0 if there is no window.
    pub hi: u64,
}

/// The accelerator in front of the inbox rows.
#[async_trait]
pub trait HotWindow: Send + Sync + 'static {
    /// Appends events. Per user: the next number is appended, a known one ignored, and a hole makes the window start
    /// anew at the event (notes/storage.md section 5), so that the window is always contiguous.
    async fn append(&self, events: &[(Uid, u64, Bytes)]) -> Result<(), Error>;

    /// Events with `seq > after`, at most `limit`, only if the window holds `after + 1`.
    async fn read(&self, uid: &Uid, after: u64, limit: usize) -> Result<HotRead, Error>;
}
