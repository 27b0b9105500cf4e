//! Exponential back-off with jitter.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// How long to wait between attempts: `initial * multiplier^n`, at most `max`, plus a random share of up to `jitter`
/// of that, again at most `max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackoffPolicy {
    /// The first delay before jitter.
    pub initial: Duration,
    /// No delay is longer, jitter included.
    pub max: Duration,
    /// Growth from one delay to the next; values below 1 (and NaN) count as 1.
    pub multiplier: f64,
    /// The share of the delay that may be added at random, 0 to 1; values outside are clamped.
    pub jitter: f64,
}

impl BackoffPolicy {
    /// For a store or a broker that is away: 1 s to 30 s, half of it jitter.
    pub const STORE: BackoffPolicy = BackoffPolicy::new(Duration::from_secs(1), Duration::from_secs(30), 2.0, 0.5);
    /// For a hiccup inside the data centre (a reconnect, a moved leader): 20 ms to 1 s, half of it jitter.
    pub const FAST: BackoffPolicy = BackoffPolicy::new(Duration::from_millis(20), Duration::from_secs(1), 2.0, 0.5);

    /// A policy from its parts; out-of-range parts are clamped where they are used.
    pub const fn new(initial: Duration, max: Duration, multiplier: f64, jitter: f64) -> Self {
        Self {
            initial,
            max,
            multiplier,
            jitter,
        }
    }
}

/// The state of one run of attempts. Deterministic for a seed.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    rng: SmallRng,
    attempts: u32,
    base: Duration,
}

impl Backoff {
    /// Starts at the policy's first delay. Two runs with the same seed give the same delays; pass different seeds to
    /// callers that must not move in step.
    pub fn new(policy: BackoffPolicy, seed: u64) -> Self {
        Self {
            policy,
            rng: SmallRng::seed_from_u64(seed),
            attempts: 0,
            base: policy.initial.min(policy.max),
        }
    }

    /// The delay to wait now; counts one attempt.
    pub fn next_delay(&mut self) -> Duration {
        let base = self.base;
        self.attempts = self.attempts.saturating_add(1);
        self.base = self.grown(base);
        let jitter = if self.policy.jitter.is_finite() {
            self.policy.jitter.clamp(0.0, 1.0)
        } else {
            0.0
        };
        let share: f64 = self.rng.random();
        base.saturating_add(base.mul_f64(jitter * share)).min(self.policy.max)
    }

    /// Back to the first delay and zero attempts, after a success. The random sequence goes on, so that callers that
    /// fell in step part again.
    pub fn reset(&mut self) {
        self.attempts = 0;
        self.base = self.policy.initial.min(self.policy.max);
    }

    /// How many delays were handed out since the start or the last [`reset`](Self::reset).
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    fn grown(&self, base: Duration) -> Duration {
        // `max` of f64 answers 1 for NaN.
        let multiplier = self.policy.multiplier.max(1.0);
        // Seconds as f64 are checked, since a huge multiplier would overflow `Duration::mul_f64`.
        Duration::try_from_secs_f64(base.as_secs_f64() * multiplier)
            .unwrap_or(Duration::MAX)
            .min(self.policy.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(policy: BackoffPolicy, seed: u64, n: usize) -> Vec<Duration> {
        let mut backoff = Backoff::new(policy, seed);
        (0..n).map(|_| backoff.next_delay()).collect()
    }

    #[test]
    fn grows_to_the_maximum_without_jitter() {
        let policy = BackoffPolicy::new(Duration::from_millis(100), Duration::from_millis(700), 2.0, 0.0);
        let got: Vec<u128> = delays(policy, 1, 5).iter().map(Duration::as_millis).collect();
        assert_eq!(got, [100, 200, 400, 700, 700]);
    }

    #[test]
    fn jitter_only_adds_its_share_and_never_passes_the_maximum() {
        for seed in 0..200 {
            let mut base = BackoffPolicy::STORE.initial;
            for delay in delays(BackoffPolicy::STORE, seed, 10) {
                assert!(
                    delay >= base && delay <= base.mul_f64(1.5).min(BackoffPolicy::STORE.max),
                    "{base:?} {delay:?}"
                );
                base = (base * 2).min(BackoffPolicy::STORE.max);
            }
        }
    }

    #[test]
    fn same_seed_same_delays_other_seed_other_delays() {
        assert_eq!(delays(BackoffPolicy::FAST, 7, 8), delays(BackoffPolicy::FAST, 7, 8));
        assert_ne!(delays(BackoffPolicy::FAST, 7, 8), delays(BackoffPolicy::FAST, 8, 8));
    }

    #[test]
    fn reset_starts_over() {
        let policy = BackoffPolicy::new(Duration::from_millis(10), Duration::from_secs(1), 3.0, 0.0);
        let mut backoff = Backoff::new(policy, 0);
        backoff.next_delay();
        backoff.next_delay();
        assert_eq!(backoff.attempts(), 2);
        backoff.reset();
        assert_eq!(backoff.attempts(), 0);
        assert_eq!(backoff.next_delay(), Duration::from_millis(10));
    }

    #[test]
    fn absurd_policies_stay_in_bounds() {
        let max = Duration::from_secs(5);
        for (multiplier, jitter) in [
            (f64::NAN, f64::NAN),
            (0.1, -3.0),
            (f64::INFINITY, 9.0),
            (1e300, f64::INFINITY),
        ] {
            for delay in delays(
                BackoffPolicy::new(Duration::from_secs(1), max, multiplier, jitter),
                3,
                6,
            ) {
                assert!(
                    delay >= Duration::from_secs(1) && delay <= max,
                    "{multiplier} {jitter} {delay:?}"
                );
            }
        }
        assert_eq!(
            delays(BackoffPolicy::new(Duration::from_secs(9), max, 2.0, 0.0), 1, 1),
            [max]
        );
    }
}
