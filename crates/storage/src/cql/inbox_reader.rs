//! What any replica reads of streams, and what opening a device writes.

use async_trait::async_trait;
use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::state::{DeviceOpen, DeviceRegister, InboxRow, UserConvRegister};
use tidings_domain::{Conversation, DeviceId, SourcePartition, SourcePosition, Uid};

use super::columns::{bigint, conversation, number, position, row_limit, small, topic};
use super::inbox_store::user_conv_register;
use super::schema::CURSOR_EPOCH;
use super::session::{in_order, read_all, read_one, write};
use super::{CqlStore, errors};
use crate::Error;
use crate::codec::Malformed;
use crate::port::{InboxReader, bucket_of};

type RowColumns = (i64, i64, i8, i64, i64, i64, i64, Bytes);

fn inbox_row(
    (seq, off, src_topic, partition, pos, idx, append_time, event): RowColumns,
) -> Result<InboxRow, Malformed> {
    let src = match src_topic {
        0 => None,
        number => Some((
            SourcePartition {
                topic: topic("src_topic", number)?,
                partition: small("src_partition", partition)?,
            },
            SourcePosition {
                pos: position("src_pos", pos)?,
                idx: small("src_idx", idx)?,
            },
        )),
    };
    Ok(InboxRow {
        seq: number("seq", seq)?,
        off: position("off", off)?,
        src,
        append_time: Millis(append_time),
        event,
    })
}

impl CqlStore {
    async fn head_or_zero(&self, operation: &'static str, uid: &Uid) -> Result<u64, Error> {
        Ok(self.inbox_head(operation, uid).await?.map_or(0, |head| head.seq))
    }

    async fn newest_in_bucket(&self, uid: &Uid, bucket: u64) -> Result<Option<u64>, Error> {
        const OPERATION: &str = "newest_row";
        let values = (uid.as_str(), bigint(bucket));
        let row: Option<(i64,)> = read_one(&self.session, OPERATION, &self.statements.inbox_newest, values).await?;
        row.map(|(seq,)| number("seq", seq))
            .transpose()
            .map_err(|error| errors::damaged(OPERATION, error))
    }

    async fn oldest_in_bucket(&self, uid: &Uid, bucket: u64) -> Result<Option<u64>, Error> {
        const OPERATION: &str = "floor";
        let values = (uid.as_str(), bigint(bucket));
        let row: Option<(i64,)> = read_one(&self.session, OPERATION, &self.statements.inbox_oldest, values).await?;
        row.map(|(seq,)| number("seq", seq))
            .transpose()
            .map_err(|error| errors::damaged(OPERATION, error))
    }

    async fn rows_of_bucket(&self, uid: &Uid, bucket: u64, after: u64, limit: usize) -> Result<Vec<InboxRow>, Error> {
        const OPERATION: &str = "rows_after";
        let values = (uid.as_str(), bigint(bucket), bigint(after), row_limit(limit));
        let rows: Vec<RowColumns> = read_all(&self.session, OPERATION, &self.statements.inbox_rows, values).await?;
        rows.into_iter()
            .map(inbox_row)
            .collect::<Result<_, _>>()
            .map_err(|error| errors::damaged(OPERATION, error))
    }
}

#[async_trait]
impl InboxReader for CqlStore {
    async fn cursor_epoch(&self) -> Result<u64, Error> {
        const OPERATION: &str = "cursor_epoch";
        let row: Option<(i64,)> =
            read_one(&self.session, OPERATION, &self.statements.meta_number, (CURSOR_EPOCH,)).await?;
        let (epoch,) = row.ok_or_else(|| Error::NotSetUp {
            operation: OPERATION,
            reason: format!(
                "keyspace {} has no cursor epoch; run `tidings schema apply`",
                self.keyspace
            ),
        })?;
        number(CURSOR_EPOCH, epoch).map_err(|error| errors::damaged(OPERATION, error))
    }

    async fn heads(&self, uids: &[Uid]) -> Result<Vec<u64>, Error> {
        let reads = uids.iter().map(|uid| self.head_or_zero("heads", uid));
        in_order(reads.collect()).await.into_iter().collect()
    }

