//! Where in a conversation the event of an append belongs: the little that stage 2 reads of it.

use bytes::Bytes;
use prost::Message as _;
use tidings_domain::Conversation;
use tidings_domain::state::ConvMark;

use crate::record::RejectCause;

/// Twin of `tidings.v1.Event`: of a message only its place is decoded, everything else stays bytes. A test holds it
/// together with the original.
#[derive(Clone, PartialEq, prost::Message)]
struct EventPlace {
    #[prost(oneof = "KindPlace", tags = "1, 2, 3, 4")]
    kind: Option<KindPlace>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum KindPlace {
    #[prost(message, tag = "1")]
    Message(MessagePlace),
    #[prost(bytes = "bytes", tag = "2")]
    Rejection(Bytes),
    #[prost(bytes = "bytes", tag = "3")]
    Receipt(Bytes),
    #[prost(bytes = "bytes", tag = "4")]
    ReadSync(Bytes),
}

/// Twin of `tidings.v1.Message`.
#[derive(Clone, PartialEq, prost::Message)]
struct MessagePlace {
    #[prost(string, tag = "1")]
    conversation: String,
    #[prost(uint64, tag = "2")]
    conv_seq: u64,
    #[prost(uint64, tag = "3")]
    countable_seq: u64,
}

/// The place of a message; `None` for an event that has none.
pub(super) fn place(event: &Bytes) -> Result<Option<(Conversation, ConvMark)>, RejectCause> {
    let event = EventPlace::decode(event.clone()).map_err(RejectCause::Event)?;
    match event.kind {
        None => Err(RejectCause::UnknownEvent),
        Some(KindPlace::Rejection(_) | KindPlace::Receipt(_) | KindPlace::ReadSync(_)) => Ok(None),
        Some(KindPlace::Message(message)) => {
            let conversation = Conversation::parse(&message.conversation).map_err(RejectCause::EventConversation)?;
            if message.conv_seq == 0 {
                return Err(RejectCause::EventUnsequenced);
            }
            let mark = ConvMark {
                conv_seq: message.conv_seq,
                countable_seq: message.countable_seq,
            };
            Ok(Some((conversation, mark)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_proto::v1;

    fn encoded(kind: v1::event::Kind) -> Bytes {
        v1::Event { kind: Some(kind) }.encode_to_vec().into()
    }

    #[test]
    fn the_twin_agrees_with_the_event() {
        let message = v1::Message {
            conversation: "d:a:b".to_owned(),
            conv_seq: 7,
            countable_seq: 5,
            body: Bytes::from_static(b"hello"),
            ..v1::Message::default()
        };
        let mark = ConvMark {
            conv_seq: 7,
            countable_seq: 5,
        };
        let conversation = Conversation::parse("d:a:b").expect("valid");
        assert_eq!(
            place(&encoded(v1::event::Kind::Message(message))),
            Ok(Some((conversation, mark)))
        );
        for kind in [
            v1::event::Kind::Rejection(v1::Rejection::default()),
            v1::event::Kind::Receipt(v1::Receipt::default()),
            v1::event::Kind::ReadSync(v1::ReadSync::default()),
        ] {
            assert_eq!(place(&encoded(kind)), Ok(None));
        }
    }

    #[test]
    fn what_is_no_event_is_refused() {
        assert_eq!(place(&Bytes::from_static(b"\x2a\x00")), Err(RejectCause::UnknownEvent));
        assert!(matches!(
            place(&Bytes::from_static(b"\xff")),
            Err(RejectCause::Event(_))
        ));
        let unsequenced = v1::Message {
            conversation: "d:a:b".to_owned(),
            ..v1::Message::default()
        };
        assert_eq!(
            place(&encoded(v1::event::Kind::Message(unsequenced))),
            Err(RejectCause::EventUnsequenced)
        );
    }
}
