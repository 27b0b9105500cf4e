//! offline-inbox: folds `inbox` in order per user and serves users' streams (architecture.md section 3, sequencing.md
//! stage 2).
//!
//! **Guarantee.** Every event of a user has one number, contiguous from 1; its row is durable before it is pushed; a
//! sync round returns every event above the cursor.
//!
//! [`fold`] executes the pure decisions of `tidings-sequencing`; [`streams`] and [`serve`] read, on any replica.

pub mod config;
pub mod fold;
pub mod metrics;
pub mod serve;
pub mod streams;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidings_bus::{Bus, ConsumerGroup, runtime};
use tidings_chassis::{Context, Running, consume, folding};
use tidings_domain::clock::SharedClock;
use tidings_proto::v1::inbox_server::InboxServer;
use tidings_resilience::{Breaker, BreakerPolicy};
use tidings_storage::port::{HotWindow, InboxReader, InboxStore};

pub use config::Config;

/// After three failures in a row the hot window is left alone for this long.
const HOT_WINDOW_BREAKER: BreakerPolicy = BreakerPolicy {
    failures: 3,
    cool_down: Duration::from_secs(5),
};

/// What the service stands on.
pub struct Dependencies {
    /// The log.
    pub bus: Arc<dyn Bus>,
    /// The fold's store.
    pub store: Arc<dyn InboxStore>,
    /// Reads of streams.
    pub reader: Arc<dyn InboxReader>,
    /// The accelerator.
    pub hot: Arc<dyn HotWindow>,
    /// Local time.
    pub clock: SharedClock,
    /// False only where one owner per partition is certain (embedded): seq:G7 is off then.
    pub guarded: bool,
}

/// Starts the service. The server is for the internal listener, or for `tidings_proto::rpc::in_process`.
///
/// # Errors
/// If the store does not tell the id of its streams, or the consumer cannot be started.
pub async fn start(
    context: &Context,
    config: &Config,
    dependencies: Dependencies,
) -> anyhow::Result<(InboxServer<serve::InboxService>, Running)> {
    let Dependencies {
        bus,
        store,
        reader,
        hot,
        clock,
        guarded,
    } = dependencies;
    let limits = &context.shared.limits;
    let metrics = metrics::Metrics::register(&context.registry);
    let runs = fold::InboxRuns {
        params: folding::params(limits, bus.catalogue(), guarded),
        cursor_epoch: reader.cursor_epoch().await?,
        store,
        hot: Arc::clone(&hot),
        hot_breaker: Arc::new(Mutex::new(Breaker::new(HOT_WINDOW_BREAKER))),
        broker_time: bus.broker_time().clone(),
        metrics: metrics.clone(),
    };
    let runtime = consume::runtime(context, bus, Arc::clone(&clock));
    let consumer = runtime::spawn_fold(
        &runtime,
        ConsumerGroup::OfflineInbox,
        Arc::new(runs),
        consume::settings(limits),
    )?;
    let streams = streams::Streams::new(reader, hot, clock, metrics);
    let server = InboxServer::new(serve::InboxService::new(streams, config.offline_inbox.clone()));
    Ok((server, consume::supervise(context, &consumer)))
}
