//! What all binaries of the suite share, so that a service is its `start` and nothing else.
//!
pub mod config;
pub mod limits;
pub use limits::Limits;
