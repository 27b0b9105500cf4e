//! The internal listener.

use std::net::SocketAddr;

use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::{Error, InternalAuth};
use crate::config::InternalConfig;
use crate::tasks::Supervisor;

/// Binds `internal.listen` and serves `routes` behind [`InternalAuth`] in a supervised task; gives the bound address.
///
/// When `intake` is cancelled the clients are told to go elsewhere and calls under way may finish; a service that holds
/// long streams ends them itself when `shutdown` is cancelled, what is left is cut at the shutdown deadline.
///
/// # Errors
/// The address cannot be bound, or the token cannot stand in a header.
pub async fn serve_internal(tasks: &Supervisor, config: &InternalConfig, routes: Routes) -> Result<SocketAddr, Error> {
    let auth = InternalAuth::new(&config.shared_token)?;
    let bind = |source| Error::Bind {
        addr: config.listen,
        source,
    };
    let listener = tokio::net::TcpListener::bind(config.listen).await.map_err(bind)?;
    let addr = listener.local_addr().map_err(bind)?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = Server::builder()
        .http2_keepalive_interval(Some(config.keepalive_interval))
        .http2_keepalive_timeout(Some(config.keepalive_timeout))
        .layer(auth.layer())
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, tasks.intake.clone().cancelled_owned());
    tasks.spawn("internal listener", async move { Ok(server.await?) });
    tracing::info!(%addr, "internal port listens");
    Ok(addr)
}
