//! The metrics registry of a process.
//!
//! A component declares its metrics in its own `metrics.rs`, registers them once at start and keeps the handles; the
//! admin port calls [`Registry::encode`]. Names are `tidings_<noun>_<unit>` (counters get `_total` from the encoder).
//!
//! In the single-process mode several services register the same names. Each gets a [`Registry::labelled`] view
//! (`service="router"`), and [`encode`](Registry::encode) writes one block per family as OpenMetrics requires, however
//! many views contributed to it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::text;
use prometheus_client::metrics::histogram::Histogram;
pub use prometheus_client::registry::Metric;

/// Constant labels of a view.
type Labels = Vec<(String, String)>;

/// The content type of [`Registry::encode`].
pub const OPENMETRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds in seconds for latency histograms. They include the targets the service levels are written in (0.5 s
/// and 2 s), so that a share within the target is read exactly.
pub const LATENCY_BUCKETS: [f64; 16] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
];

/// [`LATENCY_BUCKETS`] as the iterator the histogram constructor takes.
pub fn latency_buckets() -> impl Iterator<Item = f64> {
    LATENCY_BUCKETS.into_iter()
}

/// A histogram of seconds over [`LATENCY_BUCKETS`]; also the constructor for
/// `Family::new_with_constructor(latency_histogram)`.
pub fn latency_histogram() -> Histogram {
    Histogram::new(LATENCY_BUCKETS)
}

/// A histogram of counts (records of a batch, pages of a round): powers of two from 1 to 32,768.
pub fn size_histogram() -> Histogram {
    Histogram::new((0..16u32).map(|exponent| f64::from(1u32 << exponent)))
}

#[derive(Debug, Default)]
struct Inner {
    client: prometheus_client::registry::Registry,
    registered: HashSet<(String, Labels)>,
}

/// A handle on the registry of a process; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    inner: Arc<Mutex<Inner>>,
    labels: Labels,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// A view on the same registry that puts the constant label `key="value"` on everything registered through it.
    pub fn labelled(&self, key: impl Into<String>, value: impl Into<String>) -> Self {
        let mut labels = self.labels.clone();
        labels.push((key.into(), value.into()));
        Self {
            inner: Arc::clone(&self.inner),
            labels,
        }
    }

    /// Registers `metric` under `name` (without `_total` for counters) with a help text that says what is counted and
    /// in which unit. The metric handles of the client library are cheap clones: register one clone, keep the other.
    ///
    /// A name registered twice through views with the same labels would give the same series twice, which no scraper
    /// accepts; the second is left out and the mistake logged as an error. Share the first handle instead, or use a
    /// [`labelled`](Self::labelled) view.
    pub fn register(&self, name: impl Into<String>, help: impl Into<String>, metric: impl Metric) {
        let name = name.into();
        let mut inner = self.lock();
        if !inner.registered.insert((name.clone(), self.labels.clone())) {
            tracing::error!(metric = name, labels = ?self.labels, "metric registered twice, the second is not exported");
            return;
        }
        if self.labels.is_empty() {
            inner.client.register(name, help, metric);
        } else {
            let labels = self
                .labels
                .iter()
                .map(|(key, value)| (key.clone().into(), value.clone().into()));
            inner
                .client
                .sub_registry_with_labels(labels)
                .register(name, help, metric);
        }
    }

    /// The state of all metrics as OpenMetrics text, one block per metric family.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` cannot fail; a metric that cannot encode itself is a defect of the client library, and
        // a scrape must not end the process.
        if let Err(error) = text::encode(&mut text, &self.lock().client) {
            tracing::error!(%error, "metrics could not be encoded");
        }
        merge_families(&text)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Poison safety: no code that runs under the lock leaves the registry half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Joins the blocks (`# HELP` up to the next `# HELP`) of one family that came from different views.
fn merge_families(text: &str) -> String {
    struct Family<'a> {
        meta: Vec<&'a str>,
        samples: Vec<&'a str>,
    }
    let mut families: Vec<Family<'_>> = Vec::new();
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    let mut current: Option<(usize, bool)> = None;
    for line in text.lines() {
        if line == "# EOF" {
            continue;
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let name = rest.split(' ').next().unwrap_or(rest);
            current = Some(match by_name.get(name) {
                Some(&index) => (index, false),
                None => {
                    families.push(Family {
                        meta: Vec::new(),
                        samples: Vec::new(),
                    });
                    by_name.insert(name, families.len() - 1);
                    (families.len() - 1, true)
                }
            });
        }
        // The encoder starts every family with its help line.
        let Some((index, first_block)) = current else { continue };
        if !line.starts_with("# ") {
            families[index].samples.push(line);
        } else if first_block {
            families[index].meta.push(line);
        }
    }
    let mut merged = String::with_capacity(text.len());
    for line in families
        .iter()
        .flat_map(|family| family.meta.iter().chain(&family.samples))
    {
        merged.push_str(line);
        merged.push('\n');
    }
    merged.push_str("# EOF\n");
    merged
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn encodes_what_was_counted_through_any_clone() {
        let registry = Registry::new();
        let counter: Counter = Counter::default();
        registry
            .clone()
            .register("tidings_records", "Records handled", counter.clone());
        counter.inc_by(3);
        let text = registry.encode();
        assert!(text.contains("# TYPE tidings_records counter\n"), "{text}");
        assert!(text.contains("tidings_records_total 3\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn views_share_one_family_block() {
        let registry = Registry::new();
        for (service, value) in [("router", 1), ("gateway", 2)] {
            let view = registry.labelled("service", service);
            let gauge: Gauge = Gauge::default();
            gauge.set(value);
            view.register("tidings_queue_records", "Records waiting", gauge);
            view.register(
                format!("tidings_{service}_up_records"),
                "Filler",
                Gauge::<i64>::default(),
            );
        }
        let text = registry.encode();
        assert_eq!(text.matches("# TYPE tidings_queue_records gauge").count(), 1, "{text}");
        let start = text
            .find("tidings_queue_records{service=\"router\"} 1\n")
            .expect("router series");
        assert!(
            text[start..].starts_with(
                "tidings_queue_records{service=\"router\"} 1\ntidings_queue_records{service=\"gateway\"} 2\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_second_registration_of_the_same_series_is_left_out() {
        let registry = Registry::new();
        registry.register("tidings_twice_records", "First", Gauge::<i64>::default());
        registry.register("tidings_twice_records", "Second", Gauge::<i64>::default());
        let text = registry.encode();
        assert_eq!(text.matches("tidings_twice_records 0").count(), 1, "{text}");
    }

    #[test]
    fn latency_buckets_hold_the_service_level_bounds_in_order() {
        let buckets: Vec<f64> = latency_buckets().collect();
        assert!(buckets.contains(&0.5) && buckets.contains(&2.0));
        assert!(buckets.is_sorted());
        let registry = Registry::new();
        let histogram = latency_histogram();
        histogram.observe(0.4);
        registry.register("tidings_step_seconds", "Time of a step", histogram);
        let text = registry.encode();
        assert!(text.contains("tidings_step_seconds_bucket{le=\"0.5\"} 1"), "{text}");
        assert!(text.contains("tidings_step_seconds_bucket{le=\"0.25\"} 0"), "{text}");
    }
}
