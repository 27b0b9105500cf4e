//! The producer: `enqueue` puts records in the client's queue in call order; one thread brings the reports.
//!
//! **Guarantee.** Each accepted record is reported exactly once, by one thread, and `Ack` and `Internal` never give a
//! record up because time passes: it stays in the queue until the broker answered, the producer died, or it is closed
//! (req:B1, seq:R8a).
//!
//! **Offsets that are believed.** When a retry meets a broker that knows the batch only as a duplicate, the client
//! reports success with base offset -1 and counts on from there: the second record of the batch would say offset 0,
//! the third 1. Such an answer carries no append time, all others do (our topics are `LogAppendTime`). So an offset is
//! passed on only together with an append time; otherwise it is `None` (seq:G3).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Message, Timestamp};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::statistics::Statistics;
use tidings_domain::clock::{Millis, SharedClock};
use tokio::sync::Notify;

use super::KafkaBus;
use super::convert::native_headers;
use super::error::{bus_error, produce_error};
use super::logging::client_log;
use super::off_thread::OffThread;
use super::time_probe::LastReport;
use crate::catalogue::{Catalogue, MAX_DLQ_RECORD_BYTES, MAX_RECORD_BYTES};
use crate::producer::{Confirmation, DeliverySink, NotEnqueued, ProduceError, Producer, ProducerProfile};
use crate::record::OutRecord;
use crate::{BrokerTime, Error};

/// With records under way and no report for so long, the producer counts as unhealthy (readiness only).
const STALLED_AFTER: Duration = Duration::from_secs(10);
/// How long a producer that is let go still waits for the broker's answers.
const CLOSE_FLUSH: Duration = Duration::from_secs(10);
const CLOSE_POLL: Duration = Duration::from_millis(5);
/// A batch's header, and a record's lengths and deltas within it, at most.
const BATCH_HEADER_BYTES: usize = 61;
const RECORD_HEADER_BYTES: usize = 32;
/// The lengths of one header.
const HEADER_LENGTHS_BYTES: usize = 10;

/// The sink of a record and the caller's tag for it, carried by the client.
type Opaque = Box<(Arc<dyn DeliverySink>, u64)>;

pub(super) struct KafkaProducer {
    client: OffThread<FlushedProducer>,
    state: Arc<State>,
    catalogue: Arc<Catalogue>,
}

/// What the delivery thread and the callers share.
struct State {
    in_flight: AtomicUsize,
    /// Told when `in_flight` comes to zero.
    drained: Notify,
    /// Local time since which a report is awaited: of the last report, or of the first record after none was under way.
    waiting_since: AtomicI64,
    /// Why the producer is dead.
    dead: Mutex<Option<String>>,
    clock: SharedClock,
    broker_time: BrokerTime,
    last_report: Arc<LastReport>,
}

struct Context(Arc<State>);

impl KafkaProducer {
    pub(super) fn new(bus: &KafkaBus, profile: ProducerProfile) -> Result<Self, Error> {
        let state = Arc::new(State {
            in_flight: AtomicUsize::new(0),
            drained: Notify::new(),
            waiting_since: AtomicI64::new(0),
            dead: Mutex::new(None),
            clock: Arc::clone(&bus.clock),
            broker_time: bus.broker_time.clone(),
            last_report: Arc::clone(&bus.last_report),
        });
        let config = bus.config.producer_client(profile);
        let client = ThreadedProducer::from_config_and_context(&config, Context(Arc::clone(&state)))
            .map_err(|error| bus_error("opening a producer", &error))?;
        let client = FlushedProducer {
            client,
            state: Arc::clone(&state),
        };
        Ok(Self {
            client: OffThread::new(format!("{profile:?} producer"), client),
            state,
            catalogue: Arc::clone(&bus.catalogue),
        })
    }

    /// What the broker would refuse for certain, found before it can trouble the batch it would travel in.
    fn check(&self, record: &OutRecord) -> Result<(), ProduceError> {
        let spec = self.catalogue.spec(record.topic);
        if record.partition >= spec.partitions {
            return Err(ProduceError::Refused(format!(
                "{} has partitions 0 to {}, not {}",
                spec.name,
                spec.partitions.saturating_sub(1),
                record.partition
            )));
        }
        let limit = if record.topic == tidings_domain::Topic::Dlq {
            MAX_DLQ_RECORD_BYTES
        } else {
            MAX_RECORD_BYTES
        };
        let size = size_in_log(record);
        if size > limit as usize {
            return Err(ProduceError::TooLarge(format!(
                "{size} bytes, {} takes {limit}",
                spec.name
            )));
        }
        Ok(())
    }
}

fn size_in_log(record: &OutRecord) -> usize {
    record.size() + record.headers.len() * HEADER_LENGTHS_BYTES + RECORD_HEADER_BYTES + BATCH_HEADER_BYTES
}

