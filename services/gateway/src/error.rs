//! Errors of the gateway's own steps. What a device did wrong is a `tidings_proto::validate::Refusal`, answered on its
//! connection; these are what goes wrong inside.

use tidings_resilience::{Classify, ErrorClass};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another service did not answer.
    #[error("{call}: {status}")]
    Call {
        /// Which call.
        call: &'static str,
        /// What came back.
        status: tonic::Status,
    },
    /// The producer is dead: the process must start again.
    #[error("the producer is dead: {0}")]
    ProducerDead(String),
    /// The public port cannot be bound.
    #[error("public port cannot listen on {addr}: {source}")]
    Bind {
        /// The configured address.
        addr: std::net::SocketAddr,
        /// What the system answered.
        source: std::io::Error,
    },
}

impl Classify for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Call { .. } | Self::ProducerDead(_) => ErrorClass::Transient,
            Self::Bind { .. } => ErrorClass::Permanent,
        }
    }
}
