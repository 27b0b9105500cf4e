//! push-fanout: durable events to connected devices (architecture.md section 3).
//!
//! **Guarantee.** A push record is settled once its first attempt is handed over or there is no route. It never stores:
//! what it fails to push is in the inbox and is pulled.

pub mod config;
pub mod fan_out;
pub mod gateways;
pub mod metrics;
pub mod stream;

use std::sync::Arc;

use tidings_bus::{Bus, ConsumerGroup, runtime};
use tidings_chassis::{Context, Running, consume};
use tidings_domain::clock::SharedClock;
use tidings_storage::port::Routes;

pub use config::Config;

/// What the service stands on.
pub struct Dependencies {
    /// The log.
    pub bus: Arc<dyn Bus>,
    /// Where devices are.
    pub routes: Arc<dyn Routes>,
    /// How gateways are called.
    pub gateways: Arc<dyn gateways::Gateways>,
    /// Local time.
    pub clock: SharedClock,
}

/// Starts the service.
///
/// # Errors
/// If the consumer cannot be started.
pub fn start(context: &Context, config: &Config, dependencies: Dependencies) -> anyhow::Result<Running> {
    let Dependencies {
        bus,
        routes,
        gateways,
        clock,
    } = dependencies;
    let runtime = consume::runtime(context, bus, clock);
    let handler = Arc::new(fan_out::FanOut::new(
        routes,
        gateways,
        config.push_fanout.clone(),
        metrics::Metrics::register(&context.registry),
        context.tasks.clone(),
    ));
    let settings = consume::settings(&context.shared.limits);
    let consumer = runtime::spawn_handler(&runtime, ConsumerGroup::PushFanout, handler, settings)?;
    Ok(consume::supervise(context, &consumer))
}
