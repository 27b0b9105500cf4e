pub mod config;
pub mod metrics;
pub mod serve;
pub mod streams;
