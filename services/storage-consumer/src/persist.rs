//! Step 1: topic `history` to tables `history` and `locator`.
//!
//! A record is done when both rows are durable. Writes are upserts with the record's append time as write timestamp, so
//! a repeated record writes the same cells (req:A4, req:E1).

use std::sync::Arc;

use async_trait::async_trait;
use tidings_bus::LogRecord;
use tidings_bus::dead_letter::Rejection;
use tidings_bus::handler::{Cause, Handler, Outcome};
use tidings_proto::record::History;
use tidings_resilience::{Classify, ErrorClass};
use tidings_storage::Error as StorageError;
use tidings_storage::port::{HistoryRow, HistoryStore, LocatorRow};

use crate::metrics::{Metrics, Table, WriteResult};

/// Writes sequenced messages.
pub struct Persist {
    store: Arc<dyn HistoryStore>,
    metrics: Metrics,
}

impl Persist {
    /// A handler over `store`.
    #[must_use]
    pub fn new(store: Arc<dyn HistoryStore>, metrics: Metrics) -> Self {
        Self { store, metrics }
    }

    fn outcome(&self, table: Table, result: Result<(), StorageError>) -> Outcome {
        match result {
            Ok(()) => {
                self.metrics.persisted(table, WriteResult::Ok);
                Outcome::Done
            }
            Err(error) => match error.class() {
                ErrorClass::Transient => {
                    self.metrics.persisted(table, WriteResult::Retry);
                    Outcome::RetryLater(Cause {
                        error_class: "store_unavailable",
                        detail: error.to_string(),
                        dependency_down: true,
                    })
                }
                ErrorClass::Permanent => {
                    self.metrics.persisted(table, WriteResult::Rejected);
                    Outcome::Reject(Rejection {
                        error_class: "store_refused",
                        detail: error.to_string(),
                        stage: "persist",
                    })
                }
            },
        }
    }
}

#[async_trait]
impl Handler for Persist {
    async fn handle(&self, batch: &[LogRecord]) -> Vec<Outcome> {
        let decoded: Vec<_> = batch
            .iter()
            .map(|record| History::decode(record.value.as_ref()))
            .collect();
        let messages: Vec<&History> = decoded.iter().filter_map(|message| message.as_ref().ok()).collect();
        let rows: Vec<HistoryRow> = messages
            .iter()
            .map(|message| HistoryRow {
                conversation: message.conversation.clone(),
                conv_seq: message.conv_seq,
                append_time: message.append_time,
                message: message.message.clone(),
            })
            .collect();
        let locators: Vec<LocatorRow> = messages
            .iter()
            .map(|message| LocatorRow {
                msg_id: message.msg_id,
                sender: message.sender.clone(),
                conversation: message.conversation.clone(),
                conv_seq: message.conv_seq,
                append_time: message.append_time,
            })
            .collect();
        let (row_results, locator_results) =
            tokio::join!(self.store.write_history(&rows), self.store.write_locators(&locators));
        let mut written = row_results.into_iter().zip(locator_results);
        decoded
            .iter()
            .map(|message| match message {
                Ok(_) => match written.next() {
                    Some((row, locator)) => {
                        let row = self.outcome(Table::History, row);
                        let locator = self.outcome(Table::Locator, locator);
                        if row == Outcome::Done { locator } else { row }
                    }
                    // A store that answers fewer results than it was given has not said what became of this one.
                    None => Outcome::RetryLater(Cause {
                        error_class: "store_unavailable",
                        detail: "the store did not answer for this row".to_owned(),
                        dependency_down: true,
                    }),
                },
                Err(error) => Outcome::Reject(Rejection {
                    error_class: "decode",
                    detail: error.to_string(),
                    stage: "decode",
                }),
            })
            .collect()
    }
}
