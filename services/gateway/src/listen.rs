//! The public port: HTTP, upgraded to a WebSocket at `/v1/connect`.
//!
//! The subprotocol chooses the encoding; a client that offers none speaks protobuf. What is wrong before the upgrade is
//! answered as HTTP with the same codes as in frames. When `intake` is cancelled the port takes no more connections.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde::Deserialize;
use tidings_chassis::Supervisor;
use tidings_proto::v1::Code;
use tidings_telemetry::traceparent;
use tokio::net::TcpListener;

use crate::auth::{Identity, TokenError};
use crate::encoding::Encoding;
use crate::error::Error;
use crate::node::Node;
use crate::session::{self, Admission};

/// Read buffer of a connection: the library's default of 128 KiB is allocated at once.
const READ_BUFFER_BYTES: usize = 4 * 1024;
/// Frames are gathered up to this before a write.
const WRITE_BUFFER_BYTES: usize = 8 * 1024;
/// Times a largest page that a connection's unwritten bytes may come to; a JSON page is up to six times as large.
const WRITE_BUFFER_PAGES: usize = 16;
/// Frames beyond the limit and up to this many times of it are read and refused; beyond that the connection ends.
const OVERSIZE_FACTOR: usize = 2;

/// Query of `/v1/connect`, for development.
#[derive(Debug, Deserialize)]
struct ConnectQuery {
    uid: Option<String>,
}

/// Binds the public port and serves it in a supervised task; gives the bound address. `web` is served beside it.
///
/// # Errors
/// The port cannot be bound.
pub(crate) async fn listen(tasks: &Supervisor, node: &Arc<Node>, web: Option<Router>) -> Result<SocketAddr, Error> {
    let addr = node.config.listen;
    let bind = |source| Error::Bind { addr, source };
    let listener = TcpListener::bind(addr).await.map_err(bind)?;
    let bound = listener.local_addr().map_err(bind)?;
    let router = Router::new()
        .route("/v1/connect", get(connect))
        .with_state(Arc::clone(node))
        .merge(web.unwrap_or_default());
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY not set");
        }
    });
    let server = axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(tasks.intake.clone().cancelled_owned());
    tasks.spawn("public listener", async move { Ok(server.await?) });
    tracing::info!(addr = %bound, "public port listens");
    Ok(bound)
}

async fn connect(
    State(node): State<Arc<Node>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Query(query): Query<ConnectQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade.protocols(Encoding::SUBPROTOCOLS),
        Err(rejection) => return rejection.into_response(),
    };
    if upgrade.requested_protocols().next().is_some() && upgrade.selected_protocol().is_none() {
        let reason = format!("subprotocols are {}", Encoding::SUBPROTOCOLS.join(" and "));
        return refusal(StatusCode::BAD_REQUEST, Code::Unsupported, &reason);
    }
    let identity = match identity(&node, &headers, query.uid.as_deref(), peer) {
        Ok(identity) => identity,
        Err(error) => return refusal(StatusCode::UNAUTHORIZED, Code::Unauthenticated, &error.to_string()),
    };
    if node.connections.len() >= node.config.max_sessions {
        let reason = format!("{} sessions are open", node.config.max_sessions);
        return refusal(StatusCode::SERVICE_UNAVAILABLE, Code::Overloaded, &reason);
    }
    let encoding = Encoding::of(upgrade.selected_protocol());
    let admission = Admission {
        encoding,
        identity,
        peer: peer.ip(),
        trace: headers
            .get(traceparent::HEADER)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| traceparent::parse(value).ok()),
    };
    let hard_limit = encoding.max_frame_bytes(&node.limits) * OVERSIZE_FACTOR;
    let largest_page = (node.config.sync_page_bytes as usize).max(node.limits.max_frame_bytes());
    // Counted from here on, so that the upgrade itself is part of the drain.
    let token = node.connections.token();
    upgrade
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_write_buffer_size(WRITE_BUFFER_BYTES + WRITE_BUFFER_PAGES * largest_page)
        .max_message_size(hard_limit)
        .max_frame_size(hard_limit)
        .on_upgrade(move |socket| async move {
            session::serve(node, socket, admission).await;
            drop(token);
        })
}

/// What the request itself proves: nothing yet is fine, the first frame may carry the token.
fn identity(
    node: &Node,
    headers: &HeaderMap,
    uid: Option<&str>,
    peer: SocketAddr,
) -> Result<Option<Identity>, TokenError> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let token = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
        return node.authenticator.verify(token.ok_or(TokenError::Malformed)?).map(Some);
    }
    uid.map(|uid| node.authenticator.anonymous(uid, peer.ip())).transpose()
}

fn refusal(status: StatusCode, code: Code, reason: &str) -> Response {
    let body = serde_json::json!({
        "code": code as i32,
        "code_name": code.as_str_name().trim_start_matches("CODE_"),
        "reason": reason,
        "retryable": code.is_retryable(),
    });
    (status, Json(body)).into_response()
}
