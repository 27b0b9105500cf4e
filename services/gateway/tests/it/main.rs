//! The gateway through its doors: real WebSockets on one side, a log whose confirmations the test decides and fake
//! neighbours on the other.

mod acks;
mod bad_input;
mod lanes;
mod pulls;
mod pushes;
mod sends;
mod sessions;
mod shutdown;
mod support;
