//! The producer: encodes a record, queues it for the log's committer, reports it after the durable commit.
//!
//! The log has one queue for the process. A lossy producer may have [`LOSSY_IN_FLIGHT`] records in it, so that traces
//! cannot take the room of messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tidings_domain::Topic;
use tidings_domain::clock::Millis;
use tidings_embedded::log::{Appended, Log};
use tokio::sync::Notify;

use super::convert;
use super::faults::{Faults, Order};
use crate::OutRecord;
use crate::catalogue::{MAX_DLQ_RECORD_BYTES, MAX_RECORD_BYTES};
use crate::producer::{Confirmation, DeliverySink, NotEnqueued, ProduceError, Producer, ProducerProfile};

/// An eighth of the log's queue.
const LOSSY_IN_FLIGHT: usize = 8_192;

pub(super) struct EmbeddedProducer {
    log: Log,
    profile: ProducerProfile,
    in_flight: Arc<InFlight>,
    faults: Option<Faults>,
}

#[derive(Default)]
pub(super) struct InFlight {
    records: AtomicUsize,
    none_left: Notify,
}

/// Whom to tell about one record.
pub(super) struct Report {
    sink: Arc<dyn DeliverySink>,
    tag: u64,
    in_flight: Arc<InFlight>,
}

impl InFlight {
    fn begin(&self) {
        self.records.fetch_add(1, Ordering::AcqRel);
    }

    fn end(&self) {
        if self.records.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.none_left.notify_waiters();
        }
    }

    fn count(&self) -> usize {
        self.records.load(Ordering::Acquire)
    }
}

impl Report {
    pub(super) fn deliver(self, result: Result<Confirmation, ProduceError>) {
        self.sink.delivered(self.tag, result);
        self.in_flight.end();
    }
}

impl EmbeddedProducer {
    pub(super) fn new(log: Log, profile: ProducerProfile, faults: Option<Faults>) -> Self {
        Self {
            log,
            profile,
            in_flight: Arc::default(),
            faults,
        }
    }

    fn try_enqueue(&self, record: &OutRecord, sink: &Arc<dyn DeliverySink>, tag: u64) -> Result<(), ProduceError> {
        check_size(record)?;
        let lossy = match self.profile {
            ProducerProfile::Lossy => true,
            ProducerProfile::Ack | ProducerProfile::Internal => false,
        };
        if lossy && self.in_flight.count() >= LOSSY_IN_FLIGHT {
            return Err(ProduceError::QueueFull);
        }
        let encoded = convert::encode(record).map_err(|error| ProduceError::TooLarge(error.to_string()))?;
        let report = Report {
            sink: Arc::clone(sink),
            tag,
            in_flight: Arc::clone(&self.in_flight),
        };
        let order = match &self.faults {
            None => Order::Obey,
            Some(faults) => faults.order_for(record.topic),
        };
        // Before it is queued: the report may come at once.
        self.in_flight.begin();
        let completion: tidings_embedded::log::Completion = match (&self.faults, order) {
            (_, Order::Lose(error)) => {
                Faults::report_lost(report, error);
                return Ok(());
            }
            (Some(faults), order) => {
                let faults = faults.clone();
                Box::new(move |result| faults.deliver(report, order, confirmation(result)))
            }
            (None, _) => Box::new(move |result| report.deliver(confirmation(result))),
        };
        self.log
            .append(record.topic.number(), record.partition, encoded, completion)
            .map_err(|error| {
                self.in_flight.end();
                not_taken(&error)
            })
    }
}

fn check_size(record: &OutRecord) -> Result<(), ProduceError> {
    let limit = match record.topic {
        Topic::Dlq => MAX_DLQ_RECORD_BYTES,
        Topic::Ingress | Topic::History | Topic::Inbox | Topic::Push | Topic::Trace => MAX_RECORD_BYTES,
    };
    let size = record.size();
    if size > limit as usize {
        return Err(ProduceError::TooLarge(format!(
            "{size} bytes, {} takes {limit}",
            record.topic
        )));
    }
    Ok(())
}

fn confirmation(result: Result<Appended, tidings_embedded::Error>) -> Result<Confirmation, ProduceError> {
    match result {
        Ok(appended) => Ok(Confirmation {
            offset: Some(appended.offset),
            append_time: Some(Millis(appended.append_time)),
        }),
        // The commit failed: the next start shows whether the record is in the journal.
        Err(error) => Err(ProduceError::Unknown(error.to_string())),
    }
}

fn not_taken(error: &tidings_embedded::Error) -> ProduceError {
    use tidings_embedded::Error as LogError;
    match error {
        LogError::QueueFull { .. } => ProduceError::QueueFull,
        LogError::Poisoned { .. } => ProduceError::Fatal(error.to_string()),
        LogError::Locked { .. }
        | LogError::Io { .. }
        | LogError::Engine { .. }
        | LogError::OutOfRange { .. }
        | LogError::Damaged { .. }
        | LogError::Refused { .. } => ProduceError::Refused(error.to_string()),
    }
}

#[async_trait]
impl Producer for EmbeddedProducer {
    fn enqueue(&self, record: OutRecord, sink: &Arc<dyn DeliverySink>, tag: u64) -> Result<(), Box<NotEnqueued>> {
        self.try_enqueue(&record, sink, tag)
            .map_err(|error| Box::new(NotEnqueued { record, error }))
    }

    fn in_flight(&self) -> usize {
        self.in_flight.count()
    }

    fn health(&self) -> Result<(), String> {
        self.log.healthy().map_err(|error| error.to_string())
    }

    async fn flush(&self, deadline: Duration) -> usize {
        let all_reported = async {
            loop {
                // Registered before the count is read, so that no end is missed in between.
                let mut none_left = std::pin::pin!(self.in_flight.none_left.notified());
                none_left.as_mut().enable();
                if self.in_flight.count() == 0 {
                    return;
                }
                none_left.await;
            }
        };
        // What is left after the deadline is told by the count.
        let _ = tokio::time::timeout(deadline, all_reported).await;
        self.in_flight.count()
    }
}
