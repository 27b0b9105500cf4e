//! Between the types of the bus and those of the log.

use bytes::Bytes;
use smallvec::SmallVec;
use tidings_domain::Topic;
use tidings_domain::clock::Millis;
use tidings_embedded::log::{EncodedRecord, Record};
use tidings_proto::header::{PREV, SRC, TRACEPARENT};

use crate::record::HeaderName;
use crate::{Error, Headers, LogRecord, OutRecord, dead_letter};

/// Names that need no allocation.
const KNOWN_NAMES: [&str; 19] = [
    SRC,
    PREV,
    TRACEPARENT,
    dead_letter::DLQ_ID,
    dead_letter::ORIG_TOPIC,
    dead_letter::ORIG_PARTITION,
    dead_letter::ORIG_OFFSET,
    dead_letter::ORIG_TIMESTAMP,
    dead_letter::ORIG_GROUP,
    dead_letter::ATTEMPTS,
    dead_letter::ERROR_CLASS,
    dead_letter::ERROR_DETAIL,
    dead_letter::ERROR_STAGE,
    dead_letter::FIRST_FAILED_AT,
    dead_letter::LAST_FAILED_AT,
    dead_letter::FAILED_HOST,
    dead_letter::REPLAY_COUNT,
    dead_letter::REPLAY_RUN,
    dead_letter::RESOLVED,
];

pub(super) fn encode(record: &OutRecord) -> Result<EncodedRecord, tidings_embedded::Error> {
    let headers: SmallVec<[(&str, &[u8]); 4]> = record
        .headers
        .iter()
        .map(|(name, value)| (name, value.as_ref()))
        .collect();
    EncodedRecord::new(record.key.as_deref(), record.value.as_deref(), &headers)
}

pub(super) fn log_record(topic: Topic, partition: u32, record: Record) -> LogRecord {
    let mut headers = Headers::new();
    for (name, value) in record.headers {
        headers.push(header_name(&name), value);
    }
    LogRecord {
        topic,
        partition,
        offset: record.offset,
        append_time: Millis(record.append_time),
        key: record.key,
        value: record.value,
        headers,
    }
}

fn header_name(name: &Bytes) -> HeaderName {
    match KNOWN_NAMES.iter().find(|known| known.as_bytes() == name.as_ref()) {
        Some(known) => HeaderName::Borrowed(known),
        // The log has checked that names are UTF-8.
        None => HeaderName::Owned(String::from_utf8_lossy(name).into_owned()),
    }
}

pub(super) fn log_error(operation: &'static str, error: &tidings_embedded::Error) -> Error {
    use tidings_embedded::Error as LogError;
    let reason = error.to_string();
    match error {
        LogError::Locked { .. } | LogError::Io { .. } | LogError::Engine { .. } | LogError::QueueFull { .. } => {
            Error::Unavailable { operation, reason }
        }
        LogError::OutOfRange { .. } | LogError::Refused { .. } => Error::NotSetUp { operation, reason },
        LogError::Poisoned { .. } | LogError::Damaged { .. } => Error::Fatal { operation, reason },
    }
}
