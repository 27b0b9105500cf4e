//! What the two folding services share between the bus, the store and the pure folds.
//!
//! A store call is repeated quickly a few times; then the run ends as transient and the runtime starts another after a
//! back-off, with the partition paused (req:E2). Nothing is skipped: the next run begins at the committed position.

use std::time::Duration;

use tidings_bus::dead_letter::Rejection;
use tidings_bus::fold::{Emitter, FoldError};
use tidings_bus::{Catalogue, LogRecord, OutRecord};
use tidings_domain::Topic;
use tidings_resilience::{Backoff, BackoffPolicy, Classify, retry_transient};
use tidings_sequencing::{LogEntry, Output, Params, Partitions, Resolved, Stop, Undecodable};

use crate::limits::Limits;

/// Tries of one store call before the run ends: together under a second, so that a failing store pauses the partition
/// instead of holding its worker.
const STORE_TRIES: u32 = 4;

/// Back-off between those tries.
const STORE_BACKOFF: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(25), Duration::from_millis(400), 3.0, 0.5);

/// Bytes of the router's window of known keys per partition: about 500,000 keys.
const WINDOW_BYTES: usize = 64 << 20;

/// Conversations or users kept in memory per partition across a checkpoint.
const KEPT_STATES: usize = 50_000;

/// A record of the bus as the folds take it.
#[must_use]
pub fn log_entry(record: &LogRecord) -> LogEntry {
    LogEntry {
        offset: record.offset,
        append_time: record.append_time,
        key: record.key.clone(),
        value: record.value.clone(),
        link: record.link(),
        dlq_id: record.dlq_id(),
    }
}

/// A fold's output as the bus takes it.
#[must_use]
pub fn out_record(output: Output) -> OutRecord {
    let mut headers = tidings_bus::Headers::new();
    headers.push_link(&output.link);
    OutRecord {
        topic: output.topic,
        partition: output.partition,
        key: Some(output.key),
        value: Some(output.value),
        headers,
    }
}

/// A broken invariant as the runtime takes it.
#[must_use]
pub fn stopped(stop: &Stop) -> FoldError {
    FoldError::Stop {
        offset: stop.offset(),
        reason: format!("{}: {stop}", stop.name()),
    }
}

/// Constants of a run. `guarded` is false only where one owner is certain (seq:G7).
#[must_use]
pub fn params(limits: &Limits, catalogue: &Catalogue, guarded: bool) -> Params {
    Params {
        skew: limits.skew,
        gateway_clock_error: limits.gateway_clock_error,
        broker_clock_error: limits.broker_clock_error,
        guard_limit: guarded.then_some(limits.limit),
        log_epoch: catalogue.epoch(),
        window_bytes_cap: WINDOW_BYTES,
        kept_states: KEPT_STATES,
        partitions: Partitions {
            ingress: catalogue.partitions(Topic::Ingress),
            history: catalogue.partitions(Topic::History),
            inbox: catalogue.partitions(Topic::Inbox),
        },
        partition_of: tidings_bus::partition_for,
    }
}

/// Calls the store, a few times if it is transient. `seed` spreads the retries of several owners.
pub async fn store_call<T, E, F, Fut>(what: &'static str, seed: u64, call: F) -> Result<T, FoldError>
where
    E: Classify + std::fmt::Display,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let mut backoff = Backoff::new(STORE_BACKOFF, seed);
    retry_transient(&mut backoff, Some(STORE_TRIES), call, |error, delay| {
        tracing::debug!(what, %error, ?delay, "store call failed, trying again");
    })
    .await
    // A permanent error of the store is waited for as well: a fold never skips, and an operator can mend the store.
    .map_err(|error| FoldError::Transient(format!("{what}: {error}")))
}

/// Enqueues outputs in the order of the plan (seq:G3).
///
/// # Errors
/// The run's producer failed.
pub async fn emit_outputs(outputs: Vec<Output>, emitter: &mut dyn Emitter) -> Result<(), FoldError> {
    for output in outputs {
        emitter.emit(out_record(output)).await?;
    }
    Ok(())
}

/// Enqueues what of a batch goes to `dlq`: records that cannot be decoded, and word of replays that ended well.
///
/// # Errors
/// The run's producer failed.
pub async fn emit_dead_letters(
    rejects: &[Undecodable],
    resolved: &[Resolved],
    batch: &[LogRecord],
    emitter: &mut dyn Emitter,
) -> Result<(), FoldError> {
    // A plan names only records of its batch.
    let record_at = |offset| batch.iter().find(|record| record.offset == offset);
    for reject in rejects {
        let Some(record) = record_at(reject.offset) else {
            continue;
        };
        let rejection = Rejection {
            error_class: reject.cause.name(),
            detail: reject.cause.to_string(),
            stage: "fold",
        };
        emitter.dead_letter(record, &rejection).await?;
    }
    for replay in resolved {
        let Some(record) = record_at(replay.offset) else {
            continue;
        };
        emitter.resolved(record).await?;
    }
    Ok(())
}

/// A run was driven before it began.
#[must_use]
pub fn not_begun() -> FoldError {
    FoldError::Transient("the run has not begun".to_owned())
}
