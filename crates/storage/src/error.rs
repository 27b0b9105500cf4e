//! Errors of the stores, with the class that decides between retry and dead letter.

use tidings_resilience::{Classify, ErrorClass};

/// What can go wrong in a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store did not answer, refused for now, or the outcome of a write is not known: repeat the call.
    #[error("{operation}: store unavailable: {reason}")]
    Unavailable {
        /// The port's operation.
        operation: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// The store's answer does not fit the schema, or a stored value cannot be read.
    #[error("{operation}: stored value is damaged: {reason}")]
    Damaged {
        /// The port's operation.
        operation: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The store refuses this very request (too large, invalid): repeating it does not help.
    #[error("{operation}: request refused: {reason}")]
    Refused {
        /// The port's operation.
        operation: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// Wrong credentials, missing keyspace or table, syntax: a person must act.
    #[error("{operation}: store is not set up: {reason}")]
    NotSetUp {
        /// The port's operation.
        operation: &'static str,
        /// What the driver said.
        reason: String,
    },
}

impl Classify for Error {
    fn class(&self) -> ErrorClass {
        match self {
            // A set-up error is waited for: an operator can mend it while the record waits.
            Self::Unavailable { .. } | Self::NotSetUp { .. } => ErrorClass::Transient,
            Self::Damaged { .. } | Self::Refused { .. } => ErrorClass::Permanent,
        }
    }
}
