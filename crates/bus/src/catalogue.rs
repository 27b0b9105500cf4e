//! The topics of the suite with their settings (architecture.md section 1): declared once, created by
//! `tidings topics apply`, checked by every service at start.

use tidings_domain::{LogEpoch, Topic};

/// A consumer group; each topic has exactly one, so "replay to the topic" means "replay to the service that failed".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConsumerGroup {
    /// router on ingress.
    Router,
    /// storage-consumer on history.
    StorageConsumer,
    /// storage-consumer on trace.
    StorageConsumerTrace,
    /// offline-inbox on inbox.
    OfflineInbox,
    /// push-fanout on push.
    PushFanout,
    /// dead-letter-compensator on dlq.
    DeadLetterCompensator,
}

impl ConsumerGroup {
    /// The group's name, as dead letters carry it; at the broker it may have another prefix
    /// ([`Catalogue::group_name`]).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Router => "tidings.router",
            Self::StorageConsumer => "tidings.storage-consumer",
            Self::StorageConsumerTrace => "tidings.storage-consumer-trace",
            Self::OfflineInbox => "tidings.offline-inbox",
            Self::PushFanout => "tidings.push-fanout",
            Self::DeadLetterCompensator => "tidings.dead-letter-compensator",
        }
    }

    /// The topic it consumes.
    #[must_use]
    pub const fn topic(self) -> Topic {
        match self {
            Self::Router => Topic::Ingress,
            Self::StorageConsumer => Topic::History,
            Self::StorageConsumerTrace => Topic::Trace,
            Self::OfflineInbox => Topic::Inbox,
            Self::PushFanout => Topic::Push,
            Self::DeadLetterCompensator => Topic::Dlq,
        }
    }

    /// Whether it is a fold: explicit start position, never skips (architecture.md section 5).
    #[must_use]
    pub const fn is_fold(self) -> bool {
        match self {
            Self::Router | Self::OfflineInbox => true,
            Self::StorageConsumer | Self::StorageConsumerTrace | Self::PushFanout | Self::DeadLetterCompensator => {
                false
            }
        }
    }
}

/// How durable "confirmed" is (req:B1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Written on at least 2 of 3 in-sync replicas.
    Replicated,
    /// One replica, flushed before it confirms.
    Single,
}

/// Settings of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    /// Which.
    pub topic: Topic,
    /// Its name at the broker, `tidings.<name>.v<epoch>`.
    pub name: String,
    /// Number of partitions; fixed within an epoch.
    pub partitions: u32,
    /// Replication factor.
    pub replication_factor: u32,
    /// Topic settings at the broker, by Kafka's names.
    pub settings: Vec<(&'static str, String)>,
}

/// All topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalogue {
    prefix: String,
    epoch: LogEpoch,
    durability: Durability,
    topics: Vec<TopicSpec>,
}

/// Numbers of partitions, per use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionCounts {
    /// ingress, history, inbox, push.
    pub main: u32,
    /// trace, dlq.
    pub side: u32,
}

impl PartitionCounts {
    /// A cluster.
    pub const CLUSTER: Self = Self { main: 24, side: 12 };
    /// A development machine.
    pub const DEV: Self = Self { main: 4, side: 1 };
}

/// Largest record of all topics but dlq, in bytes.
pub const MAX_RECORD_BYTES: u32 = 1 << 20;
/// Largest record of dlq: a largest record with its failure headers always fits.
pub const MAX_DLQ_RECORD_BYTES: u32 = 2 << 20;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

impl Catalogue {
    /// The catalogue of the first epoch.
    #[must_use]
    pub fn new(durability: Durability, counts: PartitionCounts) -> Self {
        Self::with_prefix("tidings", durability, counts)
    }

    /// The same topics under another prefix, so that tests share a broker.
    #[must_use]
    pub fn with_prefix(prefix: &str, durability: Durability, counts: PartitionCounts) -> Self {
        let epoch = LogEpoch::FIRST;
        let topics = Topic::ALL
            .into_iter()
            .map(|topic| spec(prefix, topic, epoch, durability, counts))
            .collect();
        Self {
            prefix: prefix.to_owned(),
            epoch,
            durability,
            topics,
        }
    }

