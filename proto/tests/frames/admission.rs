//! What is admitted and with which words it is refused (architecture.md section 4).

use std::time::Duration;

use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::{Action, MsgId, OpId, Uid};
use tidings_proto::v1;
use tidings_proto::v1::Code;
use tidings_proto::validate::{self, Admitted, Limits, MAX_ACK_CONVS, Refusal};

use crate::samples::NOW;

const DAY: Duration = Duration::from_secs(24 * 3600);
const GROUP: &str = "g:01890a5d-ac96-774b-bcce-b302099a8057";

fn uid(name: &str) -> Uid {
    Uid::parse(name).expect("valid")
}

fn msg_id_at(time: Millis) -> Bytes {
    Bytes::copy_from_slice(MsgId::mint(time, [1; 10]).as_bytes())
}

fn op_id_at(time: Millis) -> Bytes {
    Bytes::copy_from_slice(OpId::mint(time, [2; 10]).as_bytes())
}

fn now() -> Millis {
    Millis(NOW)
}

fn send() -> v1::UserAction {
    v1::UserAction {
        action: v1::Action::Send as i32,
        lane_seq: 1,
        to_uid: "bob".to_owned(),
        msg_id: msg_id_at(now()),
        content_type: "text".to_owned(),
        body: Bytes::from_static(b"hello"),
        client_time: NOW,
        first_send_time: NOW,
        ..v1::UserAction::default()
    }
}

fn recall() -> v1::UserAction {
    v1::UserAction {
        action: v1::Action::Recall as i32,
        target: Some(v1::Target {
            sender: "alice".to_owned(),
            msg_id: msg_id_at(now()),
            conv_seq: 0,
        }),
        content_type: String::new(),
        body: Bytes::new(),
        ..send()
    }
}

fn kick() -> v1::UserAction {
    v1::UserAction {
        action: v1::Action::Kick as i32,
        to_uid: String::new(),
        conversation: GROUP.to_owned(),
        op_id: op_id_at(now()),
        member: "carol".to_owned(),
        content_type: String::new(),
        body: Bytes::new(),
        ..send()
    }
}

fn admit(frame: &v1::UserAction) -> Result<Admitted, Refusal> {
    validate::user_action(frame, &uid("alice"), &Limits::default(), now())
}

fn refused(frame: &v1::UserAction) -> (Code, &'static str) {
    match admit(frame) {
        Err(refusal) => (refusal.code, refusal.field),
        Ok(admitted) => panic!("admitted: {admitted:?}"),
    }
}

#[test]
fn a_send_is_typed_and_its_conversation_resolved() {
    let admitted = admit(&send()).expect("valid");
    assert_eq!(admitted.action, Action::Send);
    assert_eq!(admitted.conversation.as_str(), "d:alice:bob");
    assert_eq!(admitted.lane_seq, 1);
    assert_eq!(admitted.op_id, None);
    assert_eq!(admitted.body, Bytes::from_static(b"hello"));
    let by_id = v1::UserAction {
        to_uid: String::new(),
        conversation: "d:alice:bob".to_owned(),
        ..send()
    };
    assert_eq!(admit(&by_id), Ok(admitted.clone()));
    assert_eq!(admitted.key(&uid("alice")).sender, uid("alice"));
    // To oneself is a conversation too (scenario B51).
    let to_self = v1::UserAction {
        to_uid: "alice".to_owned(),
        ..send()
    };
    assert_eq!(admit(&to_self).expect("valid").conversation.as_str(), "d:alice:alice");
}

#[test]
fn the_body_is_a_slice_of_the_frame() {
    let frame = tidings_proto::wire::encode_client(&send().into());
    let decoded = tidings_proto::wire::decode_client(frame.clone()).expect("valid");
    let Some(v1::client_frame::Frame::Action(action)) = decoded.frame else {
        panic!("an action");
    };
    let admitted = admit(&action).expect("valid");
    assert!(
        frame.as_ptr_range().contains(&admitted.body.as_ptr()),
        "the body was copied"
    );
}

