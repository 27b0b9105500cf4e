//! Records between the bus and the client library.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message, OwnedHeaders};
use tidings_domain::Topic;
use tidings_domain::clock::Millis;
use tidings_proto::header::{PREV, SRC, TRACEPARENT};

use crate::dead_letter::DLQ_ID;
use crate::record::{HeaderName, Headers, LogRecord};

/// Headers that need no allocation for their name.
const FREQUENT: [&str; 4] = [SRC, PREV, TRACEPARENT, DLQ_ID];

pub(super) fn native_headers(headers: &Headers) -> Option<OwnedHeaders> {
    if headers.is_empty() {
        return None;
    }
    let native = OwnedHeaders::new_with_capacity(headers.len());
    Some(headers.iter().fold(native, |native, (key, value)| {
        native.insert(Header {
            key,
            value: Some(&value[..]),
        })
    }))
}

/// The owned form of a record: one copy, shared from then on. `None` for an offset or partition that cannot be.
pub(super) fn log_record(topic: Topic, message: &BorrowedMessage<'_>) -> Option<LogRecord> {
    Some(LogRecord {
        topic,
        partition: u32::try_from(message.partition()).ok()?,
        offset: u64::try_from(message.offset()).ok()?,
        append_time: Millis(message.timestamp().to_millis().unwrap_or_default()),
        key: message.key().map(Bytes::copy_from_slice),
        value: message.payload().map(Bytes::copy_from_slice),
        headers: headers_of(message),
    })
}

fn headers_of(message: &BorrowedMessage<'_>) -> Headers {
    // The library panics on a header name that is not UTF-8. No producer of the suite writes one; a stranger's record
    // must not end the thread that polls.
    catch_unwind(AssertUnwindSafe(|| {
        let mut headers = Headers::new();
        if let Some(native) = message.headers() {
            for header in native.iter() {
                headers.push(
                    header_name(header.key),
                    Bytes::copy_from_slice(header.value.unwrap_or_default()),
                );
            }
        }
        headers
    }))
    .unwrap_or_else(|_| {
        tracing::warn!(
            topic = message.topic(),
            partition = message.partition(),
            offset = message.offset(),
            "a header name is not UTF-8: the record goes on without headers"
        );
        Headers::new()
    })
}

fn header_name(name: &str) -> HeaderName {
    FREQUENT
        .into_iter()
        .find(|known| *known == name)
        .map_or_else(|| HeaderName::Owned(name.to_owned()), HeaderName::Borrowed)
}
