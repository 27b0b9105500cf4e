//! A log in memory for the runtime's own unit tests: one member per group, no durability, everything on demand.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tidings_domain::Topic;
use tidings_domain::clock::{Millis, SystemClock};

use crate::catalogue::{Catalogue, ConsumerGroup, Durability, PartitionCounts};
use crate::producer::{Confirmation, DeliverySink, NotEnqueued, ProduceError, Producer, ProducerProfile};
use crate::source::{AssignedPartition, Commit, CommitMode, Committed, Source, SourceEvent};
use crate::{BrokerTime, Bus, Error, Headers, LogRecord, OutRecord};

/// A record of `ingress`.
pub(super) fn record(partition: u32, offset: u64, key: &str) -> LogRecord {
    LogRecord {
        topic: Topic::Ingress,
        partition,
        offset,
        append_time: Millis(1000 + i64::try_from(offset).unwrap()),
        key: (!key.is_empty()).then(|| Bytes::copy_from_slice(key.as_bytes())),
        value: Some(Bytes::copy_from_slice(format!("{offset}").as_bytes())),
        headers: Headers::new(),
    }
}

/// What happens to the next record enqueued.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// Not taken.
    Refuse(ProduceError),
    /// Not written, reported so.
    Lose(ProduceError),
    /// The same, reported once the flag is set.
    LoseWhen(Arc<AtomicBool>, ProduceError),
    /// Written, never reported.
    Silence,
}

#[derive(Default)]
struct State {
    logs: HashMap<(Topic, u32), (u64, Vec<LogRecord>)>,
    committed: HashMap<(ConsumerGroup, u32), Committed>,
    commits: Vec<(Commit, CommitMode)>,
    commit_errors: usize,
    events: VecDeque<SourceEvent>,
    faults: VecDeque<(Topic, Fault)>,
    producers: usize,
    sources: usize,
    deliveries: usize,
    seeks: Vec<(u32, u64)>,
    revoked: Vec<Vec<u32>>,
    closed: usize,
}

/// The log.
#[derive(Clone)]
pub(super) struct FakeBus {
    state: Arc<Mutex<State>>,
    catalogue: Arc<Catalogue>,
    time: BrokerTime,
}

impl FakeBus {
    pub(super) fn new() -> Self {
        let counts = PartitionCounts { main: 2, side: 1 };
        Self {
            state: Arc::default(),
            catalogue: Arc::new(Catalogue::new(Durability::Single, counts)),
            time: BrokerTime::new(Arc::new(SystemClock)),
        }
    }

    /// Appends a record; returns its offset.
    pub(super) fn append(&self, topic: Topic, partition: u32, key: Option<&str>, value: &str) -> u64 {
        self.append_with(topic, partition, key, value, Headers::new())
    }

    pub(super) fn append_with(
        &self,
        topic: Topic,
        partition: u32,
        key: Option<&str>,
        value: &str,
        headers: Headers,
    ) -> u64 {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let record = OutRecord {
            topic,
            partition,
            key: key.map(bytes),
            value: Some(bytes(value)),
            headers,
        };
        self.state.lock().write(record, self.time.now())
    }

    /// Removes everything below `offset`, as retention does.
    pub(super) fn trim(&self, topic: Topic, partition: u32, offset: u64) {
        let mut state = self.state.lock();
        let log = state.logs.entry((topic, partition)).or_default();
        log.0 = offset;
        log.1.retain(|record| record.offset >= offset);
    }

    pub(super) fn records(&self, topic: Topic, partition: u32) -> Vec<LogRecord> {
        let state = self.state.lock();
        state
            .logs
            .get(&(topic, partition))
            .map_or(Vec::new(), |log| log.1.clone())
    }

    pub(super) fn set_committed(&self, group: ConsumerGroup, partition: u32, offset: u64) {
        let committed = Committed {
            offset,
            metadata: String::new(),
        };
        self.state.lock().committed.insert((group, partition), committed);
    }

    pub(super) fn committed(&self, group: ConsumerGroup, partition: u32) -> Option<Committed> {
        self.state.lock().committed.get(&(group, partition)).cloned()
    }

    pub(super) fn commits(&self) -> Vec<(Commit, CommitMode)> {
        self.state.lock().commits.clone()
    }

