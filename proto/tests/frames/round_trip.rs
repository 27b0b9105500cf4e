//! For every frame: protobuf and JSON say the same, and no input makes a decoder or a check panic.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tidings_domain::Uid;
use tidings_domain::clock::Millis;
use tidings_proto::v1::client_frame::Frame as Client;
use tidings_proto::v1::server_frame::Frame as Server;
use tidings_proto::validate::{self, Limits};
use tidings_proto::{json, v1, wire};

use crate::samples;

fn id() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        Just(Bytes::new()),
        any::<[u8; 16]>().prop_map(|b| Bytes::copy_from_slice(&b))
    ]
}

fn bytes(most: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..most).prop_map(Bytes::from)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "\\PC{0,12}", any::<String>()]
}

/// A content type with a body that may or may not fit it.
fn content() -> impl Strategy<Value = (String, Bytes)> {
    let content_type = prop_oneof![
        Just("text".to_owned()),
        Just("text/markdown".to_owned()),
        Just("image".to_owned()),
        text()
    ];
    let body = prop_oneof![bytes(40), any::<String>().prop_map(Bytes::from)];
    (content_type, body)
}

fn cursor() -> impl Strategy<Value = v1::Cursor> {
    any::<(u64, u64)>().prop_map(|(epoch, user_seq)| v1::Cursor { epoch, user_seq })
}

fn target() -> impl Strategy<Value = v1::Target> {
    (text(), id(), any::<u64>()).prop_map(|(sender, msg_id, conv_seq)| v1::Target {
        sender,
        msg_id,
        conv_seq,
    })
}

fn user_action() -> impl Strategy<Value = v1::UserAction> {
    (
        (-1..9i32, any::<u64>(), text(), text(), id(), id()),
        (
            option::of(target()),
            content(),
            any::<i64>(),
            any::<i64>(),
            any::<u32>(),
            text(),
        ),
    )
        .prop_map(
            |(
                (action, lane_seq, conversation, to_uid, msg_id, op_id),
                (target, (content_type, body), client_time, first_send_time, retry_count, member),
            )| v1::UserAction {
                action,
                lane_seq,
                conversation,
                to_uid,
                msg_id,
                op_id,
                target,
                content_type,
                body,
                client_time,
                first_send_time,
                retry_count,
                member,
            },
        )
}

fn client() -> impl Strategy<Value = v1::ClientFrame> {
    prop_oneof![
        user_action().prop_map(Client::Action),
        (text(), text(), any::<bool>(), option::of(cursor()), text()).prop_map(
            |(token, device_id, fresh, cursor, client)| Client::Connect(v1::Connect {
                token,
                device_id,
                fresh,
                cursor,
                client
            })
        ),
        (any::<(u64, u64, u64)>(), vec((text(), any::<u64>()), 0..4)).prop_map(
            |((epoch, delivered, stored), convs)| {
                Client::Ack(v1::Ack {
                    epoch,
                    delivered,
                    stored,
                    convs: convs
                        .into_iter()
                        .map(|(conversation, conv_seq)| v1::AckConv { conversation, conv_seq })
                        .collect(),
                })
            }
        ),
        (id(), any::<i64>())
            .prop_map(|(msg_id, client_time)| Client::DeliveredAck(v1::DeliveredAck { msg_id, client_time })),
        (id(), any::<i64>()).prop_map(|(msg_id, read_time)| Client::ReadAck(v1::ReadAck { msg_id, read_time })),
        (text(), any::<u64>()).prop_map(|(conversation, conv_seq)| Client::Read(v1::Read { conversation, conv_seq })),
        option::of(cursor()).prop_map(|cursor| Client::Sync(v1::Sync { cursor })),
        (any::<u64>(), text(), any::<(u64, u64, u32)>()).prop_map(|(request_id, conversation, (from, to, limit))| {
            Client::History(v1::HistoryRequest {
                request_id,
                conversation,
                from_conv_seq: from,
                to_conv_seq: to,
                limit,
            })
        }),
        any::<i64>().prop_map(|client_time| Client::Ping(v1::Ping { client_time })),
    ]
    .prop_map(|frame| v1::ClientFrame { frame: Some(frame) })
}

