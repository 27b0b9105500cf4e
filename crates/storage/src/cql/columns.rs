//! Between our types and those of the columns.

use tidings_domain::clock::Millis;
use tidings_domain::{Conversation, Position, Topic, Uid};

use crate::codec::Malformed;

/// A number as a `bigint`. Sequences and positions have 63 bits at most; a larger one can only be the bound of a query,
/// where the largest `bigint` means the same.
pub(super) fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A `LIMIT`; none is as large as that.
pub(super) fn row_limit(limit: usize) -> i32 {
    i32::try_from(limit).unwrap_or(i32::MAX)
}

/// The write timestamp of a row of a time-window table: microseconds.
pub(super) fn timestamp_of(append_time: Millis) -> i64 {
    append_time.get().saturating_mul(1000)
}

pub(super) fn number(column: &str, value: i64) -> Result<u64, Malformed> {
    u64::try_from(value).map_err(|_| Malformed(format!("{column} is {value}")))
}

pub(super) fn small(column: &str, value: i64) -> Result<u32, Malformed> {
    u32::try_from(value).map_err(|_| Malformed(format!("{column} is {value}")))
}

pub(super) fn position(column: &str, value: i64) -> Result<Position, Malformed> {
    number(column, value).map(Position::from_raw)
}

/// A topic's number; the largest is 6.
pub(super) fn tinyint(number: u8) -> i8 {
    number.cast_signed()
}

pub(super) fn topic(column: &str, value: i8) -> Result<Topic, Malformed> {
    Topic::from_number(value.cast_unsigned()).ok_or_else(|| Malformed(format!("{column} is {value}")))
}

pub(super) fn uid(column: &str, value: &str) -> Result<Uid, Malformed> {
    Uid::parse(value).map_err(|error| Malformed(format!("{column}: {error}")))
}

pub(super) fn conversation(column: &str, value: &str) -> Result<Conversation, Malformed> {
    Conversation::parse(value).map_err(|error| Malformed(format!("{column}: {error}")))
}
