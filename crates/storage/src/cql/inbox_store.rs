//! What offline-inbox's fold reads and writes.

use std::collections::HashMap;

use async_trait::async_trait;
use bytes::Bytes;
use tidings_domain::state::{Checkpoint, ConvMark, DeviceRegister, InboxHead, InboxRow, UserConvRegister};
use tidings_domain::{Conversation, DeviceId, Position, Uid};

use super::columns::{bigint, number, position, row_limit, timestamp_of, tinyint};
use super::session::{RowToWrite, all_of, in_order, read_all, read_one, write, write_partition};
use super::{CqlStore, errors};
use crate::Error;
use crate::codec::{Malformed, decode_checkpoint, encode_checkpoint};
use crate::port::{CheckpointWrites, InboxStore, bucket_of};

/// Rows read at a time in search of an offset: the row is one of the newest, so the first step nearly always has it.
const SEARCH_STEP: usize = 64;
/// A register's columns in bytes, about.
const REGISTER_BYTES: usize = 160;

type UserConvColumns = (i64, i64, i64, i64, i64, i64);

pub(super) fn user_conv_register(
    (appended, appended_countable, delivered, read, read_countable, off): UserConvColumns,
) -> Result<UserConvRegister, Malformed> {
    Ok(UserConvRegister {
        appended: ConvMark {
            conv_seq: number("appended", appended)?,
            countable_seq: number("appended_countable", appended_countable)?,
        },
        delivered: number("delivered", delivered)?,
        read: ConvMark {
            conv_seq: number("read", read)?,
            countable_seq: number("read_countable", read_countable)?,
        },
        off: position("off", off)?,
    })
}

impl CqlStore {
    pub(super) async fn inbox_head(&self, operation: &'static str, uid: &Uid) -> Result<Option<InboxHead>, Error> {
        let row: Option<(i64, i64)> =
            read_one(&self.session, operation, &self.statements.inbox_head, (uid.as_str(),)).await?;
        row.map(|(seq, off)| {
            Ok(InboxHead {
                seq: number("seq", seq)?,
                off: position("off", off)?,
            })
        })
        .transpose()
        .map_err(|error| errors::damaged(operation, error))
    }

    pub(super) async fn device(
        &self,
        operation: &'static str,
        uid: &Uid,
        device: &DeviceId,
    ) -> Result<Option<DeviceRegister>, Error> {
        let values = (uid.as_str(), device.as_str());
        let row: Option<(i64, i64, i64)> = read_one(&self.session, operation, &self.statements.device, values).await?;
        row.map(|(delivered, stored, off)| {
            Ok(DeviceRegister {
                delivered: number("delivered", delivered)?,
                stored: number("stored", stored)?,
                off: position("off", off)?,
            })
        })
        .transpose()
        .map_err(|error| errors::damaged(operation, error))
    }

    async fn user_conv(&self, uid: &Uid, conversation: &Conversation) -> Result<Option<UserConvRegister>, Error> {
        const OPERATION: &str = "user_conv_registers";
        let values = (uid.as_str(), conversation.as_str());
        let row: Option<UserConvColumns> =
            read_one(&self.session, OPERATION, &self.statements.user_conv, values).await?;
        row.map(user_conv_register)
            .transpose()
            .map_err(|error| errors::damaged(OPERATION, error))
    }

    /// The number of the row that `off` caused, not above `bound` (seq:I3). Offsets ascend with the numbers of a stream,
    /// and the row wanted is one of the newest: so from the top, step by step, until the offsets are lower or a bucket
    /// is empty (expired).
    async fn find_row(&self, uid: &Uid, wanted: Position, bound: u64) -> Result<Option<u64>, Error> {
        const OPERATION: &str = "find_rows";
        let mut bound = bound;
        loop {
            let bucket = bucket_of(bound);
            let values = (uid.as_str(), bigint(bucket), bigint(bound), row_limit(SEARCH_STEP));
            let rows: Vec<(i64, i64)> =
                read_all(&self.session, OPERATION, &self.statements.row_offsets, values).await?;
            let mut lowest = None;
            for (seq, off) in rows {
                let seq = number("seq", seq).map_err(|error| errors::damaged(OPERATION, error))?;
                let off = position("off", off).map_err(|error| errors::damaged(OPERATION, error))?;
                if off <= wanted {
                    return Ok((off == wanted).then_some(seq));
                }
                lowest = Some(seq);
            }
            match lowest {
                Some(lowest) if lowest > 1 => bound = lowest - 1,
                Some(_) | None => return Ok(None),
            }
        }
    }

