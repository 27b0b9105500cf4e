//! The embedded log and store in a temporary directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tempfile::TempDir;
use tidings_bus::catalogue::{Durability, PartitionCounts};
use tidings_bus::embedded::{EmbeddedBus, Faults};
use tidings_bus::producer::{Confirmation, DeliverySink, ProduceError, ProducerProfile};
use tidings_bus::source::{AssignedPartition, Source, SourceEvent};
use tidings_bus::{Bus, Catalogue, ConsumerGroup, Headers, LogRecord, OutRecord};
use tidings_domain::Topic;
use tidings_domain::clock::{ManualClock, Millis};
use tidings_embedded::{Database, Options};
use tidings_storage::embedded::EmbeddedStore;
use tokio::sync::oneshot;

use crate::DEADLINE;

/// What the clock shows at first.
pub const NOW: Millis = Millis(1_700_000_000_000);

/// Cursor epoch of a new directory.
const CURSOR_EPOCH: u64 = 0x0123_4567_89ab_cdef;

/// Where a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Partition.
    pub partition: u32,
    /// Offset.
    pub offset: u64,
}

/// Log, tables and clock of one process.
pub struct Embedded {
    /// The log.
    pub bus: Arc<EmbeddedBus>,
    /// The tables.
    pub store: Arc<EmbeddedStore>,
    /// The clock of both.
    pub clock: ManualClock,
    /// What the log does wrong.
    pub faults: Faults,
    database: Database,
    directory: TempDir,
}

impl Default for Embedded {
    fn default() -> Self {
        Self::new()
    }
}

impl Embedded {
    /// Empty.
    ///
    /// # Panics
    /// If there is no temporary directory.
    #[must_use]
    pub fn new() -> Self {
        Self::open(TempDir::new().expect("a temporary directory"), ManualClock::at(NOW))
    }

    fn open(directory: TempDir, clock: ManualClock) -> Self {
        let database = open_database(directory.path());
        let catalogue = Catalogue::new(Durability::Single, PartitionCounts::DEV);
        let faults = Faults::new();
        let bus = EmbeddedBus::open_with_faults(&database, catalogue, Arc::new(clock.clone()), faults.clone())
            .expect("the log opens");
        let store = EmbeddedStore::open(&database, CURSOR_EPOCH).expect("the tables open");
        Self {
            bus: Arc::new(bus),
            store: Arc::new(store),
            clock,
            faults,
            database,
            directory,
        }
    }

    /// Closes everything and opens the same directory again. The service must have been stopped.
    #[must_use]
    pub fn reopened(self) -> Self {
        let Self {
            bus,
            store,
            clock,
            faults,
            database,
            directory,
        } = self;
        drop((bus, store, faults, database));
        Self::open(directory, clock)
    }

    /// Opens a copy of the directory as it is now: what the end of the process at this moment leaves. Nothing may be
    /// written meanwhile: the service hangs in a call.
    ///
    /// # Panics
    /// If the files cannot be copied.
    #[must_use]
    pub fn image(&self) -> Self {
        self.database.persist().expect("persists");
        let copy = TempDir::new().expect("a temporary directory");
        copy_directory(self.directory.path(), copy.path());
        Self::open(copy, self.clock.clone())
    }

    /// Appends a record to the partition of its key, and waits until it is durable.
    ///
    /// # Panics
    /// If the log does not take it.
    pub async fn append(&self, topic: Topic, key: &str, value: Option<Bytes>, headers: Headers) -> Place {
        let partition = self.bus.catalogue().partition(topic, key.as_bytes());
        self.append_to(topic, partition, key, value, headers).await
    }

    /// Appends a record to this partition.
    ///
    /// # Panics
    /// If the log does not take it.
    pub async fn append_to(
        &self,
        topic: Topic,
        partition: u32,
        key: &str,
        value: Option<Bytes>,
        headers: Headers,
    ) -> Place {
        let producer = self.bus.producer(ProducerProfile::Ack).expect("a producer");
        let (sink, confirmed) = Once::sink();
        let record = OutRecord {
            topic,
            partition,
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            value,
            headers,
        };
        producer.enqueue(record, &sink, 0).expect("enqueued");
        let confirmation = confirmed.await.expect("reported").expect("written");
        Place {
            partition,
            offset: confirmation.offset.expect("an offset"),
        }
    }

    /// All records of a topic, partition by partition. No service may consume it now.
    #[must_use]
    pub fn records(&self, topic: Topic) -> Vec<LogRecord> {
        let (mut source, assigned) = self.join(group_of(topic));
        for partition in &assigned {
            source
                .start(partition.partition, partition.log_start)
                .expect("starts at the log's first record");
        }
        let mut records = Vec::new();
        loop {
            match source.poll(Duration::ZERO) {
                SourceEvent::Records(some) => records.extend(some),
                SourceEvent::Idle => break,
                other @ (SourceEvent::Assigned(_)
                | SourceEvent::Revoked { .. }
                | SourceEvent::Fault(_)
                | SourceEvent::Fatal(_)) => panic!("reading {topic}: {other:?}"),
            }
        }
        records.sort_by_key(|record| (record.partition, record.offset));
        records
    }

    /// Committed offset per partition; 0 if there is none. The group may have no member now.
    #[must_use]
    pub fn committed(&self, group: ConsumerGroup) -> Vec<u64> {
        let (_source, assigned) = self.join(group);
        assigned
            .iter()
            .map(|partition| partition.committed.as_ref().map_or(0, |committed| committed.offset))
            .collect()
    }

    fn join(&self, group: ConsumerGroup) -> (Box<dyn Source>, Vec<AssignedPartition>) {
        // The thread of a service that was stopped gives its membership up a moment later.
        let mut source = retried("the group's membership", || self.bus.source(group));
        let event = source.poll(Duration::ZERO);
        let SourceEvent::Assigned(assigned) = event else {
            panic!("joining {}: {event:?}", group.name());
        };
        (source, assigned)
    }
}

fn group_of(topic: Topic) -> ConsumerGroup {
    match topic {
        Topic::Ingress => ConsumerGroup::Router,
        Topic::History => ConsumerGroup::StorageConsumer,
        Topic::Inbox => ConsumerGroup::OfflineInbox,
        Topic::Push => ConsumerGroup::PushFanout,
        Topic::Trace => ConsumerGroup::StorageConsumerTrace,
        Topic::Dlq => ConsumerGroup::DeadLetterCompensator,
    }
}

/// The last handle of a database closed before may be dropped a moment later.
fn open_database(directory: &Path) -> Database {
    let data: PathBuf = directory.join("data");
    retried("the database", || Database::open(&data, Options::default()))
}

fn retried<T, E: std::fmt::Display>(what: &str, mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => assert!(Instant::now() < until, "{what}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn copy_directory(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            std::fs::create_dir(&target).expect("a new directory");
            copy_directory(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).expect("copied");
        }
    }
}

type Report = Result<Confirmation, ProduceError>;

/// Takes one report.
struct Once(Mutex<Option<oneshot::Sender<Report>>>);

impl Once {
    fn sink() -> (Arc<dyn DeliverySink>, oneshot::Receiver<Report>) {
        let (sender, receiver) = oneshot::channel();
        (Arc::new(Self(Mutex::new(Some(sender)))), receiver)
    }
}

impl DeliverySink for Once {
    fn delivered(&self, _tag: u64, result: Report) {
        if let Some(sender) = self.0.lock().take() {
            // The test may have given up.
            let _ = sender.send(result);
        }
    }
}
