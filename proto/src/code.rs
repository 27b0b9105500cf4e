//! What a result code means for the one who gets it.

use crate::v1;

impl v1::Code {
    /// Whether the same frame, sent again unchanged, can succeed.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::LaneOutOfOrder | Self::Unconfirmed | Self::Overloaded | Self::Unavailable | Self::RateLimited => true,
            Self::Ok
            | Self::InvalidArgument
            | Self::InvalidMsgId
            | Self::MsgIdExpired
            | Self::PayloadTooLarge
            | Self::Forbidden
            | Self::Unsupported
            | Self::MalformedFrame
            | Self::UnknownFrame
            | Self::Unauthenticated
            | Self::Replaced
            | Self::SlowConsumer
            | Self::GoingAway
            | Self::IdleTimeout => false,
        }
    }

    /// Whether a client that was closed with this code must not connect again by itself.
    #[must_use]
    pub const fn is_terminal_close(self) -> bool {
        match self {
            // A later login of the same device won (scenario B23); a token that was refused stays refused.
            Self::Replaced | Self::Unauthenticated => true,
            Self::Ok
            | Self::InvalidArgument
            | Self::InvalidMsgId
            | Self::MsgIdExpired
            | Self::PayloadTooLarge
            | Self::Forbidden
            | Self::Unsupported
            | Self::MalformedFrame
            | Self::UnknownFrame
            | Self::LaneOutOfOrder
            | Self::Unconfirmed
            | Self::Overloaded
            | Self::Unavailable
            | Self::RateLimited
            | Self::SlowConsumer
            | Self::GoingAway
            | Self::IdleTimeout => false,
        }
    }
}
