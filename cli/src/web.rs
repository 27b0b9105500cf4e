//! The web chat of the development mode, and the token it logs in with.
//!
//! `/dev/token` gives a token for any user, so it answers peers of this machine only, whatever the listener is bound to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::StatusCode;
use axum::response::Html;
use axum::routing::get;
use serde::Deserialize;
use tidings_domain::Uid;

const CHAT: &str = include_str!("../../web/chat.html");

/// How long a token of the web chat is valid.
const TOKEN_TTL: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Deserialize)]
struct TokenQuery {
    uid: String,
}

/// The pages; `secret` signs the tokens.
pub(crate) fn pages(secret: String) -> Router {
    Router::new()
        .route("/", get(|| async { Html(CHAT) }))
        .route("/dev/token", get(token))
        .with_state(Arc::<str>::from(secret))
}

async fn token(
    State(secret): State<Arc<str>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Query(query): Query<TokenQuery>,
) -> Result<String, (StatusCode, String)> {
    if !peer.ip().is_loopback() {
        let reason = "tokens are given to this machine only; use `tidings token`".to_owned();
        return Err((StatusCode::FORBIDDEN, reason));
    }
    let uid = Uid::parse(&query.uid).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    crate::token::mint(&secret, &uid, TOKEN_TTL, None)
        .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")))
}
