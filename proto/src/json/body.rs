//! Bodies: text where the content type is text, base64 otherwise.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::ser::SerializeMap;
use serde_json::Value;

use super::codec::Text;
use super::object::{Fields, Wrong};

const BODY: &str = "body";
/// Present with the value `base64` if the body is base64 although its content type is text: bytes that are not UTF-8.
const BODY_ENCODING: &str = "body_encoding";
const BASE64: &str = "base64";

/// Whether bodies of this content type are text: `text` and `text/...`.
#[must_use]
pub fn is_text(content_type: &str) -> bool {
    content_type == "text" || content_type.starts_with("text/")
}

/// Takes the body out of the fields of an object with this content type.
pub(super) fn read(fields: &mut Fields, content_type: &str) -> Result<Bytes, Wrong> {
    let encoding = fields.read::<Text>(BODY_ENCODING)?;
    let encoded = match encoding.as_str() {
        BASE64 => true,
        "" => !is_text(content_type),
        _ => return Err(Wrong::new("the only encoding is base64").within(BODY_ENCODING)),
    };
    let body = match fields.take(BODY) {
        None => return Ok(Bytes::new()),
        Some(Value::String(body)) => body,
        Some(other) => return Err(Wrong::expected("text", &other).within(BODY)),
    };
    if !encoded {
        return Ok(Bytes::from(body));
    }
    STANDARD
        .decode(body)
        .map(Bytes::from)
        .map_err(|error| Wrong::new(format!("not base64: {error}")).within(BODY))
}

/// Writes the body, unless empty.
pub(super) fn write<M: SerializeMap>(body: &Bytes, content_type: &str, map: &mut M) -> Result<(), M::Error> {
    if body.is_empty() {
        return Ok(());
    }
    if is_text(content_type) {
        if let Ok(text) = std::str::from_utf8(body) {
            return map.serialize_entry(BODY, text);
        }
        map.serialize_entry(BODY_ENCODING, BASE64)?;
    }
    map.serialize_entry(BODY, &STANDARD.encode(body))
}
