//! Reading and writing JSON objects by field, with errors that name the field.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::codec::{Codec, With};
use crate::frame_error::FrameError;

/// What is wrong with a value, and where below the value at hand.
#[derive(Debug)]
pub(super) struct Wrong {
    path: String,
    reason: String,
}

impl Wrong {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            reason: reason.into(),
        }
    }

    pub(super) fn expected(what: &str, got: &Value) -> Self {
        let got = match got {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "text",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        Self::new(format!("expected {what}, got {got}"))
    }

    /// The same, seen from the object that has the value as field `name`.
    pub(super) fn within(self, name: &str) -> Self {
        let path = match self.path.as_bytes().first() {
            None => name.to_owned(),
            Some(b'[') => format!("{name}{}", self.path),
            Some(_) => format!("{name}.{}", self.path),
        };
        Self { path, ..self }
    }

    /// The same, seen from the list that has the value at `index`.
    pub(super) fn at(self, index: usize) -> Self {
        self.within(&format!("[{index}]"))
    }
}

impl From<Wrong> for FrameError {
    fn from(wrong: Wrong) -> Self {
        Self::Field {
            field: wrong.path,
            reason: wrong.reason,
        }
    }
}

/// The fields of an object, taken out one by one.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn new(map: Map<String, Value>) -> Self {
        Self(map)
    }

    /// Takes a field; null counts as missing.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Takes and reads a field.
    pub(super) fn read<C: Codec>(&mut self, name: &str) -> Result<C::Value, Wrong> {
        match self.take(name) {
            None => C::missing(),
            Some(value) => C::read(value),
        }
        .map_err(|wrong| wrong.within(name))
    }

    /// Takes the tag.
    pub(super) fn tag(&mut self) -> Result<String, Wrong> {
        match self.take(TAG) {
            None => Err(Wrong::new("missing").within(TAG)),
            Some(Value::String(name)) => Ok(name),
            Some(other) => Err(Wrong::expected("text", &other).within(TAG)),
        }
    }
}

/// The field that tells frames and events apart.
pub(super) const TAG: &str = "type";

/// A protobuf message as the fields of a JSON object.
pub(super) trait Object: Sized {
    fn read(fields: &mut Fields) -> Result<Self, Wrong>;
    fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error>;
}

/// A message that is one of several, told apart by the tag.
pub(super) trait Tagged: Sized {
    /// `None`: no such type.
    fn read(name: &str, fields: &mut Fields) -> Result<Option<Self>, Wrong>;
    /// Writes the tag and the fields.
    fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error>;
}

/// Serializes a tagged message.
pub(super) struct Json<'a, T>(pub(super) &'a T);

impl<T: Tagged> Serialize for Json<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.0.write(&mut map)?;
        map.end()
    }
}

/// Serializes the fields of an object.
pub(super) struct JsonFields<'a, T>(pub(super) &'a T);

impl<T: Object> Serialize for JsonFields<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.0.write(&mut map)?;
        map.end()
    }
}

/// Writes a field unless its codec leaves it out.
pub(super) fn write_field<C: Codec, M: SerializeMap>(
    value: &C::Value,
    name: &'static str,
    map: &mut M,
) -> Result<(), M::Error> {
    if C::absent(value) {
        return Ok(());
    }
    map.serialize_entry(name, &With::<C>(value))?;
    C::beside(value, map)
}
