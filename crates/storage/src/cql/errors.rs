//! The driver's errors as ours (notes/storage.md section 4, table of classes). Every enum of the driver may grow, so
//! what is not known here counts as an outage: waiting loses nothing.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the driver's enums are non-exhaustive, and what is not named here is one class"
)]

use scylla::errors::{
    BadQuery, DbError, ExecutionError, NewSessionError, PrepareError, RequestAttemptError, UseKeyspaceError,
};

use crate::Error;
use crate::codec::Malformed;

enum Class {
    Unavailable,
    Damaged,
    Refused,
    NotSetUp,
}

impl Class {
    fn error(self, operation: &'static str, reason: String) -> Error {
        match self {
            Self::Unavailable => Error::Unavailable { operation, reason },
            Self::Damaged => Error::Damaged { operation, reason },
            Self::Refused => Error::Refused { operation, reason },
            Self::NotSetUp => Error::NotSetUp { operation, reason },
        }
    }
}

pub(super) fn execution(operation: &'static str, error: &ExecutionError) -> Error {
    let class = match error {
        ExecutionError::BadQuery(BadQuery::SerializationError(_) | BadQuery::ValuesTooLongForKey(..)) => Class::Refused,
        ExecutionError::BadQuery(_) => Class::NotSetUp,
        ExecutionError::PrepareError(error) => of_prepare(error),
        ExecutionError::LastAttemptError(error) => of_attempt(error),
        ExecutionError::UseKeyspaceError(error) => of_use_keyspace(error),
        // No connection, no answer in time, no agreement on the schema, or new to us.
        _ => Class::Unavailable,
    };
    class.error(operation, error.to_string())
}

pub(super) fn prepare(operation: &'static str, error: &PrepareError) -> Error {
    of_prepare(error).error(operation, error.to_string())
}

pub(super) fn new_session(operation: &'static str, error: &NewSessionError) -> Error {
    let class = match error {
        NewSessionError::EmptyKnownNodesList | NewSessionError::IllegalConfig(_) => Class::NotSetUp,
        NewSessionError::UseKeyspaceError(error) => of_use_keyspace(error),
        _ => Class::Unavailable,
    };
    class.error(operation, error.to_string())
}

pub(super) fn use_keyspace(operation: &'static str, error: &UseKeyspaceError) -> Error {
    of_use_keyspace(error).error(operation, error.to_string())
}

/// An answer whose columns do not have the types or values the schema gives them.
pub(super) fn unreadable(operation: &'static str, error: &impl std::fmt::Display) -> Error {
    Class::Damaged.error(operation, error.to_string())
}

pub(super) fn damaged(operation: &'static str, error: Malformed) -> Error {
    Class::Damaged.error(operation, error.0)
}

fn of_prepare(error: &PrepareError) -> Class {
    match error {
        PrepareError::AllAttemptsFailed { first_attempt } => of_attempt(first_attempt),
        _ => Class::Unavailable,
    }
}

fn of_use_keyspace(error: &UseKeyspaceError) -> Class {
    match error {
        UseKeyspaceError::BadKeyspaceName(_) | UseKeyspaceError::KeyspaceNameMismatch { .. } => Class::NotSetUp,
        UseKeyspaceError::RequestError(error) => of_attempt(error),
        _ => Class::Unavailable,
    }
}

fn of_attempt(error: &RequestAttemptError) -> Class {
    match error {
        RequestAttemptError::SerializationError(_) | RequestAttemptError::CqlRequestSerialization(_) => Class::Refused,
        RequestAttemptError::CqlResultParseError(_)
        | RequestAttemptError::CqlErrorParseError(_)
        | RequestAttemptError::UnexpectedResponse(_)
        | RequestAttemptError::RepreparedIdChanged { .. }
        | RequestAttemptError::RepreparedIdMissingInBatch => Class::NotSetUp,
        RequestAttemptError::DbError(error, message) => of_database(error, message),
        _ => Class::Unavailable,
    }
}

fn of_database(error: &DbError, message: &str) -> Class {
    match error {
        DbError::Invalid if is_too_large(message) => Class::Refused,
        DbError::Invalid
        | DbError::SyntaxError
        | DbError::AlreadyExists { .. }
        | DbError::FunctionFailure { .. }
        | DbError::AuthenticationError
        | DbError::Unauthorized
        | DbError::ConfigError
        | DbError::ProtocolError => Class::NotSetUp,
        _ => Class::Unavailable,
    }
}

/// Both servers refuse a mutation over their limit as invalid, each in its own words.
fn is_too_large(message: &str) -> bool {
    let message = message.to_lowercase();
    ["too large", "too big", "oversized", "exceeds the maximum"]
        .iter()
        .any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_resilience::{Classify, ErrorClass};

    fn classified(error: DbError, message: &str) -> Error {
        let attempt = RequestAttemptError::DbError(error, message.to_owned());
        execution("test", &ExecutionError::LastAttemptError(attempt))
    }

    #[test]
    fn an_outage_is_waited_for_and_an_oversized_record_is_not() {
        assert_eq!(classified(DbError::Overloaded, "").class(), ErrorClass::Transient);
        assert_eq!(classified(DbError::ServerError, "").class(), ErrorClass::Transient);
        let oversized = classified(
            DbError::Invalid,
            "Encountered an oversized mutation (17/16) for keyspace: t",
        );
        assert!(matches!(oversized, Error::Refused { .. }), "{oversized:?}");
        assert_eq!(oversized.class(), ErrorClass::Permanent);
    }

    #[test]
    fn a_missing_table_names_the_set_up() {
        let missing = classified(DbError::Invalid, "table inbox does not exist");
        assert!(matches!(missing, Error::NotSetUp { .. }), "{missing:?}");
    }
}
