//! The consumer runtime: one loop used by all consumers (architecture.md section 5).
//!
//! **Guarantee.** A position is committed only when every lower record of its partition is settled, and *settled* means:
//! its effects are durable, or it is confirmed in `dlq`. A record may therefore be handled twice, never not at all.
//!
//! One OS thread per consumer (`consumer`) owns the [`Source`](crate::source::Source) and alone touches it: poll, start,
//! pause, resume, seek, commit, revoke. Each assigned partition has a worker, a task fed through a bounded queue
//! (`intake`); a worker belongs to one assignment epoch, and what it says under an old one is dropped (`worker`).
//! The worker of a fold is one run (`fold_worker`, `emitter`, [`InternalProducer`]); that of a handler keeps a window
//! (`handler_worker`, `window`). `partition` holds the rules the thread follows, `handle` what others see.

pub mod config;
mod confirmed;
mod consumer;
mod emitter;
mod fold_worker;
mod handle;
mod handler_worker;
mod intake;
mod partition;
mod shared_producer;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod window;
mod worker;

use std::sync::Arc;

use tidings_domain::clock::SharedClock;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

pub use self::config::{FoldConfig, HandlerConfig, QueueLimits, RuntimeConfig};
pub use self::handle::{ConsumerHandle, ConsumerStatus, Failure, PartitionView};
pub use self::partition::Phase;
pub use self::shared_producer::{InternalProducer, Lease};
use crate::bus::Bus;
use crate::catalogue::ConsumerGroup;
use crate::fold::FoldFactory;
use crate::handler::Handler;
use crate::metrics::Metrics;

/// What all consumers of a process share.
#[derive(Clone)]
pub struct Runtime {
    /// The log.
    pub bus: Arc<dyn Bus>,
    /// The one internal producer of the process (seq:G3).
    pub producer: Arc<InternalProducer>,
    /// Local time.
    pub clock: SharedClock,
    /// Where to count.
    pub metrics: Metrics,
    /// Runs the workers.
    pub handle: Handle,
    /// Cancelled: take no new records, drain, commit, leave the group.
    pub stop: CancellationToken,
}

impl Runtime {
    /// The shared parts over `bus`, with a producer of their own.
    #[must_use]
    pub fn new(
        bus: Arc<dyn Bus>,
        clock: SharedClock,
        metrics: Metrics,
        handle: Handle,
        stop: CancellationToken,
    ) -> Self {
        let producer = InternalProducer::new(Arc::clone(&bus), handle.clone());
        Self {
            bus,
            producer,
            clock,
            metrics,
            handle,
            stop,
        }
    }
}

/// Starts consuming `group`'s topic as a fold.
///
/// # Errors
/// If the system gives no thread.
pub fn spawn_fold(
    runtime: &Runtime,
    group: ConsumerGroup,
    factory: Arc<dyn FoldFactory>,
    config: RuntimeConfig,
) -> std::io::Result<ConsumerHandle> {
    consumer::spawn(runtime, group, consumer::Mode::Fold(factory), config)
}

/// Starts consuming `group`'s topic with a handler.
///
/// # Errors
/// If the system gives no thread.
pub fn spawn_handler(
    runtime: &Runtime,
    group: ConsumerGroup,
    handler: Arc<dyn Handler>,
    config: RuntimeConfig,
) -> std::io::Result<ConsumerHandle> {
    consumer::spawn(runtime, group, consumer::Mode::Handler(handler), config)
}
