//! Input that is wrong: a typed answer that names what, and the connection lives on.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tidings_domain::Topic;
use tidings_gateway::encoding::Encoding;
use tidings_proto::v1::{self, Code, server_frame};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::support::device::{Device, connect};
use crate::support::{NOW, World, id_bytes, msg_id_at, text};

const DAY: Duration = Duration::from_secs(86_400);

/// What an answer says: code, field, limit.
fn answer(frame: server_frame::Frame) -> (Code, String, u64) {
    match frame {
        server_frame::Frame::MsgAck(ack) => {
            assert!(!ack.retryable, "{ack:?}");
            (ack.code(), ack.field, ack.limit)
        }
        server_frame::Frame::Error(error) => (error.code(), error.field, error.limit),
        other => panic!("wanted a refusal, got {other:?}"),
    }
}

#[tokio::test]
async fn sends_that_are_wrong_name_the_field_in_both_encodings() {
    let with = |change: fn(&mut v1::UserAction)| {
        let mut action = text(1, "bob", 1, "hi");
        change(&mut action);
        action
    };
    let cases: Vec<(v1::UserAction, Code, &str)> = vec![
        (with(|a| a.to_uid = "b b".into()), Code::InvalidArgument, "to_uid"),
        (with(|a| a.to_uid = "b".repeat(65)), Code::InvalidArgument, "to_uid"),
        (with(|a| a.to_uid.clear()), Code::InvalidArgument, "conversation"),
        (
            with(|a| a.conversation = "d:ann:bob".into()),
            Code::InvalidArgument,
            "conversation",
        ),
        (
            with(|a| {
                a.to_uid.clear();
                a.conversation = "d:bob:ann".into();
            }),
            Code::InvalidArgument,
            "conversation",
        ),
        (
            with(|a| {
                a.to_uid.clear();
                a.conversation = "g:1".into();
            }),
            Code::InvalidArgument,
            "conversation",
        ),
        (
            with(|a| {
                a.to_uid.clear();
                a.conversation = "d:bob:cleo".into();
            }),
            Code::Forbidden,
            "conversation",
        ),
        (
            with(|a| a.msg_id = Bytes::from_static(&[1; 16])),
            Code::InvalidMsgId,
            "msg_id",
        ),
        (with(|a| a.msg_id.clear()), Code::InvalidMsgId, "msg_id"),
        (
            with(|a| a.msg_id = id_bytes(msg_id_at(NOW.plus(Duration::from_secs(31)), 1))),
            Code::InvalidMsgId,
            "msg_id",
        ),
        (
            with(|a| a.msg_id = id_bytes(msg_id_at(NOW.minus(31 * DAY + Duration::from_secs(1)), 1))),
            Code::MsgIdExpired,
            "msg_id",
        ),
        (with(|a| a.lane_seq = 0), Code::InvalidArgument, "lane_seq"),
        (with(|a| a.content_type.clear()), Code::InvalidArgument, "content_type"),
        (with(|a| a.body.clear()), Code::InvalidArgument, "body"),
        (
            with(|a| a.body = Bytes::from_static(&[0xC3, 0x28])),
            Code::InvalidArgument,
            "body",
        ),
        (with(|a| a.action = 0), Code::InvalidArgument, "action"),
    ];
    let world = World::start().await;
    for encoding in [Encoding::Proto, Encoding::Json] {
        for (index, (mut action, code, field)) in cases.clone().into_iter().enumerate() {
            // A session of its own, so that every case is the first of its lane.
            let mut device = Device::open_as(&world, encoding, connect("ann", &format!("d{index}"))).await;
            let what = format!("{encoding:?} {action:?}");
            action.client_time = 7;
            device.send(action).await;
            let (got, at, _) = answer(device.next().await);
            assert_eq!((got, at.as_str()), (code, field), "{what}");
            device.ping().await;
        }
    }
    assert_eq!(world.log.records(Topic::Ingress).len(), 0);
}

#[tokio::test]
async fn a_refused_id_tells_the_server_time() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    let mut action = text(1, "bob", 1, "hi");
    action.msg_id = id_bytes(msg_id_at(NOW.plus(DAY), 1));
    device.send(action).await;
    let ack = device.ack().await;
    assert_eq!(
        (ack.code(), ack.server_time, ack.limit),
        (Code::InvalidMsgId, NOW.get(), 30_000)
    );
}

/// Scenarios B77, B79: the limit is the same in both encodings, exact bodies pass whole, one more byte is refused with
/// the limit, and nothing else is harmed.
#[tokio::test]
async fn bodies_up_to_the_limit_pass_and_beyond_it_the_limit_is_named() {
    const LIMIT: usize = 65_536;
    let world = World::start().await;
    for encoding in [Encoding::Proto, Encoding::Json] {
        let mut device = Device::open_as(&world, encoding, connect("ann", "phone")).await;
        let before = world.log.actions().len();
        let exact = format!("{}🎉", "a".repeat(LIMIT - 4));
        let mut lane_seq = 0;
        for body in [
            "a".to_owned(),
            "b".repeat(125),
            "c".repeat(126),
            "d".repeat(65_535),
            exact.clone(),
            // Six bytes each in JSON.
            "\0".repeat(LIMIT),
        ] {
            lane_seq += 1;
            device.send(text(lane_seq, "bob", lane_seq, &body)).await;
            assert_eq!(device.ack().await.code(), Code::Ok, "{} bytes", body.len());
            let stored = world.log.actions().pop().expect("a record");
            assert!(stored.body == body.as_bytes(), "{} bytes changed", body.len());
        }
        for over in [
            format!("{}🎉", "a".repeat(LIMIT - 2)),
            "a".repeat(LIMIT + 1),
            "a".repeat(LIMIT + 9000),
        ] {
            lane_seq += 1;
            device.send(text(lane_seq, "bob", lane_seq, &over)).await;
            let ack = device.ack().await;
            assert_eq!((ack.code(), ack.field.as_str()), (Code::PayloadTooLarge, "body"));
            assert_eq!(ack.limit, LIMIT as u64);
        }
        device.send(text(lane_seq + 1, "bob", 99, "after")).await;
        assert_eq!(device.ack().await.code(), Code::Ok);
        assert_eq!(world.log.actions().len(), before + 7);
    }
}

