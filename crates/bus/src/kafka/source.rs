//! One member of a consumer group.
//!
//! **Answering the group.** An assignment is acknowledged at once with *no* partitions; each is added when the runtime
//! starts it at an explicit offset, so that nothing is read before and the client never chooses a position. A
//! revocation is acknowledged when the runtime has given up all of its partitions: until then the group waits, so a
//! commit made meanwhile is seen by the next owner (architecture.md section 5, sequencing.md G7).
//!
//! **Positions.** Only explicit commits of "next to read" with metadata; nothing is stored, so nothing is committed
//! by the client itself (notes/kafka.md 2.1).

mod commit;
mod membership;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::Offset;
use tidings_domain::Topic;

use self::commit::Client;
use super::KafkaBus;
use super::convert::log_record;
use super::error::{bus_error, code_error};
use super::lookup::{bounds, native_partition};
use super::off_thread::OffThread;
use super::rebalance::{Context, Shared};
use crate::Error;
use crate::catalogue::ConsumerGroup;
use crate::record::LogRecord;
use crate::source::{AssignedPartition, Commit, CommitMode, Source, SourceEvent};

/// Records of one poll: enough to batch, few enough to look at rebalances in between.
const MAX_RECORDS_PER_POLL: usize = 500;
/// And their bytes.
const MAX_BYTES_PER_POLL: usize = 8 << 20;
/// Between two tries to learn positions.
const LOOKUP_PAUSE: Duration = Duration::from_millis(500);
/// To find out which partition is out of range, once per such fault.
const RANGE_CHECK_TIMEOUT: Duration = Duration::from_secs(3);
/// A seek right after a start finds the partition not yet fetching: it is tried again within this time.
const SEEK_WITHIN: Duration = Duration::from_secs(5);
const SEEK_PAUSE: Duration = Duration::from_millis(10);
const STARTING: &str = "starting a partition";
const SEEKING: &str = "seeking";

pub(super) struct KafkaSource {
    client: OffThread<Client>,
    shared: Arc<Shared>,
    topic: Topic,
    name: String,
    fold: bool,
    /// Given by the group, told to the runtime with these bounds, and not revoked yet.
    assigned: BTreeMap<u32, Partition>,
    /// Given by the group, positions not known yet.
    pending: BTreeSet<u32>,
    /// When positions are asked for again.
    next_lookup: Instant,
    revoking: Option<Revoking>,
    /// Faults found while there was something else to return first.
    deferred: VecDeque<SourceEvent>,
    closed: bool,
    /// The longest time between two polls that the group allows.
    max_poll_interval: Duration,
    last_poll: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Partition {
    log_start: u64,
    log_end: u64,
    /// Next offset to be delivered, once started.
    next: Option<u64>,
    paused: bool,
}

/// A revocation that the group waits for.
#[derive(Default)]
struct Revoking {
    /// Of which the runtime has not answered.
    awaited: BTreeSet<u32>,
    /// Which the client reads.
    started: BTreeSet<u32>,
    /// Which may still be this member's: looked up anew once all is answered.
    again: BTreeSet<u32>,
}

impl KafkaSource {
    pub(super) fn new(bus: &KafkaBus, group: ConsumerGroup) -> Result<Self, Error> {
        const JOINING: &str = "joining a group";
        let topic = group.topic();
        let name = bus.catalogue.spec(topic).name.clone();
        let group_id = bus.catalogue.group_name(group);
        let shared = Arc::new(Shared::default());
        let context = Context {
            topic: name.clone(),
            shared: Arc::clone(&shared),
        };
        let config = bus.config.consumer_client(&group_id, group.is_fold());
        let consumer =
            BaseConsumer::from_config_and_context(&config, context).map_err(|error| bus_error(JOINING, &error))?;
        consumer
            .subscribe(&[&name])
            .map_err(|error| bus_error(JOINING, &error))?;
        let client = Client::new(consumer, Arc::clone(&shared))?;
        Ok(Self {
            client: OffThread::new(format!("consumer {group_id}"), client),
            shared,
            topic,
            name,
            fold: group.is_fold(),
            assigned: BTreeMap::new(),
            pending: BTreeSet::new(),
            next_lookup: Instant::now(),
            revoking: None,
            deferred: VecDeque::new(),
            closed: false,
            max_poll_interval: bus.config.max_poll_interval,
            last_poll: Instant::now(),
        })
    }

