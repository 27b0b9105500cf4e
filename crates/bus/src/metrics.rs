//! Metrics of the consumer runtime.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tidings_telemetry::metrics::{Registry, size_histogram};

use crate::acks::AckFault;
use crate::catalogue::ConsumerGroup;

/// A consumer group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct GroupLabels {
    /// Its name.
    pub group: &'static str,
}

/// A partition as one group consumes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PartitionLabels {
    /// The group's name.
    pub group: &'static str,
    /// The topic's short name.
    pub topic: &'static str,
    /// The partition.
    pub partition: u32,
}

/// A class of failures, named by the handler.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ClassLabels {
    /// The group's name.
    pub group: &'static str,
    /// The stable name of the failure.
    pub class: &'static str,
}

/// Why a run of a fold was started again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CauseLabels {
    /// The group's name.
    pub group: &'static str,
    /// `transient`, `producer` or `panic`.
    pub cause: &'static str,
}

/// A kind of acknowledgement fault.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabels {
    /// `failed`, `no_offset`, `out_of_order` or `silent`.
    pub kind: &'static str,
}

/// The metrics of all consumers of a process.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Records in the log and not settled.
    pub lag_records: Family<PartitionLabels, Gauge>,
    /// Age of the oldest record not settled.
    pub lag_seconds: Family<PartitionLabels, Gauge<f64, AtomicU64>>,
    /// Records settled.
    pub settled: Family<GroupLabels, Counter>,
    /// Records given back to wait.
    pub retries: Family<ClassLabels, Counter>,
    /// Records given up.
    pub dead_lettered: Family<ClassLabels, Counter>,
    /// Partitions paused at the source.
    pub paused_partitions: Family<GroupLabels, Gauge>,
    /// Results of an earlier assignment epoch.
    pub stale_results: Family<GroupLabels, Counter>,
    /// Records per batch.
    pub batch_records: Family<GroupLabels, Histogram, fn() -> Histogram>,
    /// Commits that failed at once.
    pub commit_failures: Family<GroupLabels, Counter>,
    /// Sources made anew.
    pub source_rebuilds: Family<GroupLabels, Counter>,
    /// Panics of handlers and runs.
    pub panics: Family<GroupLabels, Counter>,
    /// Runs started again.
    pub fold_restarts: Family<CauseLabels, Counter>,
    /// 1 for each stopped partition.
    pub fold_stopped_partitions: Family<PartitionLabels, Gauge>,
    /// Acknowledgement faults.
    pub fold_ack_faults: Family<KindLabels, Counter>,
    /// Writes to dlq that failed.
    pub dlq_write_failures: Family<GroupLabels, Counter>,
    /// Records that left the log before they were read.
    pub missing_range: Family<PartitionLabels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            lag_records: Family::default(),
            lag_seconds: Family::default(),
            settled: Family::default(),
            retries: Family::default(),
            dead_lettered: Family::default(),
            paused_partitions: Family::default(),
            stale_results: Family::default(),
            batch_records: Family::new_with_constructor(size_histogram),
            commit_failures: Family::default(),
            source_rebuilds: Family::default(),
            panics: Family::default(),
            fold_restarts: Family::default(),
            fold_stopped_partitions: Family::default(),
            fold_ack_faults: Family::default(),
            dlq_write_failures: Family::default(),
            missing_range: Family::default(),
        }
    }
}

