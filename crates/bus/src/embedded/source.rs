//! The source: the one member of a group, which owns all partitions of its topic.
//!
//! ```text
//!             start                 seek, pause, resume
//!  Assigned ─────────► Started{next} ◄──────────┘
//!     ▲                    │
//!     │ first poll, or the poll after finish_revoke (faults only)
//!  Unassigned ◄── finish_revoke
//! ```
//! `poll` reads the started partitions in turn, one per call, straight from the log; with nothing to read it sleeps until
//! the topic grows. There is no other member, so nothing is ever revoked but by [`Faults`].

use std::time::{Duration, Instant};

use tidings_domain::Topic;
use tidings_embedded::log::{GroupCommit, Log, Subscription};

use super::faults::{Faults, Revoke};
use super::{EmbeddedBus, Members, convert};
use crate::Error;
use crate::catalogue::ConsumerGroup;
use crate::source::{AssignedPartition, Commit, CommitMode, Committed, Source, SourceEvent};

/// Records of one poll at most.
const POLL_RECORDS: usize = 500;
/// Bytes of one poll at most, unless its first record alone is larger.
const POLL_BYTES: usize = 4 << 20;

pub(super) struct EmbeddedSource {
    log: Log,
    group: ConsumerGroup,
    topic: Topic,
    partitions: Vec<Partition>,
    /// Where the next poll begins to look for records.
    turn: usize,
    news: Subscription,
    revoked_as_lost: bool,
    faults: Option<Faults>,
    _membership: Membership,
}

#[derive(Debug, Clone, Copy, Default)]
struct Partition {
    state: State,
    paused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Unassigned,
    Assigned,
    /// Being given up: nothing is read any more, commits are still taken.
    Revoked,
    Started {
        next: u64,
    },
}

/// The place of the one member; free again when dropped.
struct Membership {
    members: Members,
    group: ConsumerGroup,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.members.lock().remove(&self.group);
    }
}

impl EmbeddedSource {
    pub(super) fn join(bus: &EmbeddedBus, group: ConsumerGroup) -> Result<Self, Error> {
        const OPERATION: &str = "join group";
        if !bus.members.lock().insert(group) {
            return Err(Error::Fenced {
                operation: OPERATION,
                reason: format!("{} has its one member already", group.name()),
            });
        }
        let membership = Membership {
            members: bus.members.clone(),
            group,
        };
        let topic = group.topic();
        let news = bus
            .log
            .healthy()
            .and_then(|()| bus.log.subscribe(topic.number()))
            .map_err(|error| convert::log_error(OPERATION, &error))?;
        Ok(Self {
            log: bus.log.clone(),
            group,
            topic,
            partitions: vec![Partition::default(); bus.catalogue.partitions(topic) as usize],
            turn: 0,
            news,
            revoked_as_lost: false,
            faults: bus.faults.clone(),
            _membership: membership,
        })
    }

    /// What is to be told before records.
    fn event(&mut self) -> Option<SourceEvent> {
        if let Err(error) = self.log.healthy() {
            return Some(SourceEvent::Fatal(convert::log_error("poll", &error)));
        }
        let all_unassigned = self
            .partitions
            .iter()
            .all(|partition| partition.state == State::Unassigned);
        if all_unassigned {
            return Some(match self.assign() {
                Ok(assigned) => SourceEvent::Assigned(assigned),
                Err(error) => SourceEvent::Fatal(error),
            });
        }
        let revoking = self
            .partitions
            .iter()
            .any(|partition| partition.state == State::Revoked);
        if revoking {
            return None;
        }
        let Revoke { lost } = self.faults.as_ref()?.take_revoke()?;
        self.revoked_as_lost = lost;
        for partition in &mut self.partitions {
            partition.state = State::Revoked;
        }
        Some(SourceEvent::Revoked {
            partitions: (0..).take(self.partitions.len()).collect(),
            lost,
        })
    }

