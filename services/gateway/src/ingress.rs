//! Records to the log: users' actions to `ingress`, merged device ACKs to `inbox`.
//!
//! **Guarantee.** A record is handed to the producer at most once per call, in call order; its report comes to the
//! session's mailbox. Records without report are limited over all sessions; what finds no place is refused as
//! OVERLOADED, not queued (req:B1). Keys and partitions are those of the catalogue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tidings_bus::producer::{DeliverySink, ProduceError, Producer, ProducerProfile};
use tidings_bus::{Bus, Headers, OutRecord};
use tidings_domain::Topic;
use tidings_domain::clock::Millis;
use tidings_proto::header::TRACEPARENT;
use tidings_proto::record::{DeviceState, Inbox, Ingress};
use tidings_telemetry::traceparent::TraceContext;
use tokio::sync::watch;

use crate::error::Error;
use crate::metrics::Metrics;

/// Records without broker confirm, over all sessions.
#[derive(Debug, Default)]
pub struct InFlight(AtomicUsize);

impl InFlight {
    /// Takes a place if there is one below `max`.
    pub fn enter(&self, max: usize) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < max).then_some(n + 1))
            .is_ok()
    }

    /// Gives a place back.
    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Places taken.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Writes to the log with one producer of profile `ack`.
pub struct Writer {
    bus: Arc<dyn Bus>,
    producer: Arc<dyn Producer>,
    in_flight: Arc<InFlight>,
    max_in_flight: usize,
    metrics: Metrics,
    /// Why the producer is dead.
    dead: watch::Sender<Option<String>>,
}

impl Writer {
    /// Opens the producer.
    pub fn open(bus: Arc<dyn Bus>, max_in_flight: usize, metrics: Metrics) -> Result<Self, tidings_bus::Error> {
        let producer = bus.producer(ProducerProfile::Ack)?;
        Ok(Self {
            bus,
            producer,
            in_flight: Arc::default(),
            max_in_flight,
            metrics,
            dead: watch::Sender::new(None),
        })
    }

    /// Hands an action to the producer.
    pub fn action(
        &self,
        action: &Ingress,
        trace: Option<&TraceContext>,
        sink: &Arc<dyn DeliverySink>,
        tag: u64,
    ) -> Result<(), ProduceError> {
        let mut headers = Headers::new();
        if let Some(trace) = trace {
            headers.push(TRACEPARENT, trace.to_string());
        }
        let record = self.record(Topic::Ingress, action.conversation.as_str(), action.encode(), headers);
        self.enqueue(record, sink, tag)
    }

    /// Hands a device's report to the producer.
    pub fn device_state(&self, state: DeviceState, sink: &Arc<dyn DeliverySink>, tag: u64) -> Result<(), ProduceError> {
        let uid = state.uid.clone();
        let value = Inbox::DeviceState(state).encode();
        self.metrics.device_states.inc();
        self.enqueue(
            self.record(Topic::Inbox, uid.as_str(), value, Headers::new()),
            sink,
            tag,
        )
    }

    fn record(&self, topic: Topic, key: &str, value: Bytes, headers: Headers) -> OutRecord {
        OutRecord {
            topic,
            partition: self.bus.catalogue().partition(topic, key.as_bytes()),
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            value: Some(value),
            headers,
        }
    }

    fn enqueue(&self, record: OutRecord, sink: &Arc<dyn DeliverySink>, tag: u64) -> Result<(), ProduceError> {
        if !self.in_flight.enter(self.max_in_flight) {
            return Err(ProduceError::QueueFull);
        }
        // Before the call: the report may come before it returns.
        self.metrics.produces_in_flight.inc();
        self.producer.enqueue(record, sink, tag).map_err(|refused| {
            self.in_flight.leave();
            self.metrics.produces_in_flight.dec();
            self.note(&refused.error);
            refused.error
        })
    }

    /// Remembers that the producer is dead, if that is the error.
    pub fn note(&self, error: &ProduceError) {
        match error {
            ProduceError::Fatal(reason) => {
                self.dead.send_if_modified(|dead| {
                    let first = dead.is_none();
                    dead.get_or_insert_with(|| reason.clone());
                    first
                });
            }
            ProduceError::QueueFull
            | ProduceError::TooLarge(_)
            | ProduceError::Unknown(_)
            | ProduceError::Refused(_) => {}
        }
    }

    /// Waits until the producer is dead; the process must then start again with a new one.
    pub async fn died(&self) -> Error {
        let mut changes = self.dead.subscribe();
        let reason = changes.wait_for(Option::is_some).await;
        // The sender lives in `self`, so there is a reason.
        Error::ProducerDead(reason.ok().and_then(|reason| reason.clone()).unwrap_or_default())
    }

    /// The limit that all sessions share.
    #[must_use]
    pub fn in_flight(&self) -> &Arc<InFlight> {
        &self.in_flight
    }

    /// The producer.
    #[must_use]
    pub fn producer(&self) -> &Arc<dyn Producer> {
        &self.producer
    }

    /// Broker time, for a confirmation without one and for latencies.
    #[must_use]
    pub fn broker_now(&self) -> Millis {
        self.bus.broker_time().now()
    }

    /// What differs between the topics and the catalogue.
    pub async fn check_topics(&self) -> Result<Vec<String>, tidings_bus::Error> {
        self.bus.check_topics(&[Topic::Ingress, Topic::Inbox]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_flight_are_limited() {
        let in_flight = InFlight::default();
        assert!(in_flight.enter(1));
        assert!(!in_flight.enter(1));
        in_flight.leave();
        assert!(in_flight.enter(1));
    }
}
