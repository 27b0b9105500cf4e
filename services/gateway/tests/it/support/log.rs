//! A log whose confirmations the test decides.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidings_bus::catalogue::{Durability, PartitionCounts};
use tidings_bus::producer::{Confirmation, DeliverySink, NotEnqueued, ProduceError, Producer, ProducerProfile};
use tidings_bus::source::Source;
use tidings_bus::{BrokerTime, Bus, Catalogue, ConsumerGroup, Error, OutRecord};
use tidings_domain::Topic;
use tidings_domain::clock::{Millis, SharedClock};
use tidings_proto::record::{DeviceState, Inbox, Ingress};

use super::{NOW, eventually};

struct Entry {
    record: OutRecord,
    sink: Arc<dyn DeliverySink>,
    tag: u64,
    reported: bool,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    held: BTreeSet<Topic>,
    refusals: VecDeque<ProduceError>,
}

/// Confirms at once, unless told to hold a topic.
pub(crate) struct Log {
    catalogue: Catalogue,
    broker_time: BrokerTime,
    state: Arc<Mutex<State>>,
}

/// Broker time of the record at this place of its topic.
pub(crate) fn append_time(index: usize) -> Millis {
    Millis(NOW.get() + 500 + i64::try_from(index).expect("small"))
}

impl Log {
    pub(crate) fn new(clock: SharedClock) -> Self {
        Self {
            catalogue: Catalogue::new(Durability::Single, PartitionCounts::DEV),
            broker_time: BrokerTime::new(clock),
            state: Arc::default(),
        }
    }

    /// From now on records of the topic wait for [`Self::confirm`] or [`Self::fail`].
    pub(crate) fn hold(&self, topic: Topic) {
        self.state.lock().held.insert(topic);
    }

    /// The next enqueue is refused with this.
    pub(crate) fn refuse_next(&self, error: ProduceError) {
        self.state.lock().refusals.push_back(error);
    }

    pub(crate) fn confirm(&self, topic: Topic, index: usize) {
        self.report(
            topic,
            index,
            Ok(Confirmation {
                offset: Some(index as u64),
                append_time: Some(append_time(index)),
            }),
        );
    }

    pub(crate) fn fail(&self, topic: Topic, index: usize, error: ProduceError) {
        self.report(topic, index, Err(error));
    }

    /// Confirms everything that waits and stops holding.
    pub(crate) fn release(&self, topic: Topic) {
        self.state.lock().held.remove(&topic);
        for index in 0..self.records(topic).len() {
            if !self.is_reported(topic, index) {
                self.confirm(topic, index);
            }
        }
    }

    fn is_reported(&self, topic: Topic, index: usize) -> bool {
        let state = self.state.lock();
        state
            .entries
            .iter()
            .filter(|entry| entry.record.topic == topic)
            .nth(index)
            .is_some_and(|e| e.reported)
    }

    fn report(&self, topic: Topic, index: usize, result: Result<Confirmation, ProduceError>) {
        let (sink, tag) = {
            let mut state = self.state.lock();
            let mut of_topic = state.entries.iter_mut().filter(|entry| entry.record.topic == topic);
            let entry = of_topic.nth(index).expect("a record to report");
            assert!(!std::mem::replace(&mut entry.reported, true), "reported twice");
            (entry.sink.clone(), entry.tag)
        };
        sink.delivered(tag, result);
    }

    /// The records of a topic in order.
    pub(crate) fn records(&self, topic: Topic) -> Vec<OutRecord> {
        let state = self.state.lock();
        let of_topic = state.entries.iter().filter(|entry| entry.record.topic == topic);
        of_topic.map(|entry| entry.record.clone()).collect()
    }

    /// Waits until the topic has `count` records.
    pub(crate) async fn wait(&self, topic: Topic, count: usize) -> Vec<OutRecord> {
        eventually("records in the log", async || self.records(topic).len() >= count).await;
        self.records(topic)
    }

    /// The actions in the log.
    pub(crate) fn actions(&self) -> Vec<Ingress> {
        let decode = |record: &OutRecord| Ingress::decode(record.value.as_ref()).expect("an ingress record");
        self.records(Topic::Ingress).iter().map(decode).collect()
    }

    /// The device states in the log.
    pub(crate) fn device_states(&self) -> Vec<DeviceState> {
        let decode = |record: &OutRecord| match Inbox::decode(record.value.as_ref()).expect("an inbox record") {
            Inbox::DeviceState(state) => state,
            Inbox::Append(append) => panic!("the gateway appended {append:?}"),
        };
        self.records(Topic::Inbox).iter().map(decode).collect()
    }
}

struct ScriptedProducer(Arc<Mutex<State>>);

#[async_trait]
impl Producer for ScriptedProducer {
    fn enqueue(&self, record: OutRecord, sink: &Arc<dyn DeliverySink>, tag: u64) -> Result<(), Box<NotEnqueued>> {
        let mut state = self.0.lock();
        if let Some(error) = state.refusals.pop_front() {
            return Err(Box::new(NotEnqueued { record, error }));
        }
        let topic = record.topic;
        let held = state.held.contains(&topic);
        let index = state.entries.iter().filter(|entry| entry.record.topic == topic).count();
        state.entries.push(Entry {
            record,
            sink: sink.clone(),
            tag,
            reported: !held,
        });
        drop(state);
        if !held {
            sink.delivered(
                tag,
                Ok(Confirmation {
                    offset: Some(index as u64),
                    append_time: Some(append_time(index)),
                }),
            );
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.0.lock().entries.iter().filter(|entry| !entry.reported).count()
    }

    fn health(&self) -> Result<(), String> {
        Ok(())
    }

    async fn flush(&self, deadline: Duration) -> usize {
        // Nothing is pending here but what the test holds; there is no use in waiting for that.
        let _ = deadline;
        self.in_flight()
    }
}

#[async_trait]
impl Bus for Log {
    fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    fn producer(&self, profile: ProducerProfile) -> Result<Arc<dyn Producer>, Error> {
        assert_eq!(profile, ProducerProfile::Ack);
        Ok(Arc::new(ScriptedProducer(self.state.clone())))
    }

    fn source(&self, group: ConsumerGroup) -> Result<Box<dyn Source>, Error> {
        panic!("the gateway consumes nothing, it asked for {}", group.name())
    }

    fn broker_time(&self) -> &BrokerTime {
        &self.broker_time
    }

    async fn check_topics(&self, _topics: &[Topic]) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    async fn apply_topics(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }
}
