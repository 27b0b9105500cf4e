//! Clients that do what a correct client does, light enough for thousands in one process.
//!
//! A [`Client`] has the sending half of a device ([`outbox`]: lanes, resends with the same msg_id, the ladder of req:A3)
//! and the receiving half ([`stream`]: cursor, dedup keys, gaps, sync), both pure; [`client`] runs them over a WebSocket
//! ([`session`]). What a real device has in its database is kept in memory and outlives connections, so that a cut is an
//! app crash. Everything pressed, acknowledged and shown goes into the oracle's ledger at the moment a real device would
//! have committed it.
//!
//! [`swarm`] is many of them; [`reader`] reads streams and histories afterwards, as evidence.

pub mod client;
pub mod outbox;
pub mod reader;
pub mod session;
pub mod stream;
pub mod swarm;
pub mod user;

pub use client::{Client, ClientOptions};
pub use reader::gather_evidence;
pub use session::Session;
pub use swarm::{Swarm, SwarmOptions};
