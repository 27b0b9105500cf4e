//! Values of the embedded tables.
//!
//! Every value is `stamp (8 bytes) | version (1 byte) | fields`. The stamp of a register is its write timestamp, so
//! the larger of two values of one register, compared as bytes, is the newer one: the rule of a CQL cell, ties by value
//! included. The stamp of a row that expires is its append time in milliseconds, so a sweep can judge a row by its
//! first 8 bytes.

use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::state::{
    Checkpoint, ConvHead, ConvMark, DeviceOpen, DeviceRegister, InboxHead, InboxRow, Intent, MemberInterval, Outcome,
    RejectReason, UserConvRegister,
};
use tidings_domain::{ContentHash, Position, SourcePartition, SourcePosition, Uid};

use crate::codec::{Malformed, Reader, Writer, decode_checkpoint, encode_checkpoint};
use crate::port::{DeadLetterRow, DeadLetterState, FoldSkip};

const VERSION: u8 = 1;

fn register(timestamp: u64) -> Writer {
    Writer::default().u64(timestamp).u8(VERSION)
}

/// Times before 1970 do not occur in a log; they sort as the beginning of time.
fn row(append_time: Millis) -> Writer {
    register(u64::try_from(append_time.get()).unwrap_or(0))
}

fn open(value: Bytes) -> Result<(u64, Reader), Malformed> {
    let mut reader = Reader::new(value);
    let stamp = reader.u64("stamp")?;
    match reader.u8("version")? {
        VERSION => Ok((stamp, reader)),
        other => Err(Malformed::new(format!("value of unknown version {other}"))),
    }
}

fn open_row(value: Bytes) -> Result<(Millis, Reader), Malformed> {
    let (stamp, reader) = open(value)?;
    let millis = i64::try_from(stamp).map_err(|_| Malformed::new("append time is out of range"))?;
    Ok((Millis(millis), reader))
}

/// A value of a table.
pub(super) trait Value: Sized {
    fn encode(&self) -> Vec<u8>;
    fn decode(value: Bytes) -> Result<Self, Malformed>;
}

impl Value for ConvHead {
    fn encode(&self) -> Vec<u8> {
        register(self.head).u64(self.countable).u64(self.applied.raw()).finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (head, mut reader) = open(value)?;
        let decoded = Self {
            head,
            countable: reader.u64("countable")?,
            applied: reader.position("applied")?,
        };
        reader.end()?;
        Ok(decoded)
    }
}

/// What a membership key does not say: until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leave {
    pub(super) join_seq: u64,
    pub(super) leave_seq: Option<u64>,
}

impl Leave {
    pub(super) fn of(interval: &MemberInterval) -> Self {
        Self {
            join_seq: interval.join_seq,
            leave_seq: interval.leave_seq,
        }
    }

    pub(super) fn interval(self, uid: Uid) -> MemberInterval {
        MemberInterval {
            uid,
            join_seq: self.join_seq,
            leave_seq: self.leave_seq,
        }
    }
}

impl Value for Leave {
    fn encode(&self) -> Vec<u8> {
        register(self.leave_seq.unwrap_or(self.join_seq))
            .u64(self.join_seq)
            .u8(u8::from(self.leave_seq.is_some()))
            .finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (timestamp, mut reader) = open(value)?;
        let join_seq = reader.u64("join_seq")?;
        let leave_seq = match reader.u8("left")? {
            0 => None,
            _ => Some(timestamp),
        };
        reader.end()?;
        Ok(Self { join_seq, leave_seq })
    }
}

impl Value for Intent {
    fn encode(&self) -> Vec<u8> {
        let (reason, conv_seq, countable_seq) = match self.outcome {
            Outcome::Accepted {
                conv_seq,
                countable_seq,
            } => (0, conv_seq, countable_seq),
            Outcome::Rejected(reason) => (reason as u8, 0, 0),
        };
        row(self.append_time)
            .u8(reason)
            .u64(conv_seq)
            .u64(countable_seq)
            .fixed(self.content_hash.as_bytes())
            .u64(self.off.raw())
            .finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (append_time, mut reader) = open_row(value)?;
        let reason = reader.u8("outcome")?;
        let conv_seq = reader.u64("conv_seq")?;
        let countable_seq = reader.u64("countable_seq")?;
        let outcome = match reason {
            0 => Outcome::Accepted {
                conv_seq,
                countable_seq,
            },
            number => Outcome::Rejected(
                RejectReason::from_number(number)
                    .ok_or_else(|| Malformed::new(format!("{number} is no reject reason")))?,
            ),
        };
        let content_hash = ContentHash(reader.fixed("content_hash")?);
        let off = reader.position("off")?;
        reader.end()?;
        Ok(Self {
            outcome,
            content_hash,
            off,
            append_time,
        })
    }
}

