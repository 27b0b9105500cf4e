//! The port that opens producers and sources.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use tidings_domain::Topic;
use tidings_domain::clock::{Millis, SharedClock};

use crate::Error;
use crate::catalogue::{Catalogue, ConsumerGroup};
use crate::producer::{Producer, ProducerProfile};
use crate::source::Source;

/// A log with its topics.
#[async_trait]
pub trait Bus: Send + Sync + 'static {
    /// The topics with their settings.
    fn catalogue(&self) -> &Catalogue;

    /// Opens a new producer.
    fn producer(&self, profile: ProducerProfile) -> Result<Arc<dyn Producer>, Error>;

    /// Joins the group on its topic.
    fn source(&self, group: ConsumerGroup) -> Result<Box<dyn Source>, Error>;

    /// Broker time as known from delivery reports.
    fn broker_time(&self) -> &BrokerTime;

    /// Compares the topics with the catalogue and lists each difference in words; empty if all is well.
    async fn check_topics(&self, topics: &[Topic]) -> Result<Vec<String>, Error>;

    /// Creates the topics that are missing. Returns what was done, in words.
    async fn apply_topics(&self) -> Result<Vec<String>, Error>;
}

/// Broker time = local clock + offset measured from the append times in delivery reports (architecture.md section 5).
#[derive(Clone)]
pub struct BrokerTime {
    clock: SharedClock,
    offset_millis: Arc<AtomicI64>,
}

impl BrokerTime {
    /// Assumes equal clocks until the first report.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        Self {
            clock,
            offset_millis: Arc::new(AtomicI64::new(0)),
        }
    }

    /// Now, by the broker's clock.
    #[must_use]
    pub fn now(&self) -> Millis {
        Millis(self.clock.now().0 + self.offset_millis.load(Ordering::Relaxed))
    }

    /// Takes the append time of a record that was confirmed just now. A report is late by the broker's answer time, so
    /// the largest offset seen recently would be best; the last one is within the clock error that the folds allow for.
    pub fn observe(&self, append_time: Millis) {
        self.offset_millis
            .store(append_time.0 - self.clock.now().0, Ordering::Relaxed);
    }
}