#[test]
fn where_it_goes_must_be_one_place_of_the_senders() {
    let with = |conversation: &str, to_uid: &str| v1::UserAction {
        conversation: conversation.to_owned(),
        to_uid: to_uid.to_owned(),
        ..send()
    };
    assert_eq!(refused(&with("", "")), (Code::InvalidArgument, "conversation"));
    assert_eq!(
        refused(&with("d:alice:bob", "bob")),
        (Code::InvalidArgument, "conversation")
    );
    assert_eq!(refused(&with("d:bob:carol", "")), (Code::Forbidden, "conversation"));
    assert_eq!(
        refused(&with("d:bob:alice", "")),
        (Code::InvalidArgument, "conversation")
    );
    assert_eq!(refused(&with("", "b:b")), (Code::InvalidArgument, "to_uid"));
    // Who belongs to a group, only the log knows.
    assert!(admit(&with(GROUP, "")).is_ok());
}

#[test]
fn ids_have_their_codes() {
    let with_id = |msg_id: Bytes| v1::UserAction { msg_id, ..send() };
    assert_eq!(refused(&with_id(Bytes::new())), (Code::InvalidMsgId, "msg_id"));
    assert_eq!(
        refused(&with_id(Bytes::from_static(&[1; 16]))),
        (Code::InvalidMsgId, "msg_id")
    );
    assert_eq!(
        refused(&v1::UserAction {
            op_id: op_id_at(now()),
            ..send()
        }),
        (Code::InvalidArgument, "op_id")
    );
    assert_eq!(
        refused(&v1::UserAction {
            op_id: Bytes::new(),
            ..kick()
        }),
        (Code::InvalidMsgId, "op_id")
    );
    assert_eq!(
        refused(&v1::UserAction { lane_seq: 0, ..send() }),
        (Code::InvalidArgument, "lane_seq")
    );
    assert_eq!(
        refused(&v1::UserAction { action: 99, ..send() }),
        (Code::InvalidArgument, "action")
    );
}

#[test]
fn the_time_in_the_id_is_bounded_on_both_sides() {
    let at = |time: Millis| v1::UserAction {
        msg_id: msg_id_at(time),
        ..send()
    };
    assert!(admit(&at(now().plus(Duration::from_secs(30)))).is_ok());
    let ahead = at(now().plus(Duration::from_millis(30_001)));
    assert_eq!(refused(&ahead), (Code::InvalidMsgId, "msg_id"));
    let ack = admit(&ahead).expect_err("refused").to_msg_ack(&ahead, now());
    assert_eq!(ack.server_time, NOW, "the client corrects its clock by it");
    assert!(!ack.retryable);
    assert_eq!(ack.msg_id, ahead.msg_id);

    assert!(admit(&at(now().minus(31 * DAY))).is_ok());
    assert_eq!(
        refused(&at(now().minus(31 * DAY + Duration::from_millis(1)))),
        (Code::MsgIdExpired, "msg_id")
    );
    // With an op_id, it is the op_id that counts, on both sides.
    let old_target = v1::UserAction {
        msg_id: msg_id_at(now().minus(300 * DAY)),
        ..kick()
    };
    assert_eq!(refused(&old_target), (Code::Unsupported, "action"));
    assert_eq!(
        refused(&v1::UserAction {
            op_id: op_id_at(now().minus(32 * DAY)),
            ..kick()
        }),
        (Code::MsgIdExpired, "op_id")
    );
    assert_eq!(
        refused(&v1::UserAction {
            op_id: op_id_at(now().plus(DAY)),
            ..kick()
        }),
        (Code::InvalidMsgId, "op_id")
    );
    // Repeating a recall is harmless, however old.
    let old = msg_id_at(now().minus(300 * DAY));
    let old_recall = v1::UserAction {
        msg_id: old.clone(),
        target: Some(v1::Target {
            sender: "alice".to_owned(),
            msg_id: old,
            conv_seq: 0,
        }),
        ..recall()
    };
    assert_eq!(refused(&old_recall), (Code::Unsupported, "action"));
}

