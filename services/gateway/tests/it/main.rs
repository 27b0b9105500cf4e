//! The gateway through its doors: real WebSockets on one side, a log whose confirmations the test decides and fake
//! neighbours on the other.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the one frame it wants; every other one, also of a later version, fails it"
)]

mod acks;
mod bad_input;
mod lanes;
mod pulls;
mod pushes;
mod sends;
mod sessions;
mod shutdown;
mod support;