impl Metrics {
    /// Registers all.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "tidings_consumer_lag_records",
            "Records in the log that the group has not settled, by partition",
            metrics.lag_records.clone(),
        );
        registry.register(
            "tidings_consumer_lag_seconds",
            "Age in seconds, by broker time, of the oldest record that was read and not settled; 0 if there is none",
            metrics.lag_seconds.clone(),
        );
        registry.register(
            "tidings_consumer_settled",
            "Records settled: their effects are durable or they are confirmed in dlq",
            metrics.settled.clone(),
        );
        registry.register(
            "tidings_consumer_retries",
            "Records that a handler gave back to wait, by class",
            metrics.retries.clone(),
        );
        registry.register(
            "tidings_consumer_dead_lettered",
            "Records given up and confirmed in dlq, by class",
            metrics.dead_lettered.clone(),
        );
        registry.register(
            "tidings_consumer_paused_partitions",
            "Partitions paused at the source: queue full, backing off, stopped or draining",
            metrics.paused_partitions.clone(),
        );
        registry.register(
            "tidings_consumer_stale_results",
            "Results dropped because they came from an earlier assignment epoch",
            metrics.stale_results.clone(),
        );
        registry.register(
            "tidings_consumer_batch_records",
            "Records handed over in one batch",
            metrics.batch_records.clone(),
        );
        registry.register(
            "tidings_consumer_commit_failures",
            "Commits of positions that failed and are tried again",
            metrics.commit_failures.clone(),
        );
        registry.register(
            "tidings_consumer_source_rebuilds",
            "Group members made anew after a fatal error",
            metrics.source_rebuilds.clone(),
        );
        registry.register(
            "tidings_consumer_panics",
            "Panics of handlers and fold runs, each counted as an attempt",
            metrics.panics.clone(),
        );
        metrics.register_folds(registry);
        metrics
    }

    fn register_folds(&self, registry: &Registry) {
        registry.register(
            "tidings_fold_restarts",
            "Runs of folds that ended and start again from the committed position, by cause",
            self.fold_restarts.clone(),
        );
        registry.register(
            "tidings_fold_stopped_partitions",
            "1 while a fold has stopped the partition and waits for an operator",
            self.fold_stopped_partitions.clone(),
        );
        registry.register(
            "tidings_fold_ack_faults",
            "Acknowledgement faults; each ends all runs that share the producer, by kind",
            self.fold_ack_faults.clone(),
        );
        registry.register(
            "tidings_dlq_write_failures",
            "Writes to dlq that failed and are tried again; the partition waits meanwhile",
            self.dlq_write_failures.clone(),
        );
        registry.register(
            "tidings_consumer_missing_range",
            "Records that left the log before the group read them",
            self.missing_range.clone(),
        );
    }

    /// Makes the counters of a group visible at 0.
    pub fn begin(&self, group: ConsumerGroup) {
        let labels = group_labels(group);
        for counter in [
            &self.settled,
            &self.stale_results,
            &self.commit_failures,
            &self.source_rebuilds,
            &self.panics,
            &self.dlq_write_failures,
        ] {
            counter.get_or_create(&labels).inc_by(0);
        }
        self.paused_partitions.get_or_create(&labels).set(0);
    }

    /// Ends the series of a partition that another member consumes from now on.
    pub fn forget(&self, labels: &PartitionLabels) {
        self.lag_records.remove(labels);
        self.lag_seconds.remove(labels);
        self.fold_stopped_partitions.remove(labels);
    }

    /// Counts an acknowledgement fault.
    pub fn ack_fault(&self, fault: &AckFault) {
        let kind = match fault {
            AckFault::Failed { .. } => "failed",
            AckFault::NoOffset { .. } => "no_offset",
            AckFault::OutOfOrder { .. } => "out_of_order",
            AckFault::Silent { .. } => "silent",
        };
        self.fold_ack_faults.get_or_create(&KindLabels { kind }).inc();
    }
}

/// The labels of a group.
#[must_use]
pub const fn group_labels(group: ConsumerGroup) -> GroupLabels {
    GroupLabels { group: group.name() }
}

/// The labels of a partition.
#[must_use]
pub const fn partition_labels(group: ConsumerGroup, partition: u32) -> PartitionLabels {
    PartitionLabels {
        group: group.name(),
        topic: group.topic().short_name(),
        partition,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_group_are_there_from_the_start() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry);
        metrics.begin(ConsumerGroup::Router);
        let text = registry.encode();
        for name in [
            "tidings_consumer_settled_total",
            "tidings_consumer_stale_results_total",
            "tidings_consumer_commit_failures_total",
            "tidings_dlq_write_failures_total",
            "tidings_consumer_paused_partitions",
        ] {
            assert!(
                text.contains(&format!("{name}{{group=\"tidings.router\"}} 0")),
                "{name} in {text}"
            );
        }
    }

    #[test]
    fn a_partition_given_up_has_no_series_left() {
        let metrics = Metrics::default();
        let labels = partition_labels(ConsumerGroup::Router, 3);
        metrics.lag_records.get_or_create(&labels).set(7);
        metrics.forget(&labels);
        assert_eq!(metrics.lag_records.get_or_create(&labels).get(), 0);
    }
}
