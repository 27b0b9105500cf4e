//! The stores on ScyllaDB or Apache Cassandra 5, with only what both have (no lightweight transactions on the way of a
//! message, no counters, no secondary indexes).
//!
//! Scheme: every statement is prepared once and runs at `LOCAL_QUORUM`; every write is an idempotent upsert, so the
//! driver repeats it on another node and the caller as often as it likes. Rows of one partition go in one unlogged
//! batch, which is one mutation; partitions go in parallel, a bounded number at a time.
//!
//! **Write timestamps.** Registers carry their own number (`USING TIMESTAMP head`, `seq`, `off`, `pos`), so that the
//! cell with the highest number wins whatever comes late. Rows of time-window tables carry their append time, because
//! their windows are cut by it. Of two writes with one timestamp the larger value of each cell wins.
//!
//! **Expiry** is one TTL per table. The schema is in `schema/*.cql`.

mod columns;
mod config;
mod dead_letters;
mod errors;
mod history;
mod inbox_reader;
mod inbox_store;
mod retry_policy;
mod router;
mod runtime;
pub mod schema;
mod session;
mod statements;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use scylla::client::session::Session;

pub use self::config::CqlConfig;
use self::statements::Statements;
use crate::Error;

/// Longer than any healthy answer. The driver's default of 30 s would hold a partition longer than a rebalance may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// All stores of the CQL adapter. Clones share the session.
#[derive(Clone)]
pub struct CqlStore {
    session: Arc<Session>,
    statements: Arc<Statements>,
    keyspace: Arc<str>,
}

impl fmt::Debug for CqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqlStore")
            .field("keyspace", &self.keyspace)
            .finish_non_exhaustive()
    }
}

impl CqlStore {
    /// Connects and prepares the statements. A store whose schema is not there, or not whole, is
    /// [`NotSetUp`](Error::NotSetUp) with what is missing.
    pub async fn connect(config: &CqlConfig) -> Result<Self, Error> {
        let session = session::connect(config, Some(&config.keyspace), REQUEST_TIMEOUT).await?;
        let missing = schema::missing(&session, &config.keyspace).await?;
        if !missing.is_empty() {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            return Err(Error::NotSetUp {
                operation: "connect",
                reason: format!(
                    "keyspace {} lacks {}; run `tidings schema apply`",
                    config.keyspace,
                    missing.join(", ")
                ),
            });
        }
        let statements = Statements::prepare(&session).await?;
        Ok(Self {
            session: Arc::new(session),
            statements: Arc::new(statements),
            keyspace: Arc::from(config.keyspace.as_str()),
        })
    }
}
