//! How one field looks in JSON.

use std::marker::PhantomData;

use bytes::Bytes;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::Value;
use uuid::Uuid;

use super::object::{Fields, Json, JsonFields, Object, Tagged, Wrong};
use crate::v1;

/// Integers above this are not exact in JavaScript and must come as text.
const MAX_EXACT_INTEGER: u64 = 1 << 53;

/// The JSON form of one kind of field.
pub(super) trait Codec {
    type Value;
    fn read(value: Value) -> Result<Self::Value, Wrong>;
    /// The value of a field that is not there.
    fn missing() -> Result<Self::Value, Wrong>;
    /// Whether the field is left out.
    fn absent(_value: &Self::Value) -> bool {
        false
    }
    fn serialize<S: Serializer>(value: &Self::Value, serializer: S) -> Result<S::Ok, S::Error>;
    /// Writes further fields that follow from the value.
    fn beside<M: SerializeMap>(_value: &Self::Value, _map: &mut M) -> Result<(), M::Error> {
        Ok(())
    }
}

/// A value with the codec that serializes it.
pub(super) struct With<'a, C: Codec>(pub(super) &'a C::Value);

impl<C: Codec> Serialize for With<'_, C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        C::serialize(self.0, serializer)
    }
}

/// Left out if it has the default value.
pub(super) struct Opt<C>(PhantomData<C>);

impl<C: Codec<Value: Default + PartialEq>> Codec for Opt<C> {
    type Value = C::Value;
    fn read(value: Value) -> Result<Self::Value, Wrong> {
        C::read(value)
    }
    fn missing() -> Result<Self::Value, Wrong> {
        C::missing()
    }
    fn absent(value: &Self::Value) -> bool {
        *value == Self::Value::default()
    }
    fn serialize<S: Serializer>(value: &Self::Value, serializer: S) -> Result<S::Ok, S::Error> {
        C::serialize(value, serializer)
    }
    fn beside<M: SerializeMap>(value: &Self::Value, map: &mut M) -> Result<(), M::Error> {
        C::beside(value, map)
    }
}

/// A 64-bit number: text.
pub(super) struct Seq;

impl Codec for Seq {
    type Value = u64;
    fn read(value: Value) -> Result<u64, Wrong> {
        match &value {
            Value::String(text) => {
                // `u64::from_str` takes a leading plus sign, which no encoder writes.
                if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(Wrong::new("expected a number from 0 in decimal digits"));
                }
                text.parse()
                    .map_err(|_| Wrong::new("the number does not fit into 64 bits"))
            }
            Value::Number(number) => match number.as_u64() {
                Some(n) if n <= MAX_EXACT_INTEGER => Ok(n),
                Some(_) => Err(Wrong::new("numbers above 2^53 must be sent as text")),
                None => Err(Wrong::new("expected a whole number from 0")),
            },
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
                Err(Wrong::expected("a number as text", &value))
            }
        }
    }
    fn missing() -> Result<u64, Wrong> {
        Ok(0)
    }
    fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }
}

/// Milliseconds since the Unix epoch: an integer.
pub(super) struct Time;

impl Codec for Time {
    type Value = i64;
    fn read(value: Value) -> Result<i64, Wrong> {
        value
            .as_i64()
            .ok_or_else(|| Wrong::expected("whole milliseconds", &value))
    }
    fn missing() -> Result<i64, Wrong> {
        Ok(0)
    }
    fn serialize<S: Serializer>(value: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(*value)
    }
}

/// A 32-bit number: an integer.
pub(super) struct Count;

impl Codec for Count {
    type Value = u32;
    fn read(value: Value) -> Result<u32, Wrong> {
        value
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| Wrong::expected("a whole number from 0 to 2^32-1", &value))
    }
    fn missing() -> Result<u32, Wrong> {
        Ok(0)
    }
    fn serialize<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(*value)
    }
}

/// True or false.
pub(super) struct Flag;

