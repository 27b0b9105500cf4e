//! Routes and the hot window on Redis.
//!
//! Everything here may be lost, flushed or failed over to a stale replica at any time (architecture.md section 3,
//! decision 6): readers verify what they get, and a Redis that is gone is an error within [`ANSWER_TIMEOUT`], never a
//! wait. The connection heals by itself in the background (scenario B109).
//!
//! The keys of a user carry the uid as hash tag, so a script's keys are of one slot; every decision that must be atomic
//! is a script (`lua/*.lua`), and calls of many users go in pipelines.

mod connection;
mod hot_window;
mod routes;

use std::time::Duration;

use serde::Deserialize;

pub use self::connection::RedisConnection;
pub use self::hot_window::RedisHotWindow;
pub use self::routes::RedisRoutes;

/// Longest wait for one pipeline, connecting included: what a caller on the way of a push or a sync can spare.
pub const ANSWER_TIMEOUT: Duration = Duration::from_millis(900);

/// Settings of the Redis adapter.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RedisConfig {
    /// `redis://[user:password@]host:port[/database]`.
    pub url: String,
    /// Put before every key, for a Redis that is shared.
    pub key_prefix: String,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            url: "redis://127.0.0.1:6379".to_owned(),
            key_prefix: String::new(),
        }
    }
}
