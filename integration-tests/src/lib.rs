//! The harness of the end-to-end tests: real binaries, real Kafka, Cassandra and Redis, faults, and an oracle.
//!
//! A test has three parts. A [`system::System`] runs the suite, either as six services on the stack
//! ([`cluster::Cluster`]) or as one `tidings dev` ([`dev::Dev`]), and kills and restarts its parts. A
//! [`load::Swarm`] of correct clients sends and receives through its gateways, over a [`fault_proxy::FaultProxy`] where
//! the network is to fail. The [`oracle`] is told what was sent, acknowledged and shown, and at the end compares
//! sent × recipient × device as a multiset with what every device, every stream and every history holds.
//!
//! Guarantees of the harness itself: waits are for conditions and have deadlines; nothing it starts outlives the test,
//! also when the test panics or is killed; all randomness comes from a seed that is printed.

pub mod cluster;
pub mod dev;

pub mod fault_proxy;
pub mod http;
pub mod kafka;
pub mod load;
pub mod oracle;
pub mod process;
pub mod records;
pub mod seed;
pub mod system;
pub mod token;
pub mod wait;
