//! From wire to domain, at one place: what the gateway admits and with which words it refuses.
//!
//! Scheme: [`user_action`] turns the frame of a user's action in to [`Admitted`], in which every id is parsed and the
//! conversation resolved; [`connect`], [`ack`], [`read`], [`history`] and [`sync`] do the same for the other frames.
//! Each either gives typed values or a [`Refusal`] that names the field and the limit. Checks are pure functions of
//! the frame, the sender, the limits and the time; what only the log knows (members, duplicates, recall windows) is
//! the router's business. The answers are those of architecture.md section 4.

mod action;
mod refusal;
mod session;

use std::time::Duration;

pub use action::{Admitted, content_hash, user_action};
pub use refusal::Refusal;
pub use session::{AckReport, Hello, HistoryRange, MAX_ACK_CONVS, ack, acked_msg_id, connect, history, read, sync};

/// Largest content type in bytes.
pub const MAX_CONTENT_TYPE_BYTES: usize = 64;
/// Largest free text a client says about itself, in bytes.
pub const MAX_CLIENT_BYTES: usize = 64;
/// What a frame may have beside the body: ids, names, framing.
pub const FRAME_OVERHEAD_BYTES: usize = 8 * 1024;
/// JSON needs up to six bytes for one (`\u0000`), so that the same bodies pass in both subprotocols (scenario B79).
const JSON_EXPANSION: usize = 6;

/// Limits of what is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest body in bytes.
    pub max_body_bytes: usize,
    /// How old a msg_id (an op_id where there is one) may be (req:A3).
    pub max_id_age: Duration,
    /// How far the time in an id may be ahead of the server: SKEW in sequencing.md.
    pub max_ahead: Duration,
}

impl Limits {
    /// Largest binary frame in bytes.
    #[must_use]
    pub const fn max_frame_bytes(&self) -> usize {
        self.max_body_bytes + FRAME_OVERHEAD_BYTES
    }

    /// Largest JSON frame in bytes: room for every body that the binary form may carry.
    #[must_use]
    pub const fn max_json_frame_bytes(&self) -> usize {
        self.max_body_bytes * JSON_EXPANSION + FRAME_OVERHEAD_BYTES
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 64 * 1024,
            max_id_age: Duration::from_secs(31 * 24 * 3600),
            max_ahead: Duration::from_secs(30),
        }
    }
}
