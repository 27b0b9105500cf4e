//! The stored form of a record.
//!
//! ```text
//! append_time i64 | version u8 | flags u8 | headers u16 | key length u32 | value length u32
//! | per header: name length u16, value length u32 | names and values of the headers | key | value
//! ```
//! Numbers are big-endian. The append time stands first, at a fixed place: the committer fills it in, and trimming
//! reads nothing else.

use bytes::{Buf, Bytes};

use crate::Error;

const VERSION: u8 = 1;
const HAS_KEY: u8 = 1;
const HAS_VALUE: u8 = 2;
const TIME_BYTES: usize = 8;

/// A record in its stored form, but for its append time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedRecord(Vec<u8>);

/// A record as read from the log. Key, value and headers share one allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its offset.
    pub offset: u64,
    /// When the committer took it, in milliseconds since the Unix epoch.
    pub append_time: i64,
    /// The key.
    pub key: Option<Bytes>,
    /// The value.
    pub value: Option<Bytes>,
    /// Names (UTF-8, checked) and values.
    pub headers: Vec<(Bytes, Bytes)>,
}

impl EncodedRecord {
    /// Encodes a record. Refused if a length does not fit: names 64 KiB, 65,535 headers, keys and values 4 GiB.
    pub fn new(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[(&str, &[u8])]) -> Result<Self, Error> {
        let key_bytes = key.unwrap_or_default();
        let value_bytes = value.unwrap_or_default();
        let header_bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
        let mut out = Vec::with_capacity(TIME_BYTES + 12 + header_bytes + key_bytes.len() + value_bytes.len());
        out.extend_from_slice(&[0; TIME_BYTES]);
        out.push(VERSION);
        out.push(if key.is_some() { HAS_KEY } else { 0 } | if value.is_some() { HAS_VALUE } else { 0 });
        out.extend_from_slice(&length16("headers", headers.len())?);
        out.extend_from_slice(&length32("key", key_bytes.len())?);
        out.extend_from_slice(&length32("value", value_bytes.len())?);
        for (name, value) in headers {
            out.extend_from_slice(&length16("header name", name.len())?);
            out.extend_from_slice(&length32("header value", value.len())?);
        }
        for (name, value) in headers {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(value);
        }
        out.extend_from_slice(key_bytes);
        out.extend_from_slice(value_bytes);
        Ok(Self(out))
    }

    /// Stored size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.len()
    }

    pub(super) fn stamped(mut self, append_time: i64) -> Vec<u8> {
        self.0[..TIME_BYTES].copy_from_slice(&append_time.to_be_bytes());
        self.0
    }
}

fn length16(what: &str, length: usize) -> Result<[u8; 2], Error> {
    u16::try_from(length)
        .map(u16::to_be_bytes)
        .map_err(|_| too_long(what, length))
}

fn length32(what: &str, length: usize) -> Result<[u8; 4], Error> {
    u32::try_from(length)
        .map(u32::to_be_bytes)
        .map_err(|_| too_long(what, length))
}

fn too_long(what: &str, length: usize) -> Error {
    Error::Refused {
        operation: "encode record",
        reason: format!("{what}: a length of {length} cannot be stored"),
    }
}

/// The append time of a stored record.
pub(super) fn append_time(stored: &[u8]) -> Result<i64, String> {
    let time = stored.get(..TIME_BYTES).ok_or("record without append time")?;
    Ok(i64::from_be_bytes(
        time.try_into().map_err(|_| "record without append time")?,
    ))
}

/// Decodes a stored record; the error says what does not fit.
pub(super) fn decode(offset: u64, mut stored: Bytes) -> Result<Record, String> {
    let append_time = append_time(&stored)?;
    stored.advance(TIME_BYTES);
    let version = stored.try_get_u8().map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("record of unknown version {version}"));
    }
    let mut head = || -> Result<(u8, u16, usize, usize), bytes::TryGetError> {
        Ok((
            stored.try_get_u8()?,
            stored.try_get_u16()?,
            stored.try_get_u32()? as usize,
            stored.try_get_u32()? as usize,
        ))
    };
    let (flags, header_count, key_length, value_length) = head().map_err(|error| error.to_string())?;
    let mut lengths = Vec::with_capacity(usize::from(header_count));
    for _ in 0..header_count {
        let name = stored.try_get_u16().map_err(|error| error.to_string())?;
        let value = stored.try_get_u32().map_err(|error| error.to_string())?;
        lengths.push((usize::from(name), value as usize));
    }
    let mut headers = Vec::with_capacity(lengths.len());
    for (name, value) in lengths {
        let name = take(&mut stored, name)?;
        std::str::from_utf8(&name).map_err(|error| format!("header name: {error}"))?;
        headers.push((name, take(&mut stored, value)?));
    }
    let key = take(&mut stored, key_length)?;
    let value = take(&mut stored, value_length)?;
    if !stored.is_empty() {
        return Err(format!("{} bytes after the record", stored.len()));
    }
    Ok(Record {
        offset,
        append_time,
        key: (flags & HAS_KEY != 0).then_some(key),
        value: (flags & HAS_VALUE != 0).then_some(value),
        headers,
    })
}

fn take(stored: &mut Bytes, length: usize) -> Result<Bytes, String> {
    if stored.len() < length {
        return Err(format!("{length} bytes expected, {} there", stored.len()));
    }
    Ok(stored.split_to(length))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Parts = (Option<Vec<u8>>, Option<Vec<u8>>, Vec<(String, Vec<u8>)>);

    fn parts() -> impl Strategy<Value = Parts> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
        (
            proptest::option::of(bytes()),
            proptest::option::of(bytes()),
            proptest::collection::vec((".{0,8}", bytes()), 0..4),
        )
    }

    fn encode((key, value, headers): &Parts) -> EncodedRecord {
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(n, v)| (n.as_str(), v.as_slice())).collect();
        EncodedRecord::new(key.as_deref(), value.as_deref(), &headers).expect("encodes")
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(parts in parts(), time: i64, offset: u64) {
            let stored = Bytes::from(encode(&parts).stamped(time));
            prop_assert_eq!(append_time(&stored), Ok(time));
            let record = decode(offset, stored).expect("decodes");
            let (key, value, headers) = parts;
            prop_assert_eq!(record, Record {
                offset,
                append_time: time,
                key: key.map(Bytes::from),
                value: value.map(Bytes::from),
                headers: headers.into_iter().map(|(n, v)| (Bytes::from(n), Bytes::from(v))).collect(),
            });
        }

        #[test]
        fn a_cut_record_is_refused(parts in parts(), cut: proptest::sample::Index) {
            let stored = encode(&parts).stamped(1);
            let cut = cut.index(stored.len());
            prop_assert!(decode(0, Bytes::from(stored[..cut].to_vec())).is_err());
        }
    }
}
