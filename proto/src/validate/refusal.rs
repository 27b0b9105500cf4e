//! A typed refusal and the frames that tell it.

use tidings_domain::IdError;
use tidings_domain::clock::Millis;

use crate::v1;

/// Why a frame was not admitted. Nothing was done; the connection lives on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code:?} ({field}): {reason}")]
pub struct Refusal {
    /// What kind of refusal.
    pub code: v1::Code,
    /// The field that is wrong.
    pub field: &'static str,
    /// What is wrong with it, for people.
    pub reason: String,
    /// The limit that was violated, in the field's unit; 0 if there is none.
    pub limit: u64,
}

impl Refusal {
    pub(super) fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::new(v1::Code::InvalidArgument, field, reason)
    }

    pub(super) fn new(code: v1::Code, field: &'static str, reason: impl Into<String>) -> Self {
        Self {
            code,
            field,
            reason: reason.into(),
            limit: 0,
        }
    }

    pub(super) fn with_limit(self, limit: usize) -> Self {
        Self {
            limit: u64::try_from(limit).unwrap_or(u64::MAX),
            ..self
        }
    }

    /// The link ACK that refuses `frame`; `now` is the server's time, so that a client with a wrong clock can correct it.
    #[must_use]
    pub fn to_msg_ack(&self, frame: &v1::UserAction, now: Millis) -> v1::MsgAck {
        v1::MsgAck {
            msg_id: frame.msg_id.clone(),
            op_id: frame.op_id.clone(),
            action: frame.action,
            conversation: frame.conversation.clone(),
            code: self.code as i32,
            server_time: now.get(),
            retryable: self.code.is_retryable(),
            field: self.field.to_owned(),
            reason: self.reason.clone(),
            limit: self.limit,
            ..v1::MsgAck::default()
        }
    }

    /// The answer to any other frame; `request_id` is 0 if the frame had none.
    #[must_use]
    pub fn to_error(&self, request_id: u64) -> v1::Error {
        v1::Error {
            code: self.code as i32,
            field: self.field.to_owned(),
            reason: self.reason.clone(),
            limit: self.limit,
            request_id,
            retry_after_ms: 0,
        }
    }
}

/// Names the field of an id that could not be parsed.
pub(super) fn id<T>(field: &'static str, parsed: Result<T, IdError>) -> Result<T, Refusal> {
    parsed.map_err(|error| Refusal::invalid(field, error.to_string()))
}

/// The same for msg_id and op_id, which have a code of their own.
pub(super) fn message_id<T>(field: &'static str, parsed: Result<T, IdError>) -> Result<T, Refusal> {
    parsed.map_err(|error| Refusal::new(v1::Code::InvalidMsgId, field, error.to_string()))
}
