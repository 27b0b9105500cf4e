//! What the consumer runtime keeps: `fold_skip` and `attempt`.

use async_trait::async_trait;
use tidings_domain::Topic;
use tidings_domain::clock::Millis;

use crate::Error;

/// A record that an operator told a fold to pass over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldSkip {
    /// Its offset.
    pub offset: u64,
    /// Why.
    pub reason: String,
    /// By whom.
    pub who: String,
    /// When.
    pub time: Millis,
}

/// Store of the consumer runtime.
#[async_trait]
pub trait RuntimeStore: Send + Sync + 'static {
    /// Skips of a partition, read at assignment.
    async fn fold_skips(&self, topic: Topic, partition: u32) -> Result<Vec<FoldSkip>, Error>;

    /// Adds a skip.
    async fn write_fold_skip(&self, topic: Topic, partition: u32, skip: &FoldSkip) -> Result<(), Error>;
}
