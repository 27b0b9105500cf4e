//! Settings of a client.

use std::path::PathBuf;
use std::time::Duration;

use tidings_domain::{DeviceId, Uid};
use tidings_proto::validate::Limits;
use tidings_resilience::BackoffPolicy;

/// Where the local database lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// A file; created if missing.
    File(PathBuf),
    /// In memory, gone with the client.
    Memory,
}

impl From<&str> for Database {
    /// A path, or `:memory:`.
    fn from(path: &str) -> Self {
        if path == ":memory:" {
            Self::Memory
        } else {
            Self::File(path.into())
        }
    }
}

impl From<PathBuf> for Database {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

/// What a client needs to know. Numbers are those of requirements A3, B4, C5 and C7.
#[derive(Clone)]
pub struct ClientConfig {
    /// `ws://host:port/v1/connect`.
    pub url: String,
    /// Proves who the user is.
    pub token: String,
    /// The token's subject. Known without a connection, so that messages can be written offline.
    pub uid: Uid,
    /// This device.
    pub device_id: DeviceId,
    /// The local database; belongs to one uid and device.
    pub database: Database,
    /// What the client says about itself, for the server's logs; at most 64 bytes.
    pub client: String,
    /// How long to wait for the link ACK: first try, second, all later ones.
    pub ack_timeouts: [Duration; 3],
    /// Delays before the resends, without jitter. When they are used up, the message is `FAILED`.
    pub resend_delays: Vec<Duration>,
    /// Share of a delay that is added at random, 0 to 1.
    pub resend_jitter: f64,
    /// No automatic resend this long after the first send.
    pub resend_horizon: Duration,
    /// Sends without link ACK, over all conversations.
    pub max_unacked: usize,
    /// Sends per second, over all conversations.
    pub max_sends_per_second: u32,
    /// Messages waiting to be sent; more are refused.
    pub max_outbox: usize,
    /// Checks before a message is taken; the server's limits replace the body limit once connected.
    pub limits: Limits,
    /// Time from receiving or committing to the ACK that says so.
    pub ack_coalesce: Duration,
    /// How long a gap in `user_seq` may last before it is pulled.
    pub gap_patience: Duration,
    /// More events than this waiting beyond a gap are a reason to pull at once.
    pub max_waiting: usize,
    /// Events kept beyond a gap; more are dropped and pulled again.
    pub max_buffered: usize,
    /// Sync rounds at once, and the time until one more is allowed.
    pub sync_burst: u32,
    /// See `sync_burst`.
    pub sync_interval: Duration,
    /// How long to wait for the next page of a sync round.
    pub sync_timeout: Duration,
    /// Shortest and longest time between two pulls on a link that looks healthy.
    pub pull_interval: (Duration, Duration),
    /// Shortest time between two read reports of one conversation.
    pub read_interval: Duration,
    /// Time between heartbeats until the server has named its own.
    pub ping_interval: Duration,
    /// Silence of the server after a heartbeat that means that the link is dead.
    pub pong_timeout: Duration,
    /// Time to connect, greeting included.
    pub connect_timeout: Duration,
    /// Delays between attempts to connect.
    pub reconnect: BackoffPolicy,
    /// Events kept for a reader that is slow.
    pub event_buffer: usize,
}

impl ClientConfig {
    /// The defaults of the requirements.
    #[must_use]
    pub fn new(url: &str, token: &str, uid: Uid, device_id: DeviceId, database: impl Into<Database>) -> Self {
        let seconds = Duration::from_secs;
        Self {
            url: url.to_owned(),
            token: token.to_owned(),
            uid,
            device_id,
            database: database.into(),
            client: concat!("tidings-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            ack_timeouts: [seconds(3), seconds(6), seconds(12)],
            resend_delays: [1, 3, 7, 15, 30].map(seconds).to_vec(),
            resend_jitter: 0.5,
            resend_horizon: seconds(24 * 3600),
            max_unacked: 16,
            max_sends_per_second: 20,
            max_outbox: 1_000,
            limits: Limits::default(),
            ack_coalesce: Duration::from_millis(100),
            gap_patience: Duration::from_millis(500),
            max_waiting: 10,
            max_buffered: 1_000,
            sync_burst: 3,
            sync_interval: seconds(2),
            sync_timeout: seconds(10),
            pull_interval: (seconds(180), seconds(300)),
            read_interval: seconds(1),
            ping_interval: seconds(20),
            pong_timeout: seconds(10),
            connect_timeout: seconds(10),
            reconnect: BackoffPolicy::new(Duration::from_millis(500), seconds(30), 2.0, 1.0),
            event_buffer: 4_096,
        }
    }
}

impl std::fmt::Debug for ClientConfig {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConfig")
            .field("url", &self.url)
            .field("uid", &self.uid)
            .field("device_id", &self.device_id)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}
