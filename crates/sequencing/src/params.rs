//! What the folds are told once: bounds of clocks, limits, partition counts.

use std::time::Duration;

use tidings_domain::{LogEpoch, Position};

/// Version of the decisions in this crate. It stands in every checkpoint; a partition whose checkpoint was written by
/// another version is refused (sequencing.md section 6).
pub const FOLD_VERSION: u32 = 1;

/// Numbers of partitions, fixed within a log epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partitions {
    /// Of `ingress`, by conversation.
    pub ingress: u32,
    /// Of `history`, by conversation.
    pub history: u32,
    /// Of `inbox` (and of `push`, which takes the same number), by uid.
    pub inbox: u32,
}

/// Constants of a run. Every owner of a log epoch must use the same: they are part of what is a function of the log,
/// except the limits, which only decide what is read and when a fold refuses to go on.
#[derive(Debug, Clone, Copy)]
pub struct Params {
    /// How far ahead of the gateway's clock an id may be: the gateway refuses more.
    pub skew: Duration,
    /// Largest error of a gateway's clock.
    pub gateway_clock_error: Duration,
    /// Largest error of a broker's clock.
    pub broker_clock_error: Duration,
    /// LIMIT of seq:G7; `None` where there is only one owner under a lock (embedded).
    pub guard_limit: Option<Duration>,
    /// Version number of the topics.
    pub log_epoch: LogEpoch,
    /// Bytes that the window of known keys may take (seq:R10).
    pub window_bytes_cap: usize,
    /// Conversations (stage 1) or users with their registers (stage 2) kept in memory across a checkpoint; the ones
    /// unused for longest go first.
    pub kept_states: usize,
    /// Partition counts.
    pub partitions: Partitions,
    /// The one partition function of the suite: partition of a key among so many.
    pub partition_of: fn(&[u8], u32) -> u32,
}

impl Params {
    /// SKEW + e_gateway + e_broker: how much later than its first copy's broker time an id can be dated (seq:R3).
    pub(crate) fn id_margin(&self) -> Duration {
        self.skew + self.gateway_clock_error + self.broker_clock_error
    }

    pub(crate) fn position(&self, offset: u64) -> Position {
        Position::new(self.log_epoch, offset)
    }
}
