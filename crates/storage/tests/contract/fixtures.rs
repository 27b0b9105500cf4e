//! Values for the suites.

use tidings_domain::clock::Millis;
use tidings_domain::{Conversation, LogEpoch, MsgId, Position};

use crate::names::uid;

/// A recent time, as a log would stamp it: rows older than their TTL could never be read back.
pub(crate) fn now() -> Millis {
    use tidings_domain::clock::{Clock as _, SystemClock};
    SystemClock.now()
}

pub(crate) fn conversation(a: &str, b: &str) -> Conversation {
    Conversation::direct(&uid(a), &uid(b))
}

pub(crate) fn msg_id(number: u8) -> MsgId {
    MsgId::mint(now(), [number; 10])
}

pub(crate) fn off(offset: u64) -> Position {
    Position::new(LogEpoch::FIRST, offset)
}
