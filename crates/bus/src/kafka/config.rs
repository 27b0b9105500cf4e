//! Configuration of the Kafka clients.
//!
//! A deployment chooses where the brokers are, how to log in, and the group protocol. Settings that carry a guarantee
//! are fixed here, each with its reason; trying to override one is refused by name, so that no deployment weakens a
//! guarantee by a line in a file (req:B1, notes/kafka.md 1.1 and 2).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use crate::Error;
use crate::catalogue::MAX_DLQ_RECORD_BYTES;
use crate::producer::ProducerProfile;

/// Who assigns partitions to members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupProtocol {
    /// The members, by the classic protocol with cooperative-sticky.
    #[default]
    Classic,
    /// The broker (KIP-848). With librdkafka before 2.15 a member that polls too late can die for good (its #5541).
    Consumer,
}

/// Configuration of the Kafka adapter.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaConfig {
    /// `host:port` of some brokers.
    pub bootstrap_servers: Vec<String>,
    /// Who assigns partitions.
    pub group_protocol: GroupProtocol,
    /// Time without a heartbeat after which the broker gives a member up; classic protocol only.
    pub session_timeout: Duration,
    /// Longest time between two polls.
    pub max_poll_interval: Duration,
    /// Further librdkafka properties by their names (`security.protocol`, `sasl.*`, `ssl.*`, ...).
    pub properties: BTreeMap<String, String>,
}

