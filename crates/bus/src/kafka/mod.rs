//! The bus on Kafka (rdkafka, librdkafka 2.12).
//!
//! - [`config`]: what the deployment may choose, and the settings that carry guarantees and may not be chosen.
//! - `producer`: enqueue in call order, one delivery thread, nothing given up silently (req:B1, seq:G3, seq:R8a).
//! - `source`: one group member; rebalances are events that the runtime answers (architecture.md section 5).
//! - `topics`: create, compare, name each difference.
//! - `time_probe`: keeps broker time known while nothing else is written.
//!
//! **Threads.** Clients are closed on threads of their own: closing blocks, and from an async task it can deadlock
//! (notes/kafka.md 1.3, 2.6).

pub mod config;
mod convert;
mod error;
mod logging;
mod lookup;
mod off_thread;
mod producer;
mod rebalance;
mod source;
mod time_probe;
mod topics;

use std::sync::Arc;

use async_trait::async_trait;
pub use config::{GroupProtocol, KafkaConfig};
use tidings_domain::Topic;
use tidings_domain::clock::SharedClock;

use self::producer::KafkaProducer;
use self::source::KafkaSource;
use crate::catalogue::{Catalogue, ConsumerGroup};
use crate::producer::{Producer, ProducerProfile};
use crate::source::Source;
use crate::{BrokerTime, Bus, Error};

/// Topics on a Kafka cluster.
#[derive(Clone)]
pub struct KafkaBus {
    config: Arc<KafkaConfig>,
    catalogue: Arc<Catalogue>,
    clock: SharedClock,
    broker_time: BrokerTime,
    last_report: Arc<time_probe::LastReport>,
}

impl KafkaBus {
    /// Checks the configuration; connects nothing yet.
    pub fn new(config: KafkaConfig, catalogue: Catalogue, clock: SharedClock) -> Result<Self, Error> {
        config.validate()?;
        Ok(Self {
            config: Arc::new(config),
            catalogue: Arc::new(catalogue),
            broker_time: BrokerTime::new(Arc::clone(&clock)),
            last_report: Arc::new(time_probe::LastReport::default()),
            clock,
        })
    }
}

#[async_trait]
impl Bus for KafkaBus {
    fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    fn producer(&self, profile: ProducerProfile) -> Result<Arc<dyn Producer>, Error> {
        Ok(Arc::new(KafkaProducer::new(self, profile)?))
    }

    fn source(&self, group: ConsumerGroup) -> Result<Box<dyn Source>, Error> {
        Ok(Box::new(KafkaSource::new(self, group)?))
    }

    fn broker_time(&self) -> &BrokerTime {
        &self.broker_time
    }

    async fn check_topics(&self, topics: &[Topic]) -> Result<Vec<String>, Error> {
        topics::check(&self.config, &self.catalogue, topics).await
    }

    async fn apply_topics(&self) -> Result<Vec<String>, Error> {
        topics::apply(&self.config, &self.catalogue).await
    }
}

#[cfg(test)]
mod tests {
    use tidings_domain::clock::SystemClock;

    use super::*;
    use crate::catalogue::{Durability, PartitionCounts};

    fn bus(prefix: &str) -> KafkaBus {
        KafkaBus::new(
            KafkaConfig::new(["127.0.0.1:1"]),
            Catalogue::with_prefix(prefix, Durability::Single, PartitionCounts::DEV),
            Arc::new(SystemClock),
        )
        .unwrap()
    }

    #[test]
    fn groups_follow_the_prefix_of_the_topics() {
        assert_eq!(
            bus("tidings").catalogue.group_name(ConsumerGroup::Router),
            "tidings.router"
        );
        assert_eq!(
            bus("test-7.a")
                .catalogue
                .group_name(ConsumerGroup::StorageConsumerTrace),
            "test-7.a.storage-consumer-trace"
        );
    }
}
