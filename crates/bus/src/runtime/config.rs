//! Limits and times of the runtime; the defaults are those of architecture.md section 5.

use std::time::Duration;

use tidings_resilience::BackoffPolicy;

/// How a consumer behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeConfig {
    /// Longest wait in one poll. Commits and resumes wait for it, records do not.
    pub poll_timeout: Duration,
    /// The queue in front of each partition's worker.
    pub queue: QueueLimits,
    /// How long a worker may go on after its partition was revoked or the process was told to stop.
    pub drain_deadline: Duration,
    /// How long leaving the group may take.
    pub close_deadline: Duration,
    /// With lag and nothing settled for so long, the consumer has failed.
    pub stall_limit: Duration,
    /// A poll thread without a sign of life for so long has failed.
    pub heartbeat_limit: Duration,
    /// Between attempts of whatever failed: a key, a run, the source, a write to `dlq`.
    pub backoff: BackoffPolicy,
    /// Seed of the jitter.
    pub seed: u64,
    /// An output without report for so long is a producer error (seq:G3). Longer than a broker failover, shorter than
    /// `stall_limit`.
    pub ack_watchdog: Duration,
    /// Named in dead letters.
    pub host: String,
    /// Folds.
    pub fold: FoldConfig,
    /// Handlers.
    pub handler: HandlerConfig,
}

/// Bounds of a queue: at the high mark delivery is paused, at the low mark resumed. One poll may overshoot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Records at which delivery is paused.
    pub high_records: usize,
    /// Records at which it is resumed.
    pub low_records: usize,
    /// Bytes at which delivery is paused.
    pub high_bytes: usize,
    /// Bytes at which it is resumed.
    pub low_bytes: usize,
}

/// Folds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldConfig {
    /// Records of one batch at most.
    pub batch_records: usize,
    /// Bytes of one batch, passed by at most one record.
    pub batch_bytes: usize,
    /// A checkpoint is due after this time,
    pub checkpoint_interval: Duration,
    /// after so many records,
    pub checkpoint_records: usize,
    /// and when no record came for this time.
    pub idle_checkpoint: Duration,
}

/// Handlers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerConfig {
    /// Records of one batch at most.
    pub batch_records: usize,
    /// Bytes of one batch, passed by at most one record.
    pub batch_bytes: usize,
    /// Records between the first not settled and the last read, at most.
    pub window_records: usize,
    /// Bytes of records not settled, passed by at most one batch.
    pub window_bytes: usize,
    /// Offsets between the first not settled and the last read, at most.
    pub window_span: u64,
    /// Attempts of a record that fails for itself before it is dead-lettered.
    pub max_attempts: u32,
    /// Between commits.
    pub commit_interval: Duration,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            poll_timeout: Duration::from_millis(50),
            queue: QueueLimits::default(),
            drain_deadline: Duration::from_secs(10),
            close_deadline: Duration::from_secs(5),
            stall_limit: Duration::from_secs(120),
            heartbeat_limit: Duration::from_secs(60),
            backoff: BackoffPolicy::STORE,
            seed: 0,
            ack_watchdog: Duration::from_secs(90),
            host: String::from("unknown"),
            fold: FoldConfig::default(),
            handler: HandlerConfig::default(),
        }
    }
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            high_records: 2000,
            low_records: 1000,
            high_bytes: 16 << 20,
            low_bytes: 8 << 20,
        }
    }
}

impl Default for FoldConfig {
    fn default() -> Self {
        Self {
            batch_records: 512,
            batch_bytes: 4 << 20,
            checkpoint_interval: Duration::from_secs(5),
            checkpoint_records: 5000,
            idle_checkpoint: Duration::from_millis(500),
        }
    }
}

impl Default for HandlerConfig {
    fn default() -> Self {
        Self {
            batch_records: 256,
            batch_bytes: 4 << 20,
            window_records: 2000,
            window_bytes: 16 << 20,
            window_span: 10_000,
            max_attempts: 5,
            commit_interval: Duration::from_secs(1),
        }
    }
}
