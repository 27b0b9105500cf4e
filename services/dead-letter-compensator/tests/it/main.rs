//! dead-letter-compensator on the embedded log and store, behind faults.

mod intake;
mod listing;
mod support;
