//! What must be known of a partition before it is read: the group's position and the log's bounds. Asked of the
//! brokers, never guessed: a guess would skip records or repeat a whole log.

use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset;

use super::error::bus_error;
use super::rebalance::Context;
use crate::Error;
use crate::source::{AssignedPartition, Committed};

/// For all partitions of an assignment together; the thread that polls waits so long at most.
pub(super) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
const POSITIONS: &str = "reading committed positions";
const BOUNDS: &str = "reading log bounds";

/// The partitions that are known now, and why the others are not.
pub(super) struct Lookup {
    pub(super) known: Vec<AssignedPartition>,
    pub(super) fault: Option<Error>,
}

pub(super) fn look_up(consumer: &BaseConsumer<Context>, topic: &str, partitions: &[u32]) -> Lookup {
    let until = Instant::now() + LOOKUP_TIMEOUT;
    let mut lookup = Lookup {
        known: Vec::with_capacity(partitions.len()),
        fault: None,
    };
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        list.add_partition(topic, native_partition(*partition));
    }
    let positions = match consumer.committed_offsets(list, remaining(until)) {
        Ok(positions) => positions,
        Err(error) => {
            lookup.fault = Some(bus_error(POSITIONS, &error));
            return lookup;
        }
    };
    for element in positions.elements_for_topic(topic) {
        let Ok(partition) = u32::try_from(element.partition()) else {
            continue;
        };
        let assigned = committed(element.error(), element.offset(), || element.metadata().to_owned())
            .and_then(|committed| assigned(consumer, topic, partition, committed, until));
        match assigned {
            Ok(assigned) => lookup.known.push(assigned),
            Err(error) => lookup.fault = Some(error),
        }
    }
    lookup
}

fn committed(
    error: Result<(), KafkaError>,
    offset: Offset,
    metadata: impl Fn() -> String,
) -> Result<Option<Committed>, Error> {
    error.map_err(|error| bus_error(POSITIONS, &error))?;
    match offset {
        Offset::Offset(offset) => match u64::try_from(offset) {
            Ok(offset) => Ok(Some(Committed {
                offset,
                metadata: metadata(),
            })),
            Err(_) => Err(unexpected(POSITIONS, format!("the broker told position {offset}"))),
        },
        Offset::Invalid => Ok(None),
        Offset::Beginning | Offset::End | Offset::Stored | Offset::OffsetTail(_) => {
            Err(unexpected(POSITIONS, format!("the broker told position {offset:?}")))
        }
    }
}

fn assigned(
    consumer: &BaseConsumer<Context>,
    topic: &str,
    partition: u32,
    committed: Option<Committed>,
    until: Instant,
) -> Result<AssignedPartition, Error> {
    let (log_start, log_end) = bounds(consumer, topic, partition, remaining(until))?;
    Ok(AssignedPartition {
        partition,
        committed,
        log_start,
        log_end,
    })
}

/// First offset in the log, and the one after the last.
pub(super) fn bounds(
    consumer: &BaseConsumer<Context>,
    topic: &str,
    partition: u32,
    timeout: Duration,
) -> Result<(u64, u64), Error> {
    let (low, high) = consumer
        .fetch_watermarks(topic, native_partition(partition), timeout)
        .map_err(|error| bus_error(BOUNDS, &error))?;
    match (u64::try_from(low), u64::try_from(high)) {
        (Ok(low), Ok(high)) => Ok((low, high)),
        _ => Err(unexpected(BOUNDS, format!("the broker told {low} to {high}"))),
    }
}

/// At least a moment: zero means for ever to some of the client's calls.
fn remaining(until: Instant) -> Duration {
    until
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(50))
}

fn unexpected(operation: &'static str, reason: String) -> Error {
    Error::Unavailable { operation, reason }
}

/// Kafka's partition numbers are signed; the catalogue's are far below the limit.
pub(super) fn native_partition(partition: u32) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}
