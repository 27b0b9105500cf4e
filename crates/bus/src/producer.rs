//! The producer port.
//!
//! `enqueue` takes records in call order and never waits; each accepted record is reported exactly once to its
//! [`DeliverySink`], from the adapter's one delivery thread. No future, timer or channel per record: the sink and a tag
//! stand for the caller's batch (notes/kafka.md 1.5).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidings_domain::clock::Millis;
use tidings_resilience::{Classify, ErrorClass};

use crate::record::OutRecord;

/// What a producer is for (architecture.md section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProducerProfile {
    /// Gateway: link ACKs hang on its reports; never times out inside a lane.
    Ack,
    /// Folds and dead letters: never times out, never purges and goes on; any error ends every fold owner.
    Internal,
    /// Trace: may lose records, which are counted.
    Lossy,
}

/// The broker's word that a record is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmation {
    /// Where the record lies. `None` if the broker only knew it as a duplicate: good enough for a link ACK, a producer
    /// error for a fold (seq:G3, seq:R8a).
    pub offset: Option<u64>,
    /// Broker time of the write, if told.
    pub append_time: Option<Millis>,
}

/// Why a record was not, or perhaps not, written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProduceError {
    /// The local queue is full: try again when reports have come.
    #[error("the producer's queue is full")]
    QueueFull,
    /// The record is larger than the topic takes.
    #[error("the record is too large for the topic: {0}")]
    TooLarge(String),
    /// The outcome is not known: time-out in flight, purge at shutdown.
    #[error("the outcome of the write is not known: {0}")]
    Unknown(String),
    /// The broker or client refused the record.
    #[error("the write was refused: {0}")]
    Refused(String),
    /// The producer is dead; a new one must be made.
    #[error("the producer is dead: {0}")]
    Fatal(String),
}

impl Classify for ProduceError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::QueueFull | Self::Unknown(_) | Self::Refused(_) | Self::Fatal(_) => ErrorClass::Transient,
            Self::TooLarge(_) => ErrorClass::Permanent,
        }
    }
}

/// Takes delivery reports. Called on the adapter's delivery thread: must be quick and must not block.
pub trait DeliverySink: Send + Sync {
    /// The report of the record enqueued with `tag`.
    fn delivered(&self, tag: u64, result: Result<Confirmation, ProduceError>);
}

/// A record that was not taken, with the reason. Nothing will be reported for it.
#[derive(Debug)]
pub struct NotEnqueued {
    /// The record, given back.
    pub record: OutRecord,
    /// Why.
    pub error: ProduceError,
}

/// Writes records to the log.
#[async_trait]
pub trait Producer: Send + Sync + 'static {
    /// Takes a record; the order of calls per partition is the order in the log (but see seq:R8a).
    fn enqueue(&self, record: OutRecord, sink: &Arc<dyn DeliverySink>, tag: u64) -> Result<(), Box<NotEnqueued>>;

    /// Records enqueued and not yet reported.
    fn in_flight(&self) -> usize;

    /// Whether records can be written as far as is known (readiness). The text says why not.
    fn health(&self) -> Result<(), String>;

    /// Waits until everything enqueued is reported, at most `deadline`. Returns how many records are left.
    async fn flush(&self, deadline: Duration) -> usize;
}
