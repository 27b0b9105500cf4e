//! The embedded adapter.
