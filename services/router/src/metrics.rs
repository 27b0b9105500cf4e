//! Metrics of router.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tidings_sequencing::router::RouterStats;
use tidings_telemetry::metrics::Registry;

/// What the fold made of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Decision {
    /// Sequenced.
    Accepted,
    /// Refused; the sender gets a rejection.
    Rejected,
    /// A later copy with the same content.
    Duplicate,
    /// A later copy with other content.
    Conflict,
    /// Decided by an earlier run already.
    Refolded,
    /// Cannot be decoded: a dead letter.
    Undecodable,
}

/// Labels of `tidings_router_records`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DecisionLabels {
    /// What the fold made of it.
    pub decision: Decision,
}

/// The service's metrics.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    records: Family<DecisionLabels, Counter>,
    /// Reads of intents: records whose key may be older than the window.
    pub intent_reads: Counter,
}

impl Metrics {
    /// Registers all.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "tidings_router_records",
            "Ingress records by what the fold made of them; refolded ones are counted beside their outcome",
            metrics.records.clone(),
        );
        registry.register(
            "tidings_router_intent_reads",
            "Point reads of intents for keys that may be older than the window",
            metrics.intent_reads.clone(),
        );
        metrics.decided(RouterStats::default());
        metrics
    }

    /// Counts a batch.
    pub fn decided(&self, stats: RouterStats) {
        for (decision, count) in [
            (Decision::Accepted, stats.accepted),
            (Decision::Rejected, stats.rejected),
            (Decision::Duplicate, stats.duplicates),
            (Decision::Conflict, stats.conflicts),
            (Decision::Refolded, stats.refolded),
            (Decision::Undecodable, stats.undecodable),
        ] {
            self.records.get_or_create(&DecisionLabels { decision }).inc_by(count);
        }
    }
}
