//! The constants of sequencing, which hold only together.
//!
//! A fold relies on memory that must outlive every record it may still meet (seq:G7): an intent that expires before
//! its duplicate can no longer arrive, or a log that is cut before the guard trips, would give a message twice or lose
//! it. So the values are one section, checked together at start, and each failure names both sides.
//!
//! Lifetimes in the store and in the log are fixed: the schema and the topic catalogue say them, and changing them on
//! tables that exist is a migration. What can be configured is checked against them.

use std::time::Duration;

use serde::Deserialize;

use crate::config::{Validate, duration};

const DAY: Duration = Duration::from_secs(86_400);

/// `[limits]`; every service of a deployment needs the same values.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// LIMIT: a record older than this is not folded; the partition stops.
    #[serde(rename = "limit_d", with = "duration::days")]
    pub limit: Duration,
    /// Retention of the topics that are folded (fixed: the topic catalogue).
    #[serde(skip)]
    pub log_retention: Duration,
    /// A msg_id (or op_id) older than this is refused at the gateway.
    #[serde(rename = "msg_id_max_age_d", with = "duration::days")]
    pub msg_id_max_age: Duration,
    /// Lifetime of the router's intents (fixed: the schema).
    #[serde(skip)]
    pub intent_ttl: Duration,
    /// Lifetime of inbox rows and traces (fixed: the schema).
    #[serde(skip)]
    pub row_ttl: Duration,
    /// Lifetime of dead letters in the archive, in which they can be replayed (fixed: the schema).
    #[serde(skip)]
    pub dead_letter_ttl: Duration,
    /// Lifetime of the intents of replayed dead letters (fixed: the schema).
    #[serde(skip)]
    pub dlq_intent_ttl: Duration,
    /// SKEW: how far a msg_id may lie ahead of the gateway's clock.
    #[serde(rename = "skew_s", with = "duration::seconds")]
    pub skew: Duration,
    /// Largest error of a gateway's clock.
    #[serde(rename = "gateway_clock_error_ms", with = "duration::millis")]
    pub gateway_clock_error: Duration,
    /// Largest error of a broker's clock.
    #[serde(rename = "broker_clock_error_ms", with = "duration::millis")]
    pub broker_clock_error: Duration,
    /// Longest time between two checkpoints of a fold.
    #[serde(rename = "checkpoint_interval_ms", with = "duration::millis")]
    pub checkpoint_interval: Duration,
    /// Most records between two checkpoints of a fold.
    pub checkpoint_records: u32,
}

/// The decided values; the embedded defaults say the same.
impl Default for Limits {
    fn default() -> Self {
        Self {
            limit: 6 * DAY,
            log_retention: 7 * DAY,
            msg_id_max_age: 31 * DAY,
            intent_ttl: 40 * DAY,
            row_ttl: 30 * DAY,
            dead_letter_ttl: 90 * DAY,
            dlq_intent_ttl: 100 * DAY,
            skew: Duration::from_secs(30),
            gateway_clock_error: Duration::from_secs(2),
            broker_clock_error: Duration::from_secs(2),
            checkpoint_interval: Duration::from_secs(5),
            checkpoint_records: 5_000,
        }
    }
}

impl Limits {
    /// SKEW and both clock errors: an id this much newer than the newest committed append time is new for certain.
    pub fn id_margin(&self) -> Duration {
        self.skew + self.gateway_clock_error + self.broker_clock_error
    }
}

impl Validate for Limits {
    fn validate(&self) -> Vec<String> {
        let days = |value: Duration| value.as_secs() / DAY.as_secs();
        let mut problems = Vec::new();
        // (what, its lifetime) must outlive the sum of (key, value).
        let mut outlives = |what: (&str, Duration), bounds: &[(&str, Duration)]| {
            let sum = bounds
                .iter()
                .fold(Duration::ZERO, |sum, (_, value)| sum.saturating_add(*value));
            if what.1 > sum {
                return;
            }
            let named: Vec<String> = bounds
                .iter()
                .map(|(key, value)| format!("{key} ({})", days(*value)))
                .collect();
            problems.push(format!(
                "{} must be less than the {} days that {} last",
                named.join(" + "),
                days(what.1),
                what.0
            ));
        };
        let limit = ("limits.limit_d", self.limit);
        outlives(("records of the log", self.log_retention), &[limit]);
        outlives(
            ("intents of the router", self.intent_ttl),
            &[("limits.msg_id_max_age_d", self.msg_id_max_age), limit],
        );
        outlives(("inbox rows", self.row_ttl), &[limit]);
        outlives(
            ("intents of dead letters", self.dlq_intent_ttl),
            &[("the archive of dead letters", self.dead_letter_ttl), limit],
        );
        if self.limit.is_zero() {
            problems.push("limits.limit_d must be larger than 0".to_owned());
        }
        if self.checkpoint_interval.is_zero() || self.checkpoint_interval >= self.limit {
            problems.push(format!(
                "limits.checkpoint_interval_ms ({}) must be larger than 0 and shorter than limits.limit_d ({})",
                self.checkpoint_interval.as_millis(),
                days(self.limit)
            ));
        }
        if self.checkpoint_records == 0 {
            problems.push("limits.checkpoint_records must be larger than 0".to_owned());
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decided_values_hold() {
        assert_eq!(Limits::default().validate(), Vec::<String>::new());
        assert_eq!(Limits::default().id_margin(), Duration::from_secs(34));
    }

    #[test]
    fn each_broken_relation_names_both_sides() {
        let good = Limits::default();
        let cases = [
            (
                Limits {
                    log_retention: 6 * DAY,
                    ..good.clone()
                },
                ["6 days that records of the log", "limits.limit_d (6)"],
            ),
            (
                Limits {
                    intent_ttl: 37 * DAY,
                    ..good.clone()
                },
                ["37 days that intents of the router", "limits.msg_id_max_age_d (31)"],
            ),
            (
                Limits {
                    row_ttl: 5 * DAY,
                    ..good.clone()
                },
                ["5 days that inbox rows", "limits.limit_d (6)"],
            ),
            (
                Limits {
                    dlq_intent_ttl: 96 * DAY,
                    ..good.clone()
                },
                ["96 days that intents of dead letters", "archive of dead letters (90)"],
            ),
            (
                Limits {
                    checkpoint_interval: 7 * DAY,
                    ..good.clone()
                },
                ["checkpoint_interval_ms", "limit_d (6)"],
            ),
        ];
        for (limits, parts) in cases {
            let problems = limits.validate();
            assert_eq!(problems.len(), 1, "{problems:?}");
            for part in parts {
                assert!(problems[0].contains(part), "{problems:?}");
            }
        }
        // One day more than each bound is enough.
        let tight = Limits {
            intent_ttl: 38 * DAY,
            dlq_intent_ttl: 97 * DAY,
            row_ttl: 7 * DAY,
            ..good
        };
        assert_eq!(tight.validate(), Vec::<String>::new());
    }

    #[test]
    fn several_broken_relations_are_all_told() {
        let limits = Limits {
            limit: 40 * DAY,
            checkpoint_records: 0,
            ..Limits::default()
        };
        assert_eq!(limits.validate().len(), 5, "{:?}", limits.validate());
    }
}
