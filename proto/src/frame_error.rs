//! Why a received frame cannot be read, the same for both subprotocols.

use crate::v1;

/// What is wrong with a frame. The connection lives on: the sender gets [`FrameError::to_error`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not protobuf, not JSON, or not the shape of a frame at all.
    #[error("malformed frame: {0}")]
    Malformed(String),
    /// A frame type this version does not know: its `type` in JSON, `#<field number>` in protobuf.
    #[error("unknown frame type {0}")]
    UnknownType(String),
    /// A field has the wrong type or form.
    #[error("field {field}: {reason}")]
    Field {
        /// Path of the field: `cursor.user_seq`, `convs[2].conv_seq`.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl FrameError {
    /// The code of the answer: an id that is no id is `INVALID_MSG_ID`, like one of the wrong version.
    #[must_use]
    pub fn code(&self) -> v1::Code {
        match self {
            Self::Malformed(_) => v1::Code::MalformedFrame,
            Self::UnknownType(_) => v1::Code::UnknownFrame,
            Self::Field { field, .. } if field == "msg_id" || field == "op_id" => v1::Code::InvalidMsgId,
            Self::Field { .. } => v1::Code::MalformedFrame,
        }
    }

    /// The answer to the frame's sender.
    #[must_use]
    pub fn to_error(&self) -> v1::Error {
        v1::Error {
            code: self.code() as i32,
            field: match self {
                Self::Field { field, .. } => field.clone(),
                Self::Malformed(_) | Self::UnknownType(_) => String::new(),
            },
            reason: self.to_string(),
            ..v1::Error::default()
        }
    }
}
