//! Consuming as a handler: records ordered per key, keys in parallel, bounded window (architecture.md section 5).

use async_trait::async_trait;

use crate::dead_letter::Rejection;
use crate::record::LogRecord;

/// What became of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its effects are durable.
    Done,
    /// A dependency failed: this key waits and the record is tried again (1 s ... 30 s, jitter). If the cause is the
    /// record itself while its dependency is healthy, it is dead-lettered after 5 attempts.
    RetryLater(Cause),
    /// It can never be handled: to `dlq`, broker-confirmed, then settled. A record of `dlq` itself lies there already: it is
    /// told of and settled.
    Reject(Rejection),
}

/// Why a record must wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Stable name, e.g. `store_unavailable`.
    pub error_class: &'static str,
    /// What happened, without message text.
    pub detail: String,
    /// True if the dependency is down for everybody: no attempt is spent (req:E2).
    pub dependency_down: bool,
}

/// Handles records.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Handles a batch of one partition; answers one outcome per record, in order. Records of one key stand in offset
    /// order; after the first `RetryLater` of a key the runtime gives the later ones of that key again, so handling must
    /// be idempotent.
    async fn handle(&self, batch: &[LogRecord]) -> Vec<Outcome>;
}
