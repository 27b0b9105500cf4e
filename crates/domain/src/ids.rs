//! Ids of users, devices and messages, checked where they enter.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::Millis;

/// Largest length of a uid or device id in bytes (architecture.md section 2).
pub const MAX_NAME_BYTES: usize = 64;

/// Why an id was refused. The text names the field's rule, so that it can be sent to the client as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The name is empty or too long.
    #[error("{field} has {length} bytes; allowed are 1 to {MAX_NAME_BYTES}")]
    Length {
        /// Which id.
        field: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// The name has a character outside the allowed set.
    #[error("{field} has a character outside [A-Za-z0-9_.@-] at byte {at}")]
    Character {
        /// Which id.
        field: &'static str,
        /// Byte offset of the first bad character.
        at: usize,
    },
    /// Not a UUID of version 7.
    #[error("{field} must be a UUID of version 7 (RFC 9562)")]
    NotUuidV7 {
        /// Which id.
        field: &'static str,
    },
    /// Not a conversation id.
    #[error("conversation must be d:<smaller uid>:<larger uid> or g:<UUIDv7>: {reason}")]
    Conversation {
        /// What is wrong with it.
        reason: String,
    },
}

fn check_name(field: &'static str, name: &str) -> Result<(), IdError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(IdError::Length {
            field,
            length: name.len(),
        });
    }
    match name
        .bytes()
        .position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'@' | b'-')))
    {
        Some(at) => Err(IdError::Character { field, at }),
        None => Ok(()),
    }
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $field:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and takes a name: 1-64 bytes of `[A-Za-z0-9_.@-]`, case-sensitive.
            pub fn parse(name: &str) -> Result<Self, IdError> {
                check_name($field, name)?;
                Ok(Self(Arc::from(name)))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), &self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(name: &str) -> Result<Self, IdError> {
                Self::parse(name)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(name: String) -> Result<Self, IdError> {
                Self::parse(&name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type!(
    /// A user: the subject of a valid token. There is no user registry.
    Uid,
    "uid"
);
name_type!(
    /// One device of a user, named by the device itself.
    DeviceId,
    "device_id"
);

macro_rules! uuid_type {
    ($(#[$doc:meta])* $name:ident, $field:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Checks that `uuid` is of version 7.
            pub fn from_uuid(uuid: Uuid) -> Result<Self, IdError> {
                if uuid.get_version_num() == 7 && uuid.get_variant() == uuid::Variant::RFC4122 {
                    Ok(Self(uuid))
                } else {
                    Err(IdError::NotUuidV7 { field: $field })
                }
            }

            /// Reads the 16 bytes of the wire form.
            pub fn from_slice(bytes: &[u8]) -> Result<Self, IdError> {
                Self::from_uuid(Uuid::from_slice(bytes).map_err(|_| IdError::NotUuidV7 { field: $field })?)
            }

            /// Reads the text form.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                Self::from_uuid(Uuid::parse_str(text).map_err(|_| IdError::NotUuidV7 { field: $field })?)
            }

            /// Mints an id for time `at` with 10 random bytes (RFC 9562 section 5.7).
            #[must_use]
            pub fn mint(at: Millis, random: [u8; 10]) -> Self {
                let millis = u64::try_from(at.0).unwrap_or(0);
                Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
            }

            /// The time inside the id (`id_ts` in sequencing.md), in milliseconds.
            #[must_use]
            pub fn time(&self) -> Millis {
                let b = self.0.as_bytes();
                Millis(i64::from_be_bytes([0, 0, b[0], b[1], b[2], b[3], b[4], b[5]]))
            }

            /// The 16 bytes of the wire form.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// The id as a UUID.
            #[must_use]
            pub fn uuid(&self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0.hyphenated(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0.hyphenated())
            }
        }
    };
}

uuid_type!(
    /// A message: minted by the client before the first send and kept on every resend (req:A1).
    MsgId,
    "msg_id"
);
uuid_type!(
    /// An edit or membership action of its own, so that a message can be edited more than once (req:A5).
    OpId,
    "op_id"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_of_the_allowed_set() {
        assert!(Uid::parse("a").is_ok());
        assert!(Uid::parse("Alice_1.b@example-x").is_ok());
        assert!(Uid::parse(&"x".repeat(64)).is_ok());
        assert_eq!(
            Uid::parse(""),
            Err(IdError::Length {
                field: "uid",
                length: 0
            })
        );
        assert_eq!(
            Uid::parse(&"x".repeat(65)),
            Err(IdError::Length {
                field: "uid",
                length: 65
            })
        );
        assert_eq!(
            DeviceId::parse("a:b"),
            Err(IdError::Character {
                field: "device_id",
                at: 1
            })
        );
        assert_eq!(Uid::parse("é"), Err(IdError::Character { field: "uid", at: 0 }));
    }

    #[test]
    fn only_version_7_is_a_message_id() {
        let v4 = Uuid::from_u128(0x1111_1111_1111_4111_8111_1111_1111_1111);
        assert_eq!(MsgId::from_uuid(v4), Err(IdError::NotUuidV7 { field: "msg_id" }));
        assert_eq!(MsgId::from_slice(&[0; 15]), Err(IdError::NotUuidV7 { field: "msg_id" }));
        let id = MsgId::mint(Millis(1_700_000_000_123), [7; 10]);
        assert_eq!(id.time(), Millis(1_700_000_000_123));
        assert_eq!(MsgId::parse(&id.to_string()), Ok(id));
    }
}
