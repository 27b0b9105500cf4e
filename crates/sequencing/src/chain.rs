//! The prev-links of one run (seq:G4).
//!
//! Every output names this run's previous output to the same destination partition, so that the consumer can tell a gap
//! from a beginning. The chain belongs to the run and to its one source partition; it is never kept with a producer and
//! never continued by the next run, which starts with *none*.

use std::collections::HashMap;

use tidings_domain::{SourcePartition, SourcePosition, Topic};
use tidings_proto::header::SourceLink;

/// Last output per destination.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    source: SourcePartition,
    last: HashMap<(Topic, u32), SourcePosition>,
}

impl Chain {
    pub(crate) fn new(source: SourcePartition) -> Self {
        Self {
            source,
            last: HashMap::new(),
        }
    }

    /// The link of the next output to `topic`/`partition`, derived from `src`.
    pub(crate) fn next(&mut self, topic: Topic, partition: u32, src: SourcePosition) -> SourceLink {
        let prev = self.last.insert((topic, partition), src);
        SourceLink {
            source: self.source,
            src,
            prev,
        }
    }
}
