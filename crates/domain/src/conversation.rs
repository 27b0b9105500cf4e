//! Conversation ids (architecture.md section 2).
//!
//! A 1:1 conversation is `d:<smaller uid>:<larger uid>` and exists from its first accepted record; both uids may be the
//! same. A group is `g:<UUIDv7>`, minted by the client so that a retried `create` is idempotent.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::{IdError, Uid};

/// A checked conversation id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Conversation(Arc<str>);

/// What kind of conversation an id names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConversationKind {
    /// 1:1: the two members, smaller uid first (equal for a conversation with oneself).
    Direct(Uid, Uid),
    /// A group with its id.
    Group(Uuid),
}

impl Conversation {
    /// The 1:1 conversation of two users, in either order.
    #[must_use]
    pub fn direct(a: &Uid, b: &Uid) -> Self {
        let (low, high) = if a <= b { (a, b) } else { (b, a) };
        Self(Arc::from(format!("d:{low}:{high}")))
    }

    /// Checks and takes an id in its text form.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        Self::kind_of(text)?;
        Ok(Self(Arc::from(text)))
    }

    fn kind_of(text: &str) -> Result<ConversationKind, IdError> {
        let malformed = |reason: &str| IdError::Conversation {
            reason: reason.to_owned(),
        };
        if let Some(rest) = text.strip_prefix("d:") {
            let (low, high) = rest
                .split_once(':')
                .ok_or_else(|| malformed("the second uid is missing"))?;
            let low = Uid::parse(low).map_err(|e| malformed(&e.to_string()))?;
            let high = Uid::parse(high).map_err(|e| malformed(&e.to_string()))?;
            if low > high {
                return Err(malformed("the uids must be in ascending order"));
            }
            Ok(ConversationKind::Direct(low, high))
        } else if let Some(rest) = text.strip_prefix("g:") {
            let uuid = Uuid::parse_str(rest).map_err(|_| malformed("the group id is not a UUID"))?;
            if uuid.get_version_num() != 7 {
                return Err(malformed("the group id is not a UUID of version 7"));
            }
            if uuid.hyphenated().to_string() != rest {
                return Err(malformed("the group id must be lower-case and hyphenated"));
            }
            Ok(ConversationKind::Group(uuid))
        } else {
            Err(malformed("it must begin with d: or g:"))
        }
    }

    /// The kind and what the id says about the members.
    #[must_use]
    pub fn kind(&self) -> ConversationKind {
        match Self::kind_of(&self.0) {
            Ok(kind) => kind,
            // The constructors are the only way to a value and both checked the text.
            Err(error) => unreachable!("a checked conversation id became malformed: {error}"),
        }
    }

    /// Whether `uid` is one of the two members of a 1:1; `None` for a group, whose members only the log knows.
    #[must_use]
    pub fn direct_member(&self, uid: &Uid) -> Option<bool> {
        match self.kind() {
            ConversationKind::Direct(low, high) => Some(*uid == low || *uid == high),
            ConversationKind::Group(_) => None,
        }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conversation({})", self.0)
    }
}

impl TryFrom<String> for Conversation {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        Self::parse(&text)
    }
}

impl From<Conversation> for String {
    fn from(conversation: Conversation) -> String {
        conversation.0.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(name: &str) -> Uid {
        Uid::parse(name).expect("valid")
    }

    #[test]
    fn both_orders_name_one_conversation() {
        let ab = Conversation::direct(&uid("bob"), &uid("alice"));
        assert_eq!(ab, Conversation::direct(&uid("alice"), &uid("bob")));
        assert_eq!(ab.as_str(), "d:alice:bob");
        assert_eq!(ab.kind(), ConversationKind::Direct(uid("alice"), uid("bob")));
        assert_eq!(Conversation::direct(&uid("a"), &uid("a")).as_str(), "d:a:a");
    }

    #[test]
    fn malformed_ids_are_refused() {
        for bad in [
            "",
            "x:a:b",
            "d:a",
            "d:b:a",
            "d:a:b:c",
            "d::b",
            "g:",
            "g:not",
            "g:11111111-1111-4111-8111-111111111111",
        ] {
            assert!(Conversation::parse(bad).is_err(), "{bad} must be refused");
        }
        assert!(Conversation::parse("g:01890a5d-ac96-774b-bcce-b302099a8057").is_ok());
        assert!(Conversation::parse("g:01890A5D-AC96-774B-BCCE-B302099A8057").is_err());
    }

    #[test]
    fn a_stranger_is_no_member() {
        let ab = Conversation::direct(&uid("alice"), &uid("bob"));
        assert_eq!(ab.direct_member(&uid("alice")), Some(true));
        assert_eq!(ab.direct_member(&uid("carol")), Some(false));
    }
}
