//! One telling example of every frame.

use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::{MsgId, OpId};
use tidings_proto::v1;
use tidings_proto::v1::client_frame::Frame as Client;
use tidings_proto::v1::server_frame::Frame as Server;

/// Not exact as a JavaScript number (scenario B85).
pub(crate) const BEYOND_JAVASCRIPT: u64 = 9_007_199_254_740_993;
pub(crate) const NOW: i64 = 1_790_000_000_000;

pub(crate) fn msg_id() -> Bytes {
    Bytes::copy_from_slice(MsgId::mint(Millis(NOW), [7; 10]).as_bytes())
}

pub(crate) fn op_id() -> Bytes {
    Bytes::copy_from_slice(OpId::mint(Millis(NOW + 5), [9; 10]).as_bytes())
}

fn text_message() -> v1::Message {
    v1::Message {
        conversation: "d:alice:bob".to_owned(),
        conv_seq: BEYOND_JAVASCRIPT,
        countable_seq: 41,
        sender: "alice".to_owned(),
        device: "phone".to_owned(),
        msg_id: msg_id(),
        action: v1::Action::Send as i32,
        append_time: NOW + 12,
        first_send_time: NOW,
        content_hash: Bytes::from_static(&[0xab; 16]),
        content_type: "text".to_owned(),
        body: Bytes::from_static("hi\0bob \u{1f389} \"quoted\"".as_bytes()),
        ..v1::Message::default()
    }
}

fn push(user_seq: u64, kind: v1::event::Kind) -> v1::Push {
    v1::Push {
        user_seq,
        event: Some(v1::Event { kind: Some(kind) }),
    }
}

fn send() -> v1::UserAction {
    v1::UserAction {
        action: v1::Action::Send as i32,
        lane_seq: 1,
        to_uid: "bob".to_owned(),
        msg_id: msg_id(),
        content_type: "text".to_owned(),
        body: Bytes::from_static(b"hello"),
        client_time: NOW,
        first_send_time: NOW,
        ..v1::UserAction::default()
    }
}

/// Every frame of a device, with the name of its golden file. Forms that differ by content have several.
pub(crate) fn client() -> Vec<(&'static str, Client)> {
    vec![
        (
            "connect",
            Client::Connect(v1::Connect {
                token: "header.payload.signature".to_owned(),
                device_id: "phone".to_owned(),
                fresh: false,
                cursor: Some(v1::Cursor {
                    epoch: u64::MAX,
                    user_seq: BEYOND_JAVASCRIPT,
                }),
                client: "tidings-client/0.1".to_owned(),
            }),
        ),
        (
            "connect_fresh",
            Client::Connect(v1::Connect {
                device_id: "phone".to_owned(),
                fresh: true,
                ..v1::Connect::default()
            }),
        ),
        ("action_send", Client::Action(send())),
        (
            "action_resend",
            Client::Action(v1::UserAction {
                client_time: NOW + 4_000,
                retry_count: 1,
                ..send()
            }),
        ),
        (
            "action_send_binary",
            Client::Action(v1::UserAction {
                lane_seq: BEYOND_JAVASCRIPT,
                to_uid: String::new(),
                conversation: "d:alice:bob".to_owned(),
                content_type: "application/octet-stream".to_owned(),
                body: Bytes::from_static(&[0, 255, 16, 128]),
                ..send()
            }),
        ),
        (
            "action_edit",
            Client::Action(v1::UserAction {
                action: v1::Action::Edit as i32,
                op_id: op_id(),
                target: Some(v1::Target {
                    sender: "alice".to_owned(),
                    msg_id: msg_id(),
                    conv_seq: 0,
                }),
                ..send()
            }),
        ),
        (
            "action_kick",
            Client::Action(v1::UserAction {
                action: v1::Action::Kick as i32,
                to_uid: String::new(),
                conversation: "g:01890a5d-ac96-774b-bcce-b302099a8057".to_owned(),
                op_id: op_id(),
                member: "carol".to_owned(),
                content_type: String::new(),
                body: Bytes::new(),
                ..send()
            }),
        ),
        (
            "ack",
            Client::Ack(v1::Ack {
                epoch: 3,
                delivered: BEYOND_JAVASCRIPT,
                stored: BEYOND_JAVASCRIPT - 1,
                convs: vec![v1::AckConv {
                    conversation: "d:alice:bob".to_owned(),
                    conv_seq: 17,
                }],
            }),
        ),
        (
            "delivered_ack",
            Client::DeliveredAck(v1::DeliveredAck {
                msg_id: msg_id(),
                client_time: NOW,
            }),
        ),
        (
            "read_ack",
            Client::ReadAck(v1::ReadAck {
                msg_id: msg_id(),
                read_time: NOW,
            }),
        ),
        (
            "read",
            Client::Read(v1::Read {
                conversation: "d:alice:bob".to_owned(),
                conv_seq: 17,
            }),
        ),
        (
            "sync",
            Client::Sync(v1::Sync {
                cursor: Some(v1::Cursor {
                    epoch: 3,
                    user_seq: BEYOND_JAVASCRIPT,
                }),
            }),
        ),
        (
            "history",
            Client::History(v1::HistoryRequest {
                request_id: 5,
                conversation: "d:alice:bob".to_owned(),
                from_conv_seq: 1,
                to_conv_seq: 0,
                limit: 50,
            }),
        ),
        ("ping", Client::Ping(v1::Ping { client_time: NOW })),
    ]
}

