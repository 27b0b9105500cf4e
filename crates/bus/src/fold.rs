//! Consuming as a fold: one owner per partition, in order, never skipping (architecture.md section 5).
//!
//! The runtime makes a [`Fold`] per assignment (a *run*) and drops it at revoke, producer error or stop; nothing of it is
//! kept (seq:G6). It calls `begin`, then `apply` per batch, and `checkpoint` every 5 s or 5,000 records. What `checkpoint`
//! returns is committed to the group. A transient error ends the run too: the next one starts after a back-off at the
//! committed position and re-reads everything.

use async_trait::async_trait;

use crate::acks::AckFault;
use crate::dead_letter::Rejection;
use crate::record::{LogRecord, OutRecord};
use crate::source::AssignedPartition;

/// Why a run ended.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    /// A dependency failed: start again after a back-off.
    #[error("{0}")]
    Transient(String),
    /// The producer failed: every run of the process that shares it ends (seq:G3).
    #[error(transparent)]
    Producer(#[from] AckFault),
    /// An invariant is broken or a limit passed: the partition stops, pages, and waits for an operator.
    #[error("partition stopped at offset {offset}: {reason}")]
    Stop {
        /// The record that cannot be folded.
        offset: u64,
        /// Why.
        reason: String,
    },
}

/// Where a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldStart {
    /// First offset to read.
    pub offset: u64,
}

/// A position to commit to the group after a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldCommit {
    /// Next offset to read.
    pub offset: u64,
    /// Committed beside it, in the same commit (seq:R1).
    pub metadata: String,
}

/// What a run sends with: in order, linked by the fold, its reports checked (seq:R8a).
#[async_trait]
pub trait Emitter: Send {
    /// Enqueues an output. Waits while the producer's queue is full. Fails once the run has an ack fault.
    async fn emit(&mut self, record: OutRecord) -> Result<(), FoldError>;

    /// Sends a record that cannot be decoded to `dlq`; counted like every output.
    async fn dead_letter(&mut self, record: &LogRecord, rejection: &Rejection) -> Result<(), FoldError>;

    /// Sends `Resolved` for a replayed dead letter that was folded to its end; counted like every output.
    async fn resolved(&mut self, record: &LogRecord) -> Result<(), FoldError>;

    /// Waits until everything emitted so far is acknowledged in order.
    async fn settled(&mut self) -> Result<(), FoldError>;
}

/// One run: the owner of one partition from start to end.
#[async_trait]
pub trait Fold: Send {
    /// Reads what the run starts from and says where.
    async fn begin(&mut self, assigned: &AssignedPartition) -> Result<FoldStart, FoldError>;

    /// Folds records in order: reads, decides, writes, emits. Offsets ascend, but are not dense.
    async fn apply(&mut self, batch: &[LogRecord], emitter: &mut dyn Emitter) -> Result<(), FoldError>;

    /// Makes everything applied so far recoverable (seq:R7, seq:R8, seq:I8a, seq:I8b). Waits for
    /// [`Emitter::settled`] where its rules say so. `None` if nothing was applied since the last.
    async fn checkpoint(&mut self, emitter: &mut dyn Emitter) -> Result<Option<FoldCommit>, FoldError>;
}

/// Makes the owner of a partition.
pub trait FoldFactory: Send + Sync + 'static {
    /// A new run.
    fn new_run(&self, partition: u32) -> Box<dyn Fold>;
}
