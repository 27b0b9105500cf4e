//! Subprotocol `tidings.v1.json`: one JSON object per text message (architecture.md section 2, req:B6).
//!
//! Scheme: the tag `type` is the frame's name in `frame.proto`; fields have the same names. 64-bit numbers (sequences,
//! cursors, epochs, limits) are text, since JavaScript is exact only up to 2^53 (scenario B85); on input integers up
//! to 2^53 are taken too. Times are integers in milliseconds. Ids are hyphenated UUIDs, hashes lower-case hex. The body is
//! text if the content type is (`text`, `text/...`), base64 otherwise. `code` is the number of `tidings.v1.Code`, its
//! name stands beside it as `code_name`. Empty optional fields are left out; a missing or null field is the default;
//! unknown fields are ignored, so that either side may be newer.
//!
//! Guarantee: for every frame with well-formed ids, decoding what was encoded gives the same frame. The forms are
//! pinned by `tests/golden`.

mod body;
mod codec;
mod frames;
mod object;

use bytes::Bytes;
use prost::Message as _;
use serde_json::Value;

pub use body::is_text;

use crate::frame_error::FrameError;
use crate::v1;
use object::{Fields, Json, Tagged};

/// The WebSocket subprotocol of this encoding.
pub const SUBPROTOCOL: &str = "tidings.v1.json";

/// Reads a device's frame.
pub fn decode_client(text: &str) -> Result<v1::ClientFrame, FrameError> {
    decode(text)
}

/// Writes a gateway's frame.
#[must_use]
pub fn encode_server(frame: &v1::ServerFrame) -> String {
    encode(frame)
}

/// Reads a gateway's frame, for clients.
pub fn decode_server(text: &str) -> Result<v1::ServerFrame, FrameError> {
    decode(text)
}

/// Writes a device's frame, for clients.
#[must_use]
pub fn encode_client(frame: &v1::ClientFrame) -> String {
    encode(frame)
}

/// A push frame around an encoded `Event`.
pub fn push(user_seq: u64, event: &Bytes) -> Result<String, FrameError> {
    Ok(encode_server(&typed_push(user_seq, event)?.into()))
}

/// A page of a sync round around encoded `Event`s.
pub fn sync_page(page: &v1::RawSyncPage) -> Result<String, FrameError> {
    let events = page
        .events
        .iter()
        .map(|raw| typed_push(raw.user_seq, &raw.event))
        .collect::<Result<_, _>>()?;
    Ok(encode_server(
        &v1::SyncPage {
            events,
            has_more: page.has_more,
            end_of_backlog: page.end_of_backlog,
            head_seq: page.head_seq,
            next_user_seq: page.next_user_seq,
        }
        .into(),
    ))
}

/// A page of history around encoded `Message`s.
pub fn history_page(page: &v1::RawHistoryPage) -> Result<String, FrameError> {
    let messages = page
        .messages
        .iter()
        .map(|raw| v1::Message::decode(raw.clone()).map_err(|error| FrameError::Malformed(error.to_string())))
        .collect::<Result<_, _>>()?;
    Ok(encode_server(
        &v1::HistoryPage {
            request_id: page.request_id,
            conversation: page.conversation.clone(),
            messages,
            has_more: page.has_more,
            from_conv_seq: page.from_conv_seq,
            to_conv_seq: page.to_conv_seq,
        }
        .into(),
    ))
}

fn typed_push(user_seq: u64, event: &Bytes) -> Result<v1::Push, FrameError> {
    let event = v1::Event::decode(event.clone()).map_err(|error| FrameError::Malformed(error.to_string()))?;
    Ok(v1::Push {
        user_seq,
        event: Some(event),
    })
}

fn decode<F: Tagged>(text: &str) -> Result<F, FrameError> {
    let value: Value = serde_json::from_str(text).map_err(|error| FrameError::Malformed(error.to_string()))?;
    let Value::Object(map) = value else {
        return Err(FrameError::Malformed("a frame is a JSON object".to_owned()));
    };
    let mut fields = Fields::new(map);
    let name = fields.tag()?;
    F::read(&name, &mut fields)?.ok_or(FrameError::UnknownType(name))
}

fn encode<F: Tagged>(frame: &F) -> String {
    match serde_json::to_string(&Json(frame)) {
        Ok(text) => text,
        // The two ways to fail are a writer's error and a key that is not text; there is neither.
        Err(error) => unreachable!("a frame could not be written to memory: {error}"),
    }
}
