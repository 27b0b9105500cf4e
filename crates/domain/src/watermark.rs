//! Watermarks: cumulative positions that only move forward (architecture.md section 3, decision 5).

use serde::{Deserialize, Serialize};

/// A value that only grows; merging is taking the larger one, so late, repeated and reordered reports are harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Watermark(pub u64);

impl Watermark {
    /// Moves forward to `to`, but not past `limit`. Tells whether it grew.
    pub fn advance(&mut self, to: u64, limit: u64) -> bool {
        let target = to.min(limit);
        let grew = target > self.0;
        if grew {
            self.0 = target;
        }
        grew
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_back_and_never_past_the_limit() {
        let mut mark = Watermark(5);
        assert!(
            !mark.advance(4, 100),
            "scenario B47: a late lower report changes nothing"
        );
        assert!(mark.advance(120, 100), "scenario B43: clamped to what exists");
        assert_eq!(mark, Watermark(100));
        assert!(!mark.advance(120, 100));
    }
}