    async fn rows_after(&self, uid: &Uid, after: u64, limit: usize) -> Result<Vec<InboxRow>, Error> {
        let mut rows: Vec<InboxRow> = Vec::new();
        let mut bucket = bucket_of(after.saturating_add(1));
        let mut checked_floor = false;
        while rows.len() < limit {
            let left = limit - rows.len();
            let found = self.rows_of_bucket(uid, bucket, after, left).await?;
            if !found.is_empty() {
                rows.extend(found);
            } else if rows.is_empty() && !checked_floor {
                // Nothing above the cursor, or it is gone by retention and the rows begin in a higher bucket. A stream has
                // rows of a head register for as long as rows live, so the register tells which.
                checked_floor = true;
                if self.head_or_zero("rows_after", uid).await? <= after {
                    return Ok(rows);
                }
                let floor = self.floor(uid).await?;
                if bucket_of(floor + 1) <= bucket {
                    return Ok(rows);
                }
                bucket = bucket_of(floor + 1);
                continue;
            } else {
                return Ok(rows);
            }
            bucket += 1;
        }
        Ok(rows)
    }

    async fn newest_row(&self, uid: &Uid, from: u64) -> Result<u64, Error> {
        let start = bucket_of(from);
        let mut newest = from;
        for bucket in start.. {
            match self.newest_in_bucket(uid, bucket).await? {
                Some(seq) => newest = newest.max(seq),
                // `from` may be the last number of its bucket, and that bucket expired.
                None if bucket == start => {}
                None => break,
            }
        }
        Ok(newest)
    }

    /// Rows expire from the oldest on, so the buckets without rows lie below those with some: a binary search finds the
    /// border. A whole stream, the common case, is told by its first bucket.
    async fn floor(&self, uid: &Uid) -> Result<u64, Error> {
        if let Some(oldest) = self.oldest_in_bucket(uid, 0).await? {
            return Ok(oldest.saturating_sub(1));
        }
        let head = self.head_or_zero("floor", uid).await?;
        if head == 0 {
            return Ok(0);
        }
        // The head register is up to a checkpoint old: the rows may have reached the next bucket.
        let last = bucket_of(head) + 1;
        let (mut low, mut high) = (1, last + 1);
        let mut oldest = None;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.oldest_in_bucket(uid, middle).await? {
                Some(seq) => {
                    oldest = Some(seq);
                    high = middle;
                }
                // The last bucket is probed only to catch rows beyond the head; without any it says nothing of the others.
                None if middle == last => high = last,
                None => low = middle + 1,
            }
        }
        Ok(oldest.map_or(head, |seq| seq.saturating_sub(1)))
    }

    async fn device_open(&self, uid: &Uid, device: &DeviceId) -> Result<Option<DeviceOpen>, Error> {
        const OPERATION: &str = "device_open";
        let values = (uid.as_str(), device.as_str());
        let row: Option<(i64, i64)> = read_one(&self.session, OPERATION, &self.statements.device_open, values).await?;
        row.map(|(start_cursor, opened_at)| {
            Ok(DeviceOpen {
                start_cursor: number("start_cursor", start_cursor)?,
                opened_at: Millis(opened_at),
            })
        })
        .transpose()
        .map_err(|error| errors::damaged(OPERATION, error))
    }

    async fn has_devices(&self, uid: &Uid) -> Result<bool, Error> {
        let row: Option<(String,)> = read_one(
            &self.session,
            "has_devices",
            &self.statements.any_device,
            (uid.as_str(),),
        )
        .await?;
        Ok(row.is_some())
    }

    async fn write_device_open(&self, uid: &Uid, device: &DeviceId, open: DeviceOpen) -> Result<(), Error> {
        let values = (
            uid.as_str(),
            device.as_str(),
            bigint(open.start_cursor),
            open.opened_at.get(),
        );
        let statement = &self.statements.write_device_open;
        write(&self.session, "write_device_open", statement, values).await
    }

    async fn device_register(&self, uid: &Uid, device: &DeviceId) -> Result<Option<DeviceRegister>, Error> {
        self.device("device_register", uid, device).await
    }

    async fn user_convs(&self, uid: &Uid) -> Result<Vec<(Conversation, UserConvRegister)>, Error> {
        const OPERATION: &str = "user_convs";
        let rows: Vec<(String, i64, i64, i64, i64, i64, i64)> =
            read_all(&self.session, OPERATION, &self.statements.user_convs, (uid.as_str(),)).await?;
        rows.into_iter()
            .map(
                |(id, appended, appended_countable, delivered, read, read_countable, off)| {
                    let columns = (appended, appended_countable, delivered, read, read_countable, off);
                    Ok((conversation("conversation", &id)?, user_conv_register(columns)?))
                },
            )
            .collect::<Result<_, _>>()
            .map_err(|error| errors::damaged(OPERATION, error))
    }
}
