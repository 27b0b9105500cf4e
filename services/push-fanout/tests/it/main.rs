//! push-fanout against gateways that follow a script.

mod delivery;
mod failures;
mod support;
