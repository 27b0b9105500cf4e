//! Pausing and resuming, metrics, the stall watchdog.

use std::time::{Duration, Instant};

use super::{Consumer, HOUSEKEEPING_INTERVAL};
use crate::metrics::{group_labels, partition_labels};
use crate::runtime::handle::{ConsumerStatus, Failure, PartitionView};
use crate::source::Source;

impl Consumer {
    pub(super) fn pause_and_resume(&mut self, source: &mut dyn Source) {
        let limits = self.config().queue;
        let mut pause = Vec::new();
        let mut resume = Vec::new();
        for partition in self.partitions.values().filter(|partition| partition.started) {
            let wants = partition.wants_pause(&limits);
            if wants && !partition.paused {
                pause.push(partition.number);
            } else if !wants && partition.paused {
                resume.push(partition.number);
            }
        }
        for (numbers, paused) in [(pause, true), (resume, false)] {
            if numbers.is_empty() {
                continue;
            }
            let result = if paused {
                source.pause(&numbers)
            } else {
                source.resume(&numbers)
            };
            if let Err(error) = result {
                // Tried again in the next round.
                tracing::warn!(group = self.name(), %error, partitions = ?numbers, paused, "pausing or resuming");
                continue;
            }
            for number in numbers {
                if let Some(partition) = self.partitions.get_mut(&number) {
                    partition.paused = paused;
                }
            }
        }
    }

    pub(super) fn keep_house(&mut self, source: &dyn Source) {
        let now = Instant::now();
        if now < self.housekeeping_at {
            return;
        }
        self.housekeeping_at = now + HOUSEKEEPING_INTERVAL;
        let numbers: Vec<u32> = self.partitions.keys().copied().collect();
        let log_ends = source.log_ends(&numbers);
        let broker_now = self.shared.bus.broker_time().now();
        let (group, stall_limit) = (self.group(), self.config().stall_limit);
        let metrics = &self.shared.metrics;
        let mut paused = 0;
        for (partition, log_end) in self.partitions.values_mut().zip(log_ends) {
            if let Some(log_end) = log_end {
                partition.know_log_end(log_end);
            }
            paused += i64::from(partition.paused);
            let labels = partition_labels(group, partition.number);
            let lag = partition.lag();
            metrics
                .lag_records
                .get_or_create(&labels)
                .set(i64::try_from(lag).unwrap_or(i64::MAX));
            let age = partition
                .oldest_unsettled()
                .map_or(Duration::ZERO, |time| broker_now.since(time));
            metrics.lag_seconds.get_or_create(&labels).set(age.as_secs_f64());
            let stalled_for = partition.stalled_for(now);
            if stalled_for >= stall_limit {
                self.board.fail(Failure::Stalled {
                    group: group.name(),
                    partition: partition.number,
                    lag,
                    stalled_for,
                });
            }
        }
        metrics
            .paused_partitions
            .get_or_create(&group_labels(group))
            .set(paused);
        self.show();
    }

    pub(super) fn show(&self) {
        let partitions = self
            .partitions
            .values()
            .map(|partition| PartitionView {
                partition: partition.number,
                phase: partition.phase,
                paused: partition.paused,
                position: partition.position(),
                log_end: partition.log_end(),
                queued: partition.queued(),
            })
            .collect();
        *self.board.status.lock() = ConsumerStatus { partitions };
    }
}
