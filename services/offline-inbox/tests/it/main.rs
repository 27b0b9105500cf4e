//! offline-inbox on the embedded log and store, behind faults.

mod chains;
mod devices;
mod fold;
mod support;
mod sync;
mod sync_failures;
