//! The binary form of stored values that are opaque to the store: what the embedded tables hold, and the one cell of a
//! checkpoint in every store.
//!
//! Numbers are big-endian and of fixed size, so that two encodings of one shape compare like their fields in order;
//! byte strings carry a 32-bit length. Reading never panics: a value that does not fit is a [`Malformed`].

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes};
use tidings_domain::state::Checkpoint;
use tidings_domain::{Position, SourcePartition, SourcePosition, Topic};

/// A stored value that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) String);

impl Malformed {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// Writes one value.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.0.put_u8(value);
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.put_u32(value);
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.put_u64(value);
        self
    }

    pub(crate) fn i64(mut self, value: i64) -> Self {
        self.0.put_i64(value);
        self
    }

    /// Bytes of a length both sides know.
    pub(crate) fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.put_slice(bytes);
        self
    }

    /// Bytes with their length.
    ///
    /// # Panics
    /// If there are more than 4 GiB of them: no frame of the suite is as large.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let length = u32::try_from(bytes.len()).expect("a stored value is below 4 GiB");
        self.u32(length).fixed(bytes)
    }

    pub(crate) fn optional_bytes(self, bytes: Option<&[u8]>) -> Self {
        match bytes {
            Some(bytes) => self.u8(1).bytes(bytes),
            None => self.u8(0),
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Reads one value; byte strings are slices of it, not copies.
#[derive(Debug)]
pub(crate) struct Reader(Bytes);

impl Reader {
    pub(crate) fn new(value: Bytes) -> Self {
        Self(value)
    }

    fn need(&self, bytes: usize, what: &str) -> Result<(), Malformed> {
        if self.0.len() < bytes {
            return Err(Malformed(format!(
                "{what}: {bytes} bytes wanted, {} are left",
                self.0.len()
            )));
        }
        Ok(())
    }

    pub(crate) fn u8(&mut self, what: &str) -> Result<u8, Malformed> {
        self.need(1, what)?;
        Ok(self.0.get_u8())
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, Malformed> {
        self.need(4, what)?;
        Ok(self.0.get_u32())
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, Malformed> {
        self.need(8, what)?;
        Ok(self.0.get_u64())
    }

    pub(crate) fn i64(&mut self, what: &str) -> Result<i64, Malformed> {
        self.need(8, what)?;
        Ok(self.0.get_i64())
    }

    pub(crate) fn fixed<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Malformed> {
        self.need(N, what)?;
        let mut bytes = [0; N];
        self.0.copy_to_slice(&mut bytes);
        Ok(bytes)
    }

    pub(crate) fn bytes(&mut self, what: &str) -> Result<Bytes, Malformed> {
        // On the supported targets a u32 fits into usize.
        let length = self.u32(what)? as usize;
        self.need(length, what)?;
        Ok(self.0.split_to(length))
    }

    pub(crate) fn optional_bytes(&mut self, what: &str) -> Result<Option<Bytes>, Malformed> {
        match self.u8(what)? {
            0 => Ok(None),
            1 => self.bytes(what).map(Some),
            other => Err(Malformed(format!("{what}: {other} is no presence mark"))),
        }
    }

    pub(crate) fn text(&mut self, what: &str) -> Result<String, Malformed> {
        let bytes = self.bytes(what)?;
        String::from_utf8(bytes.into()).map_err(|_| Malformed(format!("{what} is not UTF-8")))
    }

    pub(crate) fn position(&mut self, what: &str) -> Result<Position, Malformed> {
        self.u64(what).map(Position::from_raw)
    }

    pub(crate) fn topic(&mut self, what: &str) -> Result<Topic, Malformed> {
        let number = self.u8(what)?;
        Topic::from_number(number).ok_or_else(|| Malformed(format!("{what}: {number} is no topic")))
    }

    /// All of the value must have been read: what is left over was written by a form this reader does not know.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed(format!("{} bytes are left over", self.0.len())))
        }
    }
}

/// Version of the form of a checkpoint cell.
const CHECKPOINT_VERSION: u8 = 1;

/// The one cell of `ckpt`: {fold version, offset, V} together, because an offset and a V of different writes lose or
/// repeat messages (sequencing.md C8).
pub(crate) fn encode_checkpoint(checkpoint: &Checkpoint) -> Vec<u8> {
    let count = u32::try_from(checkpoint.folded.len()).expect("there are fewer than 2^32 source partitions");
    checkpoint
        .folded
        .iter()
        .fold(
            Writer::default()
                .u8(CHECKPOINT_VERSION)
                .u32(checkpoint.fold_version)
                .u64(checkpoint.next_offset)
                .u32(count),
            |writer, (partition, position)| {
                writer
                    .u8(partition.topic.number())
                    .u32(partition.partition)
                    .u64(position.pos.raw())
                    .u32(position.idx)
            },
        )
        .finish()
}

/// The counterpart of [`encode_checkpoint`].
pub(crate) fn decode_checkpoint(value: Bytes) -> Result<Checkpoint, Malformed> {
    let mut reader = Reader::new(value);
    let version = reader.u8("checkpoint version")?;
    if version != CHECKPOINT_VERSION {
        return Err(Malformed(format!("checkpoint of unknown version {version}")));
    }
    let fold_version = reader.u32("fold version")?;
    let next_offset = reader.u64("offset")?;
    let count = reader.u32("number of source partitions")?;
    let mut folded = BTreeMap::new();
    for _ in 0..count {
        let partition = SourcePartition {
            topic: reader.topic("source topic")?,
            partition: reader.u32("source partition")?,
        };
        let position = SourcePosition {
            pos: reader.position("source position")?,
            idx: reader.u32("source index")?,
        };
        folded.insert(partition, position);
    }
    reader.end()?;
    Ok(Checkpoint {
        fold_version,
        next_offset,
        folded,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn checkpoints() -> impl Strategy<Value = Checkpoint> {
        let folded = proptest::collection::btree_map(
            (1u8..=6, any::<u32>()).prop_map(|(topic, partition)| SourcePartition {
                topic: Topic::from_number(topic).expect("1 to 6 are topics"),
                partition,
            }),
            (any::<u64>(), any::<u32>()).prop_map(|(pos, idx)| SourcePosition {
                pos: Position::from_raw(pos),
                idx,
            }),
            0..8,
        );
        (any::<u32>(), any::<u64>(), folded).prop_map(|(fold_version, next_offset, folded)| Checkpoint {
            fold_version,
            next_offset,
            folded,
        })
    }

    proptest! {
        #[test]
        fn a_checkpoint_round_trips(checkpoint in checkpoints()) {
            let encoded = encode_checkpoint(&checkpoint);
            prop_assert_eq!(decode_checkpoint(Bytes::from(encoded)), Ok(checkpoint));
        }

        #[test]
        fn a_cut_checkpoint_is_refused(checkpoint in checkpoints(), cut in 1usize..64) {
            let mut encoded = encode_checkpoint(&checkpoint);
            encoded.truncate(encoded.len().saturating_sub(cut));
            prop_assert!(decode_checkpoint(Bytes::from(encoded)).is_err());
        }
    }

    #[test]
    fn what_is_left_over_is_refused() {
        let mut encoded = encode_checkpoint(&Checkpoint::default());
        encoded.push(0);
        assert!(decode_checkpoint(Bytes::from(encoded)).is_err());
    }
}
