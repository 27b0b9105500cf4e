//! `dead_letter`.
//!
//! Ids are spread over a fixed number of shards by a hash; a listing reads each shard in the order of ids, first only the
//! columns a filter needs, and then the whole rows of those it takes.

use async_trait::async_trait;
use bytes::Bytes;
use scylla::statement::batch::{Batch, BatchType};
use scylla::value::MaybeUnset;
use scylla::{DeserializeRow, SerializeRow};
use tidings_domain::clock::Millis;

use super::columns::{bigint, number, row_limit, small, tinyint, topic};
use super::session::{in_order, read_all, read_one, write};
use super::{CqlStore, errors};
use crate::Error;
use crate::codec::Malformed;
use crate::port::{DeadLetterFilter, DeadLetterRow, DeadLetterState, DeadLetterStore};

/// 90 days of dead letters at a thousand a day are 6,000 per shard. Never to be changed: it is part of the key.
const SHARDS: u8 = 16;
/// Entries looked at per step of a listing.
const LIST_PAGE: usize = 500;

/// FNV-1a: stable for ever and even enough for 16 shards.
fn shard_of(dlq_id: &str) -> i8 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let hash = dlq_id
        .bytes()
        .fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    // The high bits are the well mixed ones; SHARDS is 16, so four of them.
    tinyint((hash >> 60) as u8 % SHARDS)
}

/// What a filter needs of an entry: id, topic, class, state.
type FilterColumns = (String, Option<i8>, Option<String>, Option<String>);

#[derive(SerializeRow)]
struct IdentityCells<'a> {
    shard: i8,
    dlq_id: &'a str,
    topic: i8,
    origin_partition: i64,
    origin_offset: i64,
    origin_time: i64,
    consumer_group: &'a str,
    record_key: MaybeUnset<&'a Bytes>,
    record_value: MaybeUnset<&'a Bytes>,
    headers: &'a [(String, Bytes)],
    error_class: &'a str,
    error_detail: &'a str,
    attempts: i64,
    first_failed_at: i64,
    last_failed_at: i64,
    replay_count: i64,
}

#[derive(DeserializeRow)]
struct StoredRow {
    dlq_id: String,
    topic: Option<i8>,
    origin_partition: Option<i64>,
    origin_offset: Option<i64>,
    origin_time: Option<i64>,
    consumer_group: Option<String>,
    record_key: Option<Bytes>,
    record_value: Option<Bytes>,
    headers: Option<Vec<(String, Bytes)>>,
    error_class: Option<String>,
    error_detail: Option<String>,
    attempts: Option<i64>,
    first_failed_at: Option<i64>,
    last_failed_at: Option<i64>,
    replay_count: Option<i64>,
    state: Option<String>,
}

/// Without a state the entry was taken in a moment ago.
fn state_of(name: Option<&str>) -> Result<DeadLetterState, Malformed> {
    name.map_or(Some(DeadLetterState::New), DeadLetterState::from_name)
        .ok_or_else(|| Malformed(format!("state is {}", name.unwrap_or_default())))
}

impl StoredRow {
    fn into_row(self) -> Result<DeadLetterRow, Malformed> {
        let lacking = |column: &str| Malformed(format!("{column} of dead letter {} is null", self.dlq_id));
        Ok(DeadLetterRow {
            topic: topic("topic", self.topic.ok_or_else(|| lacking("topic"))?)?,
            partition: small(
                "origin_partition",
                self.origin_partition.ok_or_else(|| lacking("origin_partition"))?,
            )?,
            offset: number(
                "origin_offset",
                self.origin_offset.ok_or_else(|| lacking("origin_offset"))?,
            )?,
            origin_time: Millis(self.origin_time.ok_or_else(|| lacking("origin_time"))?),
            group: self.consumer_group.clone().ok_or_else(|| lacking("consumer_group"))?,
            key: self.record_key.clone(),
            value: self.record_value.clone(),
            headers: self.headers.clone().unwrap_or_default(),
            error_class: self.error_class.clone().ok_or_else(|| lacking("error_class"))?,
            error_detail: self.error_detail.clone().ok_or_else(|| lacking("error_detail"))?,
            attempts: small("attempts", self.attempts.ok_or_else(|| lacking("attempts"))?)?,
            first_failed_at: Millis(self.first_failed_at.ok_or_else(|| lacking("first_failed_at"))?),
            last_failed_at: Millis(self.last_failed_at.ok_or_else(|| lacking("last_failed_at"))?),
            replay_count: small(
                "replay_count",
                self.replay_count.ok_or_else(|| lacking("replay_count"))?,
            )?,
            state: state_of(self.state.as_deref())?,
            dlq_id: self.dlq_id,
        })
    }
}