    pub(super) fn fail_commits(&self, count: usize) {
        self.state.lock().commit_errors = count;
    }

    /// The next poll returns this.
    pub(super) fn inject(&self, event: SourceEvent) {
        self.state.lock().events.push_back(event);
    }

    pub(super) fn fault(&self, topic: Topic, fault: Fault) {
        self.state.lock().faults.push_back((topic, fault));
    }

    pub(super) fn producers(&self) -> usize {
        self.state.lock().producers
    }

    pub(super) fn sources(&self) -> usize {
        self.state.lock().sources
    }

    pub(super) fn seeks(&self) -> Vec<(u32, u64)> {
        self.state.lock().seeks.clone()
    }

    pub(super) fn revoked(&self) -> Vec<Vec<u32>> {
        self.state.lock().revoked.clone()
    }

    pub(super) fn closed(&self) -> usize {
        self.state.lock().closed
    }

    /// Records delivered so far.
    pub(super) fn deliveries(&self) -> usize {
        self.state.lock().deliveries
    }
}

impl State {
    fn write(&mut self, record: OutRecord, now: Millis) -> u64 {
        let (start, log) = self.logs.entry((record.topic, record.partition)).or_default();
        let offset = log.last().map_or(*start, |last| last.offset + 1);
        log.push(LogRecord {
            topic: record.topic,
            partition: record.partition,
            offset,
            append_time: now,
            key: record.key,
            value: record.value,
            headers: record.headers,
        });
        offset
    }
}

#[async_trait]
impl Bus for FakeBus {
    fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    fn producer(&self, _: ProducerProfile) -> Result<Arc<dyn Producer>, Error> {
        self.state.lock().producers += 1;
        let (sender, reports) = mpsc::sync_channel::<Report>(10_000);
        thread::spawn(move || {
            while let Ok(report) = reports.recv() {
                while report.when.as_ref().is_some_and(|flag| !flag.load(Ordering::SeqCst)) {
                    thread::sleep(Duration::from_millis(1));
                }
                report.sink.delivered(report.tag, report.result);
            }
        });
        Ok(Arc::new(FakeProducer {
            bus: self.clone(),
            reports: sender,
        }))
    }

    fn source(&self, group: ConsumerGroup) -> Result<Box<dyn Source>, Error> {
        self.state.lock().sources += 1;
        Ok(Box::new(FakeSource {
            bus: self.clone(),
            group,
            joined: false,
            reading: BTreeMap::new(),
        }))
    }

    fn broker_time(&self) -> &BrokerTime {
        &self.time
    }

    async fn check_topics(&self, _: &[Topic]) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    async fn apply_topics(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }
}

struct Report {
    sink: Arc<dyn DeliverySink>,
    tag: u64,
    result: Result<Confirmation, ProduceError>,
    when: Option<Arc<AtomicBool>>,
}

struct FakeProducer {
    bus: FakeBus,
    reports: mpsc::SyncSender<Report>,
}

#[async_trait]
impl Producer for FakeProducer {
    fn enqueue(&self, record: OutRecord, sink: &Arc<dyn DeliverySink>, tag: u64) -> Result<(), Box<NotEnqueued>> {
        let now = self.bus.time.now();
        let mut state = self.bus.state.lock();
        let at = state.faults.iter().position(|(topic, _)| *topic == record.topic);
        let fault = at.and_then(|at| state.faults.remove(at)).map(|(_, fault)| fault);
        let mut when = None;
        let result = match fault {
            Some(Fault::Refuse(error)) => return Err(Box::new(NotEnqueued { record, error })),
            Some(Fault::Lose(error)) => Some(Err(error)),
            Some(Fault::LoseWhen(flag, error)) => {
                when = Some(flag);
                Some(Err(error))
            }
            Some(Fault::Silence) => {
                state.write(record, now);
                None
            }
            None => Some(Ok(Confirmation {
                offset: Some(state.write(record, now)),
                append_time: Some(now),
            })),
        };
        drop(state);
        if let Some(result) = result {
            let report = Report {
                sink: Arc::clone(sink),
                tag,
                result,
                when,
            };
            self.reports
                .send(report)
                .expect("the delivery thread lives as long as the producer");
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }

    async fn flush(&self, _: Duration) -> usize {
        0
    }
}

struct FakeSource {
    bus: FakeBus,
    group: ConsumerGroup,
    joined: bool,
    reading: BTreeMap<u32, (u64, bool)>,
}

impl FakeSource {
    fn assigned(&self) -> Vec<AssignedPartition> {
        let topic = self.group.topic();
        (0..self.bus.catalogue.partitions(topic))
            .map(|partition| {
                let state = self.bus.state.lock();
                let (log_start, log_end) = state.logs.get(&(topic, partition)).map_or((0, 0), |(start, log)| {
                    (*start, log.last().map_or(*start, |last| last.offset + 1))
                });
                AssignedPartition {
                    partition,
                    committed: state.committed.get(&(self.group, partition)).cloned(),
                    log_start,
                    log_end,
                }
            })
            .collect()
    }

