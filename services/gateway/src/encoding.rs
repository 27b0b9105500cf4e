//! The two subprotocols of `/v1/connect`: protobuf in binary messages, JSON in text messages.

use axum::extract::ws::Message;
use bytes::Bytes;
use tidings_proto::{FrameError, json, v1, validate, wire};

/// How a connection writes its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// `tidings.v1.proto`; also if the client offered no subprotocol.
    Proto,
    /// `tidings.v1.json`
    Json,
}

impl Encoding {
    /// The subprotocols in the order of preference.
    pub const SUBPROTOCOLS: [&'static str; 2] = [wire::SUBPROTOCOL, json::SUBPROTOCOL];

    /// The encoding of a negotiated subprotocol.
    #[must_use]
    pub fn of(subprotocol: Option<&http::HeaderValue>) -> Self {
        if subprotocol.is_some_and(|name| name == json::SUBPROTOCOL) {
            Self::Json
        } else {
            Self::Proto
        }
    }

    /// Largest frame in bytes.
    #[must_use]
    pub fn max_frame_bytes(self, limits: &validate::Limits) -> usize {
        match self {
            Self::Proto => limits.max_frame_bytes(),
            Self::Json => limits.max_json_frame_bytes(),
        }
    }

    /// Reads a device's frame; `None` for messages that carry none (ping, pong, close).
    pub fn decode(self, message: &Message) -> Option<Result<v1::ClientFrame, FrameError>> {
        match (self, message) {
            (Self::Proto, Message::Binary(bytes)) => Some(wire::decode_client(bytes.clone())),
            (Self::Json, Message::Text(text)) => Some(json::decode_client(text)),
            (Self::Proto, Message::Text(_)) => Some(Err(FrameError::Malformed(format!(
                "{} uses binary messages",
                wire::SUBPROTOCOL
            )))),
            (Self::Json, Message::Binary(_)) => Some(Err(FrameError::Malformed(format!(
                "{} uses text messages",
                json::SUBPROTOCOL
            )))),
            (Self::Proto | Self::Json, Message::Ping(_) | Message::Pong(_) | Message::Close(_)) => None,
        }
    }

    /// Writes a frame.
    #[must_use]
    pub fn frame(self, frame: &v1::ServerFrame) -> Message {
        match self {
            Self::Proto => Message::Binary(wire::encode_server(frame)),
            Self::Json => Message::Text(json::encode_server(frame).into()),
        }
    }

    /// Writes a push around an encoded event.
    ///
    /// # Errors
    /// JSON only: the event cannot be decoded.
    pub fn push(self, user_seq: u64, event: &Bytes) -> Result<Message, FrameError> {
        Ok(match self {
            Self::Proto => Message::Binary(wire::push(user_seq, event)),
            Self::Json => Message::Text(json::push(user_seq, event)?.into()),
        })
    }

    /// Writes a page of a sync round around encoded events.
    ///
    /// # Errors
    /// JSON only: an event cannot be decoded.
    pub fn sync_page(self, page: v1::RawSyncPage) -> Result<Message, FrameError> {
        Ok(match self {
            Self::Proto => Message::Binary(wire::sync_page(page)),
            Self::Json => Message::Text(json::sync_page(&page)?.into()),
        })
    }

    /// Writes a page of history around encoded messages.
    ///
    /// # Errors
    /// JSON only: a message cannot be decoded.
    pub fn history_page(self, page: v1::RawHistoryPage) -> Result<Message, FrameError> {
        Ok(match self {
            Self::Proto => Message::Binary(wire::history_page(page)),
            Self::Json => Message::Text(json::history_page(&page)?.into()),
        })
    }
}

/// Bytes of a message on the socket, without framing.
#[must_use]
pub fn size(message: &Message) -> usize {
    match message {
        Message::Text(text) => text.len(),
        Message::Binary(bytes) | Message::Ping(bytes) | Message::Pong(bytes) => bytes.len(),
        Message::Close(_) => 0,
    }
}