    /// A user's rows in ascending order; a lower bucket is acknowledged before the next is written, so no reader finds
    /// a row whose predecessors are missing.
    async fn write_stream(&self, uid: &str, mut rows: Vec<&InboxRow>) -> Result<(), Error> {
        rows.sort_by_key(|row| row.seq);
        for bucket in rows.chunk_by(|a, b| bucket_of(a.seq) == bucket_of(b.seq)) {
            let rows = bucket.iter().map(|row| {
                let (topic, partition, pos, idx) = match &row.src {
                    Some((from, at)) => (
                        tinyint(from.topic.number()),
                        i64::from(from.partition),
                        bigint(at.pos.raw()),
                        i64::from(at.idx),
                    ),
                    None => (0, 0, 0, 0),
                };
                RowToWrite {
                    bytes: row.event.len(),
                    values: (
                        uid,
                        bigint(bucket_of(row.seq)),
                        bigint(row.seq),
                        bigint(row.off.raw()),
                        topic,
                        partition,
                        pos,
                        idx,
                        row.append_time.get(),
                        &row.event,
                        timestamp_of(row.append_time),
                    ),
                }
            });
            let statement = &self.statements.write_inbox_row;
            write_partition(&self.session, "write_rows", statement, rows.collect()).await?;
        }
        Ok(())
    }

    async fn dlq_intent(&self, partition: u32, id: &str) -> Result<Option<Position>, Error> {
        const OPERATION: &str = "dlq_intents";
        let values = (i64::from(partition), id);
        let row: Option<(i64,)> = read_one(&self.session, OPERATION, &self.statements.dlq_intent, values).await?;
        row.map(|(off,)| position("off", off))
            .transpose()
            .map_err(|error| errors::damaged(OPERATION, error))
    }

    async fn write_dlq_intent(&self, partition: u32, id: &str, off: Position) -> Result<(), Error> {
        let values = (i64::from(partition), id, bigint(off.raw()));
        let statement = &self.statements.write_dlq_intent;
        write(&self.session, "write_dlq_intents", statement, values).await
    }

    async fn write_devices(&self, devices: &[((Uid, DeviceId), DeviceRegister)]) -> Result<(), Error> {
        let mut by_user: HashMap<&str, Vec<_>> = HashMap::new();
        for ((uid, device), register) in devices {
            by_user.entry(uid.as_str()).or_default().push(RowToWrite {
                bytes: REGISTER_BYTES,
                values: (
                    uid.as_str(),
                    device.as_str(),
                    bigint(register.delivered),
                    bigint(register.stored),
                    bigint(register.off.raw()),
                    bigint(register.off.raw()),
                ),
            });
        }
        let statement = &self.statements.write_device;
        let writes = by_user
            .into_values()
            .map(|rows| write_partition(&self.session, "write_registers", statement, rows));
        all_of(writes.collect()).await
    }

    async fn write_user_convs(&self, user_convs: &[((Uid, Conversation), UserConvRegister)]) -> Result<(), Error> {
        let mut by_user: HashMap<&str, Vec<_>> = HashMap::new();
        for ((uid, conversation), register) in user_convs {
            by_user.entry(uid.as_str()).or_default().push(RowToWrite {
                bytes: REGISTER_BYTES,
                values: (
                    uid.as_str(),
                    conversation.as_str(),
                    bigint(register.appended.conv_seq),
                    bigint(register.appended.countable_seq),
                    bigint(register.delivered),
                    bigint(register.read.conv_seq),
                    bigint(register.read.countable_seq),
                    bigint(register.off.raw()),
                    bigint(register.off.raw()),
                ),
            });
        }
        let statement = &self.statements.write_user_conv;
        let writes = by_user
            .into_values()
            .map(|rows| write_partition(&self.session, "write_registers", statement, rows));
        all_of(writes.collect()).await
    }

