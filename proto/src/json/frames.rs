//! The table of frames: every field with its codec, in the order in which it is written.

use serde::ser::SerializeMap;

use super::body;
use super::codec::{
    ActionName, CodeNumber, Count, Flag, Hex, Id, List, Nested, NestedTagged, Opt, ReasonName, Seq, Text, Time,
};
use super::object::{Fields, Object, TAG, Tagged, Wrong, write_field};
use crate::v1;

macro_rules! objects {
    ($($name:ident { $($field:ident: $codec:ty),* $(,)? })*) => {$(
        impl Object for v1::$name {
            fn read(fields: &mut Fields) -> Result<Self, Wrong> {
                Ok(Self { $($field: fields.read::<$codec>(stringify!($field))?),* })
            }
            fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                $(write_field::<$codec, M>(&self.$field, stringify!($field), map)?;)*
                Ok(())
            }
        }
    )*};
}

/// Objects with a body, whose form depends on the content type.
macro_rules! objects_with_body {
    ($($name:ident { $($field:ident: $codec:ty),* $(,)? })*) => {$(
        impl Object for v1::$name {
            fn read(fields: &mut Fields) -> Result<Self, Wrong> {
                let mut object = Self {
                    $($field: fields.read::<$codec>(stringify!($field))?,)*
                    body: bytes::Bytes::new(),
                };
                object.body = body::read(fields, &object.content_type)?;
                Ok(object)
            }
            fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                $(write_field::<$codec, M>(&self.$field, stringify!($field), map)?;)*
                body::write(&self.body, &self.content_type, map)
            }
        }
    )*};
}

macro_rules! tagged {
    ($name:ident . $oneof:ident: $kind:path { $($tag:literal => $variant:ident($object:ident)),* $(,)? }) => {
        impl Tagged for v1::$name {
            fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, Wrong> {
                use $kind as Kind;
                let kind = match name {
                    $($tag => Kind::$variant(<v1::$object as Object>::read(fields)?),)*
                    _ => return Ok(None),
                };
                Ok(Some(Self { $oneof: Some(kind) }))
            }
            fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                use $kind as Kind;
                match &self.$oneof {
                    $(Some(Kind::$variant(object)) => {
                        map.serialize_entry(TAG, $tag)?;
                        object.write(map)
                    })*
                    // Something of a newer version that came this far as protobuf.
                    None => map.serialize_entry(TAG, "unknown"),
                }
            }
        }
    };
}

tagged!(ClientFrame.frame: v1::client_frame::Frame {
    "connect" => Connect(Connect),
    "action" => Action(UserAction),
    "ack" => Ack(Ack),
    "delivered_ack" => DeliveredAck(DeliveredAck),
    "read_ack" => ReadAck(ReadAck),
    "read" => Read(Read),
    "sync" => Sync(Sync),
    "history" => History(HistoryRequest),
    "ping" => Ping(Ping),
});

tagged!(ServerFrame.frame: v1::server_frame::Frame {
    "connected" => Connected(Connected),
    "msg_ack" => MsgAck(MsgAck),
    "push" => Push(Push),
    "sync_page" => SyncPage(SyncPage),
    "head" => Head(Head),
    "cursor_reset" => CursorReset(CursorReset),
    "truncated" => Truncated(Truncated),
    "pong" => Pong(Pong),
    "history_page" => HistoryPage(HistoryPage),
    "error" => Error(Error),
    "closing" => Closing(Closing),
});

tagged!(Event.kind: v1::event::Kind {
    "message" => Message(Message),
    "rejection" => Rejection(Rejection),
    "receipt" => Receipt(Receipt),
    "read_sync" => ReadSync(ReadSync),
});

