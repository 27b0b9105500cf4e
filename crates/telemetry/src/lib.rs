//! What a process tells about itself: logs, metrics, trace context.
//!
//! - [`logging`]: one subscriber for every binary, JSON or human-readable, always to stderr (stdout belongs to the
//!   output of commands).
//! - [`metrics`]: a cheap-clone registry handed down to every component, encoded as OpenMetrics text by the admin port.
//! - [`traceparent`]: the W3C trace context that travels in record headers and gRPC metadata.
//!
//! Guarantee: nothing here is global except the log subscriber, so a process can hold several registries (tests) or
//! one registry with a view per service (single-process mode).

pub mod logging;
pub mod metrics;
pub mod traceparent;

pub use prometheus_client;
