//! Topics in memory: where each partition starts and ends, and who waits for more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::TopicConfig;
use crate::Error;

/// All topics of the log.
pub(super) struct Topics(Vec<Topic>);

pub(super) struct Topic {
    pub(super) config: TopicConfig,
    pub(super) partitions: Vec<Partition>,
    news: Arc<News>,
}

/// A partition of the log. `start` ≤ every offset in the log < `end`.
#[derive(Debug)]
pub(super) struct Partition {
    start: AtomicU64,
    end: AtomicU64,
}

/// Grows with every commit that touches the topic.
#[derive(Default)]
struct News {
    version: Mutex<u64>,
    grown: Condvar,
}

/// Tells when a topic gets new durable records.
pub struct Subscription {
    news: Arc<News>,
    seen: u64,
}

impl Partition {
    pub(super) fn new(start: u64, end: u64) -> Self {
        Self {
            start: AtomicU64::new(start),
            end: AtomicU64::new(end),
        }
    }

    pub(super) fn start(&self) -> u64 {
        self.start.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub(super) fn set_start(&self, start: u64) {
        self.start.store(start, Ordering::Release);
    }

    pub(super) fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }
}

impl Topics {
    pub(super) fn new(topics: Vec<(TopicConfig, Vec<Partition>)>) -> Self {
        let topics = topics.into_iter().map(|(config, partitions)| Topic {
            config,
            partitions,
            news: Arc::new(News::default()),
        });
        Self(topics.collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Topic> {
        self.0.iter()
    }

    /// Looks a partition up by its number.
    pub(super) fn place(&self, topic: u8, partition: u32) -> Result<Place, Error> {
        let topic = self
            .0
            .iter()
            .position(|known| known.config.id == topic)
            .ok_or_else(|| Error::Refused {
                operation: "look up topic",
                reason: format!("the log has no topic {topic}"),
            })?;
        let TopicConfig { name, partitions, .. } = &self.0[topic].config;
        if partition >= *partitions {
            return Err(Error::Refused {
                operation: "look up partition",
                reason: format!("{name} has {partitions} partitions, none of number {partition}"),
            });
        }
        Ok(Place { topic, partition })
    }

    pub(super) fn topic(&self, place: Place) -> &Topic {
        &self.0[place.topic]
    }

    pub(super) fn partition(&self, place: Place) -> &Partition {
        &self.0[place.topic].partitions[place.partition as usize]
    }

    pub(super) fn subscribe(&self, topic: u8) -> Result<Subscription, Error> {
        // Every topic has a partition 0.
        let news = Arc::clone(&self.topic(self.place(topic, 0)?).news);
        let seen = *news.version.lock();
        Ok(Subscription { news, seen })
    }
}

impl Topic {
    /// Wakes everybody who waits for records of this topic.
    pub(super) fn announce(&self) {
        *self.news.version.lock() += 1;
        self.news.grown.notify_all();
    }
}

/// A partition that exists. The only way to get one is [`Topics::place`], so that indexing by it cannot fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Index among the topics, not the topic's number.
    topic: usize,
    partition: u32,
}

impl Place {
    /// Index of the topic among all topics.
    pub(super) fn topic_index(self) -> usize {
        self.topic
    }

    /// Number of the partition.
    pub(super) fn partition(self) -> u32 {
        self.partition
    }
}

impl Subscription {
    /// Waits until the topic got records since the last call that returned true (at first: since it was subscribed), at
    /// most `timeout`. Whether it did.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let mut version = self.news.version.lock();
        if *version == self.seen {
            self.news
                .grown
                .wait_while_for(&mut version, |version| *version == self.seen, timeout);
        }
        let grown = *version != self.seen;
        self.seen = *version;
        grown
    }
}
