//! What the app holds of a running client.

use bytes::Bytes;
use tidings_domain::{Conversation, MsgId, Uid};
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::error::Error;
use crate::event::{ClientEvent, Events};
use crate::store::StoredMessage;

/// Where a message goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recipient {
    /// To a user, in the 1:1 conversation.
    User(Uid),
    /// To a conversation.
    Conversation(Conversation),
}

impl From<Uid> for Recipient {
    fn from(uid: Uid) -> Self {
        Self::User(uid)
    }
}

impl From<Conversation> for Recipient {
    fn from(conversation: Conversation) -> Self {
        Self::Conversation(conversation)
    }
}

/// What the client knows about itself (req:G8).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnostics {
    /// A session is up.
    pub connected: bool,
    /// Epoch of the cursor; 0 before the first session.
    pub epoch: u64,
    /// Committed up to this user_seq.
    pub cursor: u64,
    /// Received without a gap up to this user_seq.
    pub received: u64,
    /// The largest head heard of.
    pub head: u64,
    /// Events waiting beyond a gap.
    pub waiting: usize,
    /// Own messages without a final answer.
    pub outbox: usize,
    /// Of those, sent in this session.
    pub unacknowledged: usize,
    /// The last ACK sent: delivered.
    pub acked_delivered: u64,
    /// The last ACK sent: stored.
    pub acked_stored: u64,
    /// Server's clock minus the device's, in ms.
    pub clock_offset_ms: i64,
    /// Since the start: sessions.
    pub sessions: u64,
    /// Since the start: sync rounds.
    pub sync_rounds: u64,
    /// Since the start: resends.
    pub resends: u64,
    /// Since the start: holes in the numbers of a conversation.
    pub holes: u64,
    /// Since the start: events that came again.
    pub duplicates: u64,
    /// Since the start: faults of the server that the unique keys kept from the user.
    pub conflicts: u64,
    /// Since the start: events that this version cannot read.
    pub unreadable: u64,
}

/// What the app asks of the event loop.
#[derive(Debug)]
pub(crate) enum Command {
    Send {
        to: Recipient,
        content_type: String,
        body: Bytes,
        reply: oneshot::Sender<Result<MsgId, Error>>,
    },
    Resend {
        msg_id: MsgId,
        reply: oneshot::Sender<Result<(), Error>>,
    },
    Read {
        conversation: Conversation,
        conv_seq: u64,
        reply: oneshot::Sender<Result<(), Error>>,
    },
    Messages {
        conversation: Conversation,
        limit: u32,
        reply: oneshot::Sender<Result<Vec<StoredMessage>, Error>>,
    },
    Diagnostics {
        reply: oneshot::Sender<Diagnostics>,
    },
    Close,
}

/// A running client. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) events: broadcast::WeakSender<ClientEvent>,
}

impl Handle {
    /// Sends a message. When this returns, the message is in the local database as `SENDING` and will be sent, also
    /// after a restart (req:A2); how far it comes is told by the events.
    pub async fn send(
        &self,
        to: impl Into<Recipient>,
        content_type: impl Into<String>,
        body: impl Into<Bytes>,
    ) -> Result<MsgId, Error> {
        let (to, content_type, body) = (to.into(), content_type.into(), body.into());
        self.ask(|reply| Command::Send {
            to,
            content_type,
            body,
            reply,
        })
        .await?
    }

    /// Sends a `FAILED` message again, under the same id.
    pub async fn resend(&self, msg_id: MsgId) -> Result<(), Error> {
        self.ask(|reply| Command::Resend { msg_id, reply }).await?
    }

    /// Notes that the user has read a conversation up to `conv_seq`; the peer and the user's other devices learn of it
    /// as soon as there is a session.
    pub async fn read(&self, conversation: Conversation, conv_seq: u64) -> Result<(), Error> {
        self.ask(|reply| Command::Read {
            conversation,
            conv_seq,
            reply,
        })
        .await?
    }

    /// The newest `limit` messages of a conversation in the local database, oldest first.
    pub async fn messages(&self, conversation: Conversation, limit: u32) -> Result<Vec<StoredMessage>, Error> {
        self.ask(|reply| Command::Messages {
            conversation,
            limit,
            reply,
        })
        .await?
    }

    /// What the client knows about itself.
    pub async fn diagnostics(&self) -> Result<Diagnostics, Error> {
        self.ask(|reply| Command::Diagnostics { reply }).await
    }

    /// The events from now on; at its end if the client has ended.
    #[must_use]
    pub fn events(&self) -> Events {
        Events(self.events.upgrade().map_or_else(
            // A channel whose sender is gone already.
            || broadcast::channel(1).1,
            |events| events.subscribe(),
        ))
    }

    /// Ends the client: acknowledges what is due and closes the connection. What is not sent stays in the local
    /// database.
    pub async fn close(&self) {
        if self.commands.send(Command::Close).await.is_err() {
            tracing::trace!("the client has ended already");
        }
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)
    }
}
