//! The log: topics of partitions of records, appended by group commit.
//!
//! Scheme: [`Log::append`] puts an encoded record into a bounded queue; one committer thread ([`committer`]) takes whatever
//! is queued, without lingering, writes it as one batch and syncs the journal, and only then makes the records visible
//! to readers and calls their completions, in the order of the appends. Offsets of a partition are contiguous and append
//! times never go back. Readers see durable records only.
//!
//! Consumer groups keep their offsets beside the log ([`groups`]), in batches without a sync of their own: they follow,
//! in the one journal, the effects written before them. Records that are old enough and consumed are trimmed
//! ([`trim`]); since the removal follows the offset's commit in the journal, no crash can keep the removal and lose the
//! offset.

mod committer;
mod groups;
mod keys;
mod queue;
mod record;
mod shared;
mod topic;
mod trim;

use std::sync::Arc;
use std::time::Duration;

pub use groups::{GroupCommit, GroupOffset};
pub use queue::{Appended, Completion};
pub use record::{EncodedRecord, Record};
pub use topic::Subscription;
pub use trim::Trimmed;

use crate::database::Database;
use crate::upkeep::Upkeep;
use crate::{Error, Table};
use committer::Committer;
use shared::{Keyspaces, Shared};

/// Wall-clock time in milliseconds since the Unix epoch.
pub type MillisClock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Settings of the log.
#[derive(Clone)]
pub struct LogConfig {
    /// The topics; created at first sight, compared afterwards.
    pub topics: Vec<TopicConfig>,
    /// Gives append times, and the time by which records are trimmed.
    pub clock: MillisClock,
    /// Bounds of the append queue and of one commit.
    pub limits: LogLimits,
    /// How often consumed records are looked for and removed.
    pub trim_interval: Duration,
}

impl LogConfig {
    /// Measured limits, trimming once a minute.
    #[must_use]
    pub fn new(topics: Vec<TopicConfig>, clock: MillisClock) -> Self {
        Self {
            topics,
            clock,
            limits: LogLimits::default(),
            trim_interval: Duration::from_secs(60),
        }
    }
}

/// Settings of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicConfig {
    /// Its number in keys; never given to another topic.
    pub id: u8,
    /// Its name, for people.
    pub name: String,
    /// Number of partitions; fixed once the topic exists.
    pub partitions: u32,
    /// The consumer group whose committed offsets bound trimming.
    pub group: String,
    /// Records younger than this are kept, consumed or not.
    pub retention: Duration,
}

/// Bounds of the append queue and of one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Records that may wait for the committer.
    pub queue_records: usize,
    /// Bytes that may wait for the committer.
    pub queue_bytes: usize,
    /// Records per commit.
    pub batch_records: usize,
    /// Bytes per commit; a commit always takes at least one record.
    pub batch_bytes: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            queue_records: 65_536,
            queue_bytes: 64 << 20,
            batch_records: 512,
            batch_bytes: 8 << 20,
        }
    }
}

/// How the log is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogStats {
    /// Records that wait for the committer.
    pub queued_records: usize,
    /// Their bytes.
    pub queued_bytes: usize,
    /// Commits since the log was opened.
    pub commits: u64,
    /// Records in them.
    pub appended_records: u64,
}

/// The open log. Clones are handles; when the last one is dropped, everything queued is committed and confirmed.
#[derive(Clone)]
pub struct Log {
    handle: Arc<LogHandle>,
}

struct LogHandle {
    // Order matters: the committer works its queue off before the database closes.
    _committer: Committer,
    shared: Arc<Shared>,
    /// Keeps the database open.
    _records: Table,
}

