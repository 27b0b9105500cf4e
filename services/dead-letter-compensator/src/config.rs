//! Configuration of dead-letter-compensator.

use serde::Deserialize;
use tidings_chassis::Validate;

/// The service's own section; the shared sections are the chassis's.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// `[dead_letter_compensator]`
    pub dead_letter_compensator: CompensatorConfig,
}

/// `[dead_letter_compensator]`
#[derive(Clone, Debug, Deserialize)]
pub struct CompensatorConfig {
    /// Most entries of one list page.
    pub page_entries: u32,
}

impl Validate for Config {
    fn validate(&self) -> Vec<String> {
        match self.dead_letter_compensator.page_entries {
            1..=5000 => Vec::new(),
            entries => vec![format!(
                "dead_letter_compensator.page_entries is {entries}, allowed are 1 to 5000"
            )],
        }
    }
}
