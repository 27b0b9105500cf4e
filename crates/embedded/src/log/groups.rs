//! Committed offsets of consumer groups.

use super::keys;
use super::shared::Shared;
use crate::Error;

/// Longest metadata of an offset in bytes.
const MAX_METADATA_BYTES: usize = 4096;

/// An offset to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupCommit {
    /// Which partition.
    pub partition: u32,
    /// Next offset to read.
    pub offset: u64,
    /// Kept beside it.
    pub metadata: String,
}

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOffset {
    /// Next offset to read.
    pub offset: u64,
    /// What was committed beside it.
    pub metadata: String,
}

impl Shared {
    pub(super) fn commit_offsets(&self, group: &str, topic: u8, commits: &[GroupCommit]) -> Result<(), Error> {
        const OPERATION: &str = "commit offsets";
        self.core.health.check()?;
        let mut batch = self.core.engine.batch();
        for commit in commits {
            let place = self.topics.place(topic, commit.partition)?;
            let end = self.topics.partition(place).end();
            if commit.offset > end {
                return Err(Error::OutOfRange {
                    topic: self.topics.topic(place).config.name.clone(),
                    partition: commit.partition,
                    offset: commit.offset,
                    start: self.topics.partition(place).start(),
                    end,
                });
            }
            if commit.metadata.len() > MAX_METADATA_BYTES {
                return Err(Error::Refused {
                    operation: OPERATION,
                    reason: format!(
                        "metadata of {} bytes, at most {MAX_METADATA_BYTES} are kept",
                        commit.metadata.len()
                    ),
                });
            }
            let mut value = commit.offset.to_be_bytes().to_vec();
            value.extend_from_slice(commit.metadata.as_bytes());
            batch.insert(
                &self.keyspaces.groups,
                keys::group_offset(group, topic, commit.partition),
                value,
            );
        }
        self.core.commit_writes(OPERATION, batch)
    }

    pub(super) fn committed(&self, group: &str, topic: u8, partition: u32) -> Result<Option<GroupOffset>, Error> {
        const OPERATION: &str = "read committed offset";
        self.topics.place(topic, partition)?;
        let stored = self
            .keyspaces
            .groups
            .get(keys::group_offset(group, topic, partition))
            .map_err(|error| Error::engine(OPERATION, &error))?;
        let Some(stored) = stored else { return Ok(None) };
        let decoded = stored.split_first_chunk().and_then(|(offset, metadata)| {
            Some(GroupOffset {
                offset: u64::from_be_bytes(*offset),
                metadata: String::from_utf8(metadata.to_vec()).ok()?,
            })
        });
        decoded.map(Some).ok_or_else(|| Error::Damaged {
            operation: OPERATION,
            reason: format!("{group} on topic {topic} partition {partition}: {} bytes", stored.len()),
        })
    }
}
