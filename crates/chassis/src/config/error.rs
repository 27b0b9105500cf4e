//! What can be wrong with a configuration.

use std::fmt;
use std::path::PathBuf;

use tidings_resilience::{Classify, ErrorClass};

/// The layer a problem was found in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The embedded defaults: a defect of the program.
    Defaults,
    /// The file given with `--config`.
    File(PathBuf),
    /// An environment variable, by its name.
    Env(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Defaults => f.write_str("built-in defaults"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Env(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// One fault. Messages carry no values of secret keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("{origin}: cannot be read: {cause}")]
    Unreadable {
        /// The file.
        origin: Origin,
        /// What the system answered.
        cause: String,
    },
    /// Not TOML.
    #[error("{origin}: line {line}: {message}")]
    Syntax {
        /// The layer.
        origin: Origin,
        /// Line, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// A key that no default declares.
    #[error("{origin}: unknown key `{key}`{}", nearest_hint(.nearest.as_deref()))]
    UnknownKey {
        /// The layer.
        origin: Origin,
        /// Full path.
        key: String,
        /// The valid key that looks most like it.
        nearest: Option<String>,
    },
    /// A key of an earlier version.
    #[error("{origin}: key `{key}` was removed: {instead}")]
    RemovedKey {
        /// The layer.
        origin: Origin,
        /// Full path.
        key: String,
        /// What replaced it.
        instead: String,
    },
    /// Another type than the default's.
    #[error("{origin}: key `{key}` must be {wanted}, got {got}")]
    WrongType {
        /// The layer.
        origin: Origin,
        /// Full path.
        key: String,
        /// The type of the default.
        wanted: &'static str,
        /// The type given, with the value if it is not secret.
        got: String,
    },
    /// A negative duration, size or count.
    #[error("{origin}: key `{key}` must not be negative, got {got}")]
    Negative {
        /// The layer.
        origin: Origin,
        /// Full path.
        key: String,
        /// The value.
        got: i64,
    },
    /// A value of the right type that the program cannot use (an unknown choice, out of range).
    #[error("{0}")]
    Value(String),
    /// A relation between values does not hold.
    #[error("{0}")]
    Relation(String),
}

fn nearest_hint(nearest: Option<&str>) -> String {
    nearest
        .map(|key| format!(", did you mean `{key}`?"))
        .unwrap_or_default()
}

/// All faults of a configuration, one a line in `Display`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration has {} problem(s):", self.problems.len())?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for ConfigError {}

impl Classify for ConfigError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Permanent
    }
}
