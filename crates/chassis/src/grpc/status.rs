//! From an error with a class to the status of a call.

use std::fmt::Display;

use tidings_resilience::{Classify, ErrorClass};
use tonic::Status;

/// The status for `error`: transient errors are `UNAVAILABLE` (the caller may repeat the call), permanent ones
/// `INTERNAL`. The text is the error's own; it carries no message content by the rule for error texts.
pub fn status_of<E: Classify + Display>(error: &E) -> Status {
    match error.class() {
        ErrorClass::Transient => Status::unavailable(error.to_string()),
        ErrorClass::Permanent => Status::internal(error.to_string()),
    }
}
