//! The sections every service shares. A service takes the ones it uses, or all with
//! `#[serde(flatten)] shared: Shared`.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use tidings_telemetry::logging::{LogFormat, parse_filter};

use super::redact::{Secret, redact_url};
use super::{Validate, duration};
use crate::limits::Limits;

/// All shared sections.
#[derive(Clone, Debug, Deserialize)]
pub struct Shared {
    /// `[log]`
    pub log: LogConfig,
    /// `[admin]`
    pub admin: AdminConfig,
    /// `[shutdown]`
    pub shutdown: ShutdownConfig,
    /// `[internal]`
    pub internal: InternalConfig,
    /// `[kafka]`
    pub kafka: KafkaConfig,
    /// `[cql]`
    pub cql: CqlConfig,
    /// `[redis]`
    pub redis: RedisConfig,
    /// `[limits]`
    pub limits: Limits,
}

impl Shared {
    /// The embedded defaults alone, for tests and for programs that run services without a configuration file.
    ///
    /// # Panics
    /// Never: a test of this crate reads the embedded defaults.
    pub fn defaults() -> Self {
        super::load("", None, std::iter::empty()).expect("embedded defaults are valid")
    }
}

impl Validate for Shared {
    fn validate(&self) -> Vec<String> {
        let checks: [&dyn Validate; 7] = [
            &self.log,
            &self.shutdown,
            &self.internal,
            &self.kafka,
            &self.cql,
            &self.redis,
            &self.limits,
        ];
        checks.iter().flat_map(|section| section.validate()).collect()
    }
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LogConfig {
    /// `json` or `pretty`.
    #[serde(deserialize_with = "log_format")]
    pub format: LogFormat,
    /// Directives such as `info,tidings_bus=debug`.
    pub filter: String,
}

fn log_format<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<LogFormat, D::Error> {
    String::deserialize(deserializer)?
        .parse()
        .map_err(serde::de::Error::custom)
}

impl Validate for LogConfig {
    fn validate(&self) -> Vec<String> {
        parse_filter(&self.filter)
            .err()
            .map(|error| format!("log.filter: {error}"))
            .into_iter()
            .collect()
    }
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct AdminConfig {
    /// Where `/livez`, `/readyz` and `/metrics` listen; port 0 takes a free one.
    pub listen: SocketAddr,
}

/// `[shutdown]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ShutdownConfig {
    /// From the first signal to the end of the process.
    #[serde(rename = "deadline_ms", with = "duration::millis")]
    pub deadline: Duration,
}

/// Below this a shutdown cannot drain anything.
const SHUTDOWN_MIN: Duration = Duration::from_secs(1);

impl Validate for ShutdownConfig {
    fn validate(&self) -> Vec<String> {
        if self.deadline >= SHUTDOWN_MIN {
            return Vec::new();
        }
        vec![format!(
            "shutdown.deadline_ms ({}) must be at least {}",
            self.deadline.as_millis(),
            SHUTDOWN_MIN.as_millis()
        )]
    }
}

/// `[internal]`: gRPC between the services.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct InternalConfig {
    /// Where the internal gRPC server listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `host:port` under which other services reach this process; empty: host name and port of `listen`.
    pub advertise_addr: String,
    /// Sent with and required of every internal call; unset: not required.
    pub shared_token: Secret,
    /// How often target names are resolved again.
    #[serde(rename = "resolve_interval_ms", with = "duration::millis")]
    pub resolve_interval: Duration,
    /// For one TCP connection.
    #[serde(rename = "connect_timeout_ms", with = "duration::millis")]
    pub connect_timeout: Duration,
    /// Time without traffic after which a PING is sent.
    #[serde(rename = "keepalive_interval_ms", with = "duration::millis")]
    pub keepalive_interval: Duration,
    /// Time without an answer to the PING after which the connection is given up.
    #[serde(rename = "keepalive_timeout_ms", with = "duration::millis")]
    pub keepalive_timeout: Duration,
    /// From the call to the response headers, the wait for a reachable endpoint included.
    #[serde(rename = "response_timeout_ms", with = "duration::millis")]
    pub response_timeout: Duration,
}

