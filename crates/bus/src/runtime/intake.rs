//! The queue between the consumer thread and one worker.
//!
//! The thread must go on polling, so a push never waits; the bound is kept by pausing the partition at the high mark
//! and resuming it at the low mark (hysteresis: each resume makes the client fetch again, notes/kafka.md 2.5). A queue
//! belongs to one assignment epoch and is dropped with it.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::config::QueueLimits;
use crate::record::LogRecord;

#[derive(Debug, Default)]
struct Queue {
    records: VecDeque<LogRecord>,
    bytes: usize,
}

/// Records read and not yet taken by the worker.
#[derive(Debug, Default)]
pub(super) struct Intake {
    queue: Mutex<Queue>,
    arrived: Notify,
}

impl Intake {
    /// Adds a record at the end. The worker is told by [`Self::announce`].
    pub(super) fn push(&self, record: LogRecord) {
        let mut queue = self.queue.lock();
        queue.bytes += record.size();
        queue.records.push_back(record);
    }

    /// Wakes the worker; once per poll, not per record.
    pub(super) fn announce(&self) {
        self.arrived.notify_one();
    }

    /// Takes up to `max_records` records and `max_bytes` bytes (one record may pass it) without waiting.
    pub(super) fn take(&self, max_records: usize, max_bytes: usize) -> Vec<LogRecord> {
        let mut queue = self.queue.lock();
        let mut taken = Vec::with_capacity(queue.records.len().min(max_records));
        let mut bytes = 0;
        while taken.len() < max_records && bytes < max_bytes {
            let Some(record) = queue.records.pop_front() else { break };
            bytes += record.size();
            taken.push(record);
        }
        queue.bytes -= bytes;
        taken
    }

    /// Waits until there is a record. For the one worker only.
    pub(super) async fn wait(&self) {
        while self.queue.lock().records.is_empty() {
            self.arrived.notified().await;
        }
    }

    /// Records and bytes queued.
    pub(super) fn size(&self) -> (usize, usize) {
        let queue = self.queue.lock();
        (queue.records.len(), queue.bytes)
    }

    /// Whether delivery should be paused now, given whether it was.
    pub(super) fn over(&self, limits: &QueueLimits, paused: bool) -> bool {
        let (records, bytes) = self.size();
        if paused {
            records > limits.low_records || bytes > limits.low_bytes
        } else {
            records >= limits.high_records || bytes >= limits.high_bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::testing::record;

    #[test]
    fn pausing_has_hysteresis() {
        let limits = QueueLimits {
            high_records: 4,
            low_records: 2,
            high_bytes: 1000,
            low_bytes: 500,
        };
        let intake = Intake::default();
        for offset in 0..3 {
            intake.push(record(0, offset, "k"));
        }
        assert!(!intake.over(&limits, false));
        assert!(intake.over(&limits, true), "between the marks it stays as it was");
        intake.push(record(0, 3, "k"));
        assert!(intake.over(&limits, false));
        assert_eq!(intake.take(2, 1000).len(), 2);
        assert!(!intake.over(&limits, true));
    }

    #[test]
    fn a_record_larger_than_the_byte_limit_is_taken_alone() {
        let intake = Intake::default();
        for offset in 0..2 {
            intake.push(record(0, offset, "a-long-key"));
        }
        assert_eq!(intake.take(10, 1).len(), 1);
        assert_eq!(intake.take(10, 1).len(), 1);
        assert_eq!(intake.size(), (0, 0));
    }
}
