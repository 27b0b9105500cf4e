//! A client against a scripted gateway over a real WebSocket.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test picks the events it waits for and lets the others pass"
)]

mod connecting;
mod gateway;
mod receiving;
mod sending;
