//! storage-consumer on the embedded log and store, behind faults.

mod persist;
mod reads;
mod support;