    fn consumer(&self) -> &BaseConsumer<Context> {
        self.client.consumer()
    }

    fn list(&self, partitions: impl IntoIterator<Item = u32>) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            list.add_partition(&self.name, native_partition(partition));
        }
        list
    }

    fn list_at(&self, operation: &'static str, partition: u32, offset: u64) -> Result<TopicPartitionList, Error> {
        let mut list = TopicPartitionList::with_capacity(1);
        list.add_partition_offset(
            &self.name,
            native_partition(partition),
            native_offset(operation, offset)?,
        )
        .map_err(|error| bus_error(operation, &error))?;
        Ok(list)
    }

    /// Events that wait, in order: faults, what the group wants, positions to be learnt.
    fn next_event(&mut self) -> Option<SourceEvent> {
        if let Some(event) = self.deferred.pop_front() {
            return Some(event);
        }
        if let Some(fault) = self.shared.next_commit_fault() {
            return Some(SourceEvent::Fault(fault));
        }
        self.group_event()
    }

    /// One look at the client: what it had, at most `MAX_RECORDS_PER_POLL` records.
    fn read(&mut self, timeout: Duration) -> Option<SourceEvent> {
        let mut records = Vec::new();
        let mut bytes = 0;
        let mut wait = timeout;
        while records.len() < MAX_RECORDS_PER_POLL && bytes < MAX_BYTES_PER_POLL {
            match self.consumer().poll(wait) {
                Some(Ok(message)) => {
                    let Some(record) = log_record(self.topic, &message) else {
                        tracing::warn!(topic = %self.name, "a record without a place was dropped");
                        continue;
                    };
                    bytes += record.size();
                    records.push(record);
                }
                Some(Err(error)) => {
                    self.deferred.push_back(self.fault(&error));
                    break;
                }
                // Also after events that are no records; those are looked at by the caller.
                None => break,
            }
            wait = Duration::ZERO;
        }
        self.delivered(&mut records);
        if records.is_empty() {
            None
        } else {
            Some(SourceEvent::Records(records))
        }
    }

    fn next_until(&mut self, until: Instant) -> SourceEvent {
        loop {
            if let Some(event) = self.next_event() {
                return event;
            }
            let mut wait = until.saturating_duration_since(Instant::now());
            if !self.pending.is_empty() && self.revoking.is_none() {
                wait = wait.min(self.next_lookup.saturating_duration_since(Instant::now()));
            }
            if let Some(event) = self.read(wait) {
                return event;
            }
            // `None` from the client does not mean that nothing happened.
            if self.deferred.is_empty() && !self.shared.has_events() && Instant::now() >= until {
                return SourceEvent::Idle;
            }
            if self.revoking.is_some() && Instant::now() >= until {
                return SourceEvent::Idle;
            }
        }
    }

    /// Notes what the runtime gets. Records of partitions that it does not hold are dropped.
    fn delivered(&mut self, records: &mut Vec<LogRecord>) {
        records.retain(|record| {
            self.assigned
                .get_mut(&record.partition)
                .filter(|partition| partition.next.is_some())
                .map(|partition| {
                    partition.next = Some(record.offset + 1);
                    partition.log_end = partition.log_end.max(record.offset + 1);
                })
                .is_some()
        });
    }

    fn fault(&self, error: &KafkaError) -> SourceEvent {
        const READING: &str = "reading";
        if let Some((code, reason)) = self.consumer().client().fatal_error() {
            return SourceEvent::Fatal(Error::Fatal {
                operation: READING,
                reason: format!("{code}: {reason}"),
            });
        }
        match error.rdkafka_error_code() {
            Some(code @ (RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange)) => {
                SourceEvent::Fault(code_error(READING, code, self.out_of_range()))
            }
            Some(_) | None => match bus_error(READING, error) {
                fatal @ Error::Fatal { .. } => SourceEvent::Fatal(fatal),
                fault @ (Error::Unavailable { .. } | Error::Fenced { .. } | Error::NotSetUp { .. }) => {
                    SourceEvent::Fault(fault)
                }
            },
        }
    }

    /// The client does not say which partition it is: found by comparing all with their logs.
    fn out_of_range(&self) -> String {
        let until = Instant::now() + RANGE_CHECK_TIMEOUT;
        let mut outside = Vec::new();
        for (partition, state) in &self.assigned {
            let Some(next) = state.next else {
                continue;
            };
            let timeout = until.saturating_duration_since(Instant::now());
            if timeout.is_zero() {
                outside.push("not all partitions were looked at".to_owned());
                break;
            }
            match bounds(self.consumer(), &self.name, &[*partition], timeout) {
                Ok(found) => outside.extend(
                    found
                        .get(partition)
                        .filter(|(low, high)| next < *low || next > *high)
                        .map(|(low, high)| outside_text(*partition, next, *low, *high)),
                ),
                Err(error) => outside.push(format!("partition {partition}: {error}")),
            }
        }
        if outside.is_empty() {
            format!("{}: a position was outside the log", self.name)
        } else {
            format!("{}: {}", self.name, outside.join("; "))
        }
    }

    /// The log grows while a partition waits for its start: an owner on its way out may have folded, and checkpointed,
    /// records behind the end that was known at the assignment. So a start beyond that end is judged by a new look.
    fn with_current_end(&self, partition: u32, offset: u64, mut state: Partition) -> Partition {
        if self.fold && offset > state.log_end {
            match bounds(self.consumer(), &self.name, &[partition], RANGE_CHECK_TIMEOUT) {
                Ok(found) => {
                    if let Some((_, high)) = found.get(&partition) {
                        state.log_end = state.log_end.max(*high);
                    }
                }
                Err(error) => tracing::warn!(partition, %error, "the end of the log cannot be looked up"),
            }
        }
        state
    }

    fn started(&self, operation: &'static str, partition: u32) -> Result<Partition, Error> {
        match self.assigned.get(&partition) {
            Some(state) if state.next.is_some() => Ok(*state),
            Some(_) => Err(fenced(operation, partition, "it was not started")),
            None => Err(fenced(operation, partition, "it is not assigned to this member")),
        }
    }

    fn set_paused(&mut self, partitions: &[u32], paused: bool) -> Result<(), Error> {
        // Only what changes: resuming what was not paused could rewind it, and each call refetches.
        let changing: Vec<u32> = partitions
            .iter()
            .copied()
            .filter(|partition| {
                self.assigned
                    .get(partition)
                    .is_some_and(|state| state.next.is_some() && state.paused != paused)
            })
            .collect();
        if changing.is_empty() {
            return Ok(());
        }
        let list = self.list(changing.iter().copied());
        let (operation, answer) = if paused {
            ("pausing", self.consumer().pause(&list))
        } else {
            ("resuming", self.consumer().resume(&list))
        };
        answer.map_err(|error| bus_error(operation, &error))?;
        for partition in changing {
            if let Some(state) = self.assigned.get_mut(&partition) {
                state.paused = paused;
            }
        }
        Ok(())
    }
}

