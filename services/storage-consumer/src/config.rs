//! Configuration of storage-consumer.

use serde::Deserialize;
use tidings_chassis::Validate;

/// The service's own section; the shared sections are the chassis's.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// `[storage_consumer]`
    pub storage_consumer: StorageConsumerConfig,
}

/// `[storage_consumer]`
#[derive(Clone, Debug, Deserialize)]
pub struct StorageConsumerConfig {
    /// Most messages of one history page.
    pub page_messages: u32,
    /// Most bytes of one history page; a page has at least one message.
    pub page_bytes: u32,
}

impl Validate for Config {
    fn validate(&self) -> Vec<String> {
        let own = &self.storage_consumer;
        let mut problems = Vec::new();
        if own.page_messages == 0 || own.page_messages > 1000 {
            problems.push(format!(
                "storage_consumer.page_messages is {}, allowed are 1 to 1000",
                own.page_messages
            ));
        }
        if own.page_bytes < 65_536 {
            problems.push(format!(
                "storage_consumer.page_bytes is {}, at least 65536 are needed",
                own.page_bytes
            ));
        }
        problems
    }
}
