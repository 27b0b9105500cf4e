//! `history` and `locator`.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::{Conversation, MsgId};

use super::columns::{bigint, conversation, number, row_limit, timestamp_of, uid};
use super::session::{RowToWrite, in_order, read_all, read_one, write, write_partition};
use super::{CqlStore, errors};
use crate::Error;
use crate::port::{HistoryRow, HistoryStore, LocatorRow, bucket_of};

/// How many buckets below that of the head are looked into for the newest row: history that lags behind the head by more
/// than this (65,536 messages of one conversation) is not there for a reader yet.
const BUCKETS_BELOW_HEAD: u64 = 16;

impl CqlStore {
    async fn newest_in(&self, conversation: &Conversation, bucket: u64) -> Result<Option<u64>, Error> {
        const OPERATION: &str = "newest_conv_seq";
        let values = (conversation.as_str(), bigint(bucket));
        let row: Option<(i64,)> = read_one(&self.session, OPERATION, &self.statements.history_newest, values).await?;
        row.map(|(seq,)| number("conv_seq", seq))
            .transpose()
            .map_err(|error| errors::damaged(OPERATION, error))
    }

    async fn history_of_bucket(
        &self,
        conversation: &Conversation,
        bucket: u64,
        (from, to): (u64, u64),
        limit: usize,
    ) -> Result<Vec<HistoryRow>, Error> {
        const OPERATION: &str = "history_range";
        let values = (
            conversation.as_str(),
            bigint(bucket),
            bigint(from),
            bigint(to),
            row_limit(limit),
        );
        let rows: Vec<(i64, i64, Bytes)> =
            read_all(&self.session, OPERATION, &self.statements.history_range, values).await?;
        rows.into_iter()
            .map(|(conv_seq, append_time, message)| {
                Ok(HistoryRow {
                    conversation: conversation.clone(),
                    conv_seq: number("conv_seq", conv_seq)?,
                    append_time: Millis(append_time),
                    message,
                })
            })
            .collect::<Result<_, _>>()
            .map_err(|error| errors::damaged(OPERATION, error))
    }

    async fn write_history_bucket(&self, conversation: &str, bucket: u64, rows: Vec<&HistoryRow>) -> Result<(), Error> {
        let rows = rows.into_iter().map(|row| RowToWrite {
            bytes: row.message.len(),
            values: (
                conversation,
                bigint(bucket),
                bigint(row.conv_seq),
                row.append_time.get(),
                &row.message,
                timestamp_of(row.append_time),
            ),
        });
        let statement = &self.statements.write_history;
        write_partition(&self.session, "write_history", statement, rows.collect()).await
    }

    async fn write_locator(&self, row: &LocatorRow) -> Result<(), Error> {
        let values = (
            row.msg_id.uuid(),
            row.conversation.as_str(),
            row.sender.as_str(),
            bigint(row.conv_seq),
            row.append_time.get(),
            timestamp_of(row.append_time),
        );
        write(&self.session, "write_locators", &self.statements.write_locator, values).await
    }
}

#[async_trait]
impl HistoryStore for CqlStore {
    async fn write_history(&self, rows: &[HistoryRow]) -> Vec<Result<(), Error>> {
        let mut partitions: BTreeMap<(&str, u64), Vec<usize>> = BTreeMap::new();
        for (index, row) in rows.iter().enumerate() {
            partitions
                .entry((row.conversation.as_str(), bucket_of(row.conv_seq)))
                .or_default()
                .push(index);
        }
        let writes = partitions.iter().map(|((conversation, bucket), indexes)| {
            let rows = indexes.iter().filter_map(|index| rows.get(*index)).collect();
            self.write_history_bucket(conversation, *bucket, rows)
        });
        let outcomes = in_order(writes.collect()).await;
        // Every index is in one partition, so each of these is replaced by the outcome of its batch.
        let mut results = vec![Ok(()); rows.len()];
        for (indexes, outcome) in partitions.values().zip(outcomes) {
            for result in indexes.iter().copied() {
                results[result].clone_from(&outcome);
            }
        }
        results
    }

    async fn write_locators(&self, rows: &[LocatorRow]) -> Vec<Result<(), Error>> {
        let writes = rows.iter().map(|row| self.write_locator(row));
        in_order(writes.collect()).await
    }

    async fn history_range(
        &self,
        conversation: &Conversation,
        from: u64,
        to: u64,
        limit: usize,
    ) -> Result<Vec<HistoryRow>, Error> {
        // An open end would probe every bucket there can be.
        let to = if bucket_of(to) > bucket_of(from) + 1 {
            to.min(self.newest_conv_seq(conversation).await?)
        } else {
            to
        };
        let mut rows = Vec::new();
        if from > to {
            return Ok(rows);
        }
        for bucket in bucket_of(from)..=bucket_of(to) {
            let left = limit - rows.len();
            if left == 0 {
                break;
            }
            rows.extend(self.history_of_bucket(conversation, bucket, (from, to), left).await?);
        }
        Ok(rows)
    }

    /// From the bucket of the router's head (which is up to a checkpoint old, so maybe too low) upwards while there are
    /// rows; downwards if this service lags behind the router.
    async fn newest_conv_seq(&self, conversation: &Conversation) -> Result<u64, Error> {
        let head = self.conv_head("newest_conv_seq", conversation).await?;
        let start = bucket_of(head.map_or(0, |head| head.head));
        let mut newest = None;
        for bucket in start.. {
            match self.newest_in(conversation, bucket).await? {
                Some(seq) => newest = Some(seq),
                // The head may be the last number of its bucket, with no row yet: look at the one after too.
                None if bucket == start => {}
                None => break,
            }
        }
        if let Some(newest) = newest {
            return Ok(newest);
        }
        for bucket in (start.saturating_sub(BUCKETS_BELOW_HEAD)..start).rev() {
            if let Some(seq) = self.newest_in(conversation, bucket).await? {
                return Ok(seq);
            }
        }
        Ok(0)
    }

    async fn locate(&self, msg_id: MsgId) -> Result<Vec<LocatorRow>, Error> {
        const OPERATION: &str = "locate";
        let rows: Vec<(String, String, i64, i64)> =
            read_all(&self.session, OPERATION, &self.statements.locate, (msg_id.uuid(),)).await?;
        rows.into_iter()
            .map(|(conversation_id, sender, conv_seq, append_time)| {
                Ok(LocatorRow {
                    msg_id,
                    sender: uid("sender", &sender)?,
                    conversation: conversation("conversation", &conversation_id)?,
                    conv_seq: number("conv_seq", conv_seq)?,
                    append_time: Millis(append_time),
                })
            })
            .collect::<Result<_, _>>()
            .map_err(|error| errors::damaged(OPERATION, error))
    }
}
