//! What a test may do with the suite it runs on, whatever form that has.

use std::fmt;

use anyhow::Result;
use async_trait::async_trait;
use tidings_domain::Uid;

/// One process of a system: a replica of a service, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A gateway.
    Gateway(usize),
    /// A router.
    Router(usize),
    /// A storage-consumer.
    StorageConsumer(usize),
    /// An offline-inbox.
    OfflineInbox(usize),
    /// A push-fanout.
    PushFanout(usize),
    /// A dead-letter-compensator.
    DeadLetterCompensator(usize),
    /// All services in one process (`tidings dev`).
    Dev,
}

impl Part {
    /// The name of its binary.
    pub fn binary(self) -> &'static str {
        match self {
            Self::Gateway(_) => "tidings-gateway",
            Self::Router(_) => "tidings-router",
            Self::StorageConsumer(_) => "tidings-storage-consumer",
            Self::OfflineInbox(_) => "tidings-offline-inbox",
            Self::PushFanout(_) => "tidings-push-fanout",
            Self::DeadLetterCompensator(_) => "tidings-dead-letter-compensator",
            Self::Dev => "tidings",
        }
    }

    fn number(self) -> Option<usize> {
        match self {
            Self::Gateway(number)
            | Self::Router(number)
            | Self::StorageConsumer(number)
            | Self::OfflineInbox(number)
            | Self::PushFanout(number)
            | Self::DeadLetterCompensator(number) => Some(number),
            Self::Dev => None,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.binary().strip_prefix("tidings-").unwrap_or(self.binary()))?;
        match self.number() {
            Some(number) => write!(f, "-{number}"),
            None => Ok(()),
        }
    }
}

/// The running suite.
#[async_trait]
pub trait System: Send + Sync {
    /// Where clients connect: `ws://host:port` of every gateway.
    fn gateway_urls(&self) -> Vec<String>;

    /// A token for a user.
    fn token(&self, uid: &Uid) -> Result<String>;

    /// Its processes.
    fn parts(&self) -> Vec<Part>;

    /// Kills a part (KILL).
    fn kill(&mut self, part: Part) -> Result<()>;

    /// Starts a killed part again, with the ports and configuration it had.
    fn start_again(&mut self, part: Part) -> Result<()>;

    /// Waits until every part is ready; an error if one has ended by itself.
    async fn wait_ready(&mut self) -> Result<()>;

    /// Keeps what every part says of itself now (readiness and metrics) beside its log, to explain a failure.
    async fn keep_state(&self) -> Result<()>;

    /// What `tidings dlq ls` shows, one JSON object per entry.
    async fn dead_letters(&self) -> Result<Vec<serde_json::Value>>;
}
