pub mod config;
pub mod intake;
pub mod metrics;
pub mod operate;
