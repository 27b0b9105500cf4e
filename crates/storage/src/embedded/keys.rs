//! Keys of the embedded tables: byte strings that sort like their parts.
//!
//! Text is written with NUL as `00 FF` and ended by `00 01`, so that a shorter text sorts before a longer one that
//! begins with it and no part runs into the next. Numbers are big-endian. A part's range is all keys that begin with it.

use uuid::Uuid;

use crate::codec::Malformed;

const NUL: u8 = 0x00;
const ESCAPED: u8 = 0xFF;
const END: u8 = 0x01;

/// A key, built part by part.
#[derive(Debug, Clone, Default)]
pub(super) struct Key(Vec<u8>);

impl Key {
    pub(super) fn text(mut self, text: &str) -> Self {
        for byte in text.bytes() {
            self.0.push(byte);
            if byte == NUL {
                self.0.push(ESCAPED);
            }
        }
        self.0.extend([NUL, END]);
        self
    }

    pub(super) fn u8(mut self, number: u8) -> Self {
        self.0.push(number);
        self
    }

    pub(super) fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(super) fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(super) fn uuid(mut self, uuid: Uuid) -> Self {
        self.0.extend(uuid.as_bytes());
        self
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }

    /// The keys that begin with this one, as (first, first after).
    pub(super) fn range(self) -> (Vec<u8>, Vec<u8>) {
        let end = after_prefix(&self.0);
        (self.0, end)
    }

    /// The keys that begin with this one and have a number `from ..= to` next, as (first, first after).
    pub(super) fn number_range(self, from: u64, to: u64) -> (Vec<u8>, Vec<u8>) {
        let start = self.clone().u64(from).finish();
        let end = after_prefix(&self.u64(to).finish());
        (start, end)
    }
}

/// The smallest key that is larger than every key that begins with `prefix`.
fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Only a prefix of FF bytes has none; text ends with 01 and numbers of 63 bits begin below 80, so no key is as large.
    vec![u8::MAX; prefix.len() + 1]
}

/// Takes a key apart again.
#[derive(Debug)]
pub(super) struct KeyReader<'a>(&'a [u8]);

impl<'a> KeyReader<'a> {
    pub(super) fn new(key: &'a [u8]) -> Self {
        Self(key)
    }

    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        let mut text = Vec::new();
        loop {
            match *self.0 {
                [NUL, END, ref rest @ ..] => {
                    self.0 = rest;
                    return String::from_utf8(text).map_err(|_| Malformed::new("text in a key is not UTF-8"));
                }
                [NUL, ESCAPED, ref rest @ ..] => {
                    text.push(NUL);
                    self.0 = rest;
                }
                [NUL, ..] | [] => return Err(Malformed::new("text in a key has no end")),
                [byte, ref rest @ ..] => {
                    text.push(byte);
                    self.0 = rest;
                }
            }
        }
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        let (number, rest) = self
            .0
            .split_first_chunk()
            .ok_or_else(|| Malformed::new("number in a key is cut"))?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_sort_like_their_parts(a in (".*", any::<u64>()), b in (".*", any::<u64>())) {
            let key = |(text, number): &(String, u64)| Key::default().text(text).u64(*number).finish();
            prop_assert_eq!(key(&a).cmp(&key(&b)), a.cmp(&b));
        }

        #[test]
        fn parts_come_back(text in ".*", number: u64) {
            let key = Key::default().text(&text).u64(number).finish();
            let mut reader = KeyReader::new(&key);
            prop_assert_eq!(reader.text(), Ok(text));
            prop_assert_eq!(reader.u64(), Ok(number));
        }

        #[test]
        fn a_range_holds_its_keys_and_no_others(text in ".*", other in ".*", number: u64) {
            let (start, end) = Key::default().text(&text).range();
            let inside = Key::default().text(&text).u64(number).finish();
            prop_assert!(start <= inside && inside < end);
            let outside = Key::default().text(&other).u64(number).finish();
            prop_assert_eq!(start <= outside && outside < end, text == other);
        }
    }

    #[test]
    fn a_number_range_includes_both_ends() {
        let (start, end) = Key::default().text("u").number_range(4095, 4097);
        let key = |number| Key::default().text("u").u64(number).finish();
        assert!(key(4094) < start && start <= key(4095) && key(4097) < end && end <= key(4098));
        let (_, end) = Key::default().text("u").number_range(0, u64::MAX);
        assert!(key(u64::MAX) < end);
        assert!(end <= Key::default().text("v").finish());
    }

    #[test]
    fn a_cut_key_is_refused() {
        assert!(KeyReader::new(b"abc").text().is_err());
        assert!(KeyReader::new(&[0; 7]).u64().is_err());
    }
}