impl Codec for Flag {
    type Value = bool;
    fn read(value: Value) -> Result<bool, Wrong> {
        value.as_bool().ok_or_else(|| Wrong::expected("true or false", &value))
    }
    fn missing() -> Result<bool, Wrong> {
        Ok(false)
    }
    fn serialize<S: Serializer>(value: &bool, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(*value)
    }
}

/// Text.
pub(super) struct Text;

impl Codec for Text {
    type Value = String;
    fn read(value: Value) -> Result<String, Wrong> {
        match value {
            Value::String(text) => Ok(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                Err(Wrong::expected("text", &value))
            }
        }
    }
    fn missing() -> Result<String, Wrong> {
        Ok(String::new())
    }
    fn serialize<S: Serializer>(value: &String, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(value)
    }
}

/// A UUID of 16 bytes: hyphenated text. Empty: left out.
pub(super) struct Id;

impl Codec for Id {
    type Value = Bytes;
    fn read(value: Value) -> Result<Bytes, Wrong> {
        let text = Text::read(value)?;
        if text.is_empty() {
            return Ok(Bytes::new());
        }
        let uuid = Uuid::try_parse(&text).map_err(|_| Wrong::new("expected a UUID of version 7 as text"))?;
        Ok(Bytes::copy_from_slice(uuid.as_bytes()))
    }
    fn missing() -> Result<Bytes, Wrong> {
        Ok(Bytes::new())
    }
    fn absent(value: &Bytes) -> bool {
        value.is_empty()
    }
    fn serialize<S: Serializer>(value: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        match Uuid::from_slice(value) {
            Ok(uuid) => serializer.collect_str(&uuid.hyphenated()),
            // Never taken for an id by a reader, and the text still tells what it was.
            Err(_) => serializer.serialize_str(&format!("not-a-uuid:{}", hex(value))),
        }
    }
}

/// Opaque bytes: lower-case hex. Empty: left out.
pub(super) struct Hex;

impl Codec for Hex {
    type Value = Bytes;
    fn read(value: Value) -> Result<Bytes, Wrong> {
        let text = Text::read(value)?;
        unhex(&text).ok_or_else(|| Wrong::new("expected pairs of hexadecimal digits"))
    }
    fn missing() -> Result<Bytes, Wrong> {
        Ok(Bytes::new())
    }
    fn absent(value: &Bytes) -> bool {
        value.is_empty()
    }
    fn serialize<S: Serializer>(value: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(value))
    }
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect()
}

fn unhex(text: &str) -> Option<Bytes> {
    let nibble = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?))
        .collect::<Option<Vec<u8>>>()
        .map(Bytes::from)
}

/// What a user did, by its name in lower case. Unspecified: left out.
pub(super) struct ActionName;

impl Codec for ActionName {
    type Value = i32;
    fn read(value: Value) -> Result<i32, Wrong> {
        named(&value, |name| {
            if name.bytes().any(|b| b.is_ascii_uppercase()) {
                return None;
            }
            v1::Action::from_str_name(&format!("ACTION_{}", name.to_ascii_uppercase())).map(|action| action as i32)
        })
    }
    fn missing() -> Result<i32, Wrong> {
        Ok(0)
    }
    fn absent(value: &i32) -> bool {
        *value == 0
    }
    fn serialize<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        match v1::Action::try_from(*value) {
            Ok(action) => serializer.serialize_str(&stripped(action.as_str_name(), "ACTION_").to_ascii_lowercase()),
            Err(_) => serializer.serialize_i32(*value),
        }
    }
}

/// Why the log refused, by its name. Unspecified: left out.
pub(super) struct ReasonName;

impl Codec for ReasonName {
    type Value = i32;
    fn read(value: Value) -> Result<i32, Wrong> {
        named(&value, |name| {
            v1::RejectReason::from_str_name(&format!("REJECT_REASON_{name}")).map(|reason| reason as i32)
        })
    }
    fn missing() -> Result<i32, Wrong> {
        Ok(0)
    }
    fn absent(value: &i32) -> bool {
        *value == 0
    }
    fn serialize<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        match v1::RejectReason::try_from(*value) {
            Ok(reason) => serializer.serialize_str(stripped(reason.as_str_name(), "REJECT_REASON_")),
            Err(_) => serializer.serialize_i32(*value),
        }
    }
}

