//! The beginning of a session.
//!
//! ```text
//! first frame Connect (10 s) ─► token ─► Inbox.Open, durable ─► session table (replaces the device's earlier session)
//!   ─► route registered ─► Connected
//! ```
//!
//! **Guarantee.** The device is durably known before `Connected`, and its route is registered before its first read, so
//! no event falls between the read and the pushes. What is wrong with a first frame is answered and another may come;
//! a token that proves nothing ends the connection.

use std::sync::Arc;

use parking_lot::Mutex;
use tidings_domain::clock::Millis;
use tidings_proto::record::SenderRole;
use tidings_proto::v1::{self, Code, OpenRequest, client_frame};
use tidings_proto::validate::{self, Hello};
use tidings_storage::port::RouteKey;
use tokio::time::timeout;

use super::link::{Link, LinkEvent, protocol_close_code};
use super::{Admission, End};
use crate::auth::{Identity, TokenError};
use crate::encoding;
use crate::mailbox::Mailbox;
use crate::node::Node;
use crate::table::Handle;

/// An opened session.
pub(crate) struct Opened {
    /// Who.
    pub(crate) identity: Identity,
    /// As others see it.
    pub(crate) handle: Arc<Handle>,
    /// Id of the store that cursors belong to.
    pub(crate) epoch: u64,
    /// The server's record of the device.
    pub(crate) cursor: u64,
    /// What the device said of itself.
    pub(crate) hello: Hello,
}

/// Opens a session, or says how the connection ends.
pub(crate) async fn open(node: &Arc<Node>, link: &mut Link, admission: &Admission) -> Result<Opened, End> {
    let (connect, hello) = match timeout(node.config.connect_timeout, first_frame(node, link)).await {
        Ok(first) => first?,
        Err(_) => return Err(End::close(Code::IdleTimeout, "no connect frame in time")),
    };
    let identity =
        identify(node, &connect, admission).map_err(|error| End::close(Code::Unauthenticated, error.to_string()))?;
    let (epoch, cursor, head) = match identity.role {
        SenderRole::User => open_inbox(node, &identity, &hello).await?,
        // No stream (req:I2).
        SenderRole::Service => (0, 0, 0),
    };
    let mailbox = Mailbox::new(
        &node.config,
        Arc::clone(node.writer.in_flight()),
        node.metrics.clone(),
        cursor,
        head,
    );
    let handle = Arc::new(Handle {
        key: RouteKey {
            uid: identity.uid.clone(),
            device: hello.device.clone(),
        },
        connection_id: node.next_connection_id(),
        encoding: link.encoding(),
        fresh: hello.fresh,
        mailbox: Arc::new(mailbox),
        opened_at: node.clock.now(),
        route: Mutex::new(None),
    });
    node.table.insert(&handle);
    if node.intake.is_cancelled() {
        // The shutdown may have gone over the table just before.
        handle.mailbox.drain();
    }
    Ok(Opened {
        identity,
        handle,
        epoch,
        cursor,
        hello,
    })
}

/// The answer to a connect frame.
#[must_use]
pub(crate) fn connected(node: &Node, identity: &Identity, handle: &Handle, epoch: u64, cursor: u64) -> v1::Connected {
    let config = &node.config;
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let millis = |d: std::time::Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
    v1::Connected {
        epoch,
        cursor,
        head_seq: handle.mailbox.head(),
        server_time: node.writer.broker_now().get(),
        limits: Some(v1::Limits {
            max_body_bytes: number(config.max_body_bytes),
            max_frame_bytes: number(handle.encoding.max_frame_bytes(&node.limits)),
            page_events: config.sync_page_events,
            ping_interval_ms: millis(config.ping_interval),
            idle_timeout_ms: millis(config.idle_timeout),
            max_unacked_sends: number(config.max_unacked_sends),
        }),
        uid: identity.uid.as_str().to_owned(),
    }
}

/// Waits for a valid connect frame; everything else is answered.
async fn first_frame(node: &Node, link: &mut Link) -> Result<(v1::Connect, Hello), End> {
    loop {
        let message = match link.next().await {
            LinkEvent::Drained | LinkEvent::Blocked => continue,
            LinkEvent::Message(message) => message,
            LinkEvent::Closed(error) => {
                return Err(match error.as_ref().and_then(protocol_close_code) {
                    Some(code) => End::Protocol(code),
                    None => End::Gone,
                });
            }
        };
        let limit = link.encoding().max_frame_bytes(&node.limits);
        let error = if encoding::size(&message) > limit {
            super::frame_too_large(encoding::size(&message), limit)
        } else {
            match link.encoding().decode(&message) {
                None => continue,
                Some(Err(error)) => error.to_error(),
                Some(Ok(frame)) => match frame.frame {
                    Some(client_frame::Frame::Connect(connect)) => match validate::connect(&connect) {
                        Ok(hello) => return Ok((connect, hello)),
                        Err(refusal) => refusal.to_error(0),
                    },
                    _ => v1::Error {
                        code: Code::InvalidArgument as i32,
                        field: "frame".to_owned(),
                        reason: "the first frame of a connection is connect".to_owned(),
                        ..v1::Error::default()
                    },
                },
            }
        };
        node.metrics.refused(error.code());
        link.send(error);
    }
}

/// A token in the frame counts more than what the HTTP request said; both must agree on the uid.
fn identify(node: &Node, connect: &v1::Connect, admission: &Admission) -> Result<Identity, TokenError> {
    match (&admission.identity, connect.token.as_str()) {
        (Some(identity), "") => Ok(identity.clone()),
        (None, "") => Err(TokenError::Missing),
        (known, token) => {
            let identity = node.authenticator.verify(token)?;
            if known.as_ref().is_some_and(|known| known.uid != identity.uid) {
                return Err(TokenError::OtherUid);
            }
            Ok(identity)
        }
    }
}

async fn open_inbox(node: &Node, identity: &Identity, hello: &Hello) -> Result<(u64, u64, u64), End> {
    let request = OpenRequest {
        viewer_uid: identity.uid.as_str().to_owned(),
        device_id: hello.device.as_str().to_owned(),
        fresh: hello.fresh,
    };
    match node.inbox.clone().open(request).await {
        Ok(response) => {
            let opened = response.into_inner();
            Ok((opened.epoch, opened.cursor, opened.head_seq))
        }
        Err(status) => {
            tracing::debug!(%status, "device cannot be opened");
            Err(End::close(Code::Unavailable, "the inbox is not available"))
        }
    }
}

/// When a session with this expiry must end.
#[must_use]
pub(crate) fn expiry(now: Millis, expires: Option<Millis>) -> Option<tokio::time::Instant> {
    expires.and_then(|expires| tokio::time::Instant::now().checked_add(expires.since(now)))
}
