//! What every session of this gateway shares.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tidings_domain::clock::SharedClock;
use tidings_proto::rpc::Channel;
use tidings_proto::v1::history_client::HistoryClient;
use tidings_proto::v1::inbox_client::InboxClient;
use tidings_proto::validate;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::Authenticator;
use crate::config::GatewayConfig;
use crate::ingress::Writer;
use crate::metrics::Metrics;
use crate::orphans::Orphans;
use crate::routes::RouteKeeper;
use crate::table::Table;

/// The parts of a gateway.
pub(crate) struct Node {
    /// `[gateway]`
    pub(crate) config: GatewayConfig,
    /// What is admitted.
    pub(crate) limits: validate::Limits,
    /// The gateway's clock.
    pub(crate) clock: SharedClock,
    /// Verifies tokens.
    pub(crate) authenticator: Authenticator,
    /// Writes to the log.
    pub(crate) writer: Writer,
    /// This gateway's routes.
    pub(crate) routes: RouteKeeper,
    /// offline-inbox.
    pub(crate) inbox: InboxClient<Channel>,
    /// storage-consumer.
    pub(crate) history: HistoryClient<Channel>,
    /// Open sessions.
    pub(crate) table: Arc<Table>,
    /// Sends whose session ended before their report.
    pub(crate) orphans: Orphans,
    /// Metrics.
    pub(crate) metrics: Metrics,
    /// Cancelled when no new sessions are taken.
    pub(crate) intake: CancellationToken,
    /// All connections, also those without session.
    pub(crate) connections: TaskTracker,
    connection_ids: AtomicU64,
    rng: Mutex<SmallRng>,
}

/// The parts that [`Node::new`] takes as they are.
pub(crate) struct Parts {
    /// `[gateway]`
    pub(crate) config: GatewayConfig,
    /// What is admitted.
    pub(crate) limits: validate::Limits,
    /// The gateway's clock.
    pub(crate) clock: SharedClock,
    /// Writes to the log.
    pub(crate) writer: Writer,
    /// This gateway's routes.
    pub(crate) routes: RouteKeeper,
    /// offline-inbox.
    pub(crate) inbox: InboxClient<Channel>,
    /// storage-consumer.
    pub(crate) history: HistoryClient<Channel>,
    /// Open sessions.
    pub(crate) table: Arc<Table>,
    /// Metrics.
    pub(crate) metrics: Metrics,
    /// Cancelled when no new sessions are taken.
    pub(crate) intake: CancellationToken,
    /// Seed of what is random: reconnect times.
    pub(crate) seed: u64,
}

impl Node {
    /// Puts the parts together.
    #[must_use]
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            authenticator: Authenticator::new(&parts.config, Arc::clone(&parts.clock)),
            config: parts.config,
            limits: parts.limits,
            clock: parts.clock,
            writer: parts.writer,
            routes: parts.routes,
            inbox: parts.inbox,
            history: parts.history,
            table: parts.table,
            orphans: Orphans::default(),
            metrics: parts.metrics,
            intake: parts.intake,
            connections: TaskTracker::new(),
            connection_ids: AtomicU64::new(1),
            rng: Mutex::new(SmallRng::seed_from_u64(parts.seed)),
        }
    }

    /// A number no other connection of this process has; never 0.
    pub(crate) fn next_connection_id(&self) -> u64 {
        self.connection_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// After how many milliseconds a device that is sent away should come back: spread, so that the other gateways are
    /// not stormed.
    pub(crate) fn reconnect_after_ms(&self) -> u32 {
        let spread = u32::try_from(self.config.reconnect_spread.as_millis()).unwrap_or(u32::MAX);
        self.rng.lock().random_range(0..=spread)
    }
}