fn message() -> impl Strategy<Value = v1::Message> {
    (
        (text(), any::<(u64, u64)>(), text(), text(), id(), id(), 0..9i32),
        (option::of(target()), any::<(i64, i64)>(), content(), bytes(17), text()),
    )
        .prop_map(
            |(
                (conversation, (conv_seq, countable_seq), sender, device, msg_id, op_id, action),
                (target, (append_time, first_send_time), (content_type, body), content_hash, member),
            )| v1::Message {
                conversation,
                conv_seq,
                countable_seq,
                sender,
                device,
                msg_id,
                op_id,
                action,
                target,
                append_time,
                content_type,
                body,
                content_hash,
                member,
                first_send_time,
            },
        )
}

fn push() -> impl Strategy<Value = v1::Push> {
    let kind = prop_oneof![
        message().prop_map(v1::event::Kind::Message),
        (text(), id(), id(), 0..9i32, bytes(17), text(), 0..9i32).prop_map(
            |(conversation, msg_id, op_id, action, content_hash, device, reason)| {
                v1::event::Kind::Rejection(v1::Rejection {
                    conversation,
                    msg_id,
                    op_id,
                    action,
                    content_hash,
                    device,
                    reason,
                })
            }
        ),
        (text(), text(), any::<(u64, u64)>()).prop_map(|(conversation, uid, (delivered, read))| {
            v1::event::Kind::Receipt(v1::Receipt {
                conversation,
                uid,
                delivered,
                read,
            })
        }),
        (text(), any::<u64>())
            .prop_map(|(conversation, read)| v1::event::Kind::ReadSync(v1::ReadSync { conversation, read })),
    ];
    (any::<u64>(), option::of(option::of(kind))).prop_map(|(user_seq, event)| v1::Push {
        user_seq,
        event: event.map(|kind| v1::Event { kind }),
    })
}

fn server() -> impl Strategy<Value = v1::ServerFrame> {
    prop_oneof![
        push().prop_map(Server::Push),
        (vec(push(), 0..3), any::<(bool, bool)>(), any::<(u64, u64)>()).prop_map(
            |(events, (has_more, end_of_backlog), (head_seq, next_user_seq))| Server::SyncPage(v1::SyncPage {
                events,
                has_more,
                end_of_backlog,
                head_seq,
                next_user_seq,
            })
        ),
        (vec(message(), 0..3), text(), any::<(u64, bool, u64, u64)>()).prop_map(
            |(messages, conversation, (request_id, has_more, from, to))| Server::HistoryPage(v1::HistoryPage {
                request_id,
                conversation,
                messages,
                has_more,
                from_conv_seq: from,
                to_conv_seq: to,
            })
        ),
        (
            (id(), id(), -1..9i32, text(), -1..70i32),
            (any::<(i64, bool, u64, u64, u32)>(), text(), text())
        )
            .prop_map(
                |(
                    (msg_id, op_id, action, conversation, code),
                    ((time, retryable, lane, limit, after), field, reason),
                )| {
                    Server::MsgAck(v1::MsgAck {
                        msg_id,
                        op_id,
                        action,
                        conversation,
                        code,
                        server_time: time,
                        retryable,
                        expected_lane_seq: lane,
                        field,
                        reason,
                        limit,
                        retry_after_ms: after,
                    })
                }
            ),
        (-1..70i32, text(), text(), any::<(u64, u64, u32)>()).prop_map(
            |(code, field, reason, (limit, request_id, retry_after_ms))| Server::Error(v1::Error {
                code,
                field,
                reason,
                limit,
                request_id,
                retry_after_ms,
            })
        ),
        (-1..70i32, text(), any::<u32>()).prop_map(|(code, reason, reconnect_after_ms)| Server::Closing(v1::Closing {
            code,
            reason,
            reconnect_after_ms
        })),
        (any::<(u64, u64, u64, i64)>(), option::of(any::<[u32; 6]>()), text()).prop_map(
            |((epoch, cursor, head_seq, server_time), limits, uid)| Server::Connected(v1::Connected {
                epoch,
                cursor,
                head_seq,
                server_time,
                limits: limits.map(|l| v1::Limits {
                    max_body_bytes: l[0],
                    max_frame_bytes: l[1],
                    page_events: l[2],
                    ping_interval_ms: l[3],
                    idle_timeout_ms: l[4],
                    max_unacked_sends: l[5],
                }),
                uid,
            })
        ),
    ]
    .prop_map(|frame| v1::ServerFrame { frame: Some(frame) })
}

