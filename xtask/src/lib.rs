//! The tasks of a developer and of CI (`cargo xtask <command>`), and the part of them that tests use from Rust.
//!
//! The library target exists for [`stack::Stack`]: integration tests start, kill, freeze and restart the nodes of a
//! real Kafka, Cassandra and Redis with it. Everything else is the tool's own.

pub mod console;
pub mod process;
pub mod stack;
pub mod workspace;