#[test]
fn bodies_follow_their_content_type() {
    let with = |content_type: &str, body: &'static [u8]| v1::UserAction {
        content_type: content_type.to_owned(),
        body: Bytes::from_static(body),
        ..send()
    };
    assert_eq!(refused(&with("text", b"")), (Code::InvalidArgument, "body"));
    assert_eq!(refused(&with("text", &[0xC3, 0x28])), (Code::InvalidArgument, "body"));
    // Scenario B75: NUL is text.
    assert!(admit(&with("text", b"hi\0bob")).is_ok());
    assert!(admit(&with("image", b"")).is_ok());
    assert!(admit(&with("image", &[0xC3, 0x28])).is_ok());
    assert_eq!(refused(&with("", b"x")), (Code::InvalidArgument, "content_type"));
    assert_eq!(refused(&with("Text", b"x")), (Code::InvalidArgument, "content_type"));
    assert_eq!(refused(&with("a b", b"x")), (Code::InvalidArgument, "content_type"));
    assert!(admit(&with(&"x".repeat(64), b"x")).is_ok());
    assert_eq!(
        refused(&with(&"x".repeat(65), b"x")),
        (Code::InvalidArgument, "content_type")
    );
}

/// Scenarios B77 and B79: the last byte that fits passes, the first that does not is refused whole, naming the limit.
#[test]
fn the_body_limit_is_exact_and_named() {
    let limit = Limits::default().max_body_bytes;
    let party = "\u{1f389}";
    let exact = "a".repeat(limit - 4) + party;
    let over = "a".repeat(limit - 2) + party;
    let with = |text: String| v1::UserAction {
        body: Bytes::from(text),
        ..send()
    };
    assert_eq!(admit(&with(exact.clone())).expect("fits").body, exact.as_bytes());
    let refusal = admit(&with(over)).expect_err("too large");
    assert_eq!((refusal.code, refusal.field), (Code::PayloadTooLarge, "body"));
    assert_eq!(refusal.limit, 65_536);
}

/// What passes in one subprotocol passes in the other.
#[test]
fn every_allowed_body_fits_into_a_frame_of_either_form() {
    let limits = Limits::default();
    let conversation = format!("d:{}:{}", "a".repeat(64), "b".repeat(64));
    for (content_type, byte) in [("text", 0u8), ("text", b'"'), ("image", 0xff)] {
        let frame = v1::UserAction {
            to_uid: String::new(),
            conversation: conversation.clone(),
            content_type: content_type.to_owned(),
            body: Bytes::from(vec![byte; limits.max_body_bytes]),
            ..send()
        }
        .into();
        assert!(tidings_proto::wire::encode_client(&frame).len() <= limits.max_frame_bytes());
        assert!(tidings_proto::json::encode_client(&frame).len() <= limits.max_json_frame_bytes());
    }
}

#[test]
fn other_actions_are_checked_in_form_and_then_unsupported() {
    for frame in [
        recall(),
        kick(),
        v1::UserAction {
            action: v1::Action::Edit as i32,
            op_id: op_id_at(now()),
            content_type: "text".to_owned(),
            body: Bytes::from_static(b"better"),
            ..recall()
        },
        v1::UserAction {
            action: v1::Action::Join as i32,
            member: String::new(),
            ..kick()
        },
    ] {
        assert_eq!(refused(&frame), (Code::Unsupported, "action"), "{frame:?}");
    }
    assert_eq!(
        refused(&v1::UserAction {
            target: None,
            ..recall()
        }),
        (Code::InvalidArgument, "target")
    );
    assert_eq!(
        refused(&v1::UserAction {
            msg_id: msg_id_at(now().plus(Duration::from_secs(1))),
            ..recall()
        }),
        (Code::InvalidArgument, "target.msg_id")
    );
    assert_eq!(
        refused(&v1::UserAction {
            body: Bytes::from_static(b"x"),
            ..recall()
        }),
        (Code::InvalidArgument, "body")
    );
    assert_eq!(
        refused(&v1::UserAction {
            target: recall().target,
            ..send()
        }),
        (Code::InvalidArgument, "target")
    );
    assert_eq!(
        refused(&v1::UserAction {
            member: String::new(),
            ..kick()
        }),
        (Code::InvalidArgument, "member")
    );
    assert_eq!(
        refused(&v1::UserAction {
            member: "carol".to_owned(),
            ..send()
        }),
        (Code::InvalidArgument, "member")
    );
    assert_eq!(
        refused(&v1::UserAction {
            conversation: "d:alice:bob".to_owned(),
            ..kick()
        }),
        (Code::InvalidArgument, "conversation")
    );
}

