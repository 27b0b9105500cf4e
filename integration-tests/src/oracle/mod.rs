//! The oracle: what must be true of every run ("ONCE" of the scenarios).
//!
//! While the load runs, the [`Ledger`] is told of every press of the send button (in that order, per device), what the
//! link ACK said of it, and what every device showed, in that order. Afterwards it is given every user's whole stream
//! and every conversation's history as the servers tell them, and [`check`] compares sent × recipient × device as a
//! multiset. It takes nothing on trust from the clients that fed it: a message a device showed is compared with what
//! was pressed, not with what another device showed.
//!
//! [`check`] is pure; each kind of [`Violation`] is proven to be found by a test with a hand-made one.

mod check;
mod ledger;
#[cfg(test)]
mod tests;
mod violation;

pub use check::check;
pub use ledger::{DeviceKey, Entry, EventKind, HistoryEntry, Ledger, MessageKey, Outcome, Press, SharedLedger};
pub use violation::{Figures, Report, Violation};