/// Values of properties may be secrets: only the names are shown.
impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConfig")
            .field("bootstrap_servers", &self.bootstrap_servers)
            .field("group_protocol", &self.group_protocol)
            .field("session_timeout", &self.session_timeout)
            .field("max_poll_interval", &self.max_poll_interval)
            .field("properties", &self.properties.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// Properties that carry a guarantee or have a field of their own, with the reason; a trailing `*` stands for any end.
const FIXED: &[(&str, &str)] = &[
    ("bootstrap.servers", "has a field of its own"),
    (
        "metadata.broker.list",
        "is bootstrap.servers, which has a field of its own",
    ),
    ("group.protocol", "has a field of its own"),
    ("session.timeout.ms", "has a field of its own"),
    ("max.poll.interval.ms", "has a field of its own"),
    ("heartbeat.interval.ms", "belongs to the session time-out"),
    ("enable.idempotence", "order and no duplicates on retries hang on it"),
    ("acks", "a confirmed record must be on all in-sync replicas"),
    (
        "request.required.acks",
        "a confirmed record must be on all in-sync replicas",
    ),
    ("max.in.flight*", "the order of retries hangs on it"),
    ("retries", "the producer never gives a record up by itself"),
    (
        "message.send.max.retries",
        "the producer never gives a record up by itself",
    ),
    ("message.timeout.ms", "the producer never gives a record up by itself"),
    ("delivery.timeout.ms", "the producer never gives a record up by itself"),
    ("enable.gapless.guarantee", "turns refused records in to fatal errors"),
    ("transactional.id", "the suite does not use transactions"),
    ("partitioner", "partitions are computed by one function of the bus"),
    (
        "allow.auto.create.topics",
        "an automatic topic has the wrong partitions and replication",
    ),
    ("message.max.bytes", "is derived from the topic catalogue"),
    ("group.id", "each topic has exactly one group"),
    ("partition.assignment.strategy", "members of a group must agree on it"),
    (
        "enable.auto.commit",
        "the runtime commits, after the effects are durable",
    ),
    ("auto.commit.*", "the runtime commits, after the effects are durable"),
    (
        "enable.auto.offset.store",
        "the runtime commits, after the effects are durable",
    ),
    (
        "auto.offset.reset",
        "a fold must never skip, a handler must never skip to the end",
    ),
    ("isolation.level", "an offset's meaning hangs on it"),
    ("enable.partition.eof", "not handled"),
    ("statistics.interval.ms", "lag is measured from it"),
    ("log.queue", "set by the client library"),
];

/// The group keeps a silent member's partitions for this long.
const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_MAX_POLL_INTERVAL: Duration = Duration::from_secs(300);
/// What a largest record needs beside its own bytes: batch header, field lengths, client's accounting.
const RECORD_OVERHEAD_BYTES: u32 = 64 * 1024;
/// How often the client reports log ends.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(5);

impl KafkaConfig {
    /// The defaults for these brokers.
    pub fn new<S: Into<String>>(bootstrap_servers: impl IntoIterator<Item = S>) -> Self {
        Self {
            bootstrap_servers: bootstrap_servers.into_iter().map(Into::into).collect(),
            group_protocol: GroupProtocol::default(),
            session_timeout: DEFAULT_SESSION_TIMEOUT,
            max_poll_interval: DEFAULT_MAX_POLL_INTERVAL,
            properties: BTreeMap::new(),
        }
    }

    /// Names each problem.
    pub(super) fn validate(&self) -> Result<(), Error> {
        let mut problems = Vec::new();
        if self.bootstrap_servers.is_empty() {
            problems.push("bootstrap_servers is empty".to_owned());
        }
        if self.session_timeout.is_zero() {
            problems.push("session_timeout is zero".to_owned());
        }
        if self.max_poll_interval < self.session_timeout {
            problems.push(format!(
                "max_poll_interval ({} ms) is smaller than session_timeout ({} ms)",
                self.max_poll_interval.as_millis(),
                self.session_timeout.as_millis()
            ));
        }
        for name in self.properties.keys() {
            if let Some((_, reason)) = FIXED.iter().find(|(pattern, _)| matches_pattern(pattern, name)) {
                problems.push(format!("property `{name}` cannot be overridden: {reason}"));
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::NotSetUp {
                operation: "configuring the Kafka clients",
                reason: problems.join("; "),
            })
        }
    }

    fn base(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client
            .set("bootstrap.servers", self.bootstrap_servers.join(","))
            .set("allow.auto.create.topics", "false")
            // After an outage the first attempt must not wait for the default 10 s.
            .set("reconnect.backoff.ms", "100")
            .set("reconnect.backoff.max.ms", "1000")
            .set("socket.keepalive.enable", "true")
            // A broker that answers after 10 s must still be reachable (req:B7): a request queued while a connection is
            // made waits for that answer and its own. A shorter time ends in connecting again and again.
            .set("socket.timeout.ms", "30000")
            .set_log_level(RDKafkaLogLevel::Info);
        client
    }

    /// Properties come last; those that carry guarantees were refused by `validate`.
    fn with_properties(&self, mut client: ClientConfig) -> ClientConfig {
        for (name, value) in &self.properties {
            client.set(name, value);
        }
        client
    }

    pub(super) fn admin_client(&self) -> ClientConfig {
        self.with_properties(self.base())
    }

    pub(super) fn producer_client(&self, profile: ProducerProfile) -> ClientConfig {
        let mut client = self.base();
        client
            .set(
                "message.max.bytes",
                (MAX_DLQ_RECORD_BYTES + RECORD_OVERHEAD_BYTES).to_string(),
            )
            .set("compression.type", "lz4")
            .set("request.timeout.ms", "10000");
        match profile {
            ProducerProfile::Ack => durable(&mut client).set("linger.ms", "1"),
            ProducerProfile::Internal => durable(&mut client).set("linger.ms", "2"),
            ProducerProfile::Lossy => client
                .set("enable.idempotence", "false")
                .set("acks", "1")
                .set("message.timeout.ms", "30000")
                .set("linger.ms", "20")
                .set("queue.buffering.max.messages", "20000")
                .set("queue.buffering.max.kbytes", "16384"),
        };
        self.with_properties(client)
    }

    pub(super) fn consumer_client(&self, group_id: &str, fold: bool) -> ClientConfig {
        let mut client = self.base();
        client
            .set("group.id", group_id)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // A fold whose position is outside the log stops; a handler may read again, but never skip to the end.
            .set("auto.offset.reset", if fold { "error" } else { "earliest" })
            .set("enable.partition.eof", "false")
            .set("max.poll.interval.ms", self.max_poll_interval.as_millis().to_string())
            .set("statistics.interval.ms", STATISTICS_INTERVAL.as_millis().to_string())
            // Bounded prefetch; the short back-off keeps its bound from costing up to 1 s (notes/kafka.md 2.5).
            .set("queued.min.messages", "2000")
            .set("queued.max.messages.kbytes", "16384")
            .set("fetch.queue.backoff.ms", "20")
            // A broker answers at once when there is data. But one fetch per broker is under way at a time, and a
            // partition that was just assigned, resumed or sought waits for its end: this bounds that wait.
            .set("fetch.wait.max.ms", "100")
            .set("fetch.max.bytes", (8 << 20).to_string());
        match self.group_protocol {
            // The broker rules over session time-out and assignor in the other protocol and refuses them here.
            GroupProtocol::Classic => client
                .set("group.protocol", "classic")
                .set("session.timeout.ms", self.session_timeout.as_millis().to_string())
                .set(
                    "heartbeat.interval.ms",
                    heartbeat(self.session_timeout).as_millis().to_string(),
                )
                .set("partition.assignment.strategy", "cooperative-sticky"),
            GroupProtocol::Consumer => client.set("group.protocol", "consumer"),
        };
        self.with_properties(client)
    }
}

/// Three tries and more within a session time-out, at most every 3 s.
fn heartbeat(session_timeout: Duration) -> Duration {
    (session_timeout / 4).min(Duration::from_secs(3))
}

/// Never gives a record up: a report that fails means a dead producer or a refused record, never "too slow".
fn durable(client: &mut ClientConfig) -> &mut ClientConfig {
    client
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("max.in.flight", "5")
        .set("message.timeout.ms", "0")
        .set("queue.buffering.max.messages", "50000")
        .set("queue.buffering.max.kbytes", "65536")
}

fn matches_pattern(pattern: &str, name: &str) -> bool {
    pattern
        .strip_suffix('*')
        .map_or(pattern == name, |start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_property(name: &str, value: &str) -> KafkaConfig {
        let mut config = KafkaConfig::new(["localhost:9092"]);
        config.properties.insert(name.to_owned(), value.to_owned());
        config
    }

    #[test]
    fn a_property_that_carries_a_guarantee_is_refused_by_name() {
        for name in [
            "acks",
            "enable.idempotence",
            "max.in.flight.requests.per.connection",
            "message.timeout.ms",
            "enable.auto.commit",
            "auto.offset.reset",
            "auto.commit.interval.ms",
            "bootstrap.servers",
        ] {
            let error = with_property(name, "1").validate().unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
    }

    #[test]
    fn security_and_tuning_pass_through_to_every_client() {
        let config = with_property("security.protocol", "sasl_ssl");
        config.validate().unwrap();
        let clients = [
            config.admin_client(),
            config.producer_client(ProducerProfile::Lossy),
            config.consumer_client("group", true),
        ];
        for client in clients {
            assert_eq!(client.get("security.protocol"), Some("sasl_ssl"));
            assert_eq!(client.get("allow.auto.create.topics"), Some("false"));
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let printed = format!("{:?}", with_property("sasl.password", "opensesame"));
        assert!(printed.contains("sasl.password"), "{printed}");
        assert!(!printed.contains("opensesame"), "{printed}");
    }

    #[test]
    fn durable_profiles_never_time_out() {
        let config = KafkaConfig::new(["localhost:9092"]);
        for profile in [ProducerProfile::Ack, ProducerProfile::Internal] {
            let client = config.producer_client(profile);
            assert_eq!(client.get("message.timeout.ms"), Some("0"));
            assert_eq!(client.get("enable.idempotence"), Some("true"));
            assert_eq!(client.get("acks"), Some("all"));
        }
    }

    #[test]
    fn offsets_are_never_reset_to_the_end_and_never_committed_by_the_client() {
        let config = KafkaConfig::new(["localhost:9092"]);
        assert_eq!(
            config.consumer_client("g", true).get("auto.offset.reset"),
            Some("error")
        );
        let handler = config.consumer_client("g", false);
        assert_eq!(handler.get("auto.offset.reset"), Some("earliest"));
        assert_eq!(handler.get("enable.auto.commit"), Some("false"));
        assert_eq!(handler.get("partition.assignment.strategy"), Some("cooperative-sticky"));
    }

    #[test]
    fn the_broker_side_protocol_leaves_its_settings_to_the_broker() {
        let mut config = KafkaConfig::new(["localhost:9092"]);
        config.group_protocol = GroupProtocol::Consumer;
        let client = config.consumer_client("g", false);
        assert_eq!(client.get("group.protocol"), Some("consumer"));
        assert_eq!(client.get("session.timeout.ms"), None);
        assert_eq!(client.get("partition.assignment.strategy"), None);
    }

    #[test]
    fn a_poll_interval_below_the_session_time_out_is_refused() {
        let mut config = KafkaConfig::new(Vec::<String>::new());
        config.max_poll_interval = Duration::from_secs(1);
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains("max_poll_interval (1000 ms)"), "{error}");
        assert!(error.contains("bootstrap_servers is empty"), "{error}");
    }
}
