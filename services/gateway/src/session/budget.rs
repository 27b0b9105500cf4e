//! How many sync rounds a session may begin (req:C7).

use std::time::Duration;

use tokio::time::Instant;

/// `burst` rounds at once, one more every `interval`.
#[derive(Debug)]
pub(crate) struct RoundBudget {
    interval: Duration,
    /// What `burst - 1` rounds are worth.
    slack: Duration,
    /// When all rounds taken so far are paid for.
    paid_at: Instant,
}

impl RoundBudget {
    pub(crate) fn new(burst: u32, interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            slack: interval * burst.saturating_sub(1),
            paid_at: now,
        }
    }

    /// Takes one, or says how long to wait for it.
    pub(crate) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let paid_at = self.paid_at.max(now);
        let owed = paid_at.duration_since(now);
        if owed > self.slack {
            return Err(owed.saturating_sub(self.slack));
        }
        self.paid_at = paid_at + self.interval;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_at_once_and_one_more_every_two_seconds() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut budget = RoundBudget::new(3, Duration::from_secs(2), start);
        for _ in 0..3 {
            assert_eq!(budget.take(at(0)), Ok(()));
        }
        assert_eq!(budget.take(at(500)), Err(Duration::from_millis(1500)));
        assert_eq!(budget.take(at(2000)), Ok(()));
        assert_eq!(budget.take(at(2001)), Err(Duration::from_millis(1999)));
        for _ in 0..3 {
            assert_eq!(
                budget.take(at(60_000)),
                Ok(()),
                "what is not used adds up to the burst only"
            );
        }
        assert!(budget.take(at(60_000)).is_err());
    }
}
