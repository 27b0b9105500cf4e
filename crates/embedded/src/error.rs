//! Errors of the embedded database.

use std::path::PathBuf;

use tidings_resilience::{Classify, ErrorClass};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process holds the data directory.
    #[error("data directory {path} is in use by another process: {remedy}")]
    Locked {
        /// The directory.
        path: PathBuf,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The operating system refused an operation: no permission, read-only, no space.
    #[error("{operation} at {path}: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The engine refused an operation; nothing was written.
    #[error("{operation}: {reason}")]
    Engine {
        /// What was tried.
        operation: &'static str,
        /// What the engine said.
        reason: String,
    },
    /// An earlier write or sync failed, so nothing more is written: the process must restart and read back what is there.
    #[error("the database takes no more writes since a write failed: {reason}")]
    Poisoned {
        /// The first failure.
        reason: String,
    },
    /// Too much waits for the committer: try again when completions have come.
    #[error("the append queue is full ({records} records, {bytes} bytes)")]
    QueueFull {
        /// Records that wait.
        records: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// A read begins outside the log.
    #[error("offset {offset} of {topic} partition {partition} is outside the log ({start} to {end})")]
    OutOfRange {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: u32,
        /// The offset asked for.
        offset: u64,
        /// First offset in the log.
        start: u64,
        /// Offset after the last record.
        end: u64,
    },
    /// Stored data contradicts itself; reading on could hand out a wrong record.
    #[error("{operation}: stored data is damaged: {reason}")]
    Damaged {
        /// What was tried.
        operation: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// The call itself is wrong.
    #[error("{operation}: refused: {reason}")]
    Refused {
        /// What was tried.
        operation: &'static str,
        /// Why not.
        reason: String,
    },
}

impl Classify for Error {
    fn class(&self) -> ErrorClass {
        match self {
            // The holder may end; a person may free space or mend permissions; a restart heals the poison.
            Self::Locked { .. }
            | Self::Io { .. }
            | Self::Engine { .. }
            | Self::Poisoned { .. }
            | Self::QueueFull { .. } => ErrorClass::Transient,
            Self::OutOfRange { .. } | Self::Damaged { .. } | Self::Refused { .. } => ErrorClass::Permanent,
        }
    }
}

impl Error {
    /// A failure of a read, or of an operation that changed nothing.
    pub(crate) fn engine(operation: &'static str, error: &fjall::Error) -> Self {
        if matches!(error, fjall::Error::Poisoned) {
            return Self::Poisoned {
                reason: format!("{operation} found the engine poisoned by an earlier failure of its threads"),
            };
        }
        let reason = error.to_string();
        if is_damage(error) {
            Self::Damaged { operation, reason }
        } else {
            Self::Engine { operation, reason }
        }
    }
}

/// Whether the engine says that stored bytes do not fit.
fn is_damage(error: &fjall::Error) -> bool {
    if let fjall::Error::Storage(error) = error {
        return !matches!(error, fjall::LsmError::Io(_));
    }
    matches!(
        error,
        fjall::Error::JournalRecovery(_)
            | fjall::Error::InvalidVersion(_)
            | fjall::Error::Decompress(_)
            | fjall::Error::InvalidTrailer
            | fjall::Error::InvalidTag(_)
            | fjall::Error::Unrecoverable
    )
}