impl Validate for InternalConfig {
    fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (key, value) in [
            ("resolve_interval_ms", self.resolve_interval),
            ("connect_timeout_ms", self.connect_timeout),
            ("keepalive_interval_ms", self.keepalive_interval),
            ("keepalive_timeout_ms", self.keepalive_timeout),
            ("response_timeout_ms", self.response_timeout),
        ] {
            require_positive(&mut problems, &format!("internal.{key}"), value.as_millis());
        }
        if self.response_timeout <= self.connect_timeout {
            problems.push(format!(
                "internal.response_timeout_ms ({}) must be larger than internal.connect_timeout_ms ({}), which it includes",
                self.response_timeout.as_millis(),
                self.connect_timeout.as_millis()
            ));
        }
        // It travels in a header, where spaces and control characters have no place.
        if self
            .shared_token
            .expose()
            .is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            problems.push("internal.shared_token must be visible ASCII without spaces".to_owned());
        }
        if !self.advertise_addr.is_empty() {
            require_host_port(&mut problems, "internal.advertise_addr", &self.advertise_addr);
        }
        problems
    }
}

/// `kafka.group_protocol`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupProtocol {
    /// The client assigns partitions (cooperative-sticky).
    Classic,
    /// The broker assigns them; needs brokers of version 4 or later.
    Consumer,
}

/// `kafka.topic_profile`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopicProfile {
    /// One replica, flushed on every message: the local stack.
    Single,
    /// Three replicas, two in sync.
    Replicated,
}

/// `kafka.security_protocol`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecurityProtocol {
    /// Neither encrypted nor authenticated.
    Plaintext,
    /// TLS.
    Ssl,
    /// User name and password in the clear.
    SaslPlaintext,
    /// User name and password inside TLS.
    SaslSsl,
}

impl SecurityProtocol {
    /// The name the Kafka client takes.
    pub fn as_str(self) -> &'static str {
        match self {
            SecurityProtocol::Plaintext => "plaintext",
            SecurityProtocol::Ssl => "ssl",
            SecurityProtocol::SaslPlaintext => "sasl_plaintext",
            SecurityProtocol::SaslSsl => "sasl_ssl",
        }
    }
}

/// `[kafka]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct KafkaConfig {
    /// `host:port` of some brokers.
    pub bootstrap_servers: Vec<String>,
    /// Who assigns partitions.
    pub group_protocol: GroupProtocol,
    /// Replication the topic catalogue asks for.
    pub topic_profile: TopicProfile,
    /// First part of the names of topics and consumer groups, so that several suites can share a broker.
    pub topic_prefix: String,
    /// Partitions of ingress, history, inbox and push; 0: 24 when replicated, 4 when single.
    pub main_partitions: u32,
    /// Partitions of trace and dlq; 0: 12 when replicated, 1 when single.
    pub side_partitions: u32,
    /// Encryption and authentication.
    pub security_protocol: SecurityProtocol,
    /// Used with the sasl protocols.
    pub sasl_mechanism: String,
    /// Used with the sasl protocols.
    pub sasl_username: String,
    /// Used with the sasl protocols.
    pub sasl_password: Secret,
    /// PEM file of the authority that signed the brokers' certificates; empty: the system's.
    pub ssl_ca_file: String,
    /// Time without a heartbeat after which the broker gives a member up; classic protocol only.
    #[serde(rename = "session_timeout_ms", with = "duration::millis")]
    pub session_timeout: Duration,
    /// Longest time between two polls.
    #[serde(rename = "max_poll_interval_ms", with = "duration::millis")]
    pub max_poll_interval: Duration,
}

