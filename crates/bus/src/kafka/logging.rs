//! The client library's log lines, as events of this process.

use rdkafka::config::RDKafkaLogLevel;

pub(super) fn client_log(level: RDKafkaLogLevel, facility: &str, line: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
            tracing::error!(target: "librdkafka", facility, "{line}");
        }
        RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", facility, "{line}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => tracing::info!(target: "librdkafka", facility, "{line}"),
        RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{line}"),
    }
}
