//! What must be known of a partition before it is read: the group's position and the log's bounds. Asked of the
//! brokers, never guessed: a guess would skip records or repeat a whole log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionListElem};

use super::error::bus_error;
use super::rebalance::Context;
use crate::Error;
use crate::source::{AssignedPartition, Committed};

/// For all partitions of an assignment; the thread that polls waits so long at most, and a moment for the last request.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// For the bounds of all partitions together.
const BOUNDS_TOGETHER: Duration = Duration::from_secs(2);
/// For those of one, when one without a leader held up all.
const BOUNDS_ALONE: Duration = Duration::from_millis(500);
const POSITIONS: &str = "reading committed positions";
const BOUNDS: &str = "reading log bounds";

/// First offset in the log, and the one after the last.
pub(super) type Bounds = (u64, u64);

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
    let positions = match consumer
        .committed_offsets(list(topic, partitions), LOOKUP_TIMEOUT)
        .map_err(|error| bus_error(POSITIONS, &error))
        .and_then(|list| committed_positions(&list, topic))
    {
        Ok(positions) => positions,
        Err(error) => {
            lookup.fault = Some(error);
            return lookup;
        }
    };
    let together = bounds(consumer, topic, partitions, remaining(until, BOUNDS_TOGETHER));
    let bounds = together.unwrap_or_else(|_| {
        // The error comes again below, for the partition that it is about.
        let mut bounds_by_partition = BTreeMap::new();
        for partition in partitions {
            match bounds(consumer, topic, &[*partition], remaining(until, BOUNDS_ALONE)) {
                Ok(found) => bounds_by_partition.extend(found),
                Err(error) => lookup.fault = Some(error),
            }
        }
        bounds_by_partition
    });
    for (partition, committed) in positions {
        if let Some((log_start, log_end)) = bounds.get(&partition) {
            lookup.known.push(AssignedPartition {
                partition,
                committed,
                log_start: *log_start,
                log_end: *log_end,
            });
        }
    }
    lookup
}

fn committed_positions(list: &TopicPartitionList, topic: &str) -> Result<BTreeMap<u32, Option<Committed>>, Error> {
    let mut positions = BTreeMap::new();
    for element in list.elements_for_topic(topic) {
        element.error().map_err(|error| bus_error(POSITIONS, &error))?;
        let committed = match element.offset() {
            Offset::Invalid => None,
            Offset::Offset(_) | Offset::Beginning | Offset::End | Offset::Stored | Offset::OffsetTail(_) => {
                Some(Committed {
                    offset: offset_of(POSITIONS, &element)?,
                    metadata: element.metadata().to_owned(),
                })
            }
        };
        positions.insert(partition_of(POSITIONS, &element)?, committed);
    }
    Ok(positions)
}

/// All of the partitions' bounds, or an error.
///
/// Not by the client's `fetch_watermarks`: when the first of its two requests fails and the second does not, it may
/// forget the failure and tell the end of the log as its start, and a reader would skip the whole log.
pub(super) fn bounds(
    consumer: &BaseConsumer<Context>,
    topic: &str,
    partitions: &[u32],
    timeout: Duration,
) -> Result<BTreeMap<u32, Bounds>, Error> {
    let starts = offsets_at(consumer, topic, partitions, Offset::Beginning, timeout)?;
    let ends = offsets_at(consumer, topic, partitions, Offset::End, timeout)?;
    let mut bounds = BTreeMap::new();
    for partition in partitions {
        match (starts.get(partition), ends.get(partition)) {
            (Some(start), Some(end)) if start <= end => bounds.insert(*partition, (*start, *end)),
            (start, end) => {
                return Err(unexpected(
                    BOUNDS,
                    format!("the broker told {start:?} to {end:?} for partition {partition}"),
                ));
            }
        };
    }
    Ok(bounds)
}

/// The offsets at one end of the log: the query by time takes the ends as times.
fn offsets_at(
    consumer: &BaseConsumer<Context>,
    topic: &str,
    partitions: &[u32],
    end: Offset,
    timeout: Duration,
) -> Result<BTreeMap<u32, u64>, Error> {
    let known = |error: KafkaError| bus_error(BOUNDS, &error);
    let mut times = list(topic, partitions);
    times.set_all_offsets(end).map_err(known)?;
    let answer = consumer.offsets_for_times(times, timeout).map_err(known)?;
    let mut offsets = BTreeMap::new();
    for element in answer.elements_for_topic(topic) {
        element.error().map_err(known)?;
        offsets.insert(partition_of(BOUNDS, &element)?, offset_of(BOUNDS, &element)?);
    }
    Ok(offsets)
}

fn list(topic: &str, partitions: &[u32]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        list.add_partition(topic, native_partition(*partition));
    }
    list
}

fn partition_of(operation: &'static str, element: &TopicPartitionListElem<'_>) -> Result<u32, Error> {
    u32::try_from(element.partition())
        .map_err(|_| unexpected(operation, format!("the broker told partition {}", element.partition())))
}

/// A real offset; an element that was not answered still has what it was asked with.
fn offset_of(operation: &'static str, element: &TopicPartitionListElem<'_>) -> Result<u64, Error> {
    let told = element.offset();
    let offset = match told {
        Offset::Offset(offset) => u64::try_from(offset).ok(),
        Offset::Invalid | Offset::Beginning | Offset::End | Offset::Stored | Offset::OffsetTail(_) => None,
    };
    offset.ok_or_else(|| {
        unexpected(
            operation,
            format!("the broker told offset {told:?} for partition {}", element.partition()),
        )
    })
}

/// At most `limit`, at least a moment: zero means for ever to some of the client's calls.
fn remaining(until: Instant, limit: Duration) -> Duration {
    until
        .saturating_duration_since(Instant::now())
        .clamp(Duration::from_millis(50), limit)
}

fn unexpected(operation: &'static str, reason: String) -> Error {
    Error::Unavailable { operation, reason }
}

/// Kafka's partition numbers are signed; the catalogue's are far below the limit.
pub(super) fn native_partition(partition: u32) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}
