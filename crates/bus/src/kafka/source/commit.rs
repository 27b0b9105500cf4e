//! Commits: explicit positions with their metadata, made one after the other on a thread of their own.
//!
//! The client's own ways do not do: its asynchronous commit tells nobody that it failed (the event interface has no
//! answer for it) and may be repeated after a later one; its synchronous one waits without a bound, with the
//! coordinator away for the session time-out and more. Here positions never go back, every failure is told, and the
//! thread that polls waits at most [`COMMIT_WITHIN`].

use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, CommitMode as NativeCommitMode, Consumer};

use super::{KafkaSource, fenced, native_offset};
use crate::Error;
use crate::kafka::error::bus_error;
use crate::kafka::lookup::native_partition;
use crate::kafka::rebalance::{Context, Shared};
use crate::source::{Commit, CommitMode};

/// A revocation is to be answered within 10 s, its commit with it (architecture.md section 5).
const COMMIT_WITHIN: Duration = Duration::from_secs(8);
/// Commits not answered yet; one that finds no room is covered by the next.
const MAX_QUEUED: usize = 4;
const QUEUE_PAUSE: Duration = Duration::from_millis(5);
/// What the group keeps beside an offset at most (`offset.metadata.max.bytes` of the broker).
const MAX_METADATA_BYTES: usize = 4096;
const COMMITTING: &str = "committing";

type Answer = Result<(), Error>;

struct Request {
    list: TopicPartitionList,
    /// [`Shared::revocations`] when it was asked for.
    revocations: u64,
    /// Absent if nobody waits: then a failure is told by the next poll.
    answer: Option<SyncSender<Answer>>,
}

/// The client with the thread that commits.
pub(in crate::kafka) struct Client {
    consumer: Arc<BaseConsumer<Context>>,
    /// Present until the drop.
    requests: Option<SyncSender<Request>>,
    committer: Option<JoinHandle<()>>,
}

impl Client {
    pub(super) fn new(consumer: BaseConsumer<Context>, shared: Arc<Shared>) -> Result<Self, Error> {
        let consumer = Arc::new(consumer);
        // Weak, so that the client is closed by the drop below and nowhere else.
        let weak = Arc::downgrade(&consumer);
        let (requests, queue) = mpsc::sync_channel(MAX_QUEUED);
        let committer = thread::Builder::new()
            .name("kafka-commit".to_owned())
            .spawn(move || {
                for request in queue {
                    commit(&weak, request, &shared);
                }
            })
            .map_err(|error| unavailable(format!("no thread: {error}")))?;
        Ok(Self {
            consumer,
            requests: Some(requests),
            committer: Some(committer),
        })
    }

    pub(super) fn consumer(&self) -> &BaseConsumer<Context> {
        &self.consumer
    }

    fn request(&self, mut request: Request, until: Instant) -> Answer {
        let Some(requests) = &self.requests else {
            return Err(unavailable("the client is closed".to_owned()));
        };
        loop {
            request = match requests.try_send(request) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(request)) => request,
                Err(TrySendError::Disconnected(_)) => return Err(unavailable("the thread has ended".to_owned())),
            };
            if Instant::now() >= until {
                return Err(unavailable(format!("{MAX_QUEUED} commits are not answered yet")));
            }
            thread::sleep(QUEUE_PAUSE);
        }
    }
}

/// Blocks while a commit is under way and while the group is left: done on a thread of its own.
impl Drop for Client {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(committer) = self.committer.take()
            && committer.join().is_err()
        {
            tracing::error!("the thread that commits panicked");
        }
    }
}

fn commit(consumer: &Weak<BaseConsumer<Context>>, request: Request, shared: &Shared) {
    let Some(consumer) = consumer.upgrade() else {
        return;
    };
    let result = if request.revocations == shared.revocations() {
        consumer
            .commit(&request.list, NativeCommitMode::Sync)
            .map_err(|error| bus_error(COMMITTING, &error))
    } else {
        Err(Error::Fenced {
            operation: COMMITTING,
            reason: "partitions were revoked meanwhile".to_owned(),
        })
    };
    match request.answer {
        // Nobody waits any more once its time is over.
        Some(answer) => drop(answer.try_send(result)),
        None => {
            if let Err(error) = result {
                shared.commit_failed(error);
            }
        }
    }
}

impl KafkaSource {
    pub(super) fn commit_positions(&self, commits: &[Commit], mode: CommitMode) -> Result<(), Error> {
        if commits.is_empty() {
            return Ok(());
        }
        let list = self.positions(commits)?;
        let revocations = self.shared.revocations();
        match mode {
            CommitMode::Async => {
                let request = Request {
                    list,
                    revocations,
                    answer: None,
                };
                self.client.request(request, Instant::now())
            }
            CommitMode::Sync => {
                let until = Instant::now() + COMMIT_WITHIN;
                let (sender, answer) = mpsc::sync_channel(1);
                let request = Request {
                    list,
                    revocations,
                    answer: Some(sender),
                };
                self.client.request(request, until)?;
                answer
                    .recv_timeout(until.saturating_duration_since(Instant::now()))
                    .unwrap_or_else(|_| Err(unavailable(format!("no answer within {COMMIT_WITHIN:?}"))))
            }
        }
    }

    fn positions(&self, commits: &[Commit]) -> Result<TopicPartitionList, Error> {
        let mut list = TopicPartitionList::with_capacity(commits.len());
        for commit in commits {
            if !self.assigned.contains_key(&commit.partition) {
                return Err(fenced(
                    COMMITTING,
                    commit.partition,
                    "it is not assigned to this member",
                ));
            }
            if commit.metadata.len() > MAX_METADATA_BYTES {
                return Err(Error::NotSetUp {
                    operation: COMMITTING,
                    reason: format!(
                        "metadata of {} bytes, at most {MAX_METADATA_BYTES} are kept",
                        commit.metadata.len()
                    ),
                });
            }
            let mut element = list.add_partition(&self.name, native_partition(commit.partition));
            element
                .set_offset(native_offset(COMMITTING, commit.offset)?)
                .map_err(|error| bus_error(COMMITTING, &error))?;
            element.set_metadata(&commit.metadata);
        }
        Ok(list)
    }
}

fn unavailable(reason: String) -> Error {
    Error::Unavailable {
        operation: COMMITTING,
        reason,
    }
}
