//! Writes that something waits for: dead letters and reports of resolved replays.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::shared_producer::InternalProducer;
use crate::producer::{Confirmation, DeliverySink, ProduceError};
use crate::record::OutRecord;

#[derive(Default)]
struct Reports {
    results: Vec<Option<Result<Confirmation, ProduceError>>>,
    missing: usize,
}

#[derive(Default)]
struct Sink {
    reports: Mutex<Reports>,
    complete: Notify,
}

impl DeliverySink for Sink {
    fn delivered(&self, tag: u64, result: Result<Confirmation, ProduceError>) {
        let mut reports = self.reports.lock();
        // Tags are indices of the batch, see `write`.
        let slot = usize::try_from(tag).ok().and_then(|tag| reports.results.get_mut(tag));
        if let Some(slot @ None) = slot {
            *slot = Some(result);
            reports.missing -= 1;
            if reports.missing == 0 {
                self.complete.notify_one();
            }
        }
    }
}

/// Writes `records` and waits for their confirmations, at most `limit` without any. One result per record, in order.
/// An error that may have cost records fails the generation of the producer (seq:G3).
pub(super) async fn write(
    producer: &InternalProducer,
    records: Vec<OutRecord>,
    limit: Duration,
) -> Vec<Result<(), ProduceError>> {
    let count = records.len();
    let lease = match producer.lease() {
        Ok(lease) => lease,
        Err(error) => return vec![Err(ProduceError::Refused(error.to_string())); count],
    };
    let sink = Arc::new(Sink {
        reports: Mutex::new(Reports {
            results: vec![None; count],
            missing: count,
        }),
        complete: Notify::new(),
    });
    let shared: Arc<dyn DeliverySink> = Arc::clone(&sink) as Arc<dyn DeliverySink>;
    for (tag, record) in (0u64..).zip(records) {
        if let Err(refused) = lease.producer().enqueue(record, &shared, tag) {
            sink.delivered(tag, Err(refused.error));
        }
    }
    let deadline = Instant::now() + limit;
    let complete = async {
        while sink.reports.lock().missing > 0 {
            sink.complete.notified().await;
        }
    };
    tokio::select! {
        biased;
        // Elapsed: what is missing then is told below.
        _ = timeout_at(deadline, complete) => {}
        () = lease.broken().cancelled() => {}
    }
    let results: Vec<Result<(), ProduceError>> = sink
        .reports
        .lock()
        .results
        .iter()
        .map(|report| match report {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(error.clone()),
            None => Err(ProduceError::Unknown("no report came".to_owned())),
        })
        .collect();
    let broken = results.iter().any(|result| match result {
        Ok(()) | Err(ProduceError::QueueFull | ProduceError::TooLarge(_)) => false,
        Err(ProduceError::Unknown(_) | ProduceError::Refused(_) | ProduceError::Fatal(_)) => true,
    });
    if broken {
        producer.fail(lease.generation());
    }
    results
}
