//! Metrics of offline-inbox.

use prometheus_client::metrics::counter::Counter;
use tidings_telemetry::metrics::Registry;

/// The service's metrics.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Events appended to streams.
    pub events_appended: Counter,
    /// Records that were re-emissions of ones already folded.
    pub reemissions: Counter,
    /// Records refused behind a gap of their run.
    pub prefix_gaps: Counter,
    /// Receipts and read-syncs emitted.
    pub receipts: Counter,
    /// Device reports folded.
    pub device_states: Counter,
    /// Sync pages answered from the hot window.
    pub hot_pages: Counter,
    /// Sync pages answered from the rows.
    pub cold_pages: Counter,
    /// Sync pages refused because a row is missing inside a stream.
    pub stream_holes: Counter,
    /// Reads of or appends to the hot window that failed.
    pub hot_window_errors: Counter,
}

impl Metrics {
    /// Registers all.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let metrics = Self::default();
        for (name, help, counter) in [
            (
                "tidings_inbox_events_appended",
                "Events appended to users' streams",
                &metrics.events_appended,
            ),
            (
                "tidings_inbox_reemissions",
                "Inbox records that repeat one already folded; harmless after a restart of the router",
                &metrics.reemissions,
            ),
            (
                "tidings_inbox_prefix_gaps",
                "Inbox records refused because an earlier one of the same run is missing; the next run repeats them",
                &metrics.prefix_gaps,
            ),
            (
                "tidings_inbox_receipts",
                "Receipts and read-syncs emitted",
                &metrics.receipts,
            ),
            (
                "tidings_inbox_device_states",
                "Reports of devices folded",
                &metrics.device_states,
            ),
            (
                "tidings_sync_hot_pages",
                "Sync pages answered from the hot window",
                &metrics.hot_pages,
            ),
            (
                "tidings_sync_cold_pages",
                "Sync pages answered from the rows",
                &metrics.cold_pages,
            ),
            (
                "tidings_inbox_stream_holes",
                "Sync pages refused because a row is missing inside a stream; any is a fault",
                &metrics.stream_holes,
            ),
            (
                "tidings_hot_window_errors",
                "Reads of and appends to the hot window that failed; the rows have everything",
                &metrics.hot_window_errors,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        metrics
    }
}
