//! Keeping secrets out of everything that is printed.

use std::fmt;

use serde::Deserialize;
use toml::{Table, Value};

/// What stands in place of a secret.
pub(super) const HIDDEN: &str = "***";

/// Key endings (and whole names) whose values are secret.
const SECRET_NAMES: [&str; 3] = ["secret", "password", "token"];

/// A configured secret: `Debug` and `Display` show `***`.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The secret itself; `None` if it is not set (empty).
    pub fn expose(&self) -> Option<&str> {
        (!self.0.is_empty()).then_some(self.0.as_str())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "unset" } else { HIDDEN })
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Whether the last part of a key path names a secret.
pub(super) fn is_secret(key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or(key);
    SECRET_NAMES.iter().any(|secret| {
        name.strip_suffix(secret)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('_'))
    })
}

/// The text with the user information of a URL (`scheme://user:password@host`) hidden; other text as it is.
pub fn redact_url(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // A password may itself hold `@` or `/`, so what matters is the last `@` of the authority, or of all the rest if a
    // `/` in the password would cut it short.
    let at = rest[..authority_end].rfind('@').or_else(|| rest.rfind('@'));
    match at {
        Some(at) => format!("{scheme}://{HIDDEN}@{}", &rest[at + 1..]),
        None => text.to_owned(),
    }
}

/// A copy of the table with secret values and user information hidden. Empty values stay, they say "not set".
pub(super) fn redacted(table: &Table) -> Table {
    table
        .iter()
        .map(|(key, value)| (key.clone(), redacted_value(key, value)))
        .collect()
}

fn redacted_value(key: &str, value: &Value) -> Value {
    match value {
        Value::Table(table) => Value::Table(redacted(table)),
        Value::Array(items) => Value::Array(items.iter().map(|item| redacted_value(key, item)).collect()),
        Value::String(text) if text.is_empty() => value.clone(),
        _ if is_secret(key) => Value::String(HIDDEN.to_owned()),
        Value::String(text) => Value::String(redact_url(text)),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => value.clone(),
    }
}
