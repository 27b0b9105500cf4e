pub mod config;
pub mod fan_out;
pub mod gateways;
pub mod metrics;
pub mod stream;