impl Database {
    /// Opens the log, creating missing topics. One log per database at a time.
    pub fn log(&self, config: LogConfig) -> Result<Log, Error> {
        const OPERATION: &str = "open log";
        let core = &self.handle.core;
        let records = self.keyspace("log.records")?;
        let keyspaces = Keyspaces {
            records: records.keyspace.clone(),
            meta: self.keyspace("log.meta")?.keyspace,
            groups: self.keyspace("log.groups")?.keyspace,
        };
        let (shared, heads) = Shared::open(Arc::clone(core), keyspaces, config)?;
        let shared = Arc::new(shared);
        // Before the committer starts: a second log must not write.
        let registration = Upkeep::register(core, &shared).ok_or_else(|| Error::Refused {
            operation: OPERATION,
            reason: "the log of this database is already open".to_owned(),
        })?;
        let committer = Committer::start(Arc::clone(&shared), heads, registration).map_err(|source| Error::Engine {
            operation: OPERATION,
            reason: format!("the committer thread does not start: {source}"),
        })?;
        Ok(Log {
            handle: Arc::new(LogHandle {
                _committer: committer,
                shared,
                _records: records,
            }),
        })
    }
}

impl Log {
    fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Queues a record. Never waits: a full queue is refused with [`Error::QueueFull`], which is the back-pressure.
    ///
    /// If it returns `Ok`, `completion` is called once: with the place of the record when it is durable, or with an error
    /// when the log failed, after which it is not known whether the record will be found at the next start. Otherwise
    /// `completion` is dropped. Completions run on the committer thread: they must be quick and must not block.
    pub fn append(
        &self,
        topic: u8,
        partition: u32,
        record: EncodedRecord,
        completion: Completion,
    ) -> Result<(), Error> {
        let shared = self.shared();
        let place = shared.topics.place(topic, partition)?;
        shared.core.health.check()?;
        shared.queue.push(place, record, completion)
    }

    /// Records of a partition from `from` on, in offset order without gaps: at most `max_records`, and at most
    /// `max_bytes` unless the first alone is larger. Empty at the end of the log.
    ///
    /// [`Error::OutOfRange`] if `from` was trimmed or lies behind the end, [`Error::Damaged`] if a record is missing or
    /// unreadable.
    pub fn read(
        &self,
        topic: u8,
        partition: u32,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Vec<Record>, Error> {
        self.shared().read(topic, partition, from, max_records, max_bytes)
    }

    /// First offset still in the log.
    pub fn start(&self, topic: u8, partition: u32) -> Result<u64, Error> {
        let topics = &self.shared().topics;
        Ok(topics.partition(topics.place(topic, partition)?).start())
    }

    /// Offset after the last durable record.
    pub fn end(&self, topic: u8, partition: u32) -> Result<u64, Error> {
        let topics = &self.shared().topics;
        Ok(topics.partition(topics.place(topic, partition)?).end())
    }

    /// Tells when a partition of the topic gets new durable records.
    pub fn subscribe(&self, topic: u8) -> Result<Subscription, Error> {
        self.shared().topics.subscribe(topic)
    }

    /// Writes committed offsets of a group on a topic, in one batch without a sync of its own: effects written before
    /// this call are on disk whenever the offset is. An offset is the next to read and not beyond the end; metadata has
    /// at most 4,096 bytes.
    pub fn commit_offsets(&self, group: &str, topic: u8, commits: &[GroupCommit]) -> Result<(), Error> {
        self.shared().commit_offsets(group, topic, commits)
    }

    /// The committed offset of a group on a partition.
    pub fn committed(&self, group: &str, topic: u8, partition: u32) -> Result<Option<GroupOffset>, Error> {
        self.shared().committed(group, topic, partition)
    }

    /// Removes what is consumed and older than its topic's retention at `now`. The persist thread does this by itself.
    pub fn trim(&self, now: i64) -> Result<Trimmed, Error> {
        self.shared().trim(now, usize::MAX)
    }

    /// Whether the log takes appends; the error tells the failure that poisoned it.
    pub fn healthy(&self) -> Result<(), Error> {
        self.shared().core.health.check()
    }

    /// How the log is doing.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.shared().stats()
    }
}
