//! Metrics of dead-letter-compensator.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tidings_telemetry::metrics::Registry;

/// Labels of `tidings_dead_letters_taken_in`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TakenIn {
    /// Origin topic.
    pub topic: &'static str,
    /// Stable name of the failure; `other` for a name outside the known form.
    pub error_class: String,
}

/// The service's metrics.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// New dead letters by origin topic and class.
    pub taken_in: Family<TakenIn, Counter>,
    /// Records of `dlq` whose entry was there already.
    pub repeated: Counter,
    /// Replays reported as handled.
    pub resolved: Counter,
    /// Records of `dlq` that are no dead letter of ours: kept as entries of class `foreign`.
    pub foreign: Counter,
}

impl Metrics {
    /// Registers all.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "tidings_dead_letters_taken_in",
            "New dead letters taken in, by origin topic and error class",
            metrics.taken_in.clone(),
        );
        registry.register(
            "tidings_dead_letters_repeated",
            "Records of the dead-letter topic whose entry was there already",
            metrics.repeated.clone(),
        );
        registry.register(
            "tidings_dead_letters_resolved",
            "Dead letters whose replay was reported as handled",
            metrics.resolved.clone(),
        );
        registry.register(
            "tidings_dead_letters_foreign",
            "Records of the dead-letter topic without the headers of a dead letter, kept as entries of class foreign",
            metrics.foreign.clone(),
        );
        metrics
    }
}

/// The class as a label: names are `[a-z0-9_]`, at most 40 bytes, so that a damaged header cannot make new series
/// without bound.
#[must_use]
pub fn class_label(class: &str) -> String {
    let known_form = !class.is_empty()
        && class.len() <= 40
        && class
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if known_form {
        class.to_owned()
    } else {
        "other".to_owned()
    }
}
