//! States of one's own message (req:A7), as a pure function of state and cause.
//!
//! sending < sent < stored < delivered < read: states only move forward. `failed` is local, comes from sending alone and
//! is left by a resend by hand, a late ACK, the echo or a receipt. `rejected` is terminal.

/// How far an own message has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageState {
    /// In the local database; no link ACK yet.
    Sending = 1,
    /// The link ACK came: durable in the log (req:B1).
    Sent = 2,
    /// Sequenced: the echo with its `conv_seq` came.
    Stored = 3,
    /// On at least one device of the recipient.
    Delivered = 4,
    /// Read by the recipient.
    Read = 5,
    /// The ladder is spent without an answer. Only this device thinks so.
    Failed = 6,
    /// Refused for good.
    Rejected = 7,
}

/// What can move a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Link ACK with code 0.
    LinkAck,
    /// The own message came back through the user's stream.
    Echo,
    /// A receipt: delivered.
    DeliveredReceipt,
    /// A receipt: read.
    ReadReceipt,
    /// No answer to any try (req:A3).
    LadderSpent,
    /// A permanent refusal by the gateway or a rejection by the log.
    Refusal,
    /// The user pressed "send again".
    ResendByHand,
}

impl MessageState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Sending,
        Self::Sent,
        Self::Stored,
        Self::Delivered,
        Self::Read,
        Self::Failed,
        Self::Rejected,
    ];

    /// The state with this number, as stored.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Sending),
            2 => Some(Self::Sent),
            3 => Some(Self::Stored),
            4 => Some(Self::Delivered),
            5 => Some(Self::Read),
            6 => Some(Self::Failed),
            7 => Some(Self::Rejected),
            _ => None,
        }
    }

    /// The number under which the state is stored.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The state after `cause`; `None` if it stays.
    #[must_use]
    pub const fn after(self, cause: Cause) -> Option<Self> {
        let reached = match cause {
            Cause::LinkAck => Self::Sent,
            Cause::Echo => Self::Stored,
            Cause::DeliveredReceipt => Self::Delivered,
            Cause::ReadReceipt => Self::Read,
            Cause::LadderSpent => {
                return match self {
                    Self::Sending => Some(Self::Failed),
                    Self::Sent | Self::Stored | Self::Delivered | Self::Read | Self::Failed | Self::Rejected => None,
                };
            }
            Cause::Refusal => {
                return match self {
                    Self::Sending | Self::Sent => Some(Self::Rejected),
                    Self::Stored | Self::Delivered | Self::Read | Self::Failed | Self::Rejected => None,
                };
            }
            Cause::ResendByHand => {
                return match self {
                    Self::Failed => Some(Self::Sending),
                    Self::Sending | Self::Sent | Self::Stored | Self::Delivered | Self::Read | Self::Rejected => None,
                };
            }
        };
        match self {
            Self::Rejected => None,
            // Whatever the server says about it proves that it was not lost.
            Self::Failed => Some(reached),
            Self::Sending | Self::Sent | Self::Stored | Self::Delivered | Self::Read => {
                if (reached as u8) > (self as u8) {
                    Some(reached)
                } else {
                    None
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MessageState as S;

    const CAUSES: [Cause; 7] = [
        Cause::LinkAck,
        Cause::Echo,
        Cause::DeliveredReceipt,
        Cause::ReadReceipt,
        Cause::LadderSpent,
        Cause::Refusal,
        Cause::ResendByHand,
    ];

    /// Every edge, written out (req:A7). Columns in the order of `CAUSES`.
    #[test]
    fn every_edge_is_as_required() {
        let table: [(S, [Option<S>; 7]); 7] = [
            (
                S::Sending,
                [
                    Some(S::Sent),
                    Some(S::Stored),
                    Some(S::Delivered),
                    Some(S::Read),
                    Some(S::Failed),
                    Some(S::Rejected),
                    None,
                ],
            ),
            (
                S::Sent,
                [
                    None,
                    Some(S::Stored),
                    Some(S::Delivered),
                    Some(S::Read),
                    None,
                    Some(S::Rejected),
                    None,
                ],
            ),
            (
                S::Stored,
                [None, None, Some(S::Delivered), Some(S::Read), None, None, None],
            ),
            (S::Delivered, [None, None, None, Some(S::Read), None, None, None]),
            (S::Read, [None; 7]),
            (
                S::Failed,
                [
                    Some(S::Sent),
                    Some(S::Stored),
                    Some(S::Delivered),
                    Some(S::Read),
                    None,
                    None,
                    Some(S::Sending),
                ],
            ),
            (S::Rejected, [None; 7]),
        ];
        for (state, expected) in table {
            for (cause, expected) in CAUSES.into_iter().zip(expected) {
                assert_eq!(state.after(cause), expected, "{state:?} after {cause:?}");
            }
        }
    }

    #[test]
    fn numbers_are_those_stored() {
        for state in S::ALL {
            assert_eq!(S::from_number(state.number()), Some(state));
        }
        assert_eq!(S::from_number(0), None);
        assert_eq!(S::from_number(8), None);
    }
}
