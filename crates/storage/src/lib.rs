//! The stores of Tidings: ports, and adapters for them.
//!
//! A port is one trait that states its contract; the adapters are `cql` (ScyllaDB or Apache Cassandra 5, only what
//! both have), `redis`, and `embedded` (the single-process mode). One contract suite per port runs on every adapter
//! that has it.
//!
//! What all writes have in common: they are idempotent upserts, so that a caller may repeat any of them after an error
//! whose outcome is not known (sequencing.md section 2). Registers carry a monotone write timestamp: a late, repeated
//! or zombie write never lowers one. A call that returns `Ok` is durable (quorum, or the journal of the embedded store).

#[cfg(any(feature = "cql", feature = "embedded"))]
#[cfg_attr(
    not(feature = "embedded"),
    allow(dead_code, reason = "the CQL adapter keeps only checkpoints in this form")
)]
mod codec;
#[cfg(feature = "cql")]
pub mod cql;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error;
pub mod port;
#[cfg(feature = "redis")]
pub mod redis;

pub use error::Error;
