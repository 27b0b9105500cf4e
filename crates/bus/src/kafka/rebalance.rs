//! The consumer's context: rebalances become a queue that the source answers outside of the callback.
//!
//! The callback assigns and revokes nothing, so that the runtime can look up positions, drain and commit in its own
//! time; librdkafka waits for the answer and delivers nothing meanwhile. Only while the member closes does the callback
//! answer by itself: nobody is there any more who would, and the close would hang.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rdkafka::TopicPartitionList;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaRespErr;

use super::logging::client_log;
use crate::Error;

/// Failed commits kept until the next poll; there is one in flight every second or so.
const MAX_COMMIT_FAULTS: usize = 64;

/// What the group wants, in its order; each waits for its answer before the next comes.
#[derive(Debug)]
pub(super) enum Rebalance {
    Assign(Vec<u32>),
    Revoke { partitions: Vec<u32>, lost: bool },
}

/// Shared by the source and the callbacks, which run on the thread that polls.
#[derive(Default)]
pub(super) struct Shared {
    rebalances: Mutex<VecDeque<Rebalance>>,
    commit_faults: Mutex<VecDeque<Error>>,
    /// Offset after the last record by partition, from the client's statistics.
    log_ends: Mutex<HashMap<u32, u64>>,
    closing: AtomicBool,
    /// Counts acknowledged revocations: a commit asked for before one must not be made after it, when the partition
    /// may have another owner and the client would send it under the new generation.
    revocations: AtomicU64,
}

impl Shared {
    pub(super) fn next_rebalance(&self) -> Option<Rebalance> {
        self.rebalances.lock().pop_front()
    }

    pub(super) fn has_events(&self) -> bool {
        !self.rebalances.lock().is_empty() || !self.commit_faults.lock().is_empty()
    }

    pub(super) fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Acquire)
    }

    pub(super) fn revoked(&self) {
        self.revocations.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn commit_failed(&self, error: Error) {
        let mut faults = self.commit_faults.lock();
        if faults.len() < MAX_COMMIT_FAULTS {
            faults.push_back(error);
        } else {
            tracing::warn!(%error, "not told: nobody polls");
        }
    }

    pub(super) fn next_commit_fault(&self) -> Option<Error> {
        self.commit_faults.lock().pop_front()
    }

    pub(super) fn log_end(&self, partition: u32) -> Option<u64> {
        self.log_ends.lock().get(&partition).copied()
    }

    pub(super) fn forget_log_end(&self, partition: u32) {
        self.log_ends.lock().remove(&partition);
    }

    /// From now on the callback answers by itself.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }
}

pub(super) struct Context {
    pub(super) topic: String,
    pub(super) shared: Arc<Shared>,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        client_log(level, facility, line);
    }

    fn stats(&self, statistics: Statistics) {
        let Some(topic) = statistics.topics.get(&self.topic) else {
            return;
        };
        let mut log_ends = self.shared.log_ends.lock();
        for (partition, numbers) in &topic.partitions {
            // Negative while no fetch has told it, and for the pseudo partition -1.
            if let (Ok(partition), Ok(end)) = (u32::try_from(*partition), u64::try_from(numbers.hi_offset)) {
                log_ends.insert(partition, end);
            }
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The same error comes out of `poll`, where it is classified.
        tracing::debug!(%error, reason, "consumer");
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, event: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let assign = event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.shared.closing.load(Ordering::Acquire) {
            let answer = if assign {
                consumer.incremental_assign(&TopicPartitionList::new())
            } else {
                consumer.incremental_unassign(list)
            };
            if let Err(error) = answer {
                tracing::warn!(%error, topic = %self.topic, "giving up partitions while closing");
            }
            return;
        }
        let partitions: Vec<u32> = list
            .elements_for_topic(&self.topic)
            .iter()
            .filter_map(|element| u32::try_from(element.partition()).ok())
            .collect();
        let rebalance = if assign {
            Rebalance::Assign(partitions)
        } else {
            Rebalance::Revoke {
                partitions,
                lost: consumer.assignment_lost(),
            }
        };
        tracing::info!(topic = %self.topic, ?rebalance, "rebalance");
        self.shared.rebalances.lock().push_back(rebalance);
    }
}