#[tokio::test]
async fn frames_beyond_the_limit_are_refused_and_beyond_twice_of_it_the_connection_ends() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    let limit = device.connected.limits.expect("limits").max_frame_bytes as usize;
    assert_eq!(limit, 65_536 + 8192);
    // A send whose size is not in its body, then a frame that is nothing.
    let mut action = text(1, "bob", 1, "hi");
    action.content_type = "x".repeat(limit);
    device.send(action).await;
    let (code, field, _) = answer(device.next().await);
    assert_eq!((code, field.as_str()), (Code::InvalidArgument, "content_type"));
    device.send_bytes(vec![0; limit + 1]).await;
    assert_eq!(
        answer(device.next().await),
        (Code::PayloadTooLarge, "frame".to_owned(), limit as u64)
    );
    device.send(text(2, "bob", 2, "after")).await;
    assert_eq!(device.ack().await.code(), Code::Ok);
    device.send_bytes(vec![0; 2 * limit + 1]).await;
    assert_eq!(device.close_code().await, 1009);
}

#[tokio::test]
async fn frames_that_are_none_are_answered() {
    let world = World::start().await;
    let mut proto = Device::open(&world, "ann", "phone").await;
    let unknown = {
        // Field 900, length-delimited, empty.
        let mut bytes = Vec::new();
        prost::encoding::encode_key(900, prost::encoding::WireType::LengthDelimited, &mut bytes);
        bytes.push(0);
        bytes
    };
    for (bytes, code) in [
        (vec![0xff, 0xff, 0xff], Code::MalformedFrame),
        (Vec::new(), Code::UnknownFrame),
        (unknown, Code::UnknownFrame),
    ] {
        proto.send_bytes(bytes).await;
        assert_eq!(answer(proto.next().await).0, code);
        proto.ping().await;
    }
    proto.send_message(Message::text("{}")).await;
    assert_eq!(answer(proto.next().await).0, Code::MalformedFrame);
    proto.ping().await;

    let mut json = Device::open_as(&world, Encoding::Json, connect("ann", "laptop")).await;
    for (text, code, field) in [
        ("{", Code::MalformedFrame, ""),
        ("[]", Code::MalformedFrame, ""),
        (r#"{"type":"dance"}"#, Code::UnknownFrame, ""),
        (
            r#"{"type":"read","conversation":"d:ann:bob","conv_seq":"x"}"#,
            Code::MalformedFrame,
            "conv_seq",
        ),
        (
            r#"{"type":"read","conversation":"d:bob:cleo","conv_seq":"1"}"#,
            Code::Forbidden,
            "conversation",
        ),
        (
            r#"{"type":"delivered_ack","msg_id":"nonsense","client_time":1}"#,
            Code::InvalidMsgId,
            "msg_id",
        ),
        (r#"{"type":"sync"}"#, Code::InvalidArgument, "cursor"),
    ] {
        json.send_message(Message::text(text)).await;
        let (got, at, _) = answer(json.next().await);
        assert_eq!((got, at.as_str()), (code, field), "{text}");
        json.ping().await;
    }
    json.send_bytes(vec![1, 2, 3]).await;
    assert_eq!(answer(json.next().await).0, Code::MalformedFrame);
    json.ping().await;
}

/// Scenario B83: refused everywhere; a text frame that is not UTF-8 ends the connection with 1007 as the WebSocket
/// protocol demands.
#[tokio::test]
async fn invalid_utf8_is_refused_everywhere() {
    let world = World::start().await;
    for bad in [&[0xC3, 0x28][..], &[0xED, 0xA0, 0x80], &[0xF8, 0x88, 0x80, 0x80, 0x80]] {
        let mut json = Device::open_as(&world, Encoding::Json, connect("ann", "phone")).await;
        let frame = Frame::message(Bytes::copy_from_slice(bad), OpCode::Data(Data::Text), true);
        json.send_message(Message::Frame(frame)).await;
        assert_eq!(json.close_code().await, 1007);

        let mut proto = Device::open(&world, "ann", "phone").await;
        // In a protobuf string: the uid of the recipient.
        let mut action = text(1, "bob", 1, "hi");
        action.to_uid.clear();
        let mut raw = Vec::new();
        prost::encoding::bytes::encode(4, &Bytes::copy_from_slice(bad), &mut raw);
        let mut inner = action.encode_to_vec();
        inner.extend(raw);
        let mut outer = Vec::new();
        prost::encoding::bytes::encode(2, &Bytes::from(inner), &mut outer);
        proto.send_bytes(outer).await;
        assert_eq!(answer(proto.next().await).0, Code::MalformedFrame);
        // In a text body.
        let mut action = text(1, "bob", 1, "hi");
        action.body = Bytes::copy_from_slice(bad);
        proto.send(action).await;
        let (code, field, _) = answer(proto.next().await);
        assert_eq!((code, field.as_str()), (Code::InvalidArgument, "body"));
        proto.send(text(2, "bob", 2, "good")).await;
        assert_eq!(proto.ack().await.code(), Code::Ok);
    }
    assert_eq!(world.log.records(Topic::Ingress).len(), 3);
}
