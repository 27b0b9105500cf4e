//! A bus that breaks on demand, around any adapter, so that faults come at the same points in all of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidings_bus::producer::{Confirmation, DeliverySink, NotEnqueued, ProduceError, Producer, ProducerProfile};
use tidings_bus::source::{Commit, CommitMode, Source, SourceEvent};
use tidings_bus::{BrokerTime, Bus, Catalogue, ConsumerGroup, Error, OutRecord};
use tidings_domain::Topic;

/// What happens to one record.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// Not written and reported so, while later ones are written: a loss in the middle.
    Lose,
    /// Written, but the report says that the outcome is not known.
    FailReport,
    /// Written and confirmed without an offset.
    HideOffset,
}

type HeldReport = (Arc<dyn DeliverySink>, u64, Result<Confirmation, ProduceError>);

#[derive(Default)]
struct State {
    orders: Vec<(Topic, Fault)>,
    holding: Option<Topic>,
    held: VecDeque<HeldReport>,
    severed: bool,
    commits: Vec<(ConsumerGroup, Commit)>,
    delivered: usize,
    producers: usize,
}

/// A bus with faults. Clones share them.
#[derive(Clone)]
pub(crate) struct FaultyBus {
    inner: Arc<dyn Bus>,
    state: Arc<Mutex<State>>,
}

impl FaultyBus {
    pub(crate) fn new(inner: Arc<dyn Bus>) -> Self {
        Self {
            inner,
            state: Arc::default(),
        }
    }

    /// Breaks the next record to `topic`.
    pub(crate) fn order(&self, topic: Topic, fault: Fault) {
        self.state.lock().orders.push((topic, fault));
    }

    /// Keeps the reports of records to `topic` back until released.
    pub(crate) fn hold_reports(&self, topic: Topic) {
        self.state.lock().holding = Some(topic);
    }

    pub(crate) fn held_reports(&self) -> usize {
        self.state.lock().held.len()
    }

    pub(crate) fn release_reports(&self) {
        let held = {
            let mut state = self.state.lock();
            state.holding = None;
            std::mem::take(&mut state.held)
        };
        for (sink, tag, result) in held {
            sink.delivered(tag, result);
        }
    }

    /// From now on no commit of this bus arrives: the process is dead as far as the group can tell.
    pub(crate) fn sever(&self) {
        self.state.lock().severed = true;
    }

    /// The last position committed.
    pub(crate) fn committed(&self, group: ConsumerGroup, partition: u32) -> Option<Commit> {
        let state = self.state.lock();
        let mut commits = state.commits.iter().rev();
        commits
            .find(|(of, commit)| *of == group && commit.partition == partition)
            .map(|(_, commit)| commit.clone())
    }

    /// All positions committed by the group, in order.
    pub(crate) fn commits(&self, group: ConsumerGroup) -> Vec<Commit> {
        let state = self.state.lock();
        let of_group = state.commits.iter().filter(|(of, _)| *of == group);
        of_group.map(|(_, commit)| commit.clone()).collect()
    }

    /// Records that sources have delivered.
    pub(crate) fn delivered(&self) -> usize {
        self.state.lock().delivered
    }

    /// Internal producers opened.
    pub(crate) fn producers(&self) -> usize {
        self.state.lock().producers
    }
}

#[async_trait]
impl Bus for FaultyBus {
    fn catalogue(&self) -> &Catalogue {
        self.inner.catalogue()
    }

    fn producer(&self, profile: ProducerProfile) -> Result<Arc<dyn Producer>, Error> {
        if profile == ProducerProfile::Internal {
            self.state.lock().producers += 1;
        }
        Ok(Arc::new(FaultyProducer {
            inner: self.inner.producer(profile)?,
            state: Arc::clone(&self.state),
        }))
    }

    fn source(&self, group: ConsumerGroup) -> Result<Box<dyn Source>, Error> {
        Ok(Box::new(FaultySource {
            inner: self.inner.source(group)?,
            group,
            state: Arc::clone(&self.state),
        }))
    }

    fn broker_time(&self) -> &BrokerTime {
        self.inner.broker_time()
    }