impl Validate for KafkaConfig {
    fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        require_hosts(&mut problems, "kafka.bootstrap_servers", &self.bootstrap_servers);
        require_prefix(&mut problems, "kafka.topic_prefix", &self.topic_prefix);
        require_positive(
            &mut problems,
            "kafka.session_timeout_ms",
            self.session_timeout.as_millis(),
        );
        if self.max_poll_interval < self.session_timeout {
            problems.push(format!(
                "kafka.max_poll_interval_ms ({}) must not be smaller than kafka.session_timeout_ms ({})",
                self.max_poll_interval.as_millis(),
                self.session_timeout.as_millis()
            ));
        }
        match self.security_protocol {
            SecurityProtocol::Plaintext | SecurityProtocol::Ssl => {}
            SecurityProtocol::SaslPlaintext | SecurityProtocol::SaslSsl => {
                if self.sasl_username.is_empty() || self.sasl_password.expose().is_none() {
                    problems.push(format!(
                        "kafka.security_protocol = \"{}\" needs kafka.sasl_username and kafka.sasl_password",
                        self.security_protocol.as_str()
                    ));
                }
            }
        }
        problems
    }
}

/// `[cql]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CqlConfig {
    /// `host:port` of some nodes.
    pub contact_points: Vec<String>,
    /// Keyspace of the suite.
    pub keyspace: String,
    /// Datacenter whose nodes are preferred; empty: no preference.
    pub local_datacenter: String,
    /// Replicas per datacenter when the schema is made.
    pub replication_factor: u32,
    /// Empty: no authentication.
    pub username: String,
    /// Used with `username`.
    pub password: Secret,
}

impl Validate for CqlConfig {
    fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        require_hosts(&mut problems, "cql.contact_points", &self.contact_points);
        require_positive(
            &mut problems,
            "cql.replication_factor",
            u128::from(self.replication_factor),
        );
        let name = self.keyspace.as_bytes();
        let valid = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'_';
        // It is written in to statements, where a name cannot be bound.
        if !(1..=48).contains(&name.len()) || !name.iter().all(valid) || !name[0].is_ascii_lowercase() {
            problems.push(format!(
                "cql.keyspace must be 1 to 48 of [a-z0-9_] starting with a letter, got `{}`",
                self.keyspace
            ));
        }
        if self.username.is_empty() != self.password.expose().is_none() {
            problems.push("cql.username and cql.password must be set together".to_owned());
        }
        problems
    }
}

/// `[redis]`
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct RedisConfig {
    /// `redis://[user:password@]host:port/db`; may hold a password and is hidden in `Debug`.
    pub url: String,
    /// First part of every key, so that several suites can share a server.
    pub key_prefix: String,
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("url", &redact_url(&self.url))
            .field("key_prefix", &self.key_prefix)
            .finish()
    }
}

impl Validate for RedisConfig {
    fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !["redis://", "rediss://"]
            .iter()
            .any(|scheme| self.url.starts_with(scheme))
        {
            problems.push(format!(
                "redis.url must start with redis:// or rediss://, got `{}`",
                redact_url(&self.url)
            ));
        }
        require_prefix(&mut problems, "redis.key_prefix", &self.key_prefix);
        problems
    }
}

fn require_positive(problems: &mut Vec<String>, key: &str, value: u128) {
    if value == 0 {
        problems.push(format!("{key} must be larger than 0"));
    }
}

/// Prefixes stand in names of topics, groups and keys.
fn require_prefix(problems: &mut Vec<String>, key: &str, prefix: &str) {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !(1..=64).contains(&prefix.len()) || !prefix.bytes().all(valid) {
        problems.push(format!("{key} must be 1 to 64 of [A-Za-z0-9._-], got `{prefix}`"));
    }
}

fn require_hosts(problems: &mut Vec<String>, key: &str, hosts: &[String]) {
    if hosts.is_empty() {
        problems.push(format!("{key} must name at least one host:port"));
    }
    for host in hosts {
        require_host_port(problems, key, host);
    }
}

fn require_host_port(problems: &mut Vec<String>, key: &str, address: &str) {
    let valid = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !valid {
        problems.push(format!("{key} must be host:port, got `{address}`"));
    }
}
