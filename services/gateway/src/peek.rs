//! A look at the fields of an encoded `Event` that the gateway needs, borrowed, without decoding the rest.
//!
//! Per push the gateway must know whether it is the device's own message (which comes back as an echo without the body)
//! and when its ingress record was appended. Decoding the event for that would allocate each name; this walks over the
//! fields and skips the body.

use bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tidings_domain::MsgId;
use tidings_domain::clock::Millis;

/// Field numbers of `event.proto`.
mod field {
    pub(super) const EVENT_MESSAGE: u32 = 1;
    pub(super) const CONVERSATION: u32 = 1;
    pub(super) const CONV_SEQ: u32 = 2;
    pub(super) const SENDER: u32 = 4;
    pub(super) const DEVICE: u32 = 5;
    pub(super) const MSG_ID: u32 = 6;
    pub(super) const APPEND_TIME: u32 = 10;
}

/// What was seen of a `Message`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageView<'a> {
    /// Where.
    pub conversation: &'a str,
    /// Its number there.
    pub conv_seq: u64,
    /// Who sent it.
    pub sender: &'a str,
    /// From which device.
    pub device: &'a str,
    /// Its id; empty if there is none.
    msg_id: &'a [u8],
    /// Broker time of its ingress record, ms; 0 if there is none.
    append_time: u64,
}

impl MessageView<'_> {
    /// Its id, if it is one.
    #[must_use]
    pub fn msg_id(&self) -> Option<MsgId> {
        MsgId::from_slice(self.msg_id).ok()
    }

    /// Broker time of its ingress record.
    #[must_use]
    pub fn append_time(&self) -> Option<Millis> {
        (self.append_time > 0).then(|| Millis(i64::try_from(self.append_time).unwrap_or(i64::MAX)))
    }
}

/// The message in an encoded `Event`; `None` for other kinds of events and for what cannot be read.
#[must_use]
pub fn message(event: &[u8]) -> Option<MessageView<'_>> {
    let mut rest = event;
    while rest.has_remaining() {
        let (number, wire_type) = decode_key(&mut rest).ok()?;
        if number == field::EVENT_MESSAGE && wire_type == WireType::LengthDelimited {
            return view(slice(&mut rest)?);
        }
        skip_field(wire_type, number, &mut rest, DecodeContext::default()).ok()?;
    }
    None
}

fn view(message: &[u8]) -> Option<MessageView<'_>> {
    let mut rest = message;
    let mut seen = MessageView::default();
    while rest.has_remaining() {
        let (number, wire_type) = decode_key(&mut rest).ok()?;
        match (number, wire_type) {
            (field::CONVERSATION, WireType::LengthDelimited) => seen.conversation = text(slice(&mut rest)?),
            (field::SENDER, WireType::LengthDelimited) => seen.sender = text(slice(&mut rest)?),
            (field::DEVICE, WireType::LengthDelimited) => seen.device = text(slice(&mut rest)?),
            (field::MSG_ID, WireType::LengthDelimited) => seen.msg_id = slice(&mut rest)?,
            (field::CONV_SEQ, WireType::Varint) => seen.conv_seq = decode_varint(&mut rest).ok()?,
            (field::APPEND_TIME, WireType::Varint) => seen.append_time = decode_varint(&mut rest).ok()?,
            _ => skip_field(wire_type, number, &mut rest, DecodeContext::default()).ok()?,
        }
    }
    Some(seen)
}

/// Takes a length-delimited field off the front.
fn slice<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(decode_varint(rest).ok()?).ok()?;
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

/// Names are ASCII by the rules of ids; what is not UTF-8 equals no name.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use prost::Message as _;
    use tidings_proto::v1;

    use super::*;

    fn event(message: v1::Message) -> Vec<u8> {
        v1::Event {
            kind: Some(v1::event::Kind::Message(message)),
        }
        .encode_to_vec()
    }

    #[test]
    fn sees_what_a_full_decoding_sees() {
        let msg_id = MsgId::mint(Millis(1_700_000_000_000), [7; 10]);
        let bytes = event(v1::Message {
            conversation: "d:ann:bob".into(),
            conv_seq: 300,
            sender: "ann".into(),
            device: "phone".into(),
            msg_id: Bytes::copy_from_slice(msg_id.as_bytes()),
            append_time: 1_700_000_000_123,
            body: Bytes::from(vec![b'x'; 5000]),
            content_hash: Bytes::from_static(&[1; 16]),
            ..v1::Message::default()
        });
        let seen = message(&bytes).expect("a message");
        assert_eq!(
            (seen.conversation, seen.conv_seq, seen.sender, seen.device),
            ("d:ann:bob", 300, "ann", "phone")
        );
        assert_eq!(seen.msg_id(), Some(msg_id));
        assert_eq!(seen.append_time(), Some(Millis(1_700_000_000_123)));
    }

    #[test]
    fn other_events_have_no_message() {
        let receipt = v1::Event {
            kind: Some(v1::event::Kind::Receipt(v1::Receipt::default())),
        };
        assert_eq!(message(&receipt.encode_to_vec()), None);
        assert_eq!(message(&[]), None);
    }

    #[test]
    fn a_cut_message_is_none() {
        let bytes = event(v1::Message {
            sender: "ann".into(),
            ..v1::Message::default()
        });
        assert_eq!(message(&bytes[..bytes.len() - 1]), None);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(seen) = message(&bytes) {
                prop_assert!(seen.sender.len() <= bytes.len());
            }
        }
    }
}
