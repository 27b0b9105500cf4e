//! A run of the router: appends with source positions and prev-links.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidings_bus::{Catalogue, Headers};
use tidings_domain::{LogEpoch, Position, SourcePartition, SourcePosition, Topic};
use tidings_proto::header::SourceLink;
use tidings_proto::record::{Inbox, InboxAppend};
use tidings_testing::Embedded;

use super::user;

/// One run of one source partition.
pub(crate) struct Feeder {
    catalogue: Catalogue,
    /// Offset of the next source record.
    next: u64,
    /// Previous output by destination.
    prev: BTreeMap<u32, SourcePosition>,
}

impl Feeder {
    pub(crate) fn new(catalogue: &Catalogue) -> Self {
        Self {
            catalogue: catalogue.clone(),
            next: 0,
            prev: BTreeMap::new(),
        }
    }

    /// Another run that begins at this source offset.
    pub(crate) fn begin_again_at(&mut self, offset: u64) {
        self.next = offset;
        self.prev.clear();
    }

    /// A source record whose output is lost on its way.
    pub(crate) fn lose(&mut self, uid: &str) {
        self.link(uid);
    }

    /// The link of the next output to the partition of `uid`.
    pub(crate) fn link(&mut self, uid: &str) -> SourceLink {
        let partition = self.catalogue.partition(Topic::Inbox, uid.as_bytes());
        let src = SourcePosition::first(Position::new(LogEpoch::FIRST, self.next));
        self.next += 1;
        SourceLink {
            source: SourcePartition {
                topic: Topic::Ingress,
                partition: 0,
            },
            src,
            prev: self.prev.insert(partition, src),
        }
    }

    pub(crate) fn headers(&mut self, uid: &str) -> Headers {
        let mut headers = Headers::new();
        headers.push_link(&self.link(uid));
        headers
    }

    /// Appends an event to the stream of `uid`.
    pub(crate) async fn append(&mut self, embedded: &Embedded, uid: &str, event: Bytes) {
        let headers = self.headers(uid);
        embedded
            .append(Topic::Inbox, uid, Some(append_of(uid, event)), headers)
            .await;
    }
}

pub(crate) fn append_of(uid: &str, event: Bytes) -> Bytes {
    Inbox::Append(InboxAppend {
        uids: vec![user(uid)],
        event,
    })
    .encode()
}
