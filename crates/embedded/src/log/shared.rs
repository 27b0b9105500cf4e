//! What the handles, the committer and the persist thread share; opening and reading.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use fjall::PersistMode;
use parking_lot::Mutex;

use super::committer::{self, Head, Heads};
use super::queue::{Appended, Completion, Queue};
use super::record::{self, Record};
use super::topic::{Partition, Place, Topics};
use super::trim::TrimState;
use super::{LogConfig, LogStats, MillisClock, TopicConfig, keys};
use crate::Error;
use crate::database::Core;
use crate::upkeep::Task;

/// Where the log keeps its rows.
pub(super) struct Keyspaces {
    /// (topic, partition, offset) → record.
    pub(super) records: fjall::Keyspace,
    /// Topics, and starts of trimmed partitions.
    pub(super) meta: fjall::Keyspace,
    /// Committed offsets.
    pub(super) groups: fjall::Keyspace,
}

pub(super) struct Shared {
    pub(super) core: Arc<Core>,
    pub(super) keyspaces: Keyspaces,
    pub(super) topics: Topics,
    pub(super) queue: Queue,
    pub(super) clock: MillisClock,
    pub(super) trim: Mutex<TrimState>,
    /// Held by the one who trims.
    pub(super) trimming: Mutex<()>,
    /// Who waits for the commit that is under way.
    pub(super) committing: Mutex<Vec<(Completion, Appended)>>,
    commits: AtomicU64,
    appended_records: AtomicU64,
}

impl Shared {
    pub(super) fn open(core: Arc<Core>, keyspaces: Keyspaces, config: LogConfig) -> Result<(Self, Heads), Error> {
        let LogConfig {
            topics,
            clock,
            limits,
            trim_interval,
        } = config;
        let mut heads = Vec::with_capacity(topics.len());
        let mut opened = Vec::with_capacity(topics.len());
        for topic in topics {
            declare(&core, &keyspaces, &topic)?;
            let mut partitions = Vec::new();
            let mut topic_heads = Vec::new();
            for partition in 0..topic.partitions {
                let (state, head) = recover(&keyspaces, &topic, partition)?;
                partitions.push(state);
                topic_heads.push(head);
            }
            heads.push(topic_heads);
            opened.push((topic, partitions));
        }
        let shared = Self {
            core,
            keyspaces,
            topics: Topics::new(opened),
            queue: Queue::new(limits),
            clock,
            trim: Mutex::new(TrimState::new(trim_interval)),
            trimming: Mutex::new(()),
            committing: Mutex::new(Vec::new()),
            commits: AtomicU64::new(0),
            appended_records: AtomicU64::new(0),
        };
        Ok((shared, heads))
    }

