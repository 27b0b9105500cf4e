//! The transport of service calls.
//!
//! Every generated client is used over [`Channel`]: a connection pool in the six-process form, or the server itself
//! in the single-process form (`in_process`), where no socket and no HTTP/2 is between the services.

use std::convert::Infallible;

use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

/// What generated clients are generic over.
pub type Channel = BoxCloneSyncService<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, CallError>;

/// Why a call did not get as far as a response. A type of its own and not the boxed error inside: futures over a boxed
/// error type are not provably `Send` for the compiler (rust-lang/rust#100013).
#[derive(Debug)]
pub struct CallError(tonic::codegen::StdError);

impl CallError {
    /// Wraps a transport's error.
    pub fn new(error: impl Into<tonic::codegen::StdError>) -> Self {
        Self(error.into())
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The wrapper shows the inner error's text, so the chain goes on below it; tonic finds transport errors and
        // statuses by walking it.
        Some(self.0.as_ref())
    }
}

/// A channel that calls a generated server directly.
pub fn in_process<S>(server: S) -> Channel
where
    S: tower::Service<
            http::Request<tonic::body::Body>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
        > + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    BoxCloneSyncService::new(server.map_err(|never: Infallible| match never {}))
}
