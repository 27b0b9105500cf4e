//! The internal producer of a process, shared by its fold runs and dead letters (seq:G3).
//!
//! **Guarantee.** A producer error is never passed over: whoever sees one [`fails`](InternalProducer::fail) the
//! generation, all leases of it are broken at once, and the next lease comes from a new producer. Runs hold a lease from
//! start to end, so none goes on with outputs on two producers.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::bus::Bus;
use crate::error::Error;
use crate::producer::{Producer, ProducerProfile};

/// How long a replaced producer still waits for reports; what lands late is a re-emission to the next stage.
const RETIRE_FLUSH: Duration = Duration::from_secs(10);

/// The right to use one generation of the producer.
#[derive(Clone)]
pub struct Lease {
    generation: u64,
    producer: Arc<dyn Producer>,
    broken: CancellationToken,
}

impl Lease {
    /// The producer.
    #[must_use]
    pub fn producer(&self) -> &Arc<dyn Producer> {
        &self.producer
    }

    /// Which generation it is.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Cancelled once the generation has failed.
    #[must_use]
    pub const fn broken(&self) -> &CancellationToken {
        &self.broken
    }
}

struct State {
    next_generation: u64,
    current: Option<Lease>,
}

/// The holder of the current generation.
pub struct InternalProducer {
    bus: Arc<dyn Bus>,
    handle: Handle,
    state: Mutex<State>,
}

impl InternalProducer {
    /// A holder that opens its producer at the first lease.
    #[must_use]
    pub fn new(bus: Arc<dyn Bus>, handle: Handle) -> Arc<Self> {
        Arc::new(Self {
            bus,
            handle,
            state: Mutex::new(State {
                next_generation: 1,
                current: None,
            }),
        })
    }

    /// The current generation, opened if there is none.
    pub fn lease(&self) -> Result<Lease, Error> {
        let mut state = self.state.lock();
        if let Some(lease) = &state.current {
            return Ok(lease.clone());
        }
        let lease = Lease {
            generation: state.next_generation,
            producer: self.bus.producer(ProducerProfile::Internal)?,
            broken: CancellationToken::new(),
        };
        state.next_generation += 1;
        state.current = Some(lease.clone());
        Ok(lease)
    }

    /// Ends a generation: breaks its leases and lets its producer go. No effect on a later one. Does not block, so that a
    /// delivery report may call it.
    pub fn fail(&self, generation: u64) {
        let failed = {
            let mut state = self.state.lock();
            match &state.current {
                Some(lease) if lease.generation == generation => state.current.take(),
                Some(_) | None => None,
            }
        };
        let Some(failed) = failed else { return };
        failed.broken.cancel();
        self.handle.spawn(async move {
            let producer = failed.producer;
            let left = producer.flush(RETIRE_FLUSH).await;
            if left > 0 {
                tracing::warn!(
                    generation,
                    left,
                    "replaced producer ended with records without a report"
                );
            }
            // Closing a client may block: not on a thread that runs tasks.
            if let Err(error) = tokio::task::spawn_blocking(move || drop(producer)).await {
                tracing::warn!(generation, %error, "closing a replaced producer");
            }
        });
    }

    /// Whether records can be written as far as is known. Without a producer it is not known, and no reason to be unready.
    pub fn health(&self) -> Result<(), String> {
        let current = self.state.lock().current.clone();
        current.map_or(Ok(()), |lease| lease.producer.health())
    }

    /// Waits until everything enqueued is reported, at most `deadline`. Returns how many records are left.
    pub async fn flush(&self, deadline: Duration) -> usize {
        let current = self.state.lock().current.clone();
        match current {
            Some(lease) => lease.producer.flush(deadline).await,
            None => 0,
        }
    }
}