impl Partition {
    fn new(known: &AssignedPartition) -> Self {
        Self {
            log_start: known.log_start,
            log_end: known.log_end,
            next: None,
            paused: false,
        }
    }
}

impl Source for KafkaSource {
    fn poll(&mut self, timeout: Duration) -> SourceEvent {
        let now = Instant::now();
        let until = now + timeout;
        let too_late = now.duration_since(self.last_poll) >= self.max_poll_interval;
        let lost = if too_late { self.lose_all() } else { None };
        let event = lost.unwrap_or_else(|| self.next_until(until));
        self.last_poll = Instant::now();
        event
    }

    fn start(&mut self, partition: u32, offset: u64) -> Result<(), Error> {
        let state = match self.assigned.get(&partition) {
            None => return Err(fenced(STARTING, partition, "it is not assigned to this member")),
            Some(state) if state.next.is_some() => return Err(fenced(STARTING, partition, "it was started before")),
            Some(_) if self.is_revoking(partition) => return Err(fenced(STARTING, partition, "it is being revoked")),
            Some(state) => *state,
        };
        let state = self.with_current_end(partition, offset, state);
        if self.fold && !(state.log_start..=state.log_end).contains(&offset) {
            return Err(Error::NotSetUp {
                operation: STARTING,
                reason: format!(
                    "{}: {}",
                    self.name,
                    outside_text(partition, offset, state.log_start, state.log_end)
                ),
            });
        }
        let list = self.list_at(STARTING, partition, offset)?;
        self.consumer()
            .incremental_assign(&list)
            .map_err(|error| bus_error(STARTING, &error))?;
        if let Some(state) = self.assigned.get_mut(&partition) {
            state.next = Some(offset);
            state.paused = false;
        }
        Ok(())
    }