fn check_everything(frame: &v1::ClientFrame) {
    let sender = Uid::parse("alice").expect("valid");
    let limits = Limits::default();
    let now = Millis(samples::NOW);
    match frame.frame.as_ref().expect("a decoded frame is never empty") {
        Client::Connect(f) => drop(validate::connect(f)),
        Client::Action(f) => {
            if let Err(refusal) = validate::user_action(f, &sender, &limits, now) {
                let ack = refusal.to_msg_ack(f, now);
                assert_ne!(ack.code, 0, "a refusal is never code 0");
                assert!(!ack.retryable, "a frame refused for its form is refused for good");
            }
        }
        Client::Ack(f) => drop(validate::ack(f)),
        Client::DeliveredAck(f) => drop(validate::acked_msg_id(&f.msg_id)),
        Client::ReadAck(f) => drop(validate::acked_msg_id(&f.msg_id)),
        Client::Read(f) => drop(validate::read(f, &sender)),
        Client::Sync(f) => drop(validate::sync(f)),
        Client::History(f) => drop(validate::history(f, &sender)),
        Client::Ping(_) => {}
    }
}

proptest! {
    #[test]
    fn client_frames_say_the_same_in_both_forms(frame in client()) {
        let text = json::encode_client(&frame);
        let from_json = json::decode_client(&text);
        prop_assert_eq!(from_json.as_ref(), Ok(&frame), "{}", text);
        let from_binary = wire::decode_client(wire::encode_client(&frame));
        prop_assert_eq!(from_binary.as_ref(), Ok(&frame));
        check_everything(&frame);
    }

    #[test]
    fn server_frames_say_the_same_in_both_forms(frame in server()) {
        let text = json::encode_server(&frame);
        let from_json = json::decode_server(&text);
        prop_assert_eq!(from_json.as_ref(), Ok(&frame), "{}", text);
        let from_binary = wire::decode_server(wire::encode_server(&frame));
        prop_assert_eq!(from_binary.as_ref(), Ok(&frame));
    }

    #[test]
    fn arbitrary_bytes_never_panic(noise in vec(any::<u8>(), 0..200)) {
        if let Ok(frame) = wire::decode_client(Bytes::from(noise.clone())) {
            check_everything(&frame);
        }
        drop(wire::decode_server(Bytes::from(noise.clone())));
        let text = String::from_utf8_lossy(&noise);
        if let Ok(frame) = json::decode_client(&text) {
            check_everything(&frame);
        }
        drop(json::decode_server(&text));
        drop(json::push(1, &Bytes::from(noise)));
    }

    /// Damaged frames get further into the decoders than noise does.
    #[test]
    fn damaged_frames_never_panic(frame in client(), at in any::<prop::sample::Index>(), with in any::<u8>()) {
        let mut damaged = wire::encode_client(&frame).to_vec();
        if !damaged.is_empty() {
            let at = at.index(damaged.len());
            damaged[at] = with;
        }
        if let Ok(frame) = wire::decode_client(Bytes::from(damaged)) {
            check_everything(&frame);
        }
        let mut damaged = json::encode_client(&frame).into_bytes();
        let at = at.index(damaged.len());
        damaged[at] = with;
        if let Ok(frame) = json::decode_client(&String::from_utf8_lossy(&damaged)) {
            check_everything(&frame);
        }
    }
}
