//! Configuration of push-fanout.

use std::time::Duration;

use serde::Deserialize;
use tidings_chassis::Validate;
use tidings_chassis::config::duration;

/// The service's own section; the shared sections are the chassis's.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// `[push_fanout]`
    pub push_fanout: PushFanoutConfig,
}

/// `[push_fanout]`
#[derive(Clone, Debug, Deserialize)]
pub struct PushFanoutConfig {
    /// Gateways to ask while routes cannot be read.
    pub gateways: Vec<String>,
    /// How long a gateway may take to answer a batch.
    #[serde(rename = "deliver_timeout_ms", with = "duration::millis")]
    pub deliver_timeout: Duration,
    /// Batches on the way to one gateway.
    pub max_batches_in_flight: usize,
}

impl Validate for Config {
    fn validate(&self) -> Vec<String> {
        let own = &self.push_fanout;
        let mut problems = Vec::new();
        if own.deliver_timeout.is_zero() {
            problems.push("push_fanout.deliver_timeout_ms is 0, it must be larger".to_owned());
        }
        if own.max_batches_in_flight == 0 {
            problems.push("push_fanout.max_batches_in_flight is 0, it must be larger".to_owned());
        }
        problems
    }
}
