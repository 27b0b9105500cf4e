//! What to do when something fails: classify, back off, stop calling.
//!
//! Scheme: every error enum of the suite implements [`Classify`] and so says whether the same call can succeed later
//! ([`ErrorClass::Transient`]) or never will ([`ErrorClass::Permanent`]). [`Backoff`] turns a [`BackoffPolicy`] in to
//! a bounded, jittered sequence of delays; [`retry_transient`] joins the two; [`Breaker`] stops calling a dependency
//! that keeps failing and lets one probe through after a cool-down.
//!
//! Guarantee: a permanent error is never retried, and randomness and the clock of the breaker are parameters, so that
//! a test sees the same delays and transitions every time.

mod backoff;
mod breaker;
mod class;
mod retry;

pub use backoff::{Backoff, BackoffPolicy};
pub use breaker::{Breaker, BreakerPolicy, BreakerState};
pub use class::{Classify, ErrorClass};
pub use retry::retry_transient;
