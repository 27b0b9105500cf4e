//! Metrics of push-fanout.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tidings_telemetry::metrics::Registry;

/// What became of a push to one device, or of an event for a user without a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum PushResult {
    /// Queued on the device's connection.
    HandedOver,
    /// The session is slow or behind: it was told the head and will pull.
    Notified,
    /// No route: nobody is connected, the inbox waits for the pull.
    NoRoute,
    /// The route was stale.
    NotHere,
    /// The session closed in between.
    Closed,
    /// The gateway could not be reached or did not answer in time.
    GatewayUnreachable,
}

/// Labels of `tidings_pushes`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PushLabels {
    /// What became of it.
    pub result: PushResult,
}

/// The service's metrics.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// First attempts by result.
    pub pushes: Family<PushLabels, Counter>,
    /// Batches sent to every gateway because routes could not be read.
    pub broadcasts: Counter,
    /// Stale routes removed.
    pub routes_removed: Counter,
    /// Delivery streams opened.
    pub streams_opened: Counter,
}

impl Metrics {
    /// Registers all.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "tidings_pushes",
            "First push attempts by result",
            metrics.pushes.clone(),
        );
        registry.register(
            "tidings_push_broadcasts",
            "Batches sent to every gateway because routes could not be read",
            metrics.broadcasts.clone(),
        );
        registry.register(
            "tidings_push_stale_routes_removed",
            "Routes removed because their gateway no longer has the connection",
            metrics.routes_removed.clone(),
        );
        registry.register(
            "tidings_push_streams_opened",
            "Delivery streams opened to gateways",
            metrics.streams_opened.clone(),
        );
        for result in [
            PushResult::HandedOver,
            PushResult::Notified,
            PushResult::NoRoute,
            PushResult::NotHere,
            PushResult::Closed,
            PushResult::GatewayUnreachable,
        ] {
            metrics.pushed(result, 0);
        }
        metrics
    }

    /// Counts attempts.
    pub fn pushed(&self, result: PushResult, count: usize) {
        self.pushes.get_or_create(&PushLabels { result }).inc_by(count as u64);
    }
}
