//! The transport of service calls.
//!
//! Every generated client is used over [`Channel`]: a connection pool in the six-process form, or the server itself
//! in the single-process form (`in_process`), where no socket and no HTTP/2 is between the services.

use std::convert::Infallible;

use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

/// What generated clients are generic over.
pub type Channel =
    BoxCloneSyncService<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, tonic::codegen::StdError>;

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
