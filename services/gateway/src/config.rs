//! Configuration of gateway.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use tidings_chassis::config::{Secret, duration};
use tidings_chassis::{Limits, Validate};
use tidings_proto::validate;

/// The defaults, laid over those of the chassis.
pub const DEFAULTS: &str = include_str!("../config.default.toml");

/// Largest body that can be configured; a record with it fits a topic many times over.
const MAX_BODY_BYTES: usize = 512 * 1024;

/// The heads in PONG may be this old (architecture.md section 3).
const MAX_HEAD_AGE: Duration = Duration::from_secs(60);

/// The service's own section and the shared limits; the other shared sections are the chassis's.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// `[gateway]`
    pub gateway: GatewayConfig,
    /// `[limits]`
    pub limits: Limits,
}

/// `[gateway]`
#[derive(Clone, Debug, Deserialize)]
pub struct GatewayConfig {
    /// Where devices connect; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Secret of the HS256 tokens.
    pub hs256_secret: Secret,
    /// Take `?uid=` for a token from peers of this machine.
    pub anonymous: bool,
    /// `host:port` names of offline-inbox.
    pub inbox: Vec<String>,
    /// `host:port` names of storage-consumer.
    pub history: Vec<String>,
    /// Connections at most.
    pub max_sessions: usize,
    /// Largest body.
    pub max_body_bytes: usize,
    /// Until a connection's first frame.
    #[serde(rename = "connect_timeout_ms", with = "duration::millis")]
    pub connect_timeout: Duration,
    /// How often devices are asked to send Ping.
    #[serde(rename = "ping_interval_ms", with = "duration::millis")]
    pub ping_interval: Duration,
    /// Longest silence of a device.
    #[serde(rename = "idle_timeout_ms", with = "duration::millis")]
    pub idle_timeout: Duration,
    /// Sends without link ACK, per session.
    pub max_unacked_sends: usize,
    /// Lanes of a session.
    pub max_lanes: usize,
    /// Until a send is answered UNCONFIRMED.
    #[serde(rename = "unconfirmed_after_ms", with = "duration::millis")]
    pub unconfirmed_after: Duration,
    /// Records without broker confirm, over all sessions.
    pub max_produces: usize,
    /// How long device ACKs are merged.
    #[serde(rename = "ack_interval_ms", with = "duration::millis")]
    pub ack_interval: Duration,
    /// How many device ACKs are merged at most.
    pub ack_count: u32,
    /// Unacknowledged pushes of a session (req:C9).
    pub push_window: usize,
    /// Pushes waiting for a session's socket.
    pub queue_events: usize,
    /// Their bytes.
    pub queue_bytes: usize,
    /// Until a socket that takes nothing is closed.
    #[serde(rename = "write_stall_ms", with = "duration::millis")]
    pub write_stall: Duration,
    /// Events of a sync page.
    pub sync_page_events: u32,
    /// Bytes of a sync page.
    pub sync_page_bytes: u32,
    /// Sync rounds of a session at once (req:C7).
    pub sync_burst: u32,
    /// Until one more is allowed.
    #[serde(rename = "sync_refill_ms", with = "duration::millis")]
    pub sync_refill: Duration,
    /// How often the heads in PONG are refreshed.
    #[serde(rename = "heads_interval_ms", with = "duration::millis")]
    pub heads_interval: Duration,
    /// How often route leases are extended.
    #[serde(rename = "route_heartbeat_ms", with = "duration::millis")]
    pub route_heartbeat: Duration,
    /// How long a route lives without being extended.
    #[serde(rename = "route_lease_ms", with = "duration::millis")]
    pub route_lease: Duration,
    /// How long sessions wait for confirms at shutdown.
    #[serde(rename = "drain_ms", with = "duration::millis")]
    pub drain: Duration,
    /// Over which time devices come back after a shutdown.
    #[serde(rename = "reconnect_spread_ms", with = "duration::millis")]
    pub reconnect_spread: Duration,
}

impl Config {
    /// The embedded defaults alone, for tests and for programs that run the service in their own process.
    ///
    /// # Panics
    /// Never: a test of this crate reads the embedded defaults.
    #[must_use]
    pub fn defaults() -> Self {
        tidings_chassis::config::load(DEFAULTS, None, std::iter::empty()).expect("embedded defaults are valid")
    }

