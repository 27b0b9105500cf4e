//! The server's idempotency key (req:A5): (conversation, sender, msg_id, action, op_id).

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::conversation::Conversation;
use crate::ids::{MsgId, OpId, Uid};

/// What a user did. The numbers are those of `tidings.v1.Action` and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Action {
    /// A new message.
    Send = 1,
    /// Take a message back.
    Recall = 2,
    /// Replace a message's text.
    Edit = 3,
    /// Make a group.
    Create = 4,
    /// Enter a group.
    Join = 5,
    /// Leave a group.
    Leave = 6,
    /// Remove another member from a group.
    Kick = 7,
}

impl Action {
    /// The action with this wire number.
    #[must_use]
    pub const fn from_number(number: i32) -> Option<Self> {
        match number {
            1 => Some(Self::Send),
            2 => Some(Self::Recall),
            3 => Some(Self::Edit),
            4 => Some(Self::Create),
            5 => Some(Self::Join),
            6 => Some(Self::Leave),
            7 => Some(Self::Kick),
            _ => None,
        }
    }

    /// The wire number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Whether the action carries an `op_id` of its own (architecture.md section 2: nil for SEND and RECALL).
    #[must_use]
    pub const fn has_op_id(self) -> bool {
        match self {
            Self::Send | Self::Recall => false,
            Self::Edit | Self::Create | Self::Join | Self::Leave | Self::Kick => true,
        }
    }
}

/// The idempotency key of one user action.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupKey {
    /// Where.
    pub conversation: Conversation,
    /// Who.
    pub sender: Uid,
    /// The message, or the target's id for RECALL and EDIT.
    pub msg_id: MsgId,
    /// What.
    pub action: Action,
    /// Nil for SEND and RECALL.
    pub op_id: Option<OpId>,
}

/// 16 bytes that stand for a [`DedupKey`] in the fold's window (sequencing.md section 1, cost note).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupKeyHash(pub [u8; 16]);

impl DedupKey {
    /// The first 16 bytes of SHA-256 over the length-prefixed parts.
    #[must_use]
    pub fn hash16(&self) -> DedupKeyHash {
        let mut hasher = Sha256::new();
        for part in [self.conversation.as_str(), self.sender.as_str()] {
            // Names are at most 64 bytes and conversations at most 131, so the length fits.
            hasher.update([u8::try_from(part.len()).unwrap_or(u8::MAX)]);
            hasher.update(part.as_bytes());
        }
        hasher.update(self.msg_id.as_bytes());
        hasher.update([self.action.number()]);
        hasher.update(self.op_id.map_or([0; 16], |op| *op.as_bytes()));
        let digest = hasher.finalize();
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        DedupKeyHash(short)
    }

    /// The id whose embedded time bounds how old the action can be: `op_id` where there is one, else `msg_id`.
    #[must_use]
    pub fn id_time(&self) -> crate::clock::Millis {
        match self.op_id {
            Some(op) => op.time(),
            None => self.msg_id.time(),
        }
    }
}