impl CqlStore {
    /// The seconds an entry has left; `None` if there is none. An entry without an end has -1.
    async fn remaining_ttl(&self, operation: &'static str, dlq_id: &str) -> Result<Option<i32>, Error> {
        let values = (shard_of(dlq_id), dlq_id);
        let row: Option<(Option<i8>, Option<i32>)> =
            read_one(&self.session, operation, &self.statements.dead_letter_ttl, values).await?;
        Ok(row.and_then(|(topic, ttl)| topic.map(|_| ttl.unwrap_or(0))))
    }

    async fn take_one_in(&self, row: &DeadLetterRow) -> Result<bool, Error> {
        const OPERATION: &str = "take_in";
        if self.remaining_ttl(OPERATION, &row.dlq_id).await?.is_some() {
            return Ok(false);
        }
        let shard = shard_of(&row.dlq_id);
        let identity = IdentityCells {
            shard,
            dlq_id: &row.dlq_id,
            topic: tinyint(row.topic.number()),
            origin_partition: i64::from(row.partition),
            origin_offset: bigint(row.offset),
            origin_time: row.origin_time.get(),
            consumer_group: &row.group,
            record_key: row.key.as_ref().map_or(MaybeUnset::Unset, MaybeUnset::Set),
            record_value: row.value.as_ref().map_or(MaybeUnset::Unset, MaybeUnset::Set),
            headers: &row.headers,
            error_class: &row.error_class,
            error_detail: &row.error_detail,
            attempts: i64::from(row.attempts),
            first_failed_at: row.first_failed_at.get(),
            last_failed_at: row.last_failed_at.get(),
            replay_count: i64::from(row.replay_count),
        };
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_is_idempotent(true);
        batch.append_statement(self.statements.write_dead_letter.clone());
        batch.append_statement(self.statements.write_first_state.clone());
        let first_state = (row.state.name(), shard, row.dlq_id.as_str());
        Box::pin(self.session.batch(&batch, (identity, first_state)))
            .await
            .map_err(|error| errors::execution(OPERATION, &error))?;
        Ok(true)
    }

    async fn dead_letter(&self, operation: &'static str, dlq_id: &str) -> Result<Option<DeadLetterRow>, Error> {
        let values = (shard_of(dlq_id), dlq_id);
        let row: Option<StoredRow> = read_one(&self.session, operation, &self.statements.dead_letter, values).await?;
        row.map(StoredRow::into_row)
            .transpose()
            .map_err(|error| errors::damaged(operation, error))
    }

    /// The first `limit` ids of a shard that pass the filter.
    async fn list_shard(&self, shard: u8, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<String>, Error> {
        const OPERATION: &str = "list";
        let mut after = filter.after_id.clone().unwrap_or_default();
        let mut ids = Vec::new();
        loop {
            let values = (tinyint(shard), after.as_str(), row_limit(LIST_PAGE));
            let page: Vec<FilterColumns> =
                read_all(&self.session, OPERATION, &self.statements.dead_letter_page, values).await?;
            let full = page.len() == LIST_PAGE;
            for (id, origin, class, state) in page {
                after.clone_from(&id);
                let (Some(origin), Some(class)) = (origin, class) else {
                    continue;
                };
                let origin = topic("topic", origin).map_err(|error| errors::damaged(OPERATION, error))?;
                let state = state_of(state.as_deref()).map_err(|error| errors::damaged(OPERATION, error))?;
                if filter.admits(&class, origin, state) {
                    ids.push(id);
                }
                if ids.len() == limit {
                    return Ok(ids);
                }
            }
            if !full {
                return Ok(ids);
            }
        }
    }
}

#[async_trait]
impl DeadLetterStore for CqlStore {
    async fn take_in(&self, rows: &[DeadLetterRow]) -> Vec<Result<bool, Error>> {
        let writes = rows.iter().map(|row| self.take_one_in(row));
        in_order(writes.collect()).await
    }

    async fn set_state(&self, dlq_id: &str, state: DeadLetterState) -> Result<bool, Error> {
        const OPERATION: &str = "set_state";
        // The state ends with the rest of its row: a cell that outlives it would be a row without an origin.
        let Some(ttl) = self.remaining_ttl(OPERATION, dlq_id).await? else {
            return Ok(false);
        };
        let values = (ttl, state.name(), shard_of(dlq_id), dlq_id);
        write(&self.session, OPERATION, &self.statements.write_state, values).await?;
        Ok(true)
    }

    async fn get(&self, dlq_id: &str) -> Result<Option<DeadLetterRow>, Error> {
        self.dead_letter("get", dlq_id).await
    }

    async fn list(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetterRow>, Error> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let shards = (0..SHARDS).map(|shard| self.list_shard(shard, filter, limit));
        let mut ids = Vec::new();
        for found in in_order(shards.collect()).await {
            ids.extend(found?);
        }
        ids.sort_unstable();
        ids.truncate(limit);
        let reads = ids.iter().map(|id| self.dead_letter("list", id));
        let rows: Result<Vec<_>, Error> = in_order(reads.collect()).await.into_iter().collect();
        // One that expired between the two steps is not there any more.
        Ok(rows?.into_iter().flatten().collect())
    }
}
