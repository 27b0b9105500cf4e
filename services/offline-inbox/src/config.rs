//! Configuration of offline-inbox.

use serde::Deserialize;
use tidings_chassis::Validate;

/// The service's own section; the shared sections are the chassis's.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// `[offline_inbox]`
    pub offline_inbox: OfflineInboxConfig,
}

/// `[offline_inbox]`
#[derive(Clone, Debug, Deserialize)]
pub struct OfflineInboxConfig {
    /// Most events of one page (req:C3).
    pub page_events: u32,
    /// Most bytes of one page; a page has at least one event.
    pub page_bytes: u32,
}

impl Validate for Config {
    fn validate(&self) -> Vec<String> {
        let own = &self.offline_inbox;
        let mut problems = Vec::new();
        if own.page_events == 0 || own.page_events > 1000 {
            problems.push(format!(
                "offline_inbox.page_events is {}, allowed are 1 to 1000",
                own.page_events
            ));
        }
        if own.page_bytes < 65_536 {
            problems.push(format!(
                "offline_inbox.page_bytes is {}, at least 65536 are needed",
                own.page_bytes
            ));
        }
        problems
    }
}
