//! Keys of the log's keyspaces. Numbers are big-endian, so that keys sort like offsets.

/// Key of a record.
pub(super) fn record(topic: u8, partition: u32, offset: u64) -> [u8; 13] {
    let mut key = [0; 13];
    key[0] = topic;
    key[1..5].copy_from_slice(&partition.to_be_bytes());
    key[5..].copy_from_slice(&offset.to_be_bytes());
    key
}

/// The offset in a record's key.
pub(super) fn offset_of(key: &[u8]) -> Option<u64> {
    let (_, offset) = key.split_at_checked(5)?;
    Some(u64::from_be_bytes(offset.try_into().ok()?))
}

/// Key of the row that describes a topic.
pub(super) fn topic(topic: u8) -> [u8; 2] {
    [b't', topic]
}

/// Key of the row that says where a trimmed partition starts.
pub(super) fn partition_start(topic: u8, partition: u32) -> [u8; 6] {
    let mut key = [0; 6];
    key[0] = b'p';
    key[1] = topic;
    key[2..].copy_from_slice(&partition.to_be_bytes());
    key
}

/// Key of a group's offset. The fixed part stands first, so no two (group, topic, partition) share a key.
pub(super) fn group_offset(group: &str, topic: u8, partition: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(5 + group.len());
    key.push(topic);
    key.extend_from_slice(&partition.to_be_bytes());
    key.extend_from_slice(group.as_bytes());
    key
}
