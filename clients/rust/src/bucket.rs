//! A token bucket with the time as a parameter.

use std::time::Duration;

use tokio::time::Instant;

/// Lets through `burst` at once and one more per `interval`.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    interval: Duration,
    burst: u32,
    /// When the bucket would be full again; in the past if it is.
    full_at: Option<Instant>,
}

impl Bucket {
    pub(crate) fn new(burst: u32, interval: Duration) -> Self {
        Self {
            interval,
            burst: burst.max(1),
            full_at: None,
        }
    }

    /// When the next one may go; at most `now` if at once.
    pub(crate) fn next_at(&self, now: Instant) -> Instant {
        match self.full_at {
            // One may go as soon as no more than burst - 1 are missing.
            Some(full_at) => full_at
                .checked_sub(self.interval * (self.burst - 1))
                .unwrap_or(now)
                .max(now),
            None => now,
        }
    }

    /// Takes one if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        if self.next_at(now) > now {
            return false;
        }
        self.full_at = Some(self.full_at.map_or(now, |full_at| full_at.max(now)) + self.interval);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_per_interval() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut bucket = Bucket::new(3, second);
        assert!((0..3).all(|_| bucket.take(start)));
        assert!(!bucket.take(start));
        assert_eq!(bucket.next_at(start), start + second);
        assert!(bucket.take(start + second));
        assert!(!bucket.take(start + second));
        let later = start + second * 100;
        assert!(
            (0..3).all(|_| bucket.take(later)),
            "never more than the burst is saved up"
        );
        assert!(!bucket.take(later));
    }
}
