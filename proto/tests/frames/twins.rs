//! The wire twins frame stored bytes exactly as the typed frames would.

use bytes::Bytes;
use prost::Message as _;
use tidings_proto::v1::server_frame::Frame as Server;
use tidings_proto::{FrameError, json, record, v1, wire};

use crate::samples;

fn event_bytes(push: &v1::Push) -> Bytes {
    push.event
        .as_ref()
        .expect("samples have an event")
        .encode_to_vec()
        .into()
}

fn raw_page(page: &v1::SyncPage) -> v1::RawSyncPage {
    v1::RawSyncPage {
        events: page
            .events
            .iter()
            .map(|push| v1::RawPush {
                user_seq: push.user_seq,
                event: event_bytes(push),
            })
            .collect(),
        has_more: page.has_more,
        end_of_backlog: page.end_of_backlog,
        head_seq: page.head_seq,
        next_user_seq: page.next_user_seq,
    }
}

fn raw_history(page: &v1::HistoryPage) -> v1::RawHistoryPage {
    v1::RawHistoryPage {
        request_id: page.request_id,
        conversation: page.conversation.clone(),
        messages: page.messages.iter().map(|m| m.encode_to_vec().into()).collect(),
        has_more: page.has_more,
        from_conv_seq: page.from_conv_seq,
        to_conv_seq: page.to_conv_seq,
    }
}

#[test]
fn raw_and_typed_frames_are_the_same_bytes_and_the_same_json() {
    let mut compared = 0;
    for (name, frame) in samples::server() {
        let typed = v1::ServerFrame {
            frame: Some(frame.clone()),
        };
        let (raw, text) = match &frame {
            Server::Push(push) => {
                let event = event_bytes(push);
                (wire::push(push.user_seq, &event), json::push(push.user_seq, &event))
            }
            Server::SyncPage(page) => (wire::sync_page(raw_page(page)), json::sync_page(&raw_page(page))),
            Server::HistoryPage(page) => (
                wire::history_page(raw_history(page)),
                json::history_page(&raw_history(page)),
            ),
            Server::Connected(_)
            | Server::MsgAck(_)
            | Server::Head(_)
            | Server::CursorReset(_)
            | Server::Truncated(_)
            | Server::Pong(_)
            | Server::Error(_)
            | Server::Closing(_) => continue,
        };
        compared += 1;
        assert_eq!(raw, wire::encode_server(&typed), "{name}");
        assert_eq!(wire::decode_server(raw).as_ref(), Ok(&typed), "{name}");
        assert_eq!(text, Ok(json::encode_server(&typed)), "{name}");
    }
    assert!(compared >= 9, "only {compared} samples have a twin");
}

#[test]
fn a_chunk_of_the_inbox_becomes_a_page() {
    let stored = v1::SyncEvents {
        events: vec![v1::StoredEvent {
            user_seq: 4,
            event: Bytes::from_static(b"e"),
        }],
        end_of_backlog: false,
        head_seq: 9,
        next_user_seq: 4,
    };
    assert_eq!(
        v1::RawSyncPage::from(stored),
        v1::RawSyncPage {
            events: vec![v1::RawPush {
                user_seq: 4,
                event: Bytes::from_static(b"e")
            }],
            has_more: true,
            end_of_backlog: false,
            head_seq: 9,
            next_user_seq: 4,
        }
    );
}

#[test]
fn a_message_is_wrapped_into_the_same_event() {
    let (_, Server::Push(push)) = samples::server()
        .into_iter()
        .find(|(name, _)| *name == "push_message")
        .expect("there is one")
    else {
        panic!("a push");
    };
    let Some(v1::event::Kind::Message(message)) = push.event.clone().and_then(|event| event.kind) else {
        panic!("a message");
    };
    assert_eq!(
        record::event_of_message(message.encode_to_vec().into()),
        event_bytes(&push)
    );
}

#[test]
fn frames_of_a_newer_version_are_named_and_broken_ones_refused() {
    // Field 42, length-delimited, empty.
    assert_eq!(
        wire::decode_client(Bytes::from_static(&[0xd2, 0x02, 0x00])),
        Err(FrameError::UnknownType("#42".to_owned()))
    );
    assert_eq!(
        wire::decode_client(Bytes::new()),
        Err(FrameError::UnknownType("(empty)".to_owned()))
    );
    for broken in [
        &b"\xff\xff\xff"[..],
        // A connect frame that claims more bytes than there are.
        b"\x0a\x7f\x0a",
    ] {
        assert!(matches!(
            wire::decode_client(Bytes::from_static(broken)),
            Err(FrameError::Malformed(_))
        ));
    }
}

/// Scenario B83: invalid UTF-8 in a string field is refused, whichever form of invalid.
#[test]
fn invalid_utf8_in_a_string_is_malformed() {
    for bad in [&[0xC3, 0x28][..], &[0xED, 0xA0, 0x80], &[0xF8, 0x88, 0x80, 0x80, 0x80]] {
        let mut connect = vec![0x12, u8::try_from(bad.len()).expect("short")];
        connect.extend_from_slice(bad);
        let mut frame = vec![0x0a, u8::try_from(connect.len()).expect("short")];
        frame.extend_from_slice(&connect);
        assert!(
            matches!(wire::decode_client(frame.into()), Err(FrameError::Malformed(_))),
            "{bad:x?}"
        );
    }
}

#[test]
fn client_frames_round_trip_in_binary() {
    for (name, frame) in samples::client() {
        let frame = v1::ClientFrame { frame: Some(frame) };
        assert_eq!(
            wire::decode_client(wire::encode_client(&frame)).as_ref(),
            Ok(&frame),
            "{name}"
        );
    }
}