    /// The group's name at the broker: `tidings.router` under another prefix where that is in use.
    #[must_use]
    pub fn group_name(&self, group: ConsumerGroup) -> String {
        let service = group.name().strip_prefix("tidings.").unwrap_or(group.name());
        format!("{}.{service}", self.prefix)
    }

    /// The epoch that positions carry.
    #[must_use]
    pub const fn epoch(&self) -> LogEpoch {
        self.epoch
    }

    /// What "confirmed" means.
    #[must_use]
    pub const fn durability(&self) -> Durability {
        self.durability
    }

    /// The settings of a topic.
    #[must_use]
    pub fn spec(&self, topic: Topic) -> &TopicSpec {
        // `with_prefix` makes one spec per topic in the order of `Topic::ALL`, whose numbers begin at 1.
        &self.topics[usize::from(topic.number()) - 1]
    }

    /// All topics.
    #[must_use]
    pub fn topics(&self) -> &[TopicSpec] {
        &self.topics
    }

    /// Number of partitions of a topic.
    #[must_use]
    pub fn partitions(&self, topic: Topic) -> u32 {
        self.spec(topic).partitions
    }

    /// The topic of this broker name.
    #[must_use]
    pub fn topic_of(&self, name: &str) -> Option<Topic> {
        self.topics.iter().find(|spec| spec.name == name).map(|spec| spec.topic)
    }

    /// The partition of `key` in `topic`.
    #[must_use]
    pub fn partition(&self, topic: Topic, key: &[u8]) -> u32 {
        crate::partition_for(key, self.partitions(topic))
    }
}

fn spec(prefix: &str, topic: Topic, epoch: LogEpoch, durability: Durability, counts: PartitionCounts) -> TopicSpec {
    let (partitions, retention_days) = match topic {
        Topic::Ingress | Topic::History | Topic::Inbox => (counts.main, 7),
        Topic::Push => (counts.main, 1),
        Topic::Trace => (counts.side, 1),
        Topic::Dlq => (counts.side, 30),
    };
    let max_bytes = if topic == Topic::Dlq {
        MAX_DLQ_RECORD_BYTES
    } else {
        MAX_RECORD_BYTES
    };
    let mut settings = vec![
        ("cleanup.policy", "delete".to_owned()),
        ("max.message.bytes", max_bytes.to_string()),
        ("message.timestamp.type", "LogAppendTime".to_owned()),
        ("retention.ms", (retention_days * DAY_MS).to_string()),
        // By time only: a size limit, also one inherited from the cluster, would take records nobody has folded yet.
        ("retention.bytes", "-1".to_owned()),
        ("unclean.leader.election.enable", "false".to_owned()),
    ];
    let replication_factor = match durability {
        Durability::Replicated => {
            settings.push(("min.insync.replicas", "2".to_owned()));
            3
        }
        Durability::Single => {
            settings.push(("min.insync.replicas", "1".to_owned()));
            if matches!(topic, Topic::Ingress | Topic::Inbox | Topic::History | Topic::Dlq) {
                settings.push(("flush.messages", "1".to_owned()));
            }
            1
        }
    };
    TopicSpec {
        topic,
        name: format!("{prefix}.{}.v{}", topic.short_name(), epoch.0),
        partitions,
        replication_factor,
        settings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_settings_follow_the_table() {
        let catalogue = Catalogue::new(Durability::Single, PartitionCounts::DEV);
        let ingress = catalogue.spec(Topic::Ingress);
        assert_eq!(ingress.name, "tidings.ingress.v1");
        assert_eq!(ingress.partitions, 4);
        assert!(ingress.settings.contains(&("flush.messages", "1".to_owned())));
        assert!(
            !catalogue
                .spec(Topic::Push)
                .settings
                .iter()
                .any(|(name, _)| *name == "flush.messages")
        );
        for topic in Topic::ALL {
            assert_eq!(catalogue.spec(topic).topic, topic);
            assert_eq!(catalogue.topic_of(&catalogue.spec(topic).name), Some(topic));
        }
        let replicated = Catalogue::new(Durability::Replicated, PartitionCounts::CLUSTER);
        assert_eq!(replicated.spec(Topic::Dlq).replication_factor, 3);
        assert_eq!(replicated.partitions(Topic::Trace), 12);
        assert!(
            replicated
                .spec(Topic::Dlq)
                .settings
                .contains(&("max.message.bytes", "2097152".to_owned()))
        );
    }
}
