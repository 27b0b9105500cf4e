//! Trimming: removes records that every consumer is done with and that are old enough.
//!
//! A record goes when its topic's group has committed an offset beyond it *and* its append time is older than the
//! topic's retention. Work is cut in chunks of point removals; each chunk moves the partition's start in the same batch,
//! so the start on disk and the first record there agree after every crash. A chunk has no sync of its own: it follows,
//! in the one journal, the commit of the offset that allowed it.

use std::time::{Duration, Instant};

use super::shared::Shared;
use super::topic::Topic;
use super::{keys, record};
use crate::Error;

/// Records looked at and removed in one batch.
const CHUNK_RECORDS: usize = 1_000;

/// Chunks per tick of the persist thread: about 0.1 s, and 20,000 records a second are more than the log takes in for
/// long on one machine.
const CHUNKS_PER_TICK: usize = 20;

/// What a trim did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trimmed {
    /// Records removed.
    pub records: u64,
    /// Whether it stopped before it was through.
    pub more: bool,
}

pub(super) struct TrimState {
    interval: Duration,
    due: Instant,
}

impl TrimState {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval,
            due: Instant::now() + interval,
        }
    }
}

/// The row that says where a partition starts: offset, append time of the last record before it.
fn encode_start(start: u64, trimmed_time: i64) -> [u8; 16] {
    let mut row = [0; 16];
    row[..8].copy_from_slice(&start.to_be_bytes());
    row[8..].copy_from_slice(&trimmed_time.to_be_bytes());
    row
}

pub(super) fn decode_start(row: &[u8]) -> Option<(u64, i64)> {
    let (start, time) = row.split_first_chunk()?;
    Some((u64::from_be_bytes(*start), i64::from_be_bytes(time.try_into().ok()?)))
}

impl Shared {
    /// One bounded piece of trimming, if it is time; goes on at the next tick if there is more.
    pub(super) fn trim_if_due(&self) -> Result<(), Error> {
        if Instant::now() < self.trim.lock().due {
            return Ok(());
        }
        let result = self.trim((self.clock)(), CHUNKS_PER_TICK);
        if !matches!(result, Ok(Trimmed { more: true, .. })) {
            let mut state = self.trim.lock();
            state.due = Instant::now() + state.interval;
        }
        result.map(|_| ())
    }

    /// Removes what may go at `now`, in at most `chunks` chunks.
    pub(super) fn trim(&self, now: i64, mut chunks: usize) -> Result<Trimmed, Error> {
        // One at a time: a chunk reads the start and moves it.
        let _one = self.trimming.lock();
        let mut done = Trimmed::default();
        for topic in self.topics.iter() {
            for partition in 0..topic.config.partitions {
                loop {
                    if chunks == 0 {
                        done.more = true;
                        return Ok(done);
                    }
                    let removed = self.trim_chunk(topic, partition, now)?;
                    done.records += removed as u64;
                    if removed > 0 {
                        chunks -= 1;
                    }
                    if removed < CHUNK_RECORDS {
                        break;
                    }
                }
            }
        }
        Ok(done)
    }

    fn trim_chunk(&self, topic: &Topic, partition: u32, now: i64) -> Result<usize, Error> {
        const OPERATION: &str = "trim";
        let id = topic.config.id;
        let state = &topic.partitions[partition as usize];
        let start = state.start();
        let Some(committed) = self.committed(&topic.config.group, id, partition)? else {
            return Ok(0);
        };
        let floor = committed.offset.min(state.end());
        if floor <= start {
            return Ok(0);
        }
        let retention = i64::try_from(topic.config.retention.as_millis()).unwrap_or(i64::MAX);
        let horizon = now.saturating_sub(retention);
        let mut batch = self.core.engine.batch();
        let mut next = start;
        let mut trimmed_time = i64::MIN;
        let range = keys::record(id, partition, start)..keys::record(id, partition, floor);
        for entry in self.keyspaces.records.range(range).take(CHUNK_RECORDS) {
            let (key, value) = entry.into_inner().map_err(|error| Error::engine(OPERATION, &error))?;
            let time = record::append_time(&value).map_err(|reason| Error::Damaged {
                operation: OPERATION,
                reason,
            })?;
            if keys::offset_of(&key) != Some(next) || time >= horizon {
                break;
            }
            batch.remove(&self.keyspaces.records, key);
            next += 1;
            trimmed_time = time;
        }
        let removed = usize::try_from(next - start).unwrap_or(usize::MAX);
        if removed == 0 {
            return Ok(0);
        }
        batch.insert(
            &self.keyspaces.meta,
            keys::partition_start(id, partition),
            encode_start(next, trimmed_time),
        );
        // Readers first: one that comes now must learn that the records are gone, not find a hole.
        state.set_start(next);
        self.core.commit_writes(OPERATION, batch)?;
        Ok(removed)
    }
}
