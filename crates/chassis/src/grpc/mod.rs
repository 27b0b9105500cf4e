//! gRPC between the services: finding the others, calling them, and letting only them in.
//!
//! - [`connect`]: one channel over all addresses behind some `host:port` names, resolved again and again, balanced per
//!   call; [`connect_one`]: one address (a gateway that advertised itself).
//! - [`serve_internal`]: the internal listener with keep-alive and [`InternalAuth`].
//!
//! Guarantee: a channel can be made before its target exists and heals by itself; a call never waits longer for the
//! response headers than `internal.response_timeout_ms`; half-open connections are found by HTTP/2 PINGs. Nothing here
//! repeats a call: a caller that may, does so by the error's class (`UNAVAILABLE` is transient).

mod auth;
mod connect;
mod serve;
mod status;

use tidings_resilience::{Classify, ErrorClass};

pub use auth::InternalAuth;
pub use connect::{connect, connect_one};
pub use serve::serve_internal;
pub use status::status_of;
pub use tidings_proto::rpc::Channel;

/// Why a channel or the internal listener cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No name to resolve.
    #[error("no target to connect to")]
    NoTarget,
    /// Not `host:port`.
    #[error("target `{target}` is not host:port")]
    BadTarget {
        /// The text given.
        target: String,
    },
    /// The token cannot stand in a header.
    #[error("internal.shared_token must be visible ASCII")]
    BadToken,
    /// The address cannot be bound.
    #[error("internal port cannot listen on {addr}: {source}")]
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
            Error::NoTarget | Error::BadTarget { .. } | Error::BadToken | Error::Bind { .. } => ErrorClass::Permanent,
        }
    }
}

#[cfg(test)]
mod tests;
