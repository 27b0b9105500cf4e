//! The message bus of Tidings: topics, producers, the one consumer runtime, dead letters.
//!
//! **Guarantee.** A partition's offset is committed only when every lower offset is settled; settled means: its effects
//! are durable, or the record is broker-confirmed in `dlq` (architecture.md section 3, decision 2). The runtime does
//! this for all services, over two adapters: `kafka` (rdkafka) and `embedded` (the log of the single-process mode). One
//! contract suite runs on both.
//!
//! - [`catalogue`]: the six topics with their settings. [`partition_for`]: the one partition function.
//! - [`record`]: records out and in. [`producer`], [`source`], [`Bus`]: the ports.
//! - [`fold`] and [`handler`]: the two ways of consuming, run by [`runtime`].
//! - [`dead_letter`]: what a dead letter carries.

pub mod acks;
mod bus;
pub mod catalogue;
pub mod dead_letter;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error;
pub mod fold;
pub mod handler;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod metrics;
mod partition;
pub mod producer;
pub mod record;
pub mod runtime;
pub mod source;

pub use bus::{BrokerTime, Bus};
pub use catalogue::{Catalogue, ConsumerGroup};
pub use error::Error;
pub use partition::partition_for;
pub use record::{Headers, LogRecord, OutRecord};
