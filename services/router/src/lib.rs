pub mod config;
pub mod fold;
pub mod metrics;
