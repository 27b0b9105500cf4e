//! Errors of the bus.

use tidings_resilience::{Classify, ErrorClass};

/// What can go wrong with the log itself. Errors of single records are [`crate::producer::ProduceError`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The broker does not answer or refuses for now.
    #[error("{operation}: log unavailable: {reason}")]
    Unavailable {
        /// What was tried.
        operation: &'static str,
        /// What the client said.
        reason: String,
    },
    /// The group does not let this member do that now (a rebalance is under way).
    #[error("{operation}: not allowed in this group generation: {reason}")]
    Fenced {
        /// What was tried.
        operation: &'static str,
        /// What the client said.
        reason: String,
    },
    /// A topic is missing or has other settings, or the configuration is wrong.
    #[error("{operation}: log is not set up: {reason}")]
    NotSetUp {
        /// What was tried.
        operation: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The client is dead and must be made anew.
    #[error("{operation}: client is dead: {reason}")]
    Fatal {
        /// What was tried.
        operation: &'static str,
        /// What the client said.
        reason: String,
    },
}

impl Classify for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Unavailable { .. } | Self::Fenced { .. } | Self::NotSetUp { .. } => ErrorClass::Transient,
            Self::Fatal { .. } => ErrorClass::Permanent,
        }
    }
}
