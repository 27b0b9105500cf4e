//! Rules of the JSON form that single examples show.

use bytes::Bytes;
use tidings_proto::v1::client_frame::Frame as Client;
use tidings_proto::v1::server_frame::Frame as Server;
use tidings_proto::{FrameError, json, v1};

use crate::samples::{BEYOND_JAVASCRIPT, NOW, msg_id};

fn client(text: &str) -> Client {
    json::decode_client(text)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .frame
        .expect("a decoded frame is never empty")
}

fn field_error(text: &str) -> (String, String) {
    match json::decode_client(text) {
        Err(FrameError::Field { field, reason }) => (field, reason),
        other => panic!("{text}: expected a field error, got {other:?}"),
    }
}

/// req:B6 word by word: these fields, in this order, with these types.
#[test]
fn the_acks_have_the_required_forms() {
    let id = "01a0c450-6c00-7707-8707-070707070707";
    let ack = v1::MsgAck {
        msg_id: msg_id(),
        server_time: NOW,
        ..v1::MsgAck::default()
    };
    assert_eq!(
        json::encode_server(&ack.into()),
        format!(r#"{{"type":"msg_ack","msg_id":"{id}","code":0,"code_name":"OK","server_time":1790000000000}}"#)
    );
    assert_eq!(
        client(&format!(
            r#"{{"type":"delivered_ack","msg_id":"{id}","client_time":5}}"#
        )),
        Client::DeliveredAck(v1::DeliveredAck {
            msg_id: msg_id(),
            client_time: 5
        })
    );
    assert_eq!(
        client(&format!(r#"{{"type":"read_ack","msg_id":"{id}","read_time":6}}"#)),
        Client::ReadAck(v1::ReadAck {
            msg_id: msg_id(),
            read_time: 6
        })
    );
    let Client::Action(resend) = client(&format!(
        r#"{{"type":"action","action":"send","msg_id":"{id}","retry_count":2,"first_send_time":7}}"#
    )) else {
        panic!("an action");
    };
    assert_eq!((resend.retry_count, resend.first_send_time), (2, 7));
}

/// Scenario B85.
#[test]
fn numbers_beyond_2_to_the_53_are_exact_and_must_be_text() {
    let text = r#"{"type":"sync","cursor":{"epoch":"18446744073709551615","user_seq":"9007199254740993"}}"#;
    let frame = json::decode_client(text).expect("valid");
    assert_eq!(
        frame.frame,
        Some(Client::Sync(v1::Sync {
            cursor: Some(v1::Cursor {
                epoch: u64::MAX,
                user_seq: BEYOND_JAVASCRIPT
            })
        }))
    );
    assert_eq!(json::encode_client(&frame), text);

    let (field, reason) = field_error(r#"{"type":"sync","cursor":{"epoch":"1","user_seq":9007199254740993}}"#);
    assert_eq!(field, "cursor.user_seq");
    assert!(reason.contains("2^53"), "{reason}");
    // What JavaScript holds exactly is taken as a number too.
    assert!(matches!(
        client(r#"{"type":"sync","cursor":{"epoch":1,"user_seq":9007199254740992}}"#),
        Client::Sync(v1::Sync { cursor: Some(v1::Cursor { user_seq, .. }) }) if user_seq == 1 << 53
    ));
}

#[test]
fn a_wrong_type_names_the_field() {
    for (text, field) in [
        (r#"{"type":"sync","cursor":7}"#, "cursor"),
        (r#"{"type":"sync","cursor":{"epoch":"-1"}}"#, "cursor.epoch"),
        (r#"{"type":"sync","cursor":{"epoch":"+1"}}"#, "cursor.epoch"),
        (r#"{"type":"sync","cursor":{"epoch":1.5}}"#, "cursor.epoch"),
        (
            r#"{"type":"sync","cursor":{"epoch":"18446744073709551616"}}"#,
            "cursor.epoch",
        ),
        (
            r#"{"type":"ack","convs":[{"conversation":"d:a:b","conv_seq":"1"},{"conversation":3}]}"#,
            "convs[1].conversation",
        ),
        (r#"{"type":"ack","convs":{}}"#, "convs"),
        (r#"{"type":"ping","client_time":"soon"}"#, "client_time"),
        (r#"{"type":"ping","client_time":1.5}"#, "client_time"),
        (r#"{"type":"action","action":"sned"}"#, "action"),
        (r#"{"type":"action","action":"SEND"}"#, "action"),
        (r#"{"type":"action","msg_id":"1"}"#, "msg_id"),
        (r#"{"type":"action","retry_count":-1}"#, "retry_count"),
        (r#"{"type":"action","content_type":"image","body":"*"}"#, "body"),
        (r#"{"type":"action","content_type":"text","body":1}"#, "body"),
        (
            r#"{"type":"action","body_encoding":"rot13","body":"x"}"#,
            "body_encoding",
        ),
        (r#"{"type":"connect","fresh":"yes"}"#, "fresh"),
        (r#"{"device_id":"phone"}"#, "type"),
        (r#"{"type":3}"#, "type"),
    ] {
        assert_eq!(field_error(text).0, field, "{text}");
    }
}

#[test]
fn an_id_that_is_none_has_its_own_code() {
    let error = json::decode_client(r#"{"type":"action","action":"send","msg_id":"1"}"#).expect_err("no UUID");
    assert_eq!(error.code(), v1::Code::InvalidMsgId);
    assert_eq!(error.to_error().field, "msg_id");
}

#[test]
fn broken_json_and_unknown_types_are_told_apart() {
    for text in ["", "{", "[]", "null", "7", "\"connect\"", "{\"type\":\"ping\"} x"] {
        assert!(
            matches!(json::decode_client(text), Err(FrameError::Malformed(_))),
            "{text}"
        );
    }
    assert_eq!(
        json::decode_client(r#"{"type":"teleport","to":"mars"}"#),
        Err(FrameError::UnknownType("teleport".to_owned()))
    );
    // A gateway's frame is not a device's.
    assert_eq!(
        json::decode_client(r#"{"type":"pong"}"#),
        Err(FrameError::UnknownType("pong".to_owned()))
    );
}

#[test]
fn either_side_may_be_newer() {
    assert_eq!(
        client(r#"{"type":"ping","client_time":3,"mood":{"deep":[1,2]},"note":null}"#),
        Client::Ping(v1::Ping { client_time: 3 })
    );
    // An event of an unknown kind keeps its place in the stream.
    let frame = json::decode_server(r#"{"type":"push","user_seq":"8","event":{"type":"reaction","emoji":"x"}}"#);
    assert_eq!(
        frame.expect("valid").frame,
        Some(Server::Push(v1::Push {
            user_seq: 8,
            event: Some(v1::Event { kind: None })
        }))
    );
    // So does a code: it is a number.
    let ack = json::decode_server(r#"{"type":"msg_ack","code":40,"code_name":"NEW","server_time":1}"#);
    assert!(matches!(
        ack.expect("valid").frame,
        Some(Server::MsgAck(v1::MsgAck { code: 40, .. }))
    ));
}

/// An ACK without a code must never be read as code 0.
#[test]
fn a_missing_code_is_an_error() {
    assert!(matches!(
        json::decode_server(r#"{"type":"msg_ack","server_time":1}"#),
        Err(FrameError::Field { field, .. }) if field == "code"
    ));
}

/// Scenario B75, and text that is no text.
#[test]
fn bodies_survive_byte_by_byte() {
    for (content_type, body, marked) in [
        ("text", &b"hi\0bob"[..], false),
        ("text/markdown", "\u{10ffff}\u{feff}".as_bytes(), false),
        ("text", &[0xC3, 0x28], true),
        ("image", &[0xC3, 0x28], false),
    ] {
        let frame = v1::UserAction {
            content_type: content_type.to_owned(),
            body: Bytes::copy_from_slice(body),
            ..v1::UserAction::default()
        }
        .into();
        let text = json::encode_client(&frame);
        assert_eq!(text.contains("body_encoding"), marked, "{text}");
        assert_eq!(json::decode_client(&text), Ok(frame), "{text}");
    }
}