    pub(super) fn read(
        &self,
        topic: u8,
        partition: u32,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Vec<Record>, Error> {
        const OPERATION: &str = "read the log";
        let place = self.topics.place(topic, partition)?;
        let end = self.topics.partition(place).end();
        self.check_range(place, from, end)?;
        if from == end || max_records == 0 {
            return Ok(Vec::new());
        }
        let damaged = |offset: u64, reason: String| Error::Damaged {
            operation: OPERATION,
            reason: format!(
                "{} partition {partition} offset {offset}: {reason}",
                self.topics.topic(place).config.name
            ),
        };
        let mut records = Vec::with_capacity(max_records.min(usize::try_from(end - from).unwrap_or(usize::MAX)));
        let mut bytes = 0;
        let mut expected = from;
        let range = keys::record(topic, partition, from)..keys::record(topic, partition, end);
        for entry in self.keyspaces.records.range(range) {
            let (key, value) = entry.into_inner().map_err(|error| Error::engine(OPERATION, &error))?;
            if keys::offset_of(&key) != Some(expected) {
                break;
            }
            bytes += value.len();
            if !records.is_empty() && bytes > max_bytes {
                return Ok(records);
            }
            let record =
                record::decode(expected, Bytes::copy_from_slice(&value)).map_err(|reason| damaged(expected, reason))?;
            records.push(record);
            expected += 1;
            if records.len() == max_records {
                return Ok(records);
            }
        }
        if expected == end {
            return Ok(records);
        }
        // A record below the end was not there: it was trimmed while this looked, or it is lost.
        self.check_range(place, from, end)?;
        Err(damaged(expected, "the record is missing".to_owned()))
    }

    fn check_range(&self, place: Place, offset: u64, end: u64) -> Result<(), Error> {
        let start = self.topics.partition(place).start();
        if (start..=end).contains(&offset) {
            return Ok(());
        }
        Err(Error::OutOfRange {
            topic: self.topics.topic(place).config.name.clone(),
            partition: place.partition(),
            offset,
            start,
            end,
        })
    }

    pub(super) fn count_commit(&self, records: usize) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.appended_records.fetch_add(records as u64, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> LogStats {
        let (queued_records, queued_bytes) = self.queue.depth();
        LogStats {
            queued_records,
            queued_bytes,
            commits: self.commits.load(Ordering::Relaxed),
            appended_records: self.appended_records.load(Ordering::Relaxed),
        }
    }

    /// Answers everybody who waits, if the database is poisoned. The committer does this too, unless the engine keeps it
    /// waiting: writers wait for memtables to be written out, which never ends when the threads that do so have failed.
    pub(super) fn fail_waiting(&self) {
        let committing = std::mem::take(&mut *self.committing.lock());
        committer::fail(
            committing.into_iter().map(|(completion, _)| completion),
            &self.core.health,
        );
        let queued = self.queue.fail();
        committer::fail(queued.into_iter().map(|pending| pending.completion), &self.core.health);
    }
}

impl Task for Shared {
    fn run(&self) {
        if self.core.health.check().is_err() {
            self.fail_waiting();
            return;
        }
        if let Err(error) = self.trim_if_due() {
            // Tried again at the next interval; what stays costs space only.
            tracing::warn!(%error, "log not trimmed");
        }
    }
}

/// Writes the row of a topic, or compares it.
fn declare(core: &Core, keyspaces: &Keyspaces, topic: &TopicConfig) -> Result<(), Error> {
    const OPERATION: &str = "open topic";
    if topic.partitions == 0 {
        return Err(Error::Refused {
            operation: OPERATION,
            reason: format!("{} has no partitions", topic.name),
        });
    }
    let mut row = topic.partitions.to_be_bytes().to_vec();
    row.extend_from_slice(topic.name.as_bytes());
    let stored = keyspaces
        .meta
        .get(keys::topic(topic.id))
        .map_err(|error| Error::engine(OPERATION, &error))?;
    match stored {
        Some(stored) if *stored == *row => Ok(()),
        Some(stored) => {
            let (partitions, name) = stored.split_at_checked(4).unwrap_or((&stored, &[]));
            Err(Error::Refused {
                operation: OPERATION,
                reason: format!(
                    "topic {} is {} with {} partitions, the data directory has {} with {:?}",
                    topic.id,
                    topic.name,
                    topic.partitions,
                    String::from_utf8_lossy(name),
                    partitions.try_into().map(u32::from_be_bytes)
                ),
            })
        }
        None => {
            let mut batch = core.engine.batch().durability(Some(PersistMode::SyncData));
            batch.insert(&keyspaces.meta, keys::topic(topic.id), row);
            batch.commit().map_err(|error| core.health.poison(OPERATION, error))
        }
    }
}

/// Finds where a partition starts and goes on.
fn recover(keyspaces: &Keyspaces, topic: &TopicConfig, partition: u32) -> Result<(Partition, Head), Error> {
    const OPERATION: &str = "recover partition";
    let engine = |error: fjall::Error| Error::engine(OPERATION, &error);
    let damaged = |reason: String| Error::Damaged {
        operation: OPERATION,
        reason: format!("{} partition {partition}: {reason}", topic.name),
    };
    let (start, trimmed_time) = match keyspaces
        .meta
        .get(keys::partition_start(topic.id, partition))
        .map_err(engine)?
    {
        None => (0, i64::MIN),
        Some(row) => super::trim::decode_start(&row).ok_or_else(|| damaged("unreadable start".to_owned()))?,
    };
    let range = || keys::record(topic.id, partition, start)..=keys::record(topic.id, partition, u64::MAX);
    let mut head = Head {
        next: start,
        last_time: trimmed_time,
    };
    if let Some(last) = keyspaces.records.range(range()).next_back() {
        let (key, value) = last.into_inner().map_err(engine)?;
        let offset = keys::offset_of(&key).ok_or_else(|| damaged("unreadable key".to_owned()))?;
        head = Head {
            next: offset + 1,
            last_time: record::append_time(&value).map_err(damaged)?,
        };
    }
    if let Some(first) = keyspaces.records.range(range()).next() {
        let key = first.key().map_err(engine)?;
        if keys::offset_of(&key) != Some(start) {
            return Err(damaged(format!(
                "the log starts at {start}, the first record is {:?}",
                keys::offset_of(&key)
            )));
        }
    }
    Ok((Partition::new(start, head.next), head))
}
