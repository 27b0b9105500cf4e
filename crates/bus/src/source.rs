//! The source port: one member of a consumer group, driven by one thread (architecture.md section 5).
//!
//! The consumer runtime owns the source and alone touches it. Rebalances are events that the runtime answers: after
//! `Assigned` it calls `start` for each partition, after `Revoked` it drains, commits and calls `finish_revoke`; only
//! then may another member get the partitions.

use std::time::Duration;

use tidings_domain::clock::Millis;

use crate::Error;
use crate::record::LogRecord;

/// The group's committed position of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Next offset to read.
    pub offset: u64,
    /// What was committed beside it.
    pub metadata: String,
}

/// A partition given to this member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedPartition {
    /// Which.
    pub partition: u32,
    /// The group's position; `None` if it never committed.
    pub committed: Option<Committed>,
    /// First offset still in the log.
    pub log_start: u64,
    /// Offset after the last record when assigned.
    pub log_end: u64,
}

/// What `poll` saw.
#[derive(Debug)]
pub enum SourceEvent {
    /// Records, per partition in offset order.
    Records(Vec<LogRecord>),
    /// New partitions; nothing is read from them before `start`.
    Assigned(Vec<AssignedPartition>),
    /// These must be given up: answer with `finish_revoke`. `lost`: the group has already given them away, a commit would
    /// be refused.
    Revoked {
        /// Which.
        partitions: Vec<u32>,
        /// Already owned by another.
        lost: bool,
    },
    /// Nothing within the time-out.
    Idle,
    /// A fault that the adapter gets over by itself; for the log.
    Fault(Error),
    /// The client is dead: the consumer must be made anew.
    Fatal(Error),
}

/// A position to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Which partition.
    pub partition: u32,
    /// Next offset to read (never the last one read).
    pub offset: u64,
    /// Kept beside the offset; at most 4096 bytes.
    pub metadata: String,
}

/// Whether a commit is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitMode {
    /// Send and go on; a later commit covers a lost one.
    Async,
    /// Wait for the group's answer (revoke, close).
    Sync,
}

/// One member of a consumer group on one topic.
pub trait Source: Send {
    /// Waits at most `timeout` for something to happen.
    fn poll(&mut self, timeout: Duration) -> SourceEvent;

    /// Begins reading an assigned partition at `offset`.
    fn start(&mut self, partition: u32, offset: u64) -> Result<(), Error>;

    /// Gives revoked partitions up.
    fn finish_revoke(&mut self, partitions: &[u32]) -> Result<(), Error>;

    /// Stops delivery of these partitions' records; polling goes on.
    fn pause(&mut self, partitions: &[u32]) -> Result<(), Error>;

    /// Resumes delivery right after the last record delivered.
    fn resume(&mut self, partitions: &[u32]) -> Result<(), Error>;

    /// Makes the next record of a started partition that of `offset`.
    fn seek(&mut self, partition: u32, offset: u64) -> Result<(), Error>;

    /// Commits positions.
    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), Error>;

    /// Offset after the last record of each partition, as far as the adapter knows without asking (for lag).
    fn log_ends(&self, partitions: &[u32]) -> Vec<Option<u64>>;

    /// Leaves the group. Partitions still assigned are given up without a commit; never blocks for longer than `deadline`.
    fn close(self: Box<Self>, deadline: Duration);
}

/// Oldest record not settled of a partition, for the lag metric in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldestUnsettled {
    /// Its offset.
    pub offset: u64,
    /// Its broker time.
    pub append_time: Millis,
}
