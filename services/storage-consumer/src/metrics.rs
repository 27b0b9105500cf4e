//! Metrics of storage-consumer.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tidings_telemetry::metrics::Registry;

/// Which table a write was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Table {
    /// `history`
    History,
    /// `locator`
    Locator,
}

/// What came of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum WriteResult {
    /// Durable.
    Ok,
    /// Will be tried again.
    Retry,
    /// Given up: a dead letter.
    Rejected,
}

/// Labels of `tidings_persist_results`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PersistLabels {
    /// Where to.
    pub table: Table,
    /// What came of it.
    pub result: WriteResult,
}

/// The service's metrics.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Row writes by table and result, each try counted.
    pub persist_results: Family<PersistLabels, Counter>,
    /// Messages returned by history reads.
    pub history_messages_read: Counter,
}

impl Metrics {
    /// Registers all.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "tidings_persist_results",
            "Row writes of sequenced messages by table and result, each try counted",
            metrics.persist_results.clone(),
        );
        registry.register(
            "tidings_history_messages_read",
            "Messages returned by history range reads",
            metrics.history_messages_read.clone(),
        );
        // Alerts divide by these: they must exist from the start.
        for table in [Table::History, Table::Locator] {
            for result in [WriteResult::Ok, WriteResult::Retry, WriteResult::Rejected] {
                metrics
                    .persist_results
                    .get_or_create(&PersistLabels { table, result })
                    .inc_by(0);
            }
        }
        metrics
    }

    /// Counts one write.
    pub fn persisted(&self, table: Table, result: WriteResult) {
        self.persist_results
            .get_or_create(&PersistLabels { table, result })
            .inc();
    }
}
