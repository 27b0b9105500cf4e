//! What can go wrong for the app.

use tidings_domain::{DeviceId, MsgId, Uid};
use tidings_proto::validate::Refusal;
use tidings_resilience::{Classify, ErrorClass};

/// A client's failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The local database failed. Nothing that was not committed is acknowledged, so nothing is lost.
    #[error("local database: {what}: {source}")]
    Database {
        /// What was to be done.
        what: &'static str,
        /// Why it failed.
        source: rusqlite::Error,
    },
    /// The local database holds something that this version cannot read.
    #[error("local database: {what} cannot be read")]
    Corrupt {
        /// What.
        what: &'static str,
    },
    /// The local database is another account's.
    #[error("the local database belongs to {uid}/{device_id}")]
    OtherAccount {
        /// Whose it is.
        uid: Uid,
        /// Which device's.
        device_id: DeviceId,
    },
    /// The token's subject is not the configured uid.
    #[error("the token is {actual}'s, the client is configured for {configured}")]
    OtherSubject {
        /// From the configuration.
        configured: Uid,
        /// From the server.
        actual: String,
    },
    /// The message would be refused by the server.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// Too many messages are waiting to be sent.
    #[error("{limit} messages are waiting to be sent already")]
    OutboxFull {
        /// How many are allowed.
        limit: usize,
    },
    /// There is no such own message.
    #[error("no own message {0} can be sent again")]
    NotResendable(MsgId),
    /// The client has ended.
    #[error("the client has ended")]
    Closed,
    /// The same device logged in elsewhere (scenario B23). The user must decide which one stays.
    #[error("the same device logged in elsewhere")]
    Replaced,
    /// The server does not accept the token.
    #[error("not authenticated: {reason}")]
    Unauthenticated {
        /// The server's words.
        reason: String,
    },
}

impl Classify for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Database { .. } | Self::OutboxFull { .. } => ErrorClass::Transient,
            Self::Corrupt { .. }
            | Self::OtherAccount { .. }
            | Self::OtherSubject { .. }
            | Self::Refused(_)
            | Self::NotResendable(_)
            | Self::Closed
            | Self::Replaced
            | Self::Unauthenticated { .. } => ErrorClass::Permanent,
        }
    }
}
