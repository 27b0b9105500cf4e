//! The one partition function: murmur2 as in Kafka's Java client (`Utils.murmur2`, `toPositive`), computed by us and
//! passed explicitly, so that gateway, folds, compensator and operators' tools agree (scenario B73).

/// The partition of `key` among `partitions`.
///
/// # Panics
/// If `partitions` is 0 or the key is empty: an empty key would scatter a conversation, so callers check ids first.
#[must_use]
pub fn partition_for(key: &[u8], partitions: u32) -> u32 {
    assert!(partitions > 0, "a topic has at least one partition");
    assert!(!key.is_empty(), "records are partitioned by a key that is not empty");
    (murmur2(key) & 0x7fff_ffff) % partitions
}

/// Murmur2, 32 bits, seed 0x9747b28c, as in Kafka's Java client.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    const SEED: u32 = 0x9747_b28c;
    // Kafka takes the length as a Java int; keys are far below 2 GiB.
    let mut h = SEED ^ u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        k = k.wrapping_mul(M);
        k ^= k >> R;
        k = k.wrapping_mul(M);
        h = h.wrapping_mul(M) ^ k;
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        for (i, byte) in tail.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of Kafka's `UtilsTest.testMurmur2`.
    #[test]
    fn agrees_with_the_java_client() {
        let vectors: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
        ];
        for (key, expected) in vectors {
            assert_eq!(murmur2(key).cast_signed(), expected, "{}", String::from_utf8_lossy(key));
        }
    }
}
