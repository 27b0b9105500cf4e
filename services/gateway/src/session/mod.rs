//! One session: one task that owns its socket.
//!
//! ```text
//!            ┌ frames ── actions (lanes → producer) │ acks │ sync, history │ ping
//! socket ◄──►│
//!            └ pushes, link ACKs, pages, heads ◄── mailbox │ sync round │ history answers
//! ```
//!
//! This module is the life of a connection: [`open`] → [`turns`] → the end. What frames do is in `actions` (sends),
//! `reports` (ACKs of the device) and `pull` (sync, history).
//!
//! **Guarantee.** A send's ACK with code 0 leaves only after the log's delivery report (req:B1). Everything a session
//! holds is bounded: sends by `max_unacked_sends`, pushes by the mailbox, answers by the link, one sync round and a few
//! history requests at a time, both of which wait for the socket. An orderly end answers every pending send (scenario
//! B117).

mod actions;
mod budget;
mod link;
mod open;
mod pull;
mod reports;
mod turns;

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::ws::WebSocket;
use tidings_proto::v1::{self, Code};
use tidings_telemetry::traceparent::TraceContext;

use crate::auth::Identity;
use crate::encoding::Encoding;
use crate::node::Node;
use crate::table::Handle;
use link::Link;
use turns::Session;

/// What the HTTP request said of a connection.
pub(crate) struct Admission {
    /// How frames are written.
    pub(crate) encoding: Encoding,
    /// Who it is for, if the request proved it.
    pub(crate) identity: Option<Identity>,
    /// Where it comes from.
    pub(crate) peer: IpAddr,
    /// Trace that its records belong to, if the request named one.
    pub(crate) trace: Option<TraceContext>,
}

/// How a connection ends.
#[derive(Debug)]
pub(crate) enum End {
    /// By us, with a `Closing` frame.
    Close {
        /// Why.
        code: Code,
        /// In words.
        reason: String,
    },
    /// The device broke the WebSocket protocol: a close code, no frame.
    Protocol(u16),
    /// The device closed, or the connection broke.
    Gone,
}

impl End {
    fn close(code: Code, reason: impl Into<String>) -> Self {
        Self::Close {
            code,
            reason: reason.into(),
        }
    }
}

/// The WebSocket close code of a `Closing` code: 1012 (service restart) for a shutdown, else 4000 + code.
fn close_code(code: Code) -> u16 {
    if code == Code::GoingAway {
        return 1012;
    }
    4000 + u16::try_from(code as i32).unwrap_or(0)
}

/// Serves one connection to its end.
pub(crate) async fn serve(node: Arc<Node>, socket: WebSocket, admission: Admission) {
    let link = Link::new(socket, admission.encoding);
    // Boxed: what opening and ending need is not carried through the life of a session, most of which is idle.
    let (mut session, registered) = match Box::pin(begin(&node, link, admission)).await {
        Ok(begun) => begun,
        Err((link, end)) => return Box::pin(finish(&node, *link, end)).await,
    };
    let end = session.run().await;
    session.leave(&end);
    let (link, handle) = session.into_parts();
    drop(registered);
    let ending = async {
        node.routes.unregister(&handle).await;
        if let Some(successor) = node.table.of_device(&handle.key) {
            // Both may have registered at once, the later login first: its route would have gone with this one.
            node.routes.register(&successor).await;
        }
        finish(&node, link, end).await;
    };
    Box::pin(ending).await;
}

/// Opens a session up to `Connected`.
async fn begin(
    node: &Arc<Node>,
    mut link: Link,
    admission: Admission,
) -> Result<(Box<Session>, Registered), (Box<Link>, End)> {
    let opened = tokio::select! {
        opened = open::open(node, &mut link, &admission) => opened,
        () = node.intake.cancelled() => Err(End::close(Code::GoingAway, "the gateway stops")),
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(end) => return Err((Box::new(link), end)),
    };
    let registered = Registered {
        node: Arc::clone(node),
        handle: Arc::clone(&opened.handle),
    };
    node.metrics.sessions.inc();
    node.routes.register(&opened.handle).await;
    link.send(open::connected(
        node,
        &opened.identity,
        &opened.handle,
        opened.epoch,
        opened.cursor,
    ));
    tracing::debug!(
        uid = %opened.identity.uid,
        device = %opened.hello.device,
        connection_id = opened.handle.connection_id,
        client = opened.hello.client,
        peer = %admission.peer,
        "session opened"
    );
    let session = Session::new(Arc::clone(node), link, opened, admission.trace);
    Ok((Box::new(session), registered))
}

/// Takes a session out of sight, also if its task panics.
struct Registered {
    node: Arc<Node>,
    handle: Arc<Handle>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.node.table.remove(&self.handle);
        self.handle.mailbox.ended();
        self.node.metrics.sessions.dec();
    }
}

async fn finish(node: &Node, mut link: Link, end: End) {
    match end {
        End::Close { code, reason } => {
            node.metrics.closed(code);
            let reconnect_after_ms = if code.is_terminal_close() {
                0
            } else {
                node.reconnect_after_ms()
            };
            link.send(v1::Closing {
                code: code as i32,
                reason,
                reconnect_after_ms,
            });
            link.close(close_code(code), code.as_str_name()).await;
        }
        End::Protocol(code) => {
            node.metrics.closed(Code::MalformedFrame);
            link.close(code, "").await;
        }
        End::Gone => node.metrics.closed(Code::Ok),
    }
}

/// The refusal of a frame that is too large, whatever it is.
fn frame_too_large(bytes: usize, limit: usize) -> v1::Error {
    v1::Error {
        code: Code::PayloadTooLarge as i32,
        field: "frame".to_owned(),
        reason: format!("the frame has {bytes} bytes; allowed are {limit}"),
        limit: limit as u64,
        ..v1::Error::default()
    }
}
