//! What a test may do with the suite it runs on, whatever form that has.

use std::fmt;

use anyhow::Result;
use async_trait::async_trait;
use tidings_domain::Uid;

/// One process of a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A gateway, by its number.
    Gateway(usize),
    /// The router.
    Router,
    /// The storage-consumer.
    StorageConsumer,
    /// The offline-inbox.
    OfflineInbox,
    /// The push-fanout.
    PushFanout,
    /// The dead-letter-compensator.
    DeadLetterCompensator,
    /// All services in one process (`tidings dev`).
    Dev,
}

impl Part {
    /// The package of its binary.
    pub fn binary(self) -> &'static str {
        match self {
            Self::Gateway(_) => "tidings-gateway",
            Self::Router => "tidings-router",
            Self::StorageConsumer => "tidings-storage-consumer",
            Self::OfflineInbox => "tidings-offline-inbox",
            Self::PushFanout => "tidings-push-fanout",
            Self::DeadLetterCompensator => "tidings-dead-letter-compensator",
            Self::Dev => "tidings",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gateway(number) => write!(f, "gateway-{number}"),
            Self::Router
            | Self::StorageConsumer
            | Self::OfflineInbox
            | Self::PushFanout
            | Self::DeadLetterCompensator
            | Self::Dev => f.write_str(self.binary().strip_prefix("tidings-").unwrap_or(self.binary())),
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

    /// What `tidings dlq ls` shows, one JSON object per entry.
    async fn dead_letters(&self) -> Result<Vec<serde_json::Value>>;
}
