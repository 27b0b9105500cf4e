//! router: folds `ingress` in order per conversation (architecture.md section 3, sequencing.md stage 1).
//!
//! **Guarantee.** One number per accepted action, contiguous per conversation, whatever crashes, overlaps or arrives
//! twice; every copy of an action ends as the first one did.
//!
//! [`fold`] executes the pure decisions of `tidings-sequencing`; the consumer runtime of `tidings-bus` does the rest.

pub mod config;
pub mod fold;
pub mod metrics;

use std::sync::Arc;

use tidings_bus::{Bus, ConsumerGroup, runtime};
use tidings_chassis::{Context, Running, consume, folding};
use tidings_domain::clock::SharedClock;
use tidings_storage::port::RouterStore;

pub use config::Config;

/// What the service stands on.
pub struct Dependencies {
    /// The log.
    pub bus: Arc<dyn Bus>,
    /// The fold's store.
    pub store: Arc<dyn RouterStore>,
    /// Local time.
    pub clock: SharedClock,
    /// False only where one owner per partition is certain (embedded): seq:G7 is off then.
    pub guarded: bool,
}

/// Starts the service.
///
/// # Errors
/// If the consumer cannot be started.
pub fn start(context: &Context, config: &Config, dependencies: Dependencies) -> anyhow::Result<Running> {
    let Dependencies {
        bus,
        store,
        clock,
        guarded,
    } = dependencies;
    let limits = &context.shared.limits;
    let runs = fold::RouterRuns {
        params: folding::params(limits, bus.catalogue(), guarded),
        store,
        broker_time: bus.broker_time().clone(),
        metrics: metrics::Metrics::register(&context.registry),
    };
    let runtime = consume::runtime(context, bus, clock);
    let mut settings = consume::settings(limits);
    settings.fold.batch_records = config.router.batch_records;
    let consumer = runtime::spawn_fold(&runtime, ConsumerGroup::Router, Arc::new(runs), settings)?;
    Ok(consume::supervise(context, &consumer))
}
