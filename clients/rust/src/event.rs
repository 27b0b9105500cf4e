//! What a client tells the app.

use tidings_domain::state::RejectReason;
use tidings_domain::{Conversation, MsgId};
use tidings_proto::v1;
use tokio::sync::broadcast;

use crate::state::MessageState;
use crate::store::StoredMessage;

/// Something the app may want to show. May be told twice over a crash; [`StoredMessage::key`] is stable (req:G8).
#[derive(Debug, Clone, PartialEq)]
pub enum ClientEvent {
    /// A message that this device did not have, own ones included; it is in the local database.
    Shown(StoredMessage),
    /// An own message came further.
    StateChanged {
        /// Where.
        conversation: Conversation,
        /// Which.
        msg_id: MsgId,
        /// How far.
        state: MessageState,
        /// Why, if it was refused.
        refusal: Option<RefusalReason>,
    },
    /// An own message that the server could not take under its id goes on under a new one.
    Renewed {
        /// Its id until now.
        old: MsgId,
        /// Its id from now on.
        new: MsgId,
    },
    /// The user has read up to here, on another device.
    ReadSync {
        /// Where.
        conversation: Conversation,
        /// The conv_seq.
        read: u64,
    },
    /// A session began.
    Connected {
        /// Newest user_seq at the server.
        head_seq: u64,
    },
    /// A sync round ended: everything up to here is in the local database.
    Synced {
        /// The cursor.
        user_seq: u64,
    },
    /// The session is over; the client connects again by itself.
    Disconnected {
        /// Why.
        reason: String,
    },
    /// The server does not know this device's position: the stream is read again from its beginning.
    CursorReset,
    /// Events before this were kept too short for this device.
    Truncated {
        /// Last user_seq that is gone.
        floor_seq: u64,
        /// How many unread messages were among the others.
        unread: u64,
    },
    /// The reader was too slow and missed this many events; what they told is in the local database.
    Missed(u64),
}

/// Why an own message was refused for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// By the gateway, at once.
    Gateway(v1::Code),
    /// By the log, after it was durably accepted.
    Log(RejectReason),
}

/// The events of a client, from the moment of [`subscribe`](crate::Handle::events) on.
#[derive(Debug)]
pub struct Events(pub(crate) broadcast::Receiver<ClientEvent>);

impl Events {
    /// The next event; `None` when the client has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<ClientEvent> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(ClientEvent::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
