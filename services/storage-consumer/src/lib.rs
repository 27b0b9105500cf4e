pub mod config;
pub mod metrics;
pub mod persist;
pub mod read;
