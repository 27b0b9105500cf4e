//! storage-consumer: conversation history (architecture.md section 3).
//!
//! **Guarantee.** A message's history record is settled only when its row and its locator are durable; reads never show a
//! conversation to somebody who is not in it.

pub mod config;
pub mod metrics;
pub mod persist;
pub mod read;

use std::sync::Arc;

use tidings_bus::{Bus, ConsumerGroup, runtime};
use tidings_chassis::{Context, Running, consume};
use tidings_domain::clock::SharedClock;
use tidings_proto::v1::history_server::HistoryServer;
use tidings_storage::port::HistoryStore;

pub use config::Config;

/// What the service stands on.
pub struct Dependencies {
    /// The log.
    pub bus: Arc<dyn Bus>,
    /// History.
    pub store: Arc<dyn HistoryStore>,
    /// Local time.
    pub clock: SharedClock,
}

/// Starts the service. The server is for the internal listener, or for `tidings_proto::rpc::in_process`.
///
/// # Errors
/// If the consumer cannot be started.
pub fn start(
    context: &Context,
    config: &Config,
    dependencies: Dependencies,
) -> anyhow::Result<(HistoryServer<read::HistoryReads>, Running)> {
    let Dependencies { bus, store, clock } = dependencies;
    let metrics = metrics::Metrics::register(&context.registry);
    let runtime = consume::runtime(context, bus, clock);
    let handler = Arc::new(persist::Persist::new(Arc::clone(&store), metrics.clone()));
    let settings = consume::settings(&context.shared.limits);
    let consumer = runtime::spawn_handler(&runtime, ConsumerGroup::StorageConsumer, handler, settings)?;
    let reads = read::HistoryReads::new(store, config.storage_consumer.clone(), metrics);
    Ok((HistoryServer::new(reads), consume::supervise(context, &consumer)))
}
