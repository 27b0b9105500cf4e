//! Configuration of router.

use serde::Deserialize;
use tidings_chassis::Validate;

/// The service's own section; the shared sections are the chassis's.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// `[router]`
    pub router: RouterConfig,
}

/// `[router]`
#[derive(Clone, Debug, Deserialize)]
pub struct RouterConfig {
    /// Most records folded as one batch.
    pub batch_records: usize,
}

impl Validate for Config {
    fn validate(&self) -> Vec<String> {
        match self.router.batch_records {
            1..=10_000 => Vec::new(),
            records => vec![format!("router.batch_records is {records}, allowed are 1 to 10000")],
        }
    }
}
