//! The consumer runtime.