    /// What is admitted.
    #[must_use]
    pub fn admission_limits(&self) -> validate::Limits {
        validate::Limits {
            max_body_bytes: self.gateway.max_body_bytes,
            max_id_age: self.limits.msg_id_max_age,
            max_ahead: self.limits.skew,
        }
    }
}

impl Validate for Config {
    fn validate(&self) -> Vec<String> {
        let own = &self.gateway;
        let mut problems = Vec::new();
        if own.hs256_secret.expose().is_none() && !own.anonymous {
            problems
                .push("gateway.hs256_secret is not set (and gateway.anonymous is false): nobody could connect".into());
        }
        if own.anonymous && !own.listen.ip().is_loopback() {
            problems.push(format!(
                "gateway.anonymous is true, which is allowed only if gateway.listen ({}) is a loopback address",
                own.listen
            ));
        }
        if own.max_body_bytes == 0 || own.max_body_bytes > MAX_BODY_BYTES {
            problems.push(format!(
                "gateway.max_body_bytes is {}, allowed are 1 to {MAX_BODY_BYTES}",
                own.max_body_bytes
            ));
        }
        for (key, value) in [
            ("max_sessions", own.max_sessions as u128),
            ("connect_timeout_ms", own.connect_timeout.as_millis()),
            ("ping_interval_ms", own.ping_interval.as_millis()),
            ("max_unacked_sends", own.max_unacked_sends as u128),
            ("max_lanes", own.max_lanes as u128),
            ("unconfirmed_after_ms", own.unconfirmed_after.as_millis()),
            ("max_produces", own.max_produces as u128),
            ("ack_interval_ms", own.ack_interval.as_millis()),
            ("ack_count", u128::from(own.ack_count)),
            ("push_window", own.push_window as u128),
            ("queue_events", own.queue_events as u128),
            ("write_stall_ms", own.write_stall.as_millis()),
            ("sync_page_events", u128::from(own.sync_page_events)),
            ("sync_page_bytes", u128::from(own.sync_page_bytes)),
            ("sync_burst", u128::from(own.sync_burst)),
            ("heads_interval_ms", own.heads_interval.as_millis()),
            ("route_heartbeat_ms", own.route_heartbeat.as_millis()),
        ] {
            if value == 0 {
                problems.push(format!("gateway.{key} is 0, it must be larger"));
            }
        }
        if own.idle_timeout <= own.ping_interval {
            problems.push(format!(
                "gateway.idle_timeout_ms ({}) must be larger than gateway.ping_interval_ms ({})",
                own.idle_timeout.as_millis(),
                own.ping_interval.as_millis()
            ));
        }
        if own.route_lease < own.route_heartbeat * 2 {
            problems.push(format!(
                "gateway.route_lease_ms ({}) must be at least twice gateway.route_heartbeat_ms ({}), so that one lost \
                 heartbeat loses no route",
                own.route_lease.as_millis(),
                own.route_heartbeat.as_millis()
            ));
        }
        if own.heads_interval > MAX_HEAD_AGE {
            problems.push(format!(
                "gateway.heads_interval_ms ({}) must be at most {}",
                own.heads_interval.as_millis(),
                MAX_HEAD_AGE.as_millis()
            ));
        }
        let largest = self.admission_limits().max_frame_bytes();
        if own.queue_bytes < largest {
            problems.push(format!(
                "gateway.queue_bytes ({}) must hold a largest frame ({largest})",
                own.queue_bytes
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut GatewayConfig)) -> Vec<String> {
        let mut config = Config::defaults();
        config.gateway.hs256_secret = Secret::new("s3cret");
        change(&mut config.gateway);
        config.validate()
    }

    #[test]
    fn the_defaults_lack_only_the_secret() {
        assert_eq!(with(|_| ()), Vec::<String>::new());
        assert_eq!(Config::defaults().validate().len(), 1);
    }

    #[test]
    fn anonymous_needs_a_loopback_address() {
        assert_eq!(with(|own| own.anonymous = true), Vec::<String>::new());
        let problems = with(|own| {
            own.anonymous = true;
            own.listen = "0.0.0.0:8080".parse().expect("an address");
        });
        assert!(problems[0].contains("loopback"), "{problems:?}");
    }

    #[test]
    fn relations_name_both_sides() {
        let problems = with(|own| own.idle_timeout = own.ping_interval);
        assert!(problems[0].contains("idle_timeout_ms (25000)"), "{problems:?}");
        let problems = with(|own| own.queue_bytes = 1000);
        assert!(problems[0].contains("largest frame (73728)"), "{problems:?}");
    }
}
