//! Keeps broker time known while a process writes nothing (architecture.md section 5): an empty batch of hop stamps on
//! `trace` when no report with an append time came for a while. Its report is measured like every other.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tidings_domain::Topic;
use tidings_domain::clock::Millis;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::KafkaBus;
use crate::producer::{Confirmation, DeliverySink, ProduceError, Producer, ProducerProfile};
use crate::record::{Headers, OutRecord};
use crate::{Bus, Error};

/// The longest time without a measurement.
const INTERVAL: Duration = Duration::from_secs(10);
const KEY: &[u8] = b"time-probe";

/// Local time of the last report with an append time, of all producers of the bus.
#[derive(Debug, Default)]
pub(super) struct LastReport(AtomicI64);

impl LastReport {
    pub(super) fn at(&self, now: Millis) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    fn get(&self) -> Millis {
        Millis(self.0.load(Ordering::Relaxed))
    }
}

impl KafkaBus {
    /// Measures broker time on `handle` until `stop`; it has a producer of its own.
    pub fn spawn_time_probe(&self, handle: &Handle, stop: CancellationToken) -> Result<JoinHandle<()>, Error> {
        let producer = self.producer(ProducerProfile::Lossy)?;
        let bus = self.clone();
        Ok(handle.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = bus.probe(&*producer) => {}
            }
        }))
    }

    async fn probe(&self, producer: &dyn Producer) {
        let sink: Arc<dyn DeliverySink> = Arc::new(Probe);
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let idle = self.clock.now().since(self.last_report.get()) >= INTERVAL;
            // A probe still under way means the broker does not answer: one is enough.
            if !idle || producer.in_flight() > 0 {
                continue;
            }
            let record = OutRecord {
                topic: Topic::Trace,
                partition: self.catalogue.partition(Topic::Trace, KEY),
                key: Some(Bytes::from_static(KEY)),
                // An empty protobuf message: a batch without stamps.
                value: Some(Bytes::new()),
                headers: Headers::new(),
            };
            if let Err(not_enqueued) = producer.enqueue(record, &sink, 0) {
                tracing::warn!(error = %not_enqueued.error, "time probe");
            }
        }
    }
}

/// The producer measures every report by itself; here only failures are told.
struct Probe;

impl DeliverySink for Probe {
    fn delivered(&self, _: u64, result: Result<Confirmation, ProduceError>) {
        if let Err(error) = result {
            tracing::warn!(%error, "time probe");
        }
    }
}
