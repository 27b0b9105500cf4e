//! The device's half of Tidings: local database first.
//!
//! Scheme: [`Client`] is an event loop over a local database, a WebSocket connection and pure state machines: the states
//! of an own message ([`MessageState`]), the outbox with its lanes and resend ladder, the user's stream with its gaps
//! and sync rounds, the cumulative ACKs. The app holds a [`Handle`].
//!
//! Guarantees: a message is in the local database before the network sees it and keeps its id on every resend (req:A1,
//! req:A2); messages of one conversation go out in the order of pressing send (req:C2); what came is committed with the
//! cursor before it is acknowledged or shown, and shown once (req:A6, req:B3); a gap is found and pulled (req:C5).

mod acks;
mod bucket;
mod client;
mod config;
mod connection;
mod error;
mod event;
mod handle;
mod holes;
mod outbox;
mod reads;
mod state;
mod store;
mod stream;

pub use client::Client;
pub use config::{ClientConfig, Database};
pub use error::Error;
pub use event::{ClientEvent, Events, RefusalReason};
pub use handle::{Diagnostics, Handle, Recipient};
pub use state::{Cause, MessageState};
pub use store::StoredMessage;

use std::sync::Arc;

use tidings_domain::clock::SystemClock;
use tokio::task::JoinHandle;

/// The task of a client; ends as [`Client::run`] does.
pub type Running = JoinHandle<Result<(), Error>>;

/// Opens a client with the machine's clock and randomness and runs it in a task, which ends as [`Client::run`] does.
/// The first events are not missed: they are returned.
pub fn spawn(config: ClientConfig) -> Result<(Handle, Events, Running), Error> {
    let (client, handle) = Client::open(config, Arc::new(SystemClock), rand::make_rng())?;
    let events = handle.events();
    Ok((handle, events, tokio::spawn(client.run())))
}