/// req:A5: the hash stands for everything the user meant, and for nothing else.
#[test]
fn the_content_hash_covers_what_the_user_meant() {
    let hash = |frame: &v1::UserAction| admit(frame).expect("valid").content_hash;
    let base = hash(&send());
    assert_eq!(
        base,
        hash(&v1::UserAction {
            retry_count: 3,
            client_time: 9,
            lane_seq: 7,
            ..send()
        }),
        "a resend means the same"
    );
    for other in [
        v1::UserAction {
            body: Bytes::from_static(b"hello!"),
            ..send()
        },
        v1::UserAction {
            content_type: "text/plain".to_owned(),
            ..send()
        },
    ] {
        assert_ne!(base, hash(&other));
    }
    assert_eq!(base, validate::content_hash(Action::Send, "text", b"hello", None, None));
}

#[test]
fn a_first_frame_is_fresh_or_has_a_cursor() {
    let cursor = Some(v1::Cursor { epoch: 1, user_seq: 2 });
    let hello = |device_id: &str, fresh, cursor, client: String| {
        validate::connect(&v1::Connect {
            token: String::new(),
            device_id: device_id.to_owned(),
            fresh,
            cursor,
            client,
        })
    };
    let field = |result: Result<validate::Hello, Refusal>| result.expect_err("refused").field;
    assert_eq!(hello("phone", true, None, String::new()).expect("valid").cursor, None);
    assert_eq!(
        hello("phone", false, cursor, "x".repeat(64)).expect("valid").cursor,
        cursor
    );
    assert_eq!(field(hello("", true, None, String::new())), "device_id");
    assert_eq!(field(hello("phone", true, cursor, String::new())), "cursor");
    assert_eq!(field(hello("phone", false, None, String::new())), "cursor");
    assert_eq!(field(hello("phone", true, None, "x".repeat(65))), "client");
}

#[test]
fn the_other_frames_are_checked() {
    let conv = |conversation: &str| v1::AckConv {
        conversation: conversation.to_owned(),
        conv_seq: 4,
    };
    let ack = |convs| {
        validate::ack(&v1::Ack {
            epoch: 1,
            delivered: 3,
            stored: 5,
            convs,
        })
    };
    let report = ack(vec![conv("d:alice:bob"); MAX_ACK_CONVS]).expect("valid");
    assert_eq!((report.delivered, report.stored), (5, 5), "what is stored was received");
    let refusal = ack(vec![conv("d:alice:bob"); MAX_ACK_CONVS + 1]).expect_err("too many");
    assert_eq!((refusal.field, refusal.limit), ("convs", 100));
    assert_eq!(ack(vec![conv("x")]).expect_err("malformed").field, "convs.conversation");

    let alice = uid("alice");
    let read = |conversation: &str, conv_seq| {
        validate::read(
            &v1::Read {
                conversation: conversation.to_owned(),
                conv_seq,
            },
            &alice,
        )
    };
    assert!(read("d:alice:bob", 1).is_ok());
    assert_eq!(read("d:alice:bob", 0).expect_err("0").field, "conv_seq");
    assert_eq!(read("d:bob:carol", 1).expect_err("of others").code, Code::Forbidden);

    let history = |conversation: &str, from_conv_seq, to_conv_seq| {
        validate::history(
            &v1::HistoryRequest {
                request_id: 1,
                conversation: conversation.to_owned(),
                from_conv_seq,
                to_conv_seq,
                limit: 0,
            },
            &alice,
        )
    };
    assert!(history("d:alice:bob", 5, 0).is_ok());
    assert_eq!(
        history("d:alice:bob", 5, 4).expect_err("empty range").field,
        "from_conv_seq"
    );
    assert_eq!(
        history("d:bob:carol", 1, 2).expect_err("of others").code,
        Code::Forbidden
    );
    assert_eq!(
        validate::sync(&v1::Sync { cursor: None }).expect_err("none").field,
        "cursor"
    );
    assert_eq!(
        validate::acked_msg_id(&Bytes::from_static(b"x"))
            .expect_err("no id")
            .code,
        Code::InvalidMsgId
    );
}
