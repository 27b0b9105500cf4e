//! Records on their way to and from the log.

use std::borrow::Cow;

use bytes::Bytes;
use smallvec::SmallVec;
use tidings_domain::clock::Millis;
use tidings_domain::{LogEpoch, Position, Topic};
use tidings_proto::header::{LinkError, PREV, SRC, SourceLink};

use crate::dead_letter;

/// Name of a header.
pub type HeaderName = Cow<'static, str>;

/// Headers in their order. A name should stand once; look-ups take the first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers(SmallVec<[(HeaderName, Bytes); 3]>);

impl Headers {
    /// No headers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The first value under `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    /// Appends a header.
    pub fn push(&mut self, name: impl Into<HeaderName>, value: impl Into<Bytes>) {
        self.0.push((name.into(), value.into()));
    }

    /// Appends the source link of a fold's output.
    pub fn push_link(&mut self, link: &SourceLink) {
        self.push(SRC, Bytes::copy_from_slice(&link.encode_src()));
        self.push(PREV, Bytes::copy_from_slice(&link.encode_prev()));
    }

    /// All headers in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// Bytes of names and values.
    #[must_use]
    pub fn size(&self) -> usize {
        self.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// Number of headers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A record to be written, with its partition: all producers compute it with [`crate::partition_for`], a replay takes
/// that of the origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutRecord {
    /// Where.
    pub topic: Topic,
    /// Which partition.
    pub partition: u32,
    /// The key; `None` only for a dead letter whose original had none.
    pub key: Option<Bytes>,
    /// The value; `None` only for a dead letter whose original had none.
    pub value: Option<Bytes>,
    /// Headers.
    pub headers: Headers,
}

impl OutRecord {
    /// Bytes that the record takes in a queue, without protocol overhead.
    #[must_use]
    pub fn size(&self) -> usize {
        self.key.as_ref().map_or(0, Bytes::len) + self.value.as_ref().map_or(0, Bytes::len) + self.headers.size()
    }
}

/// A record as read from the log. Owned; the bytes are shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Where from.
    pub topic: Topic,
    /// Which partition.
    pub partition: u32,
    /// Its offset.
    pub offset: u64,
    /// Broker time (LogAppendTime).
    pub append_time: Millis,
    /// The key.
    pub key: Option<Bytes>,
    /// The value.
    pub value: Option<Bytes>,
    /// Headers.
    pub headers: Headers,
}

impl LogRecord {
    /// Its position under the topic's epoch.
    #[must_use]
    pub fn position(&self, epoch: LogEpoch) -> Position {
        Position::new(epoch, self.offset)
    }

    /// The source link, if a fold emitted it.
    pub fn link(&self) -> Result<Option<SourceLink>, LinkError> {
        SourceLink::decode(self.headers.get(SRC), self.headers.get(PREV))
    }

    /// The identity of the dead letter this record replays, if it is one.
    #[must_use]
    pub fn dlq_id(&self) -> Option<String> {
        self.headers
            .get(dead_letter::DLQ_ID)
            .map(|id| String::from_utf8_lossy(id).into_owned())
    }

    /// Bytes that the record takes in a queue.
    #[must_use]
    pub fn size(&self) -> usize {
        self.key.as_ref().map_or(0, Bytes::len) + self.value.as_ref().map_or(0, Bytes::len) + self.headers.size()
    }
}
