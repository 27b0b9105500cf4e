//! Fields of type [`Duration`](std::time::Duration) read from integers whose key carries the unit.
//!
//! ```
//! #[derive(serde::Deserialize)]
//! struct Timeouts {
//!     #[serde(rename = "connect_timeout_ms", with = "tidings_chassis::config::duration::millis")]
//!     connect_timeout: std::time::Duration,
//! }
//! ```

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $to_duration:expr) => {
        $(#[$doc])*
        pub mod $name {
            use std::time::Duration;

            use serde::{Deserialize, Deserializer};

            /// Reads a non-negative integer in this unit.
            ///
            /// # Errors
            /// Not a non-negative integer, or too large for a duration.
            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
                let to_duration: fn(u64) -> Option<Duration> = $to_duration;
                let count = u64::deserialize(deserializer)?;
                to_duration(count).ok_or_else(|| serde::de::Error::custom("duration out of range"))
            }
        }
    };
}

unit!(
    /// Milliseconds, for keys ending in `_ms`.
    millis,
    |count| Some(Duration::from_millis(count))
);
unit!(
    /// Seconds, for keys ending in `_s`.
    seconds,
    |count| Some(Duration::from_secs(count))
);
unit!(
    /// Days of 24 hours, for keys ending in `_d`.
    days,
    |count| count.checked_mul(86_400).map(Duration::from_secs)
);