/// A result code: its number, with the name beside it as `code_name` (req:B6). Never assumed: missing is an error.
pub(super) struct CodeNumber;

impl Codec for CodeNumber {
    type Value = i32;
    fn read(value: Value) -> Result<i32, Wrong> {
        integer(&value)
    }
    fn missing() -> Result<i32, Wrong> {
        Err(Wrong::new("missing"))
    }
    fn serialize<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i32(*value)
    }
    fn beside<M: SerializeMap>(value: &i32, map: &mut M) -> Result<(), M::Error> {
        match v1::Code::try_from(*value) {
            Ok(code) => map.serialize_entry("code_name", stripped(code.as_str_name(), "CODE_")),
            // A code of a newer version: the number says it.
            Err(_) => Ok(()),
        }
    }
}

fn stripped<'a>(name: &'a str, prefix: &str) -> &'a str {
    name.strip_prefix(prefix).unwrap_or(name)
}

/// A name, or the number of a name that this version does not know.
fn named(value: &Value, number_of: impl Fn(&str) -> Option<i32>) -> Result<i32, Wrong> {
    match value {
        Value::String(name) => number_of(name).ok_or_else(|| Wrong::new(format!("unknown name {name:?}"))),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => integer(value),
    }
}

fn integer(value: &Value) -> Result<i32, Wrong> {
    value
        .as_i64()
        .and_then(|n| i32::try_from(n).ok())
        .ok_or_else(|| Wrong::expected("a whole number", value))
}

fn fields_of(value: Value) -> Result<Fields, Wrong> {
    match value {
        Value::Object(map) => Ok(Fields::new(map)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(Wrong::expected("an object", &value))
        }
    }
}

/// An object. `None`: left out.
pub(super) struct Nested<T>(PhantomData<T>);

impl<T: Object> Codec for Nested<T> {
    type Value = Option<T>;
    fn read(value: Value) -> Result<Option<T>, Wrong> {
        T::read(&mut fields_of(value)?).map(Some)
    }
    fn missing() -> Result<Option<T>, Wrong> {
        Ok(None)
    }
    fn absent(value: &Option<T>) -> bool {
        value.is_none()
    }
    fn serialize<S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(object) => JsonFields(object).serialize(serializer),
            None => serializer.serialize_none(),
        }
    }
}

/// A list of objects.
pub(super) struct List<T>(PhantomData<T>);

impl<T: Object> Codec for List<T> {
    type Value = Vec<T>;
    fn read(value: Value) -> Result<Vec<T>, Wrong> {
        match value {
            Value::Array(items) => items
                .into_iter()
                .enumerate()
                .map(|(index, item)| {
                    fields_of(item)
                        .and_then(|mut fields| T::read(&mut fields))
                        .map_err(|wrong| wrong.at(index))
                })
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                Err(Wrong::expected("a list", &value))
            }
        }
    }
    fn missing() -> Result<Vec<T>, Wrong> {
        Ok(Vec::new())
    }
    fn serialize<S: Serializer>(value: &Vec<T>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(value.len()))?;
        for item in value {
            list.serialize_element(&JsonFields(item))?;
        }
        list.end()
    }
}

/// A tagged object: an event.
pub(super) struct NestedTagged<T>(PhantomData<T>);

impl<T: Tagged + Default> Codec for NestedTagged<T> {
    type Value = Option<T>;
    fn read(value: Value) -> Result<Option<T>, Wrong> {
        let mut fields = fields_of(value)?;
        let name = fields.tag()?;
        // An event of a newer version is an event of no known kind, as in protobuf: it still has its place in the
        // stream.
        Ok(Some(T::read(&name, &mut fields)?.unwrap_or_default()))
    }
    fn missing() -> Result<Option<T>, Wrong> {
        Ok(None)
    }
    fn absent(value: &Option<T>) -> bool {
        value.is_none()
    }
    fn serialize<S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(tagged) => Json(tagged).serialize(serializer),
            None => serializer.serialize_none(),
        }
    }
}