    async fn write_inbox_head(&self, uid: &Uid, head: &InboxHead) -> Result<(), Error> {
        let values = (uid.as_str(), bigint(head.seq), bigint(head.off.raw()), bigint(head.seq));
        let statement = &self.statements.write_inbox_head;
        write(&self.session, "write_registers", statement, values).await
    }
}

#[async_trait]
impl InboxStore for CqlStore {
    async fn checkpoint(&self, partition: u32) -> Result<Option<Checkpoint>, Error> {
        const OPERATION: &str = "checkpoint";
        let statement = &self.statements.checkpoint;
        let row: Option<(Bytes,)> = read_one(&self.session, OPERATION, statement, (i64::from(partition),)).await?;
        row.map(|(state,)| decode_checkpoint(state))
            .transpose()
            .map_err(|error| errors::damaged(OPERATION, error))
    }

    async fn write_checkpoint(&self, partition: u32, checkpoint: &Checkpoint, pos: Position) -> Result<(), Error> {
        let values = (i64::from(partition), encode_checkpoint(checkpoint), bigint(pos.raw()));
        let statement = &self.statements.write_checkpoint;
        write(&self.session, "write_checkpoint", statement, values).await
    }

    async fn inbox_heads(&self, uids: &[Uid]) -> Result<Vec<Option<InboxHead>>, Error> {
        let reads = uids.iter().map(|uid| self.inbox_head("inbox_heads", uid));
        in_order(reads.collect()).await.into_iter().collect()
    }

    async fn find_rows(&self, wanted: &[(Uid, Position, u64)]) -> Result<Vec<Option<u64>>, Error> {
        let searches = wanted.iter().map(|(uid, off, bound)| self.find_row(uid, *off, *bound));
        in_order(searches.collect()).await.into_iter().collect()
    }

    async fn write_rows(&self, rows: &[(Uid, InboxRow)]) -> Result<(), Error> {
        let mut by_user: HashMap<&str, Vec<&InboxRow>> = HashMap::new();
        for (uid, row) in rows {
            by_user.entry(uid.as_str()).or_default().push(row);
        }
        let writes = by_user.into_iter().map(|(uid, rows)| self.write_stream(uid, rows));
        all_of(writes.collect()).await
    }

    async fn device_registers(&self, devices: &[(Uid, DeviceId)]) -> Result<Vec<Option<DeviceRegister>>, Error> {
        let reads = devices
            .iter()
            .map(|(uid, device)| self.device("device_registers", uid, device));
        in_order(reads.collect()).await.into_iter().collect()
    }

    async fn user_conv_registers(&self, convs: &[(Uid, Conversation)]) -> Result<Vec<Option<UserConvRegister>>, Error> {
        let reads = convs
            .iter()
            .map(|(uid, conversation)| self.user_conv(uid, conversation));
        in_order(reads.collect()).await.into_iter().collect()
    }

    async fn dlq_intents(&self, partition: u32, ids: &[String]) -> Result<Vec<Option<Position>>, Error> {
        let reads = ids.iter().map(|id| self.dlq_intent(partition, id));
        in_order(reads.collect()).await.into_iter().collect()
    }

    async fn write_dlq_intents(&self, partition: u32, intents: &[(String, Position)]) -> Result<(), Error> {
        let writes = intents
            .iter()
            .map(|(id, off)| self.write_dlq_intent(partition, id, *off));
        all_of(writes.collect()).await
    }

    async fn write_registers(&self, writes: &CheckpointWrites) -> Result<(), Error> {
        // seq:I8a: registers acknowledged first, then heads.
        self.write_devices(&writes.devices).await?;
        self.write_user_convs(&writes.user_convs).await?;
        let heads = writes.heads.iter().map(|(uid, head)| self.write_inbox_head(uid, head));
        all_of(heads.collect()).await
    }
}