    fn finish_revoke(&mut self, partitions: &[u32]) -> Result<(), Error> {
        let Some(revoking) = self.revoking.as_mut() else {
            return Ok(());
        };
        for partition in partitions {
            if revoking.awaited.remove(partition) {
                self.assigned.remove(partition);
                self.shared.forget_log_end(*partition);
            }
        }
        self.end_revoke()
    }

    fn pause(&mut self, partitions: &[u32]) -> Result<(), Error> {
        self.set_paused(partitions, true)
    }

    fn resume(&mut self, partitions: &[u32]) -> Result<(), Error> {
        self.set_paused(partitions, false)
    }

    fn seek(&mut self, partition: u32, offset: u64) -> Result<(), Error> {
        self.started(SEEKING, partition)?;
        let until = Instant::now() + SEEK_WITHIN;
        loop {
            let list = self.list_at(SEEKING, partition, offset)?;
            let answer = self
                .consumer()
                .seek_partitions(list, until.saturating_duration_since(Instant::now()))
                .and_then(|list| list.elements().iter().try_for_each(|element| element.error()));
            match answer {
                Ok(()) => break,
                Err(error) if not_yet_fetching(&error) && Instant::now() < until => thread::sleep(SEEK_PAUSE),
                Err(error) => return Err(bus_error(SEEKING, &error)),
            }
        }
        if let Some(state) = self.assigned.get_mut(&partition) {
            state.next = Some(offset);
        }
        Ok(())
    }

    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), Error> {
        self.commit_positions(commits, mode)
    }

    fn log_ends(&self, partitions: &[u32]) -> Vec<Option<u64>> {
        partitions
            .iter()
            .map(|partition| {
                let known = self.assigned.get(partition).map(|state| state.log_end);
                known.max(self.shared.log_end(*partition))
            })
            .collect()
    }

    fn close(mut self: Box<Self>, deadline: Duration) {
        self.leave();
        self.client.drop_within(deadline);
        self.closed = true;
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        if !self.closed {
            self.leave();
        }
    }
}

impl KafkaSource {
    fn is_revoking(&self, partition: u32) -> bool {
        self.revoking
            .as_ref()
            .is_some_and(|revoking| revoking.awaited.contains(&partition))
    }
}

fn not_yet_fetching(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::State | RDKafkaErrorCode::PreviousInProgress)
    )
}

fn native_offset(operation: &'static str, offset: u64) -> Result<Offset, Error> {
    i64::try_from(offset).map(Offset::Offset).map_err(|_| Error::NotSetUp {
        operation,
        reason: format!("offset {offset} is beyond what a log can hold"),
    })
}

fn fenced(operation: &'static str, partition: u32, why: &str) -> Error {
    Error::Fenced {
        operation,
        reason: format!("partition {partition}: {why}"),
    }
}

fn outside_text(partition: u32, offset: u64, low: u64, high: u64) -> String {
    format!("partition {partition}: offset {offset} is outside the log, which has {low} to {high}")
}
