pub mod config;
pub mod fold;
pub mod metrics;
pub mod serve;
pub mod streams;