objects! {
    Cursor { epoch: Seq, user_seq: Seq }
    Target { sender: Text, msg_id: Id, conv_seq: Opt<Seq> }

    Connect {
        token: Opt<Text>,
        device_id: Text,
        fresh: Flag,
        cursor: Nested<v1::Cursor>,
        client: Opt<Text>,
    }
    Ack { epoch: Seq, delivered: Seq, stored: Seq, convs: List<v1::AckConv> }
    AckConv { conversation: Text, conv_seq: Seq }
    DeliveredAck { msg_id: Id, client_time: Time }
    ReadAck { msg_id: Id, read_time: Time }
    Read { conversation: Text, conv_seq: Seq }
    Sync { cursor: Nested<v1::Cursor> }
    HistoryRequest {
        request_id: Seq,
        conversation: Text,
        from_conv_seq: Seq,
        to_conv_seq: Seq,
        limit: Opt<Count>,
    }
    Ping { client_time: Time }

    Connected {
        uid: Text,
        epoch: Seq,
        cursor: Seq,
        head_seq: Seq,
        server_time: Time,
        limits: Nested<v1::Limits>,
    }
    Limits {
        max_body_bytes: Count,
        max_frame_bytes: Count,
        page_events: Count,
        ping_interval_ms: Count,
        idle_timeout_ms: Count,
        max_unacked_sends: Count,
    }
    MsgAck {
        msg_id: Id,
        code: CodeNumber,
        server_time: Time,
        conversation: Opt<Text>,
        action: ActionName,
        op_id: Id,
        retryable: Opt<Flag>,
        expected_lane_seq: Opt<Seq>,
        field: Opt<Text>,
        reason: Opt<Text>,
        limit: Opt<Seq>,
        retry_after_ms: Opt<Count>,
    }
    Push { user_seq: Seq, event: NestedTagged<v1::Event> }
    SyncPage {
        events: List<v1::Push>,
        has_more: Flag,
        end_of_backlog: Flag,
        head_seq: Seq,
        next_user_seq: Seq,
    }
    Head { head_seq: Seq }
    CursorReset { epoch: Seq, head_seq: Seq, floor_seq: Seq }
    Truncated { floor_seq: Seq, unread: Seq }
    Pong { head_seq: Seq, server_time: Time, client_time: Time }
    HistoryPage {
        request_id: Seq,
        conversation: Text,
        messages: List<v1::Message>,
        has_more: Flag,
        from_conv_seq: Seq,
        to_conv_seq: Seq,
    }
    Error {
        code: CodeNumber,
        field: Opt<Text>,
        reason: Opt<Text>,
        limit: Opt<Seq>,
        request_id: Opt<Seq>,
        retry_after_ms: Opt<Count>,
    }
    Closing { code: CodeNumber, reason: Opt<Text>, reconnect_after_ms: Opt<Count> }

    Rejection {
        conversation: Text,
        msg_id: Id,
        op_id: Id,
        action: ActionName,
        content_hash: Hex,
        device: Text,
        reason: ReasonName,
    }
    Receipt { conversation: Text, uid: Text, delivered: Opt<Seq>, read: Opt<Seq> }
    ReadSync { conversation: Text, read: Seq }
}

objects_with_body! {
    // `first_send_time` and `retry_count` are always written: a resend carries them (req:A3, req:B6).
    UserAction {
        action: ActionName,
        lane_seq: Seq,
        conversation: Opt<Text>,
        to_uid: Opt<Text>,
        msg_id: Id,
        op_id: Id,
        target: Nested<v1::Target>,
        member: Opt<Text>,
        client_time: Time,
        first_send_time: Time,
        retry_count: Count,
        content_type: Opt<Text>,
    }
    Message {
        conversation: Text,
        conv_seq: Seq,
        countable_seq: Seq,
        sender: Text,
        device: Text,
        msg_id: Id,
        op_id: Id,
        action: ActionName,
        target: Nested<v1::Target>,
        member: Opt<Text>,
        append_time: Time,
        first_send_time: Time,
        content_hash: Hex,
        content_type: Opt<Text>,
    }
}