    async fn check_topics(&self, topics: &[Topic]) -> Result<Vec<String>, Error> {
        self.inner.check_topics(topics).await
    }

    async fn apply_topics(&self) -> Result<Vec<String>, Error> {
        self.inner.apply_topics().await
    }
}

struct FaultyProducer {
    inner: Arc<dyn Producer>,
    state: Arc<Mutex<State>>,
}

/// Changes a report on its way, or keeps it back.
struct FaultySink {
    sink: Arc<dyn DeliverySink>,
    topic: Topic,
    fault: Option<Fault>,
    state: Arc<Mutex<State>>,
}

fn unknown() -> ProduceError {
    ProduceError::Unknown("ordered by the test".to_owned())
}

impl DeliverySink for FaultySink {
    fn delivered(&self, tag: u64, result: Result<Confirmation, ProduceError>) {
        let result = match self.fault {
            Some(Fault::Lose | Fault::FailReport) => Err(unknown()),
            Some(Fault::HideOffset) => result.map(|confirmation| Confirmation {
                offset: None,
                ..confirmation
            }),
            None => result,
        };
        let mut state = self.state.lock();
        if state.holding == Some(self.topic) {
            state.held.push_back((Arc::clone(&self.sink), tag, result));
            return;
        }
        drop(state);
        self.sink.delivered(tag, result);
    }
}

#[async_trait]
impl Producer for FaultyProducer {
    fn enqueue(&self, record: OutRecord, sink: &Arc<dyn DeliverySink>, tag: u64) -> Result<(), Box<NotEnqueued>> {
        let (fault, holding) = {
            let mut state = self.state.lock();
            let at = state.orders.iter().position(|(topic, _)| *topic == record.topic);
            (
                at.map(|at| state.orders.remove(at).1),
                state.holding == Some(record.topic),
            )
        };
        if fault.is_none() && !holding {
            return self.inner.enqueue(record, sink, tag);
        }
        if matches!(fault, Some(Fault::Lose)) {
            // A client reports on its own thread, never within `enqueue`.
            let sink = Arc::clone(sink);
            thread::spawn(move || sink.delivered(tag, Err(unknown())));
            return Ok(());
        }
        let faulty: Arc<dyn DeliverySink> = Arc::new(FaultySink {
            sink: Arc::clone(sink),
            topic: record.topic,
            fault,
            state: Arc::clone(&self.state),
        });
        self.inner.enqueue(record, &faulty, tag)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn health(&self) -> Result<(), String> {
        self.inner.health()
    }

    async fn flush(&self, deadline: Duration) -> usize {
        self.inner.flush(deadline).await
    }
}

struct FaultySource {
    inner: Box<dyn Source>,
    group: ConsumerGroup,
    state: Arc<Mutex<State>>,
}

impl Source for FaultySource {
    fn poll(&mut self, timeout: Duration) -> SourceEvent {
        let event = self.inner.poll(timeout);
        if let SourceEvent::Records(records) = &event {
            self.state.lock().delivered += records.len();
        }
        event
    }

    fn start(&mut self, partition: u32, offset: u64) -> Result<(), Error> {
        self.inner.start(partition, offset)
    }

    fn finish_revoke(&mut self, partitions: &[u32]) -> Result<(), Error> {
        self.inner.finish_revoke(partitions)
    }

    fn pause(&mut self, partitions: &[u32]) -> Result<(), Error> {
        self.inner.pause(partitions)
    }

    fn resume(&mut self, partitions: &[u32]) -> Result<(), Error> {
        self.inner.resume(partitions)
    }

    fn seek(&mut self, partition: u32, offset: u64) -> Result<(), Error> {
        self.inner.seek(partition, offset)
    }

    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), Error> {
        if self.state.lock().severed {
            return Ok(());
        }
        self.inner.commit(commits, mode)?;
        let mut state = self.state.lock();
        state
            .commits
            .extend(commits.iter().map(|commit| (self.group, commit.clone())));
        Ok(())
    }

    fn log_ends(&self, partitions: &[u32]) -> Vec<Option<u64>> {
        self.inner.log_ends(partitions)
    }

    fn close(self: Box<Self>, deadline: Duration) {
        self.inner.close(deadline);
    }
}
