//! The router on the embedded log and store, behind faults.

mod outcomes;
mod restarts;
mod support;