/// A message of the history: its number and conversation are in the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) append_time: Millis,
    pub(super) message: Bytes,
}

impl Value for Message {
    fn encode(&self) -> Vec<u8> {
        row(self.append_time).bytes(&self.message).finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (append_time, mut reader) = open_row(value)?;
        let message = reader.bytes("message")?;
        reader.end()?;
        Ok(Self { append_time, message })
    }
}

/// A locator row: everything but the time is in the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Located(pub(super) Millis);

impl Value for Located {
    fn encode(&self) -> Vec<u8> {
        row(self.0).finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (append_time, reader) = open_row(value)?;
        reader.end()?;
        Ok(Self(append_time))
    }
}

/// The number is also in the key; it is kept in the value so that a row is whole by itself.
impl Value for InboxRow {
    fn encode(&self) -> Vec<u8> {
        let writer = row(self.append_time).u64(self.seq).u64(self.off.raw());
        match &self.src {
            Some((partition, position)) => writer
                .u8(partition.topic.number())
                .u32(partition.partition)
                .u64(position.pos.raw())
                .u32(position.idx),
            None => writer.u8(0),
        }
        .bytes(&self.event)
        .finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (append_time, mut reader) = open_row(value)?;
        let seq = reader.u64("seq")?;
        let off = reader.position("off")?;
        let src = match reader.u8("source topic")? {
            0 => None,
            number => Some((
                SourcePartition {
                    topic: tidings_domain::Topic::from_number(number)
                        .ok_or_else(|| Malformed::new(format!("{number} is no topic")))?,
                    partition: reader.u32("source partition")?,
                },
                SourcePosition {
                    pos: reader.position("source position")?,
                    idx: reader.u32("source index")?,
                },
            )),
        };
        let event = reader.bytes("event")?;
        reader.end()?;
        Ok(Self {
            seq,
            off,
            src,
            append_time,
            event,
        })
    }
}

impl Value for InboxHead {
    fn encode(&self) -> Vec<u8> {
        register(self.seq).u64(self.off.raw()).finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (seq, mut reader) = open(value)?;
        let off = reader.position("off")?;
        reader.end()?;
        Ok(Self { seq, off })
    }
}

/// `ckpt` with its write timestamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckpointCell {
    pub(super) pos: Position,
    pub(super) checkpoint: Checkpoint,
}

impl Value for CheckpointCell {
    fn encode(&self) -> Vec<u8> {
        register(self.pos.raw())
            .bytes(&encode_checkpoint(&self.checkpoint))
            .finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (pos, mut reader) = open(value)?;
        let checkpoint = decode_checkpoint(reader.bytes("checkpoint")?)?;
        reader.end()?;
        Ok(Self {
            pos: Position::from_raw(pos),
            checkpoint,
        })
    }
}

impl Value for DeviceRegister {
    fn encode(&self) -> Vec<u8> {
        register(self.off.raw()).u64(self.delivered).u64(self.stored).finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (off, mut reader) = open(value)?;
        let decoded = Self {
            delivered: reader.u64("delivered")?,
            stored: reader.u64("stored")?,
            off: Position::from_raw(off),
        };
        reader.end()?;
        Ok(decoded)
    }
}

impl Value for UserConvRegister {
    fn encode(&self) -> Vec<u8> {
        register(self.off.raw())
            .u64(self.appended.conv_seq)
            .u64(self.appended.countable_seq)
            .u64(self.delivered)
            .u64(self.read.conv_seq)
            .u64(self.read.countable_seq)
            .finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (off, mut reader) = open(value)?;
        let decoded = Self {
            appended: ConvMark {
                conv_seq: reader.u64("appended")?,
                countable_seq: reader.u64("appended countable")?,
            },
            delivered: reader.u64("delivered")?,
            read: ConvMark {
                conv_seq: reader.u64("read")?,
                countable_seq: reader.u64("read countable")?,
            },
            off: Position::from_raw(off),
        };
        reader.end()?;
        Ok(decoded)
    }
}

