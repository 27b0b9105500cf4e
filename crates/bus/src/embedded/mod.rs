//! The bus on the log of the single-process mode (`tidings-embedded`, architecture.md section 7).
//!
//! - [`EmbeddedBus`]: the topics of the catalogue in the one database of the process.
//! - `producer`: all profiles confirm after the durable commit, with the record's offset, in the order of the log.
//! - `source`: the one member of each group; it owns all partitions from its first poll to its end.
//! - [`Faults`]: what the contract suite breaks.
//!
//! **Guarantee.** A confirmation means that the record is on disk (fsync). Offsets of a partition follow the order of
//! `enqueue`, so acknowledgements cannot be swapped (seq:R8a). A committed offset survives only with everything that was
//! written before it, records and table rows alike, since both lie in one journal.
//!
//! **Failure.** A failed write ends the log for this process: producers report what waits as unknown and then refuse as
//! fatal, sources answer `Fatal`. The process must start again.
//!
//! **Retention.** Records are kept until their group's offset has passed them, and for [`RETENTION`] at least; the
//! catalogue's `retention.ms` is a setting of brokers.

mod convert;
mod faults;
mod producer;
mod source;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidings_domain::Topic;
use tidings_domain::clock::SharedClock;
use tidings_embedded::Database;
use tidings_embedded::log::{Log, LogConfig, LogStats, TopicConfig};

pub use self::faults::Faults;
use self::producer::EmbeddedProducer;
use self::source::EmbeddedSource;
use crate::catalogue::{Catalogue, ConsumerGroup};
use crate::producer::{Producer, ProducerProfile};
use crate::source::Source;
use crate::{BrokerTime, Bus, Error};

/// How long consumed records are kept.
pub const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// The topics in the database of the process. Clones share it.
#[derive(Clone)]
pub struct EmbeddedBus {
    log: Log,
    catalogue: Arc<Catalogue>,
    broker_time: BrokerTime,
    members: Members,
    faults: Option<Faults>,
}

/// The groups that have their one member.
type Members = Arc<Mutex<HashSet<ConsumerGroup>>>;

impl EmbeddedBus {
    /// Opens the log in `database`, creating missing topics. One bus per database.
    pub fn open(database: &Database, catalogue: Catalogue, clock: SharedClock) -> Result<Self, Error> {
        Self::open_with(database, catalogue, clock, None)
    }

    /// The same, broken on demand. For tests.
    pub fn open_with_faults(
        database: &Database,
        catalogue: Catalogue,
        clock: SharedClock,
        faults: Faults,
    ) -> Result<Self, Error> {
        Self::open_with(database, catalogue, clock, Some(faults))
    }

    fn open_with(
        database: &Database,
        catalogue: Catalogue,
        clock: SharedClock,
        faults: Option<Faults>,
    ) -> Result<Self, Error> {
        let topics = catalogue.topics().iter().map(|spec| TopicConfig {
            id: spec.topic.number(),
            name: spec.name.clone(),
            partitions: spec.partitions,
            group: group_of(spec.topic).name().to_owned(),
            retention: RETENTION,
        });
        let append_clock = Arc::clone(&clock);
        let config = LogConfig::new(topics.collect(), Arc::new(move || append_clock.now().get()));
        let log = database
            .log(config)
            .map_err(|error| convert::log_error("open", &error))?;
        Ok(Self {
            log,
            catalogue: Arc::new(catalogue),
            // The log's clock is this clock: nothing to measure.
            broker_time: BrokerTime::new(clock),
            members: Members::default(),
            faults,
        })
    }

    /// How the log is doing.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.log.stats()
    }
}

/// The group that consumes a topic.
const fn group_of(topic: Topic) -> ConsumerGroup {
    match topic {
        Topic::Ingress => ConsumerGroup::Router,
        Topic::History => ConsumerGroup::StorageConsumer,
        Topic::Inbox => ConsumerGroup::OfflineInbox,
        Topic::Push => ConsumerGroup::PushFanout,
        Topic::Trace => ConsumerGroup::StorageConsumerTrace,
        Topic::Dlq => ConsumerGroup::DeadLetterCompensator,
    }
}

#[async_trait]
impl Bus for EmbeddedBus {
    fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    fn producer(&self, profile: ProducerProfile) -> Result<Arc<dyn Producer>, Error> {
        self.log
            .healthy()
            .map_err(|error| convert::log_error("open producer", &error))?;
        Ok(Arc::new(EmbeddedProducer::new(
            self.log.clone(),
            profile,
            self.faults.clone(),
        )))
    }

    fn source(&self, group: ConsumerGroup) -> Result<Box<dyn Source>, Error> {
        Ok(Box::new(EmbeddedSource::join(self, group)?))
    }

    fn broker_time(&self) -> &BrokerTime {
        &self.broker_time
    }

    /// Opening the log has compared them already.
    async fn check_topics(&self, _topics: &[Topic]) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// Opening the log has created them already.
    async fn apply_topics(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }
}
