//! Step 1: topic `dlq` to table `dead_letter` (req:E3).
//!
//! Idempotent by the origin's position: a record taken in twice keeps its state. A `Resolved` record moves its entry. A
//! record without the headers of a dead letter is kept too, as an entry of class `foreign` named by its own position:
//! nothing in this topic is dropped.

use std::sync::Arc;

use async_trait::async_trait;
use prost::Message as _;
use tidings_bus::dead_letter::{self, Rejection};
use tidings_bus::handler::{Cause, Handler, Outcome};
use tidings_bus::{ConsumerGroup, LogRecord};
use tidings_domain::Topic;
use tidings_domain::clock::Millis;
use tidings_proto::v1::DlqResolved;
use tidings_resilience::{Classify, ErrorClass};
use tidings_storage::Error as StorageError;
use tidings_storage::port::{DeadLetterRow, DeadLetterState, DeadLetterStore};

use crate::metrics::{Metrics, TakenIn, class_label};

/// Takes dead letters in.
pub struct Intake {
    store: Arc<dyn DeadLetterStore>,
    metrics: Metrics,
}

impl Intake {
    /// A handler over `store`.
    #[must_use]
    pub fn new(store: Arc<dyn DeadLetterStore>, metrics: Metrics) -> Self {
        Self { store, metrics }
    }

    async fn resolve(&self, record: &LogRecord) -> Outcome {
        let Some(Ok(resolved)) = record.value.clone().map(DlqResolved::decode) else {
            return Outcome::Reject(Rejection {
                error_class: "decode",
                detail: "the record says resolved but carries no readable DlqResolved".to_owned(),
                stage: "decode",
            });
        };
        match self.store.set_state(&resolved.dlq_id, DeadLetterState::Resolved).await {
            Ok(true) => {
                self.metrics.resolved.inc();
                Outcome::Done
            }
            Ok(false) => {
                // Taken in under another partition and not yet there, or archived already: try again a few times.
                Outcome::RetryLater(Cause {
                    error_class: "unknown_dead_letter",
                    detail: format!("no entry {}", resolved.dlq_id),
                    dependency_down: false,
                })
            }
            Err(error) => failed(&error),
        }
    }
}

/// A record of `dlq` has nowhere to be rejected to, so every failure of the store is waited for, also one that an operator
/// must mend: the lag and its age show it.
fn failed(error: &StorageError) -> Outcome {
    let error_class = match error.class() {
        ErrorClass::Transient => "store_unavailable",
        ErrorClass::Permanent => "store_refused",
    };
    Outcome::RetryLater(Cause {
        error_class,
        detail: error.to_string(),
        dependency_down: true,
    })
}

/// The entry of a `dlq` record.
fn row_of(record: &LogRecord) -> DeadLetterRow {
    let headers = &record.headers;
    let text = |name| dead_letter::text(headers, name);
    let number = |name| dead_letter::decimal(headers, name);
    let millis = |name| number(name).map_or(record.append_time, Millis);
    let count = |name| number(name).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    let own_id = || {
        format!(
            "{}/{}/{}/{}",
            record.topic,
            record.partition,
            record.offset,
            ConsumerGroup::DeadLetterCompensator.name()
        )
    };
    let origin_topic =
        text(dead_letter::ORIG_TOPIC).and_then(|name| Topic::ALL.into_iter().find(|topic| topic.short_name() == name));
    let foreign = origin_topic.is_none() || headers.get(dead_letter::DLQ_ID).is_none();
    DeadLetterRow {
        dlq_id: if foreign {
            own_id()
        } else {
            text(dead_letter::DLQ_ID).unwrap_or_else(own_id)
        },
        topic: origin_topic.unwrap_or(record.topic),
        partition: number(dead_letter::ORIG_PARTITION)
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(record.partition),
        offset: number(dead_letter::ORIG_OFFSET)
            .and_then(|n| u64::try_from(n).ok())
            .unwrap_or(record.offset),
        origin_time: millis(dead_letter::ORIG_TIMESTAMP),
        group: text(dead_letter::ORIG_GROUP).unwrap_or_default(),
        key: record.key.clone(),
        value: record.value.clone(),
        headers: dead_letter::header_list(headers),
        error_class: if foreign {
            "foreign".to_owned()
        } else {
            text(dead_letter::ERROR_CLASS).unwrap_or_else(|| "unknown".to_owned())
        },
        error_detail: text(dead_letter::ERROR_DETAIL).unwrap_or_default(),
        attempts: count(dead_letter::ATTEMPTS),
        first_failed_at: millis(dead_letter::FIRST_FAILED_AT),
        last_failed_at: millis(dead_letter::LAST_FAILED_AT),
        replay_count: count(dead_letter::REPLAY_COUNT),
        state: DeadLetterState::New,
    }
}

#[async_trait]
impl Handler for Intake {
    async fn handle(&self, batch: &[LogRecord]) -> Vec<Outcome> {
        let is_resolved = |record: &LogRecord| record.headers.get(dead_letter::RESOLVED).is_some();
        let rows: Vec<DeadLetterRow> = batch.iter().filter(|record| !is_resolved(record)).map(row_of).collect();
        let mut taken = rows.iter().zip(self.store.take_in(&rows).await);
        let mut outcomes = Vec::with_capacity(batch.len());
        for record in batch {
            if is_resolved(record) {
                outcomes.push(self.resolve(record).await);
                continue;
            }
            outcomes.push(match taken.next() {
                Some((row, Ok(true))) => {
                    self.metrics
                        .taken_in
                        .get_or_create(&TakenIn {
                            topic: row.topic.short_name(),
                            error_class: class_label(&row.error_class),
                        })
                        .inc();
                    if row.error_class == "foreign" {
                        self.metrics.foreign.inc();
                    }
                    Outcome::Done
                }
                Some((_, Ok(false))) => {
                    self.metrics.repeated.inc();
                    Outcome::Done
                }
                Some((_, Err(error))) => failed(&error),
                None => Outcome::RetryLater(Cause {
                    error_class: "store_unavailable",
                    detail: "the store did not answer for this row".to_owned(),
                    dependency_down: true,
                }),
            });
        }
        outcomes
    }
}