/// Every frame of a gateway, likewise.
pub(crate) fn server() -> Vec<(&'static str, Server)> {
    use v1::event::Kind;
    vec![
        (
            "connected",
            Server::Connected(v1::Connected {
                epoch: u64::MAX,
                cursor: BEYOND_JAVASCRIPT,
                head_seq: BEYOND_JAVASCRIPT + 1,
                server_time: NOW,
                limits: Some(v1::Limits {
                    max_body_bytes: 65_536,
                    max_frame_bytes: 73_728,
                    page_events: 100,
                    ping_interval_ms: 20_000,
                    idle_timeout_ms: 60_000,
                    max_unacked_sends: 16,
                }),
                uid: "alice".to_owned(),
            }),
        ),
        (
            "msg_ack",
            Server::MsgAck(v1::MsgAck {
                msg_id: msg_id(),
                action: v1::Action::Send as i32,
                conversation: "d:alice:bob".to_owned(),
                server_time: NOW,
                ..v1::MsgAck::default()
            }),
        ),
        (
            "msg_ack_minimal",
            Server::MsgAck(v1::MsgAck {
                msg_id: msg_id(),
                server_time: NOW,
                ..v1::MsgAck::default()
            }),
        ),
        (
            "msg_ack_out_of_order",
            Server::MsgAck(v1::MsgAck {
                msg_id: msg_id(),
                action: v1::Action::Send as i32,
                conversation: "d:alice:bob".to_owned(),
                code: v1::Code::LaneOutOfOrder as i32,
                server_time: NOW,
                retryable: true,
                expected_lane_seq: 4,
                ..v1::MsgAck::default()
            }),
        ),
        (
            "msg_ack_too_large",
            Server::MsgAck(v1::MsgAck {
                msg_id: msg_id(),
                op_id: op_id(),
                action: v1::Action::Edit as i32,
                code: v1::Code::PayloadTooLarge as i32,
                server_time: NOW,
                field: "body".to_owned(),
                reason: "the body has 65537 bytes; allowed are 65536".to_owned(),
                limit: 65_536,
                ..v1::MsgAck::default()
            }),
        ),
        (
            "push_message",
            Server::Push(push(BEYOND_JAVASCRIPT, Kind::Message(text_message()))),
        ),
        (
            "push_echo",
            Server::Push(push(
                2,
                Kind::Message(v1::Message {
                    body: Bytes::new(),
                    ..text_message()
                }),
            )),
        ),
        (
            "push_message_binary",
            Server::Push(push(
                3,
                Kind::Message(v1::Message {
                    content_type: "image".to_owned(),
                    body: Bytes::from_static(&[0xff, 0xd8, 0xff]),
                    ..text_message()
                }),
            )),
        ),
        (
            "push_rejection",
            Server::Push(push(
                4,
                Kind::Rejection(v1::Rejection {
                    conversation: "d:alice:bob".to_owned(),
                    msg_id: msg_id(),
                    op_id: Bytes::new(),
                    action: v1::Action::Send as i32,
                    content_hash: Bytes::from_static(&[0xab; 16]),
                    device: "phone".to_owned(),
                    reason: v1::RejectReason::IdConflict as i32,
                }),
            )),
        ),
        (
            "push_receipt",
            Server::Push(push(
                5,
                Kind::Receipt(v1::Receipt {
                    conversation: "d:alice:bob".to_owned(),
                    uid: "bob".to_owned(),
                    delivered: BEYOND_JAVASCRIPT,
                    read: 0,
                }),
            )),
        ),
        (
            "push_read_sync",
            Server::Push(push(
                6,
                Kind::ReadSync(v1::ReadSync {
                    conversation: "d:alice:bob".to_owned(),
                    read: BEYOND_JAVASCRIPT,
                }),
            )),
        ),
        (
            "sync_page",
            Server::SyncPage(v1::SyncPage {
                events: vec![
                    push(BEYOND_JAVASCRIPT, Kind::Message(text_message())),
                    push(
                        BEYOND_JAVASCRIPT + 1,
                        Kind::Receipt(v1::Receipt {
                            conversation: "d:alice:bob".to_owned(),
                            uid: "bob".to_owned(),
                            delivered: 0,
                            read: 9,
                        }),
                    ),
                ],
                has_more: true,
                end_of_backlog: false,
                head_seq: BEYOND_JAVASCRIPT + 300,
                next_user_seq: BEYOND_JAVASCRIPT + 1,
            }),
        ),
        (
            "sync_page_end",
            Server::SyncPage(v1::SyncPage {
                events: Vec::new(),
                has_more: false,
                end_of_backlog: true,
                head_seq: 7,
                next_user_seq: 7,
            }),
        ),
        (
            "head",
            Server::Head(v1::Head {
                head_seq: BEYOND_JAVASCRIPT,
            }),
        ),
        (
            "cursor_reset",
            Server::CursorReset(v1::CursorReset {
                epoch: BEYOND_JAVASCRIPT,
                head_seq: 12,
                floor_seq: 1,
            }),
        ),
        (
            "truncated",
            Server::Truncated(v1::Truncated {
                floor_seq: BEYOND_JAVASCRIPT,
                unread: 12,
            }),
        ),
        (
            "pong",
            Server::Pong(v1::Pong {
                head_seq: BEYOND_JAVASCRIPT,
                server_time: NOW + 3,
                client_time: NOW,
            }),
        ),
        (
            "history_page",
            Server::HistoryPage(v1::HistoryPage {
                request_id: 5,
                conversation: "d:alice:bob".to_owned(),
                messages: vec![text_message()],
                has_more: true,
                from_conv_seq: 1,
                to_conv_seq: BEYOND_JAVASCRIPT,
            }),
        ),
        (
            "error",
            Server::Error(v1::Error {
                code: v1::Code::RateLimited as i32,
                field: "cursor".to_owned(),
                reason: "too many sync rounds".to_owned(),
                limit: 3,
                request_id: 0,
                retry_after_ms: 2_000,
            }),
        ),
        (
            "closing",
            Server::Closing(v1::Closing {
                code: v1::Code::Replaced as i32,
                reason: "the same device logged in again".to_owned(),
                reconnect_after_ms: 0,
            }),
        ),
    ]
}
