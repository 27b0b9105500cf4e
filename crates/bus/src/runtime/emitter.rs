//! What a fold run sends with (seq:R8a): every output is entered in the run's ledger before it is enqueued, every
//! report checked.
//!
//! A fault in the ledger fails the generation of the shared producer, and thereby ends every run that uses it (seq:G3).
//! That happens in the report itself, so it does not depend on what the run is doing at that time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidings_domain::clock::{Millis, SharedClock};
use tokio::sync::Notify;

use super::shared_producer::{InternalProducer, Lease};
use crate::acks::{AckFault, AckLedger};
use crate::bus::Bus;
use crate::catalogue::ConsumerGroup;
use crate::dead_letter::{Attempts, Rejection, dead_letter, resolved};
use crate::fold::{Emitter, FoldError};
use crate::metrics::Metrics;
use crate::producer::{Confirmation, DeliverySink, ProduceError};
use crate::record::{LogRecord, OutRecord};

/// The queue is shared, so the report that makes room may be another run's: look again after this time.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(5);
/// How often the ack watchdog looks while the run waits.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The ledger of a run as the delivery thread sees it.
pub(super) struct RunLedger {
    ledger: Mutex<AckLedger>,
    reported: Notify,
    shared: Arc<InternalProducer>,
    generation: u64,
    metrics: Metrics,
}

impl RunLedger {
    pub(super) fn new(shared: Arc<InternalProducer>, generation: u64, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            ledger: Mutex::new(AckLedger::new()),
            reported: Notify::new(),
            shared,
            generation,
            metrics,
        })
    }

    /// Runs the ack watchdog.
    pub(super) fn watch(&self, now: Millis, limit: Duration) {
        self.change(|ledger| ledger.watch(now, limit));
    }

    /// The fault of this run, if any.
    pub(super) fn fault(&self) -> Option<AckFault> {
        self.ledger.lock().fault().cloned()
    }

    fn unsettled(&self) -> usize {
        self.ledger.lock().unsettled()
    }

    /// Changes the ledger and raises the alarm if that brought the first fault.
    fn change(&self, change: impl FnOnce(&mut AckLedger)) {
        let fault = {
            let mut ledger = self.ledger.lock();
            if ledger.fault().is_some() {
                // One alarm per run; what comes later adds nothing.
                change(&mut ledger);
                None
            } else {
                change(&mut ledger);
                ledger.fault().cloned()
            }
        };
        if let Some(fault) = fault {
            self.raise(&fault);
        }
    }

    fn raise(&self, fault: &AckFault) {
        self.metrics.ack_fault(fault);
        tracing::error!(%fault, generation = self.generation, "producer error: every run that shares the producer ends");
        self.shared.fail(self.generation);
    }
}

impl DeliverySink for RunLedger {
    fn delivered(&self, tag: u64, result: Result<Confirmation, ProduceError>) {
        self.change(|ledger| ledger.acked(tag, result));
        self.reported.notify_one();
    }
}

/// The emitter of one run.
pub(super) struct RunEmitter {
    ledger: Arc<RunLedger>,
    sink: Arc<dyn DeliverySink>,
    lease: Lease,
    bus: Arc<dyn Bus>,
    group: ConsumerGroup,
    clock: SharedClock,
    ack_watchdog: Duration,
    host: String,
    /// First offset of the batch under way, to be named if an output can never be written.
    batch_offset: u64,
}

impl RunEmitter {
    pub(super) fn new(
        ledger: Arc<RunLedger>,
        lease: Lease,
        bus: Arc<dyn Bus>,
        group: ConsumerGroup,
        clock: SharedClock,
        ack_watchdog: Duration,
        host: String,
    ) -> Self {
        let sink: Arc<dyn DeliverySink> = Arc::clone(&ledger) as Arc<dyn DeliverySink>;
        Self {
            ledger,
            sink,
            lease,
            bus,
            group,
            clock,
            ack_watchdog,
            host,
            batch_offset: 0,
        }
    }

    pub(super) const fn begin_batch(&mut self, first_offset: u64) {
        self.batch_offset = first_offset;
    }

    fn check(&self) -> Result<(), FoldError> {
        if let Some(fault) = self.ledger.fault() {
            return Err(fault.into());
        }
        if self.lease.broken().is_cancelled() {
            return Err(FoldError::Transient(
                "the shared producer failed in another run".to_owned(),
            ));
        }
        Ok(())
    }
}

#[async_trait]
impl Emitter for RunEmitter {
    async fn emit(&mut self, record: OutRecord) -> Result<(), FoldError> {
        let (topic, partition) = (record.topic, record.partition);
        let mut record = record;
        let mut full_since = None;
        loop {
            self.check()?;
            let now = self.clock.now();
            let tag = self.ledger.ledger.lock().sent(topic, partition, now);
            let Err(refused) = self.lease.producer().enqueue(record, &self.sink, tag) else {
                return Ok(());
            };
            self.ledger.ledger.lock().not_sent(tag);
            match refused.error {
                ProduceError::QueueFull => {
                    record = refused.record;
                    let waited = now.since(*full_since.get_or_insert(now));
                    if waited > self.ack_watchdog {
                        let fault = AckFault::Silent {
                            topic,
                            partition,
                            waited,
                        };
                        self.ledger.raise(&fault);
                        return Err(fault.into());
                    }
                    self.ledger.watch(now, self.ack_watchdog);
                    // Elapsed or told, both mean: try again.
                    let _ = tokio::time::timeout(QUEUE_FULL_PAUSE, self.ledger.reported.notified()).await;
                }
                ProduceError::TooLarge(reason) => {
                    return Err(FoldError::Stop {
                        offset: self.batch_offset,
                        reason: format!(
                            "an output of the batch from this offset to {topic} can never be written: {reason}"
                        ),
                    });
                }
                error @ (ProduceError::Unknown(_) | ProduceError::Refused(_) | ProduceError::Fatal(_)) => {
                    let fault = AckFault::Failed {
                        topic,
                        partition,
                        error,
                    };
                    self.ledger.raise(&fault);
                    return Err(fault.into());
                }
            }
        }
    }

    async fn dead_letter(&mut self, record: &LogRecord, rejection: &Rejection) -> Result<(), FoldError> {
        let now = self.clock.now();
        let attempts = Attempts {
            count: 1,
            first: now,
            last: now,
        };
        let letter = dead_letter(
            self.bus.catalogue(),
            record,
            self.group,
            rejection,
            attempts,
            &self.host,
        );
        tracing::warn!(
            topic = %record.topic,
            partition = record.partition,
            offset = record.offset,
            class = rejection.error_class,
            detail = rejection.detail,
            "record cannot be folded: dead-lettered"
        );
        self.emit(letter).await
    }

    async fn resolved(&mut self, record: &LogRecord) -> Result<(), FoldError> {
        let notice = resolved(self.bus.catalogue(), record, self.group);
        self.emit(notice).await
    }

    async fn settled(&mut self) -> Result<(), FoldError> {
        loop {
            self.check()?;
            if self.ledger.unsettled() == 0 {
                return Ok(());
            }
            if tokio::time::timeout(WATCH_INTERVAL, self.ledger.reported.notified())
                .await
                .is_err()
            {
                self.ledger.watch(self.clock.now(), self.ack_watchdog);
            }
        }
    }
}
