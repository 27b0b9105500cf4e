//! Where a run of stage 1 begins: the committed position and W, both from one commit (seq:R1).

use std::fmt;

use tidings_domain::clock::Millis;

use crate::params::FOLD_VERSION;
use crate::stop::Stop;

/// What a run starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// First record to fold.
    pub offset: u64,
    /// Broker time of the record before it, from the metadata of the same commit; `None` if the commit does not say.
    pub w: Option<Millis>,
}

/// Kept beside a committed position, in the same commit: an offset and a W of different commits let duplicates through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitMetadata {
    /// Version of the fold that committed.
    pub fold_version: u32,
    /// Broker time of the last record folded.
    pub w: Millis,
}

impl fmt::Display for CommitMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fold_version={} w={}", self.fold_version, self.w.get())
    }
}

impl CommitMetadata {
    /// Reads the text form; `None` if it is of another form (a position committed by hand).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let fold_version = parts.next()?.strip_prefix("fold_version=")?.parse().ok()?;
        let w = Millis(parts.next()?.strip_prefix("w=")?.parse().ok()?);
        parts.next().is_none().then_some(Self { fold_version, w })
    }
}

impl Start {
    /// From a committed position. Without readable metadata W is unknown, which only costs reads; metadata of another
    /// fold version refuses the partition.
    pub fn from_commit(offset: u64, metadata: &str) -> Result<Self, Stop> {
        match CommitMetadata::parse(metadata) {
            None => Ok(Self { offset, w: None }),
            Some(CommitMetadata { fold_version, w }) if fold_version == FOLD_VERSION => Ok(Self { offset, w: Some(w) }),
            Some(CommitMetadata { fold_version, .. }) => Err(Stop::FoldVersion {
                offset,
                found: fold_version,
                supported: FOLD_VERSION,
            }),
        }
    }

    /// From the log's first record, if there is no commit.
    #[must_use]
    pub const fn at_log_start(offset: u64) -> Self {
        Self { offset, w: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_round_trips_and_anything_else_is_absent() {
        let metadata = CommitMetadata {
            fold_version: FOLD_VERSION,
            w: Millis(1_700_000_000_123),
        };
        assert_eq!(CommitMetadata::parse(&metadata.to_string()), Some(metadata));
        for other in ["", "x", "fold_version=1", "fold_version=1 w=x", "fold_version=1 w=1 y"] {
            assert_eq!(
                Start::from_commit(7, other),
                Ok(Start { offset: 7, w: None }),
                "{other}"
            );
        }
        assert!(matches!(
            Start::from_commit(7, "fold_version=9 w=1"),
            Err(Stop::FoldVersion { found: 9, .. })
        ));
    }
}