impl Value for DeviceOpen {
    fn encode(&self) -> Vec<u8> {
        row(self.opened_at).u64(self.start_cursor).finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (opened_at, mut reader) = open_row(value)?;
        let start_cursor = reader.u64("start_cursor")?;
        reader.end()?;
        Ok(Self {
            start_cursor,
            opened_at,
        })
    }
}

/// A dead-letter intent: the position itself, with the stamp at its complement, so that the *lowest* position is the
/// largest value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LowestPosition(pub(super) Position);

impl Value for LowestPosition {
    fn encode(&self) -> Vec<u8> {
        register(u64::MAX - self.0.raw()).finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (complement, reader) = open(value)?;
        reader.end()?;
        Ok(Self(Position::from_raw(u64::MAX - complement)))
    }
}

impl Value for FoldSkip {
    fn encode(&self) -> Vec<u8> {
        row(self.time)
            .u64(self.offset)
            .bytes(self.reason.as_bytes())
            .bytes(self.who.as_bytes())
            .finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (time, mut reader) = open_row(value)?;
        let decoded = Self {
            offset: reader.u64("offset")?,
            reason: reader.text("reason")?,
            who: reader.text("who")?,
            time,
        };
        reader.end()?;
        Ok(decoded)
    }
}

impl Value for DeadLetterRow {
    fn encode(&self) -> Vec<u8> {
        let count = u32::try_from(self.headers.len()).expect("a record has fewer than 2^32 headers");
        let writer = row(self.last_failed_at)
            .bytes(self.dlq_id.as_bytes())
            .u8(self.topic.number())
            .u32(self.partition)
            .u64(self.offset)
            .i64(self.origin_time.get())
            .bytes(self.group.as_bytes())
            .optional_bytes(self.key.as_deref())
            .optional_bytes(self.value.as_deref())
            .u32(count);
        self.headers
            .iter()
            .fold(writer, |writer, (name, value)| {
                writer.bytes(name.as_bytes()).bytes(value)
            })
            .bytes(self.error_class.as_bytes())
            .bytes(self.error_detail.as_bytes())
            .u32(self.attempts)
            .i64(self.first_failed_at.get())
            .i64(self.last_failed_at.get())
            .u32(self.replay_count)
            .bytes(self.state.name().as_bytes())
            .finish()
    }

    fn decode(value: Bytes) -> Result<Self, Malformed> {
        let (_, mut reader) = open_row(value)?;
        let dlq_id = reader.text("dlq_id")?;
        let topic = reader.topic("topic")?;
        let partition = reader.u32("partition")?;
        let offset = reader.u64("offset")?;
        let origin_time = Millis(reader.i64("origin_time")?);
        let group = reader.text("group")?;
        let key = reader.optional_bytes("key")?;
        let value = reader.optional_bytes("value")?;
        let mut headers = Vec::new();
        for _ in 0..reader.u32("number of headers")? {
            headers.push((reader.text("header name")?, reader.bytes("header value")?));
        }
        let error_class = reader.text("error_class")?;
        let error_detail = reader.text("error_detail")?;
        let attempts = reader.u32("attempts")?;
        let first_failed_at = Millis(reader.i64("first_failed_at")?);
        let last_failed_at = Millis(reader.i64("last_failed_at")?);
        let replay_count = reader.u32("replay_count")?;
        let name = reader.text("state")?;
        let state = DeadLetterState::from_name(&name)
            .ok_or_else(|| Malformed::new(format!("`{name}` is no state of a dead letter")))?;
        reader.end()?;
        Ok(Self {
            dlq_id,
            topic,
            partition,
            offset,
            origin_time,
            group,
            key,
            value,
            headers,
            error_class,
            error_detail,
            attempts,
            first_failed_at,
            last_failed_at,
            replay_count,
            state,
        })
    }
}
