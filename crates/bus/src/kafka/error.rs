//! What errors of the client library mean here. Codes that are not named are taken as passing: the library gets over
//! them by itself or the same call succeeds later.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::Error;
use crate::producer::ProduceError;

/// The error of a call on a client.
pub(super) fn bus_error(operation: &'static str, error: &KafkaError) -> Error {
    let reason = error.to_string();
    if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
        return Error::Fatal { operation, reason };
    }
    if matches!(
        error,
        KafkaError::ClientConfig(..) | KafkaError::ClientCreation(_) | KafkaError::Nul(_)
    ) {
        return Error::NotSetUp { operation, reason };
    }
    match error.rdkafka_error_code() {
        Some(code) => code_error(operation, code, reason),
        None => Error::Unavailable { operation, reason },
    }
}

/// The error of a code that the broker gave for one partition or topic.
pub(super) fn code_error(operation: &'static str, code: Code, reason: String) -> Error {
    if code == Code::Fatal {
        Error::Fatal { operation, reason }
    } else if is_fenced(code) {
        Error::Fenced { operation, reason }
    } else if is_not_set_up(code) {
        Error::NotSetUp { operation, reason }
    } else {
        Error::Unavailable { operation, reason }
    }
}

fn is_fenced(code: Code) -> bool {
    matches!(
        code,
        Code::IllegalGeneration
            | Code::UnknownMemberId
            | Code::RebalanceInProgress
            | Code::FencedInstanceId
            | Code::FencedMemberEpoch
            | Code::StaleMemberEpoch
            | Code::AssignmentLost
    )
}

fn is_not_set_up(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::UnknownPartition
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::Authentication
            | Code::InvalidConfig
            | Code::UnsupportedVersion
            | Code::AutoOffsetReset
            | Code::OffsetOutOfRange
    )
}

/// The error of a record. What may have been written all the same is `Unknown`; a refusal is certain.
pub(super) fn produce_error(error: &KafkaError) -> ProduceError {
    let reason = error.to_string();
    let Some(code) = error.rdkafka_error_code() else {
        return ProduceError::Refused(reason);
    };
    if code == Code::QueueFull {
        ProduceError::QueueFull
    } else if matches!(code, Code::MessageSizeTooLarge | Code::MessageBatchTooLarge) {
        ProduceError::TooLarge(reason)
    } else if is_dead(code) {
        ProduceError::Fatal(reason)
    } else if is_refused(code) {
        ProduceError::Refused(reason)
    } else {
        ProduceError::Unknown(reason)
    }
}

fn is_dead(code: Code) -> bool {
    matches!(
        code,
        Code::Fatal
            | Code::OutOfOrderSequenceNumber
            | Code::UnknownProducerId
            | Code::InvalidProducerEpoch
            | Code::ProducerFenced
            | Code::Fenced
    )
}

/// The broker or the client said that it did not write the record.
fn is_refused(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::UnknownPartition
            | Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::Authentication
            | Code::InvalidMessage
            | Code::InvalidRecord
            | Code::InvalidTimestamp
            | Code::InvalidTopic
            | Code::InvalidRequiredAcks
            | Code::InvalidArgument
            | Code::UnsupportedForMessageFormat
            | Code::PolicyViolation
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn produced(code: Code) -> ProduceError {
        produce_error(&KafkaError::MessageProduction(code))
    }

    #[test]
    fn only_certain_refusals_are_refusals() {
        assert_eq!(produced(Code::QueueFull), ProduceError::QueueFull);
        assert!(matches!(produced(Code::MessageSizeTooLarge), ProduceError::TooLarge(_)));
        for code in [
            Code::MessageTimedOut,
            Code::PurgeInflight,
            Code::PurgeQueue,
            Code::NotEnoughReplicasAfterAppend,
        ] {
            assert!(matches!(produced(code), ProduceError::Unknown(_)), "{code:?}");
        }
        assert!(matches!(
            produced(Code::OutOfOrderSequenceNumber),
            ProduceError::Fatal(_)
        ));
        assert!(matches!(
            produced(Code::TopicAuthorizationFailed),
            ProduceError::Refused(_)
        ));
    }

    #[test]
    fn a_commit_of_an_old_generation_is_fenced() {
        let error = bus_error("committing", &KafkaError::ConsumerCommit(Code::IllegalGeneration));
        assert!(matches!(error, Error::Fenced { .. }), "{error}");
        let error = bus_error("committing", &KafkaError::ConsumerCommit(Code::CoordinatorNotAvailable));
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        let error = bus_error("reading", &KafkaError::MessageConsumptionFatal(Code::Fatal));
        assert!(matches!(error, Error::Fatal { .. }), "{error}");
    }
}
