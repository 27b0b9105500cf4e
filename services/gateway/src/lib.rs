//! gateway holds the devices' connections.
//!
//! ```text
//! device ─► listen ─► session ─► lane ─► ingress (producer) ─► report ─► link ACK
//! device ◄─ session ◄─ mailbox ◄─ delivery (push-fanout)
//! device ─► session ─► acks ─► device state (topic inbox)
//! device ◄► session ◄► Inbox.Sync, History.Range
//! ```
//!
//! **Guarantee.** A link ACK with code 0 is given only from the log's delivery report (req:B1); nothing is held here
//! that may not be lost: what a crash takes, devices send again and pull.

pub mod acks;
pub mod auth;
pub mod config;
pub mod delivery;
pub mod encoding;
mod error;
mod heads;
pub mod ingress;
pub mod lane;
mod listen;
pub mod mailbox;
pub mod metrics;
mod node;
mod orphans;
pub mod peek;
pub mod routes;
mod session;
pub mod table;
mod upkeep;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tidings_bus::Bus;
use tidings_chassis::config::InternalConfig;
use tidings_chassis::{Context, Running, grpc};
use tidings_domain::clock::SharedClock;
use tidings_proto::rpc::Channel;
use tidings_proto::v1::delivery_server::DeliveryServer;
use tidings_proto::v1::history_client::HistoryClient;
use tidings_proto::v1::inbox_client::InboxClient;
use tidings_storage::port::Routes;

pub use config::{Config, DEFAULTS};
pub use error::Error;

use delivery::DeliveryService;
use ingress::Writer;
use metrics::Metrics;
use node::{Node, Parts};
use routes::RouteKeeper;

/// How push-fanout reaches this gateway.
#[derive(Debug, Clone)]
pub enum Internal {
    /// Over the internal listener of the process.
    Listen,
    /// In this process, through [`Gateway::delivery`]; routes name it so.
    InProcess {
        /// The name in routes.
        address: String,
    },
}

/// What a gateway needs from outside.
pub struct Dependencies {
    /// The log.
    pub bus: Arc<dyn Bus>,
    /// The route registry.
    pub routes: Arc<dyn Routes>,
    /// Any offline-inbox replica.
    pub inbox: InboxClient<Channel>,
    /// Any storage-consumer replica.
    pub history: HistoryClient<Channel>,
    /// The clock.
    pub clock: SharedClock,
    /// Seed of what is random; another for every process, since the boot id comes from it.
    pub seed: u64,
    /// How push-fanout comes in.
    pub internal: Internal,
    /// Served on the public port beside `/v1/connect`.
    pub web: Option<axum::Router>,
}

/// A started gateway.
pub struct Gateway {
    /// Where devices connect.
    pub public_addr: SocketAddr,
    /// Where push-fanout calls, with [`Internal::Listen`].
    pub internal_addr: Option<SocketAddr>,
    /// The name of this gateway in routes.
    pub advertise_addr: String,
    /// The delivery service itself.
    pub delivery: DeliveryServer<DeliveryService>,
    /// What must happen before its tasks end.
    pub running: Running,
}

/// Starts a gateway: binds its ports and spawns its tasks.
///
/// # Errors
/// A port cannot be bound or the producer cannot be made.
pub async fn start(context: &Context, config: Config, deps: Dependencies) -> anyhow::Result<Gateway> {
    let limits = config.admission_limits();
    let config = config.gateway;
    let metrics = Metrics::register(&context.registry);
    let boot_id = SmallRng::seed_from_u64(deps.seed).random();

    let writer = Writer::open(deps.bus, config.max_produces, metrics.clone()).context("opening the producer")?;
    let table = Arc::<table::Table>::default();
    let service = DeliveryService::new(Arc::clone(&table), metrics.clone(), context.tasks.shutdown.clone());
    let delivery = DeliveryServer::new(service);
    let (internal_addr, advertise_addr) = match deps.internal {
        Internal::InProcess { address } => (None, address),
        Internal::Listen => {
            let internal = &context.shared.internal;
            let routes = tonic::service::Routes::new(delivery.clone());
            let addr = grpc::serve_internal(&context.tasks, internal, routes).await?;
            (Some(addr), advertise_addr(internal, addr)?)
        }
    };
    let routes = RouteKeeper::new(
        deps.routes,
        advertise_addr.clone(),
        boot_id,
        config.route_lease,
        metrics.clone(),
    );
    let node = Arc::new(Node::new(Parts {
        config,
        limits,
        clock: deps.clock,
        writer,
        routes,
        inbox: deps.inbox,
        history: deps.history,
        table,
        metrics,
        intake: context.tasks.intake.clone(),
        seed: deps.seed,
    }));
    let public_addr = listen::listen(&context.tasks, &node, deps.web).await?;

    upkeep::spawn(context, &node);
    let running = upkeep::drain(&node);
    Ok(Gateway {
        public_addr,
        internal_addr,
        advertise_addr,
        delivery,
        running,
    })
}

/// `host:port` under which push-fanout reaches the internal listener.
fn advertise_addr(config: &InternalConfig, bound: SocketAddr) -> anyhow::Result<String> {
    if !config.advertise_addr.is_empty() {
        return Ok(config.advertise_addr.clone());
    }
    if !bound.ip().is_unspecified() {
        return Ok(bound.to_string());
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("internal.advertise_addr is not set and the host name cannot be read")?;
    Ok(format!("{}:{}", name.trim(), bound.port()))
}
