//! When the driver repeats a request by itself.
//!
//! The driver's own policy gives up on write timeouts, whose outcome is not known. Every statement of this adapter is
//! idempotent by design, so such a request may simply go to the next node, twice at most; after that the caller decides,
//! with back-off.

use scylla::errors::{DbError, RequestAttemptError};
use scylla::policies::retry::{RequestInfo, RetryDecision, RetryPolicy, RetrySession};

/// Tries after the first, each on another node: more would add load to a cluster that is already in trouble.
const MAX_RETRIES: u32 = 2;

/// Repeats idempotent requests on the next node.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NextNode;

impl RetryPolicy for NextNode {
    fn new_session(&self) -> Box<dyn RetrySession> {
        Box::new(NextNodeSession { retries: 0 })
    }
}

struct NextNodeSession {
    retries: u32,
}

impl RetrySession for NextNodeSession {
    fn decide_should_retry(&mut self, request: RequestInfo<'_>) -> RetryDecision {
        if !request.is_idempotent || self.retries >= MAX_RETRIES || !is_passing(request.error) {
            return RetryDecision::DontRetry;
        }
        self.retries += 1;
        RetryDecision::RetryNextTarget(None)
    }

    fn reset(&mut self) {
        self.retries = 0;
    }
}

/// Whether another node may answer otherwise.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the driver's enum is non-exhaustive; the rest is not repeated"
)]
fn is_passing(error: &RequestAttemptError) -> bool {
    match error {
        RequestAttemptError::BrokenConnectionError(_) | RequestAttemptError::UnableToAllocStreamId => true,
        RequestAttemptError::DbError(error, _) => matches!(
            error,
            DbError::Unavailable { .. }
                | DbError::Overloaded
                | DbError::IsBootstrapping
                | DbError::ReadTimeout { .. }
                | DbError::WriteTimeout { .. }
                | DbError::ReadFailure { .. }
                | DbError::WriteFailure { .. }
                | DbError::ServerError
                | DbError::TruncateError
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scylla::errors::{DbError, WriteType};
    use scylla::statement::Consistency;

    #[test]
    fn only_what_another_node_may_answer_is_repeated() {
        let timeout = DbError::WriteTimeout {
            consistency: Consistency::LocalQuorum,
            received: 1,
            required: 2,
            write_type: WriteType::Simple,
        };
        assert!(is_passing(&RequestAttemptError::DbError(timeout, String::new())));
        assert!(!is_passing(&RequestAttemptError::DbError(
            DbError::Invalid,
            String::new()
        )));
        assert!(!is_passing(&RequestAttemptError::RepreparedIdMissingInBatch));
    }
}
