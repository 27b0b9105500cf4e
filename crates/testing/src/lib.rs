//! What the tests of the services stand on: the embedded log and store in a directory of their own, faults around the
//! calls of a port, waits by condition.
//!
//! A service is started by its public `start` on [`Embedded`], with its store behind [`Faulty`]. [`Embedded::reopened`] is
//! an orderly restart; [`Embedded::image`] is what a kill would leave on disk at this moment.

mod embedded;
mod faults;
mod ports;
mod service;

pub use embedded::{Embedded, NOW, Place};
pub use faults::{Fault, Faulty, Script};
pub use service::Service;

use std::time::Duration;

/// Longest wait for anything; a test that waits for it fails.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not within [`DEADLINE`].
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(DEADLINE, waiting).await.is_ok(),
        "not in time: {what}"
    );
}
