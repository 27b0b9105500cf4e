//! A circuit breaker: stop calling a dependency that keeps failing.
//!
//! ```text
//!            N transient failures in a row              cool-down over: one caller gets the probe
//!  Closed ─────────────────────────────────► Open ─────────────────────────────────► HalfOpen
//!    ▲                                         ▲  ◄───────────────────────────────────  │
//!    │                                         transient failure of the probe           │
//!    └──────────────────────────────────────────────────────────────────────────────────┘
//!                              success (or a permanent error) of the probe
//! ```
//!
//! A permanent error means that the dependency answered, so it counts as health. A probe whose caller vanishes does
//! not lock the breaker: after another cool-down the next caller gets the probe.

use std::time::{Duration, Instant};

use crate::ErrorClass;

/// When a [`Breaker`] opens and how long it stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Transient failures in a row that open it; 0 counts as 1.
    pub failures: u32,
    /// How long it stays open before one probe is let through.
    pub cool_down: Duration,
}

/// Where a [`Breaker`] stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls go through.
    Closed,
    /// Calls are refused.
    Open,
    /// One probe is under way, other calls are refused.
    HalfOpen,
}

/// The breaker of one dependency. Holds no clock and no lock: the caller passes the time and shares it as it likes.
#[derive(Clone, Debug)]
pub struct Breaker {
    policy: BreakerPolicy,
    state: BreakerState,
    failures: u32,
    /// When the breaker opened or the current probe was handed out.
    since: Option<Instant>,
}

impl Breaker {
    /// A closed breaker.
    pub const fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            state: BreakerState::Closed,
            failures: 0,
            since: None,
        }
    }

    /// Whether a call may be made at `now`. After the cool-down exactly one caller gets `true`: the probe.
    #[must_use]
    pub fn allows(&mut self, now: Instant) -> bool {
        match self.state {
            BreakerState::Closed => true,
            BreakerState::Open | BreakerState::HalfOpen => {
                let cooled = self
                    .since
                    .is_none_or(|since| now.saturating_duration_since(since) >= self.policy.cool_down);
                if cooled {
                    self.state = BreakerState::HalfOpen;
                    self.since = Some(now);
                }
                cooled
            }
        }
    }

    /// Tells the outcome of a call that succeeded. A late success of a call made before the breaker opened does not
    /// close it; only the probe does.
    pub fn succeeded(&mut self) {
        match self.state {
            BreakerState::Closed => self.failures = 0,
            BreakerState::HalfOpen => self.close(),
            BreakerState::Open => {}
        }
    }

    /// Tells the outcome of a call that failed at `now`.
    pub fn failed(&mut self, class: ErrorClass, now: Instant) {
        match (class, self.state) {
            (ErrorClass::Permanent, _) => self.succeeded(),
            (ErrorClass::Transient, BreakerState::Closed) => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= self.policy.failures.max(1) {
                    self.open(now);
                }
            }
            (ErrorClass::Transient, BreakerState::HalfOpen) => self.open(now),
            // A call that was made before it opened; the cool-down runs from the opening.
            (ErrorClass::Transient, BreakerState::Open) => {}
        }
    }

    /// Where it stands; does not hand out a probe.
    pub fn state(&self) -> BreakerState {
        self.state
    }

    fn close(&mut self) {
        self.state = BreakerState::Closed;
        self.failures = 0;
        self.since = None;
    }

    fn open(&mut self, now: Instant) {
        self.state = BreakerState::Open;
        self.since = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOL_DOWN: Duration = Duration::from_secs(10);

    fn breaker() -> Breaker {
        Breaker::new(BreakerPolicy {
            failures: 3,
            cool_down: COOL_DOWN,
        })
    }

    fn opened(now: Instant) -> Breaker {
        let mut breaker = breaker();
        for _ in 0..3 {
            assert!(breaker.allows(now));
            breaker.failed(ErrorClass::Transient, now);
        }
        breaker
    }

    #[test]
    fn opens_after_consecutive_failures_only() {
        let now = Instant::now();
        let mut breaker = breaker();
        for _ in 0..5 {
            breaker.failed(ErrorClass::Transient, now);
            breaker.failed(ErrorClass::Transient, now);
            breaker.succeeded();
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert_eq!(opened(now).state(), BreakerState::Open);
    }

    #[test]
    fn permanent_errors_count_as_answers() {
        let now = Instant::now();
        let mut breaker = breaker();
        breaker.failed(ErrorClass::Transient, now);
        breaker.failed(ErrorClass::Transient, now);
        breaker.failed(ErrorClass::Permanent, now);
        breaker.failed(ErrorClass::Transient, now);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn lets_one_probe_through_and_closes_on_its_success() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert!(!breaker.allows(now + COOL_DOWN - Duration::from_millis(1)));
        assert!(breaker.allows(now + COOL_DOWN));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(!breaker.allows(now + COOL_DOWN), "the probe is taken");
        breaker.succeeded();
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(breaker.allows(now + COOL_DOWN));
    }

    #[test]
    fn a_failed_probe_opens_it_for_another_cool_down() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let probe = now + COOL_DOWN;
        assert!(breaker.allows(probe));
        breaker.failed(ErrorClass::Transient, probe);
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(!breaker.allows(probe + COOL_DOWN / 2));
        assert!(breaker.allows(probe + COOL_DOWN));
    }

    #[test]
    fn a_vanished_probe_does_not_lock_it() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert!(breaker.allows(now + COOL_DOWN));
        assert!(breaker.allows(now + COOL_DOWN * 2), "the next caller gets the probe");
    }

    #[test]
    fn late_outcomes_of_earlier_calls_do_not_move_an_open_breaker() {
        let now = Instant::now();
        let mut breaker = opened(now);
        breaker.succeeded();
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.failed(ErrorClass::Transient, now + COOL_DOWN / 2);
        assert!(breaker.allows(now + COOL_DOWN), "the cool-down runs from the opening");
    }
}