#[async_trait]
impl Producer for KafkaProducer {
    fn enqueue(&self, record: OutRecord, sink: &Arc<dyn DeliverySink>, tag: u64) -> Result<(), Box<NotEnqueued>> {
        if let Err(error) = self.check(&record) {
            return Err(Box::new(NotEnqueued { record, error }));
        }
        let spec = self.catalogue.spec(record.topic);
        let opaque: Opaque = Box::new((Arc::clone(sink), tag));
        let native = BaseRecord::<'_, [u8], [u8], Opaque> {
            topic: &spec.name,
            // In range: checked above against the catalogue's count.
            partition: Some(i32::try_from(record.partition).unwrap_or(i32::MAX)),
            payload: record.value.as_deref(),
            key: record.key.as_deref(),
            timestamp: None,
            headers: native_headers(&record.headers),
            delivery_opaque: opaque,
        };
        self.state.taken();
        match self.client.client.send(native) {
            Ok(()) => Ok(()),
            Err((error, _)) => {
                self.state.given_back();
                let error = produce_error(&error);
                if let ProduceError::Fatal(reason) = &error {
                    self.state.died(reason);
                }
                Err(Box::new(NotEnqueued { record, error }))
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.state.in_flight.load(Ordering::Acquire)
    }

    fn health(&self) -> Result<(), String> {
        if let Some((code, reason)) = self.client.client.client().fatal_error() {
            self.state.died(&format!("{code}: {reason}"));
        }
        if let Some(reason) = &*self.state.dead.lock() {
            return Err(format!("the producer is dead: {reason}"));
        }
        let in_flight = self.in_flight();
        let waiting_since = Millis(self.state.waiting_since.load(Ordering::Relaxed));
        if in_flight > 0 && self.state.clock.now().since(waiting_since) > STALLED_AFTER {
            return Err(format!(
                "no delivery report for more than {STALLED_AFTER:?} with {in_flight} records under way"
            ));
        }
        Ok(())
    }

    /// Does not call the client's own flush: that one takes reports on the calling thread too, so that they could
    /// overtake each other. The delivery thread empties the queue within the linger time anyway.
    async fn flush(&self, deadline: Duration) -> usize {
        // An error means time-out; the number left is told either way.
        let _ = tokio::time::timeout(deadline, self.state.wait_until_drained()).await;
        self.in_flight()
    }
}

impl State {
    fn taken(&self) {
        if self.in_flight.fetch_add(1, Ordering::AcqRel) == 0 {
            self.waiting_since.store(self.clock.now().0, Ordering::Relaxed);
        }
    }

    fn given_back(&self) {
        if self.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.drained.notify_waiters();
        }
    }

    async fn wait_until_drained(&self) {
        loop {
            let drained = self.drained.notified();
            if self.in_flight.load(Ordering::Acquire) == 0 {
                return;
            }
            drained.await;
        }
    }

    fn died(&self, reason: &str) {
        let mut dead = self.dead.lock();
        if dead.is_none() {
            tracing::error!(reason, "the producer is dead; a new one must be made");
            *dead = Some(reason.to_owned());
        }
    }

    fn report(&self, message: &impl Message, result: Result<(), ProduceError>) -> Result<Confirmation, ProduceError> {
        let now = self.clock.now();
        self.waiting_since.store(now.0, Ordering::Relaxed);
        if let Err(error) = result {
            if let ProduceError::Fatal(reason) = &error {
                self.died(reason);
            }
            return Err(error);
        }
        let confirmation = confirmation(message.offset(), message.timestamp());
        if let Some(append_time) = confirmation.append_time {
            self.broker_time.observe(append_time);
            self.last_report.at(now);
        }
        Ok(confirmation)
    }
}

/// See the module text for why an offset needs an append time beside it.
fn confirmation(offset: i64, timestamp: Timestamp) -> Confirmation {
    let append_time = match timestamp {
        Timestamp::LogAppendTime(millis) => Some(Millis(millis)),
        Timestamp::NotAvailable | Timestamp::CreateTime(_) => None,
    };
    Confirmation {
        offset: append_time.and_then(|_| u64::try_from(offset).ok()),
        append_time,
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        client_log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.0.died(reason);
        } else {
            tracing::warn!(%error, reason, "producer");
        }
    }

    fn stats(&self, _: Statistics) {}
}

impl ProducerContext for Context {
    type DeliveryOpaque = Opaque;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: Opaque) {
        let (sink, tag) = *opaque;
        let report = match result {
            Ok(message) => self.0.report(message, Ok(())),
            Err((error, message)) => self.0.report(message, Err(produce_error(error))),
        };
        // A panic would end the one thread that brings reports, and every later record would wait for ever.
        if catch_unwind(AssertUnwindSafe(|| sink.delivered(tag, report))).is_err() {
            self.0.died("a delivery sink panicked: a report is lost");
        }
        self.0.given_back();
    }
}

/// The client with its farewell: what is under way may still be answered, then the rest is purged and reported.
struct FlushedProducer {
    client: ThreadedProducer<Context>,
    state: Arc<State>,
}

impl Drop for FlushedProducer {
    fn drop(&mut self) {
        let until = Instant::now() + CLOSE_FLUSH;
        while self.state.in_flight.load(Ordering::Acquire) > 0 && Instant::now() < until {
            thread::sleep(CLOSE_POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_believed_only_beside_an_append_time() {
        let known = confirmation(7, Timestamp::LogAppendTime(1000));
        assert_eq!((known.offset, known.append_time), (Some(7), Some(Millis(1000))));
        for offset in [-1001, -1, 0, 1] {
            for timestamp in [Timestamp::CreateTime(5), Timestamp::NotAvailable] {
                let duplicate = confirmation(offset, timestamp);
                assert_eq!((duplicate.offset, duplicate.append_time), (None, None));
            }
        }
        assert_eq!(confirmation(-1, Timestamp::LogAppendTime(1000)).offset, None);
    }
}