    fn assign(&mut self) -> Result<Vec<AssignedPartition>, Error> {
        let topic = self.topic.number();
        let assigned = (0..)
            .take(self.partitions.len())
            .map(|partition| {
                let committed = self.log.committed(self.group.name(), topic, partition)?;
                Ok(AssignedPartition {
                    partition,
                    committed: committed.map(|committed| Committed {
                        offset: committed.offset,
                        metadata: committed.metadata,
                    }),
                    log_start: self.log.start(topic, partition)?,
                    log_end: self.log.end(topic, partition)?,
                })
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| fatal("assign", &error))?;
        self.revoked_as_lost = false;
        for partition in &mut self.partitions {
            *partition = Partition {
                state: State::Assigned,
                paused: false,
            };
        }
        Ok(assigned)
    }

    /// Records of the next partition in turn that has some.
    fn read(&mut self) -> Result<Option<SourceEvent>, Error> {
        for step in 0..self.partitions.len() {
            let index = (self.turn + step) % self.partitions.len();
            let Partition { state, paused } = self.partitions[index];
            let State::Started { next } = state else { continue };
            let number = number_of(index);
            if paused {
                continue;
            }
            let records = self
                .log
                .read(self.topic.number(), number, next, POLL_RECORDS, POLL_BYTES)
                .map_err(|error| fatal("poll", &error))?;
            let Some(last) = records.last() else { continue };
            self.partitions[index].state = State::Started { next: last.offset + 1 };
            self.turn = index + 1;
            let records = records
                .into_iter()
                .map(|record| convert::log_record(self.topic, number, record));
            return Ok(Some(SourceEvent::Records(records.collect())));
        }
        Ok(None)
    }

    fn partition(&mut self, operation: &'static str, partition: u32) -> Result<&mut Partition, Error> {
        usize::try_from(partition)
            .ok()
            .and_then(|index| self.partitions.get_mut(index))
            .filter(|known| known.state != State::Unassigned)
            .ok_or_else(|| Error::Fenced {
                operation,
                reason: format!("partition {partition} is not assigned"),
            })
    }

    fn set_position(&mut self, operation: &'static str, partition: u32, offset: u64) -> Result<(), Error> {
        let (start, end) = (
            self.log.start(self.topic.number(), partition),
            self.log.end(self.topic.number(), partition),
        );
        let start = start.map_err(|error| convert::log_error(operation, &error))?;
        let end = end.map_err(|error| convert::log_error(operation, &error))?;
        if !(start..=end).contains(&offset) {
            return Err(Error::NotSetUp {
                operation,
                reason: format!(
                    "offset {offset} of {} partition {partition} is outside the log ({start} to {end})",
                    self.topic
                ),
            });
        }
        self.partition(operation, partition)?.state = State::Started { next: offset };
        Ok(())
    }

    fn set_paused(&mut self, operation: &'static str, partitions: &[u32], paused: bool) -> Result<(), Error> {
        for partition in partitions {
            self.partition(operation, *partition)?.paused = paused;
        }
        Ok(())
    }
}

/// Partitions are as many as a `u32` counts.
fn number_of(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// What a failed read means for the source: it does not get over it.
fn fatal(operation: &'static str, error: &tidings_embedded::Error) -> Error {
    Error::Fatal {
        operation,
        reason: error.to_string(),
    }
}

impl Source for EmbeddedSource {
    fn poll(&mut self, timeout: Duration) -> SourceEvent {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.event() {
                return event;
            }
            match self.read() {
                Ok(Some(records)) => return records,
                Ok(None) => {}
                Err(error) => return SourceEvent::Fatal(error),
            }
            let now = Instant::now();
            if now >= deadline {
                return SourceEvent::Idle;
            }
            // Growth since the last look wakes at once; that of a paused partition once per commit of the log.
            self.news.wait(deadline - now);
        }
    }

    fn start(&mut self, partition: u32, offset: u64) -> Result<(), Error> {
        const OPERATION: &str = "start";
        match self.partition(OPERATION, partition)?.state {
            State::Assigned | State::Started { .. } => self.set_position(OPERATION, partition, offset),
            State::Revoked | State::Unassigned => Err(Error::Fenced {
                operation: OPERATION,
                reason: format!("partition {partition} is being revoked"),
            }),
        }
    }

    fn finish_revoke(&mut self, partitions: &[u32]) -> Result<(), Error> {
        for partition in partitions {
            *self.partition("finish revoke", *partition)? = Partition::default();
        }
        Ok(())
    }

    fn pause(&mut self, partitions: &[u32]) -> Result<(), Error> {
        self.set_paused("pause", partitions, true)
    }

    fn resume(&mut self, partitions: &[u32]) -> Result<(), Error> {
        self.set_paused("resume", partitions, false)
    }

    fn seek(&mut self, partition: u32, offset: u64) -> Result<(), Error> {
        const OPERATION: &str = "seek";
        match self.partition(OPERATION, partition)?.state {
            State::Started { .. } => self.set_position(OPERATION, partition, offset),
            State::Assigned | State::Revoked | State::Unassigned => Err(Error::Fenced {
                operation: OPERATION,
                reason: format!("partition {partition} is not started"),
            }),
        }
    }

    /// Both modes write at once; neither waits for a sync, see the module's guarantee.
    fn commit(&mut self, commits: &[Commit], _mode: CommitMode) -> Result<(), Error> {
        const OPERATION: &str = "commit";
        if self.revoked_as_lost {
            return Err(Error::Fenced {
                operation: OPERATION,
                reason: "the partitions are lost".to_owned(),
            });
        }
        for commit in commits {
            self.partition(OPERATION, commit.partition)?;
        }
        if self.faults.as_ref().is_some_and(Faults::take_failing_commit) {
            return Err(Error::Unavailable {
                operation: OPERATION,
                reason: "a test wants it to fail".to_owned(),
            });
        }
        let commits: Vec<GroupCommit> = commits
            .iter()
            .map(|commit| GroupCommit {
                partition: commit.partition,
                offset: commit.offset,
                metadata: commit.metadata.clone(),
            })
            .collect();
        self.log
            .commit_offsets(self.group.name(), self.topic.number(), &commits)
            .map_err(|error| convert::log_error(OPERATION, &error))
    }

    fn log_ends(&self, partitions: &[u32]) -> Vec<Option<u64>> {
        partitions
            .iter()
            .map(|partition| self.log.end(self.topic.number(), *partition).ok())
            .collect()
    }

    fn close(self: Box<Self>, _deadline: Duration) {
        // Dropped: the membership ends, the next member starts at the committed offsets.
    }
}
