//! Subprotocol `tidings.v1.proto`: one protobuf frame per binary message.
//!
//! Stored events and messages reach the socket as the bytes they were stored in: [`push`], [`sync_page`] and
//! [`history_page`] frame them through the wire twins of `wire.proto`, without decoding. The tests hold each twin to
//! its typed namesake byte for byte.

use bytes::Bytes;
use prost::Message as _;
use prost::encoding::decode_key;

use crate::frame_error::FrameError;
use crate::v1;

/// The WebSocket subprotocol of this encoding.
pub const SUBPROTOCOL: &str = "tidings.v1.proto";

/// Reads a device's frame. Fields are slices of `frame`, not copies.
pub fn decode_client(frame: Bytes) -> Result<v1::ClientFrame, FrameError> {
    let decoded = v1::ClientFrame::decode(frame.clone()).map_err(malformed)?;
    if decoded.frame.is_none() {
        return Err(unknown_type(&frame));
    }
    Ok(decoded)
}

/// Reads a gateway's frame, for clients.
pub fn decode_server(frame: Bytes) -> Result<v1::ServerFrame, FrameError> {
    let decoded = v1::ServerFrame::decode(frame.clone()).map_err(malformed)?;
    if decoded.frame.is_none() {
        return Err(unknown_type(&frame));
    }
    Ok(decoded)
}

/// Writes a gateway's frame.
#[must_use]
pub fn encode_server(frame: &v1::ServerFrame) -> Bytes {
    frame.encode_to_vec().into()
}

/// Writes a device's frame, for clients.
#[must_use]
pub fn encode_client(frame: &v1::ClientFrame) -> Bytes {
    frame.encode_to_vec().into()
}

/// A push frame around an encoded `Event`.
#[must_use]
pub fn push(user_seq: u64, event: &Bytes) -> Bytes {
    raw_frame(v1::raw_server_frame::Frame::Push(v1::RawPush {
        user_seq,
        event: event.clone(),
    }))
}

/// A page of a sync round around encoded `Event`s.
#[must_use]
pub fn sync_page(page: v1::RawSyncPage) -> Bytes {
    raw_frame(v1::raw_server_frame::Frame::SyncPage(page))
}

/// A page of history around encoded `Message`s.
#[must_use]
pub fn history_page(page: v1::RawHistoryPage) -> Bytes {
    raw_frame(v1::raw_server_frame::Frame::HistoryPage(page))
}

/// The page that a chunk of the inbox's answer becomes.
impl From<v1::SyncEvents> for v1::RawSyncPage {
    fn from(chunk: v1::SyncEvents) -> Self {
        Self {
            events: chunk
                .events
                .into_iter()
                .map(|stored| v1::RawPush {
                    user_seq: stored.user_seq,
                    event: stored.event,
                })
                .collect(),
            has_more: !chunk.end_of_backlog,
            end_of_backlog: chunk.end_of_backlog,
            head_seq: chunk.head_seq,
            next_user_seq: chunk.next_user_seq,
        }
    }
}

macro_rules! into_frame {
    ($frame:ident, $kind:path, $($variant:ident),* $(,)?) => {$(
        impl From<v1::$variant> for v1::$frame {
            fn from(inner: v1::$variant) -> Self {
                use $kind as Frame;
                Self { frame: Some(Frame::$variant(inner)) }
            }
        }
    )*};
}

into_frame!(
    ClientFrame,
    v1::client_frame::Frame,
    Connect,
    Ack,
    DeliveredAck,
    ReadAck,
    Read,
    Sync,
    Ping
);
into_frame!(
    ServerFrame,
    v1::server_frame::Frame,
    Connected,
    MsgAck,
    Push,
    SyncPage,
    Head,
    CursorReset,
    Truncated,
    Pong,
    HistoryPage,
    Error,
    Closing,
);

impl From<v1::UserAction> for v1::ClientFrame {
    fn from(action: v1::UserAction) -> Self {
        Self {
            frame: Some(v1::client_frame::Frame::Action(action)),
        }
    }
}

impl From<v1::HistoryRequest> for v1::ClientFrame {
    fn from(request: v1::HistoryRequest) -> Self {
        Self {
            frame: Some(v1::client_frame::Frame::History(request)),
        }
    }
}

fn raw_frame(frame: v1::raw_server_frame::Frame) -> Bytes {
    v1::RawServerFrame { frame: Some(frame) }.encode_to_vec().into()
}

// By value: the signature `map_err` wants.
#[expect(clippy::needless_pass_by_value)]
fn malformed(error: prost::DecodeError) -> FrameError {
    FrameError::Malformed(error.to_string())
}

/// Names a frame whose oneof is empty by its first field number.
fn unknown_type(frame: &Bytes) -> FrameError {
    let mut rest = frame.clone();
    FrameError::UnknownType(match decode_key(&mut rest) {
        Ok((number, _)) => format!("#{number}"),
        Err(_) => "(empty)".to_owned(),
    })
}
