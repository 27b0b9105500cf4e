//! dead-letter-compensator: takes dead letters in and shows them (architecture.md section 3, req:E3).
//!
//! **Guarantee.** Every record of `dlq` becomes an entry, once.

pub mod config;
pub mod intake;
pub mod metrics;
pub mod operate;

use std::sync::Arc;

use tidings_bus::{Bus, ConsumerGroup, runtime};
use tidings_chassis::{Context, Running, consume};
use tidings_domain::clock::SharedClock;
use tidings_proto::v1::dead_letters_server::DeadLettersServer;
use tidings_storage::port::DeadLetterStore;

pub use config::Config;

/// What the service stands on.
pub struct Dependencies {
    /// The log.
    pub bus: Arc<dyn Bus>,
    /// The entries.
    pub store: Arc<dyn DeadLetterStore>,
    /// Local time.
    pub clock: SharedClock,
}

/// Starts the service. The server is for the internal listener.
///
/// # Errors
/// If the consumer cannot be started.
pub fn start(
    context: &Context,
    config: &Config,
    dependencies: Dependencies,
) -> anyhow::Result<(DeadLettersServer<operate::Operate>, Running)> {
    let Dependencies { bus, store, clock } = dependencies;
    let runtime = consume::runtime(context, bus, clock);
    let metrics = metrics::Metrics::register(&context.registry);
    let handler = Arc::new(intake::Intake::new(Arc::clone(&store), metrics));
    let settings = consume::settings(&context.shared.limits);
    let consumer = runtime::spawn_handler(&runtime, ConsumerGroup::DeadLetterCompensator, handler, settings)?;
    let operate = operate::Operate::new(store, config.dead_letter_compensator.clone());
    Ok((DeadLettersServer::new(operate), consume::supervise(context, &consumer)))
}
