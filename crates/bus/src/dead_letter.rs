//! What a dead letter carries beside the untouched record (notes/kafka.md 7.4). Numbers are decimal text.
//!
//! The origin is written once and never overwritten, so that a replay that fails again keeps it.

use bytes::Bytes;
use prost::Message as _;
use tidings_domain::Topic;
use tidings_domain::clock::Millis;
use tidings_proto::v1::DlqResolved;

use crate::catalogue::{Catalogue, ConsumerGroup};
use crate::record::{Headers, LogRecord, OutRecord};

/// `<orig-topic>/<partition>/<offset>/<group>`: identity for replay dedup.
pub const DLQ_ID: &str = "tidings-dlq-id";
/// Origin topic's short name.
pub const ORIG_TOPIC: &str = "tidings-orig-topic";
/// Origin partition.
pub const ORIG_PARTITION: &str = "tidings-orig-partition";
/// Origin offset.
pub const ORIG_OFFSET: &str = "tidings-orig-offset";
/// Broker time of the origin record, ms.
pub const ORIG_TIMESTAMP: &str = "tidings-orig-timestamp";
/// Consumer group that failed.
pub const ORIG_GROUP: &str = "tidings-orig-group";
/// Attempts so far.
pub const ATTEMPTS: &str = "tidings-attempts";
/// Stable name of the failure.
pub const ERROR_CLASS: &str = "tidings-error-class";
/// At most 512 bytes, no message text.
pub const ERROR_DETAIL: &str = "tidings-error-detail";
/// Handler step.
pub const ERROR_STAGE: &str = "tidings-error-stage";
/// Epoch ms.
pub const FIRST_FAILED_AT: &str = "tidings-first-failed-at";
/// Epoch ms.
pub const LAST_FAILED_AT: &str = "tidings-last-failed-at";
/// Host that gave up.
pub const FAILED_HOST: &str = "tidings-failed-host";
/// Replays so far, set by the compensator.
pub const REPLAY_COUNT: &str = "tidings-replay-count";
/// The compensator's run.
pub const REPLAY_RUN: &str = "tidings-replay-run";
/// On the dlq record that says a replay ended well.
pub const RESOLVED: &str = "tidings-resolved";

/// Largest error detail in bytes.
pub const MAX_DETAIL_BYTES: usize = 512;

/// Why a record is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Stable name, e.g. `decode`.
    pub error_class: &'static str,
    /// What happened, without message text.
    pub detail: String,
    /// Step of the service.
    pub stage: &'static str,
}

/// When and how often it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempts {
    /// How often.
    pub count: u32,
    /// First failure.
    pub first: Millis,
    /// Last failure.
    pub last: Millis,
}

/// The identity of a record as a dead letter.
#[must_use]
pub fn dlq_id(record: &LogRecord, group: ConsumerGroup) -> String {
    record.dlq_id().unwrap_or_else(|| {
        format!(
            "{}/{}/{}/{}",
            record.topic,
            record.partition,
            record.offset,
            group.name()
        )
    })
}

/// The dlq record of `record`: key, value and headers as they were, and the facts of the failure. A header of an earlier
/// failure is replaced, the origin kept.
#[must_use]
pub fn dead_letter(
    catalogue: &Catalogue,
    record: &LogRecord,
    group: ConsumerGroup,
    rejection: &Rejection,
    attempts: Attempts,
    host: &str,
) -> OutRecord {
    const ORIGIN: [&str; 6] = [
        DLQ_ID,
        ORIG_TOPIC,
        ORIG_PARTITION,
        ORIG_OFFSET,
        ORIG_TIMESTAMP,
        ORIG_GROUP,
    ];
    const FAILURE: [&str; 7] = [
        ATTEMPTS,
        ERROR_CLASS,
        ERROR_DETAIL,
        ERROR_STAGE,
        FIRST_FAILED_AT,
        LAST_FAILED_AT,
        FAILED_HOST,
    ];
    let mut headers = Headers::new();
    for (name, value) in record.headers.iter().filter(|(name, _)| !FAILURE.contains(name)) {
        headers.push(name.to_owned(), value.clone());
    }
    if ORIGIN.iter().any(|name| record.headers.get(name).is_none()) {
        for (name, value) in [
            (DLQ_ID, dlq_id(record, group)),
            (ORIG_TOPIC, record.topic.short_name().to_owned()),
            (ORIG_PARTITION, record.partition.to_string()),
            (ORIG_OFFSET, record.offset.to_string()),
            (ORIG_TIMESTAMP, record.append_time.get().to_string()),
            (ORIG_GROUP, group.name().to_owned()),
        ] {
            if record.headers.get(name).is_none() {
                headers.push(name, value);
            }
        }
    }
    let first = decimal(&record.headers, FIRST_FAILED_AT).map_or(attempts.first, Millis);
    headers.push(ATTEMPTS, attempts.count.to_string());
    headers.push(ERROR_CLASS, rejection.error_class);
    headers.push(ERROR_DETAIL, truncate(&rejection.detail, MAX_DETAIL_BYTES).to_owned());
    headers.push(ERROR_STAGE, rejection.stage);
    headers.push(FIRST_FAILED_AT, first.get().to_string());
    headers.push(LAST_FAILED_AT, attempts.last.get().to_string());
    headers.push(FAILED_HOST, host.to_owned());
    OutRecord {
        topic: Topic::Dlq,
        partition: dlq_partition(catalogue, record, group),
        key: record.key.clone(),
        value: record.value.clone(),
        headers,
    }
}

/// Whether `record` is the replay of a dead letter, so that its good end must be reported to `dlq`. Records of `dlq` itself
/// carry the same header and are none.
#[must_use]
pub fn is_replay(record: &LogRecord) -> bool {
    record.topic != Topic::Dlq && record.headers.get(DLQ_ID).is_some()
}

/// The `dlq` record that says that the replay `record` ended well; it goes to the partition of its dead letter.
#[must_use]
pub fn resolved(catalogue: &Catalogue, record: &LogRecord, group: ConsumerGroup) -> OutRecord {
    let value = DlqResolved {
        dlq_id: dlq_id(record, group),
        replay_run: text(&record.headers, REPLAY_RUN).unwrap_or_default(),
    };
    let mut headers = Headers::new();
    headers.push(RESOLVED, Bytes::from_static(b"1"));
    OutRecord {
        topic: Topic::Dlq,
        partition: dlq_partition(catalogue, record, group),
        key: record.key.clone(),
        value: Some(value.encode_to_vec().into()),
        headers,
    }
}

/// By origin key, so that the dead letters of one conversation or user stay in order; without a key by the identity.
fn dlq_partition(catalogue: &Catalogue, record: &LogRecord, group: ConsumerGroup) -> u32 {
    match record.key.as_ref().filter(|key| !key.is_empty()) {
        Some(key) => catalogue.partition(Topic::Dlq, key),
        None => catalogue.partition(Topic::Dlq, dlq_id(record, group).as_bytes()),
    }
}

/// Reads a decimal header.
#[must_use]
pub fn decimal(headers: &Headers, name: &str) -> Option<i64> {
    std::str::from_utf8(headers.get(name)?).ok()?.parse().ok()
}

/// Reads a text header.
#[must_use]
pub fn text(headers: &Headers, name: &str) -> Option<String> {
    headers
        .get(name)
        .map(|value| String::from_utf8_lossy(value).into_owned())
}

/// The longest prefix of `text` with at most `max` bytes that ends on a character.
fn truncate(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Header values as stored with the dead letter.
#[must_use]
pub fn header_list(headers: &Headers) -> Vec<(String, Bytes)> {
    headers
        .iter()
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect()
}
