//! A bus that looks at each push when it is sent: its rows must be readable by then (seq:I6).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use parking_lot::Mutex;
use tidings_bus::embedded::EmbeddedBus;
use tidings_bus::producer::{DeliverySink, NotEnqueued, Producer, ProducerProfile};
use tidings_bus::source::Source;
use tidings_bus::{BrokerTime, Bus, Catalogue, ConsumerGroup, Error, OutRecord};
use tidings_domain::Topic;
use tidings_proto::record::Push;
use tidings_storage::embedded::EmbeddedStore;
use tidings_storage::port::InboxReader;

pub(crate) type Violations = Arc<Mutex<Vec<String>>>;

pub(crate) struct ProbedBus {
    inner: Arc<EmbeddedBus>,
    store: Arc<EmbeddedStore>,
    pub(crate) violations: Violations,
}

impl ProbedBus {
    pub(crate) fn new(inner: Arc<EmbeddedBus>, store: Arc<EmbeddedStore>) -> Self {
        Self {
            inner,
            store,
            violations: Arc::default(),
        }
    }
}

#[async_trait]
impl Bus for ProbedBus {
    fn catalogue(&self) -> &Catalogue {
        self.inner.catalogue()
    }

    fn producer(&self, profile: ProducerProfile) -> Result<Arc<dyn Producer>, Error> {
        Ok(Arc::new(ProbedProducer {
            inner: self.inner.producer(profile)?,
            store: self.store.clone(),
            violations: self.violations.clone(),
        }))
    }

    fn source(&self, group: ConsumerGroup) -> Result<Box<dyn Source>, Error> {
        self.inner.source(group)
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

struct ProbedProducer {
    inner: Arc<dyn Producer>,
    store: Arc<EmbeddedStore>,
    violations: Violations,
}

impl ProbedProducer {
    fn check(&self, push: &Push) {
        for (uid, user_seq) in &push.targets {
            // The embedded store answers at once.
            let rows = self.store.rows_after(uid, user_seq - 1, 1).now_or_never();
            let readable = matches!(rows, Some(Ok(rows)) if rows.first().is_some_and(|row| row.seq == *user_seq));
            if !readable {
                self.violations.lock().push(format!("{} {user_seq}", uid.as_str()));
            }
        }
    }
}

#[async_trait]
impl Producer for ProbedProducer {
    fn enqueue(&self, record: OutRecord, sink: &Arc<dyn DeliverySink>, tag: u64) -> Result<(), Box<NotEnqueued>> {
        if record.topic == Topic::Push {
            match Push::decode(record.value.as_ref()) {
                Ok(push) => self.check(&push),
                Err(error) => self.violations.lock().push(error.to_string()),
            }
        }
        self.inner.enqueue(record, sink, tag)
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
