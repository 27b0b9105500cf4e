//! Record headers: source positions in fixed size, readable without the value (architecture.md section 2).
//!
//! `src` is the source position of a record that a fold emitted (seq:G2), `prev` that of the same run's previous output
//! to the same destination partition (seq:G4). A record has both or none: exactly one of them, or one of the wrong
//! size, means that a chain may be damaged and the consumer must stop.

use bytes::Bytes;
use tidings_domain::{Position, SourcePartition, SourcePosition, Topic};

/// Name of the source position header.
pub const SRC: &str = "src";
/// Name of the previous-output header.
pub const PREV: &str = "prev";
/// Name of the W3C trace context header.
pub const TRACEPARENT: &str = "traceparent";

const SRC_BYTES: usize = 17;
const PREV_BYTES: usize = 13;

/// The link of an emitted record to its source (seq:G2, seq:G4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLink {
    /// The partition it was derived from.
    pub source: SourcePartition,
    /// The position in it.
    pub src: SourcePosition,
    /// This run's previous output to the same destination; `None` for the run's first.
    pub prev: Option<SourcePosition>,
}

/// Why the headers of a record are not a link: the partition must stop (seq:G4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Only one of the two headers is there.
    #[error("the record has only one of the headers src and prev")]
    OnlyOne,
    /// A header has the wrong size.
    #[error("header {name} has {length} bytes instead of {expected}")]
    Size {
        /// Which header.
        name: &'static str,
        /// Its length.
        length: usize,
        /// What it should be.
        expected: usize,
    },
    /// The source topic's number is not known.
    #[error("header src names unknown topic {0}")]
    UnknownTopic(u8),
    /// The flag of `prev` is neither 0 nor 1.
    #[error("header prev begins with {0} instead of 0 or 1")]
    PrevFlag(u8),
}

impl SourceLink {
    /// `src`: topic number (1), partition (4), position (8), index (4), big-endian.
    #[must_use]
    pub fn encode_src(&self) -> [u8; SRC_BYTES] {
        let mut out = [0; SRC_BYTES];
        out[0] = self.source.topic.number();
        out[1..5].copy_from_slice(&self.source.partition.to_be_bytes());
        out[5..13].copy_from_slice(&self.src.pos.raw().to_be_bytes());
        out[13..17].copy_from_slice(&self.src.idx.to_be_bytes());
        out
    }

    /// `prev`: 0 for none or 1 (1), position (8), index (4), big-endian.
    #[must_use]
    pub fn encode_prev(&self) -> [u8; PREV_BYTES] {
        let mut out = [0; PREV_BYTES];
        if let Some(prev) = self.prev {
            out[0] = 1;
            out[1..9].copy_from_slice(&prev.pos.raw().to_be_bytes());
            out[9..13].copy_from_slice(&prev.idx.to_be_bytes());
        }
        out
    }

    /// Reads the link from the values of the two headers. `Ok(None)`: a record without source position.
    pub fn decode(src: Option<&Bytes>, prev: Option<&Bytes>) -> Result<Option<Self>, LinkError> {
        let (src, prev) = match (src, prev) {
            (None, None) => return Ok(None),
            (Some(src), Some(prev)) => (src, prev),
            (Some(_), None) | (None, Some(_)) => return Err(LinkError::OnlyOne),
        };
        let src: &[u8; SRC_BYTES] = src.as_ref().try_into().map_err(|_| LinkError::Size {
            name: SRC,
            length: src.len(),
            expected: SRC_BYTES,
        })?;
        let prev: &[u8; PREV_BYTES] = prev.as_ref().try_into().map_err(|_| LinkError::Size {
            name: PREV,
            length: prev.len(),
            expected: PREV_BYTES,
        })?;
        let topic = Topic::from_number(src[0]).ok_or(LinkError::UnknownTopic(src[0]))?;
        let prev_position = || position(&prev[1..]);
        Ok(Some(Self {
            source: SourcePartition {
                topic,
                partition: u32::from_be_bytes([src[1], src[2], src[3], src[4]]),
            },
            src: position(&src[5..]),
            prev: match prev[0] {
                0 => None,
                1 => Some(prev_position()),
                flag => return Err(LinkError::PrevFlag(flag)),
            },
        }))
    }
}

/// Reads position (8) and index (4); the caller has checked the size.
fn position(bytes: &[u8]) -> SourcePosition {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[..8]);
    let mut idx = [0; 4];
    idx.copy_from_slice(&bytes[8..12]);
    SourcePosition {
        pos: Position::from_raw(u64::from_be_bytes(raw)),
        idx: u32::from_be_bytes(idx),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_domain::LogEpoch;

    fn link(prev: Option<SourcePosition>) -> SourceLink {
        SourceLink {
            source: SourcePartition {
                topic: Topic::Ingress,
                partition: 3,
            },
            src: SourcePosition {
                pos: Position::new(LogEpoch(1), 77),
                idx: 2,
            },
            prev,
        }
    }

    #[test]
    fn links_round_trip() {
        for prev in [None, Some(SourcePosition::first(Position::new(LogEpoch(1), 70)))] {
            let link = link(prev);
            let src = Bytes::copy_from_slice(&link.encode_src());
            let prev = Bytes::copy_from_slice(&link.encode_prev());
            assert_eq!(SourceLink::decode(Some(&src), Some(&prev)), Ok(Some(link)));
        }
        assert_eq!(SourceLink::decode(None, None), Ok(None));
    }

    #[test]
    fn a_damaged_link_is_never_taken_for_no_link() {
        let link = link(None);
        let src = Bytes::copy_from_slice(&link.encode_src());
        let prev = Bytes::copy_from_slice(&link.encode_prev());
        assert_eq!(SourceLink::decode(Some(&src), None), Err(LinkError::OnlyOne));
        assert_eq!(SourceLink::decode(None, Some(&prev)), Err(LinkError::OnlyOne));
        assert!(matches!(
            SourceLink::decode(Some(&src.slice(1..)), Some(&prev)),
            Err(LinkError::Size { name: SRC, .. })
        ));
        assert!(matches!(
            SourceLink::decode(Some(&src), Some(&Bytes::new())),
            Err(LinkError::Size { name: PREV, .. })
        ));
    }
}