    fn read(&mut self) -> Vec<LogRecord> {
        const PER_POLL: usize = 100;
        let mut state = self.bus.state.lock();
        let mut read = Vec::new();
        for (partition, (next, paused)) in &mut self.reading {
            if *paused {
                continue;
            }
            let Some((_, log)) = state.logs.get(&(self.group.topic(), *partition)) else {
                continue;
            };
            let from = log.partition_point(|record| record.offset < *next);
            let room = PER_POLL - read.len();
            read.extend(log[from..].iter().take(room).cloned());
            if let Some(last) = read.last().filter(|last| last.partition == *partition) {
                *next = last.offset + 1;
            }
        }
        state.deliveries += read.len();
        read
    }
}

impl Source for FakeSource {
    fn poll(&mut self, timeout: Duration) -> SourceEvent {
        let until = Instant::now() + timeout;
        if !self.joined {
            self.joined = true;
            return SourceEvent::Assigned(self.assigned());
        }
        loop {
            let event = self.bus.state.lock().events.pop_front();
            if let Some(event) = event {
                return event;
            }
            let records = self.read();
            if !records.is_empty() {
                return SourceEvent::Records(records);
            }
            if Instant::now() >= until {
                return SourceEvent::Idle;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn start(&mut self, partition: u32, offset: u64) -> Result<(), Error> {
        let place = (self.group.topic(), partition);
        let end = self
            .bus
            .state
            .lock()
            .logs
            .get(&place)
            .map_or(0, |(start, log)| start + log.len() as u64);
        if offset > end {
            return Err(Error::NotSetUp {
                operation: "start",
                reason: format!("offset {offset} is after the end of the log at {end}"),
            });
        }
        assert!(
            self.reading.insert(partition, (offset, false)).is_none(),
            "started twice"
        );
        Ok(())
    }

    fn finish_revoke(&mut self, partitions: &[u32]) -> Result<(), Error> {
        for partition in partitions {
            self.reading.remove(partition);
        }
        self.bus.state.lock().revoked.push(partitions.to_vec());
        Ok(())
    }

    fn pause(&mut self, partitions: &[u32]) -> Result<(), Error> {
        for partition in partitions {
            self.reading.get_mut(partition).expect("started").1 = true;
        }
        Ok(())
    }

    fn resume(&mut self, partitions: &[u32]) -> Result<(), Error> {
        for partition in partitions {
            self.reading.get_mut(partition).expect("started").1 = false;
        }
        Ok(())
    }

    fn seek(&mut self, partition: u32, offset: u64) -> Result<(), Error> {
        self.bus.state.lock().seeks.push((partition, offset));
        self.reading.get_mut(&partition).expect("started").0 = offset;
        Ok(())
    }

    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), Error> {
        let mut state = self.bus.state.lock();
        if state.commit_errors > 0 {
            state.commit_errors -= 1;
            return Err(Error::Unavailable {
                operation: "committing",
                reason: "ordered by the test".to_owned(),
            });
        }
        for commit in commits {
            state.commits.push((commit.clone(), mode));
            let committed = Committed {
                offset: commit.offset,
                metadata: commit.metadata.clone(),
            };
            state.committed.insert((self.group, commit.partition), committed);
        }
        Ok(())
    }

    fn log_ends(&self, partitions: &[u32]) -> Vec<Option<u64>> {
        let assigned = self.assigned();
        partitions
            .iter()
            .map(|partition| Some(assigned[*partition as usize].log_end))
            .collect()
    }

    fn close(self: Box<Self>, _: Duration) {
        self.bus.state.lock().closed += 1;
    }
}
