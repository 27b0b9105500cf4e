//! Writes records straight into topics, past all services: also such as no service would write.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use parking_lot::Mutex;
use tidings_bus::kafka::{KafkaBus, KafkaConfig};
use tidings_bus::producer::{Confirmation, DeliverySink, ProduceError, Producer, ProducerProfile};
use tidings_bus::{Bus, Catalogue, Headers, OutRecord};
use tidings_domain::Topic;
use tidings_domain::clock::SystemClock;
use tokio::sync::oneshot;

type Report = Result<Confirmation, ProduceError>;

/// A producer of any records.
pub struct RecordWriter {
    producer: Arc<dyn Producer>,
}

struct Answer(Mutex<Option<oneshot::Sender<Report>>>);

impl DeliverySink for Answer {
    fn delivered(&self, _tag: u64, result: Report) {
        if let Some(waiting) = self.0.lock().take() {
            // The one who asked may have given up.
            let _ = waiting.send(result);
        }
    }
}

/// A bus on these brokers.
pub fn bus(bootstrap: &str, catalogue: Catalogue) -> Result<KafkaBus> {
    let config = KafkaConfig::new(bootstrap.split(','));
    KafkaBus::new(config, catalogue, Arc::new(SystemClock)).context("making a bus")
}

impl RecordWriter {
    /// A writer to the topics of `catalogue`.
    pub fn new(bootstrap: &str, catalogue: Catalogue) -> Result<Self> {
        let producer = bus(bootstrap, catalogue)?.producer(ProducerProfile::Ack)?;
        Ok(Self { producer })
    }

    /// Writes a record and gives the broker's word.
    pub async fn write(&self, topic: Topic, partition: u32, key: &[u8], value: Option<&[u8]>) -> Result<Confirmation> {
        let record = OutRecord {
            topic,
            partition,
            key: Some(Bytes::copy_from_slice(key)),
            value: value.map(Bytes::copy_from_slice),
            headers: Headers::new(),
        };
        self.write_record(record).await
    }

    /// Writes a record with headers.
    pub async fn write_record(&self, record: OutRecord) -> Result<Confirmation> {
        let (answer, report) = oneshot::channel();
        let sink: Arc<dyn DeliverySink> = Arc::new(Answer(Mutex::new(Some(answer))));
        self.producer
            .enqueue(record, &sink, 0)
            .map_err(|refused| anyhow!("not enqueued: {}", refused.error))?;
        Ok(report.await.context("the producer is gone")??)
    }
}
