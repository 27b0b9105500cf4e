//! One partition of a handler: fill the window, hand over what is ready, settle, write dead letters, report positions.
//!
//! **Guarantee.** A record is settled when the handler said `Done`, or when its record in `dlq` is confirmed; only the
//! contiguous settled prefix is reported for commit (architecture.md section 3, decision 2). While `dlq` cannot be
//! written the partition waits: nothing is skipped.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use tidings_domain::Topic;
use tidings_resilience::Backoff;

use super::confirmed;
use super::window::{Completed, Window};
use super::worker::{Body, End, WorkerContext};
use crate::dead_letter::{dead_letter, is_replay, resolved};
use crate::handler::Handler;
use crate::metrics::{ClassLabels, GroupLabels, group_labels, partition_labels};
use crate::producer::ProduceError;
use crate::record::{LogRecord, OutRecord};
use crate::source::AssignedPartition;

/// Runs a partition until it is drained.
pub(super) async fn run(context: WorkerContext, handler: Arc<dyn Handler>) -> End {
    let start = start_position(&context.assigned);
    if let Some(missing) = &start.missing {
        alarm(&context, missing);
    }
    let config = &context.shared.config;
    let seed = config.seed ^ u64::from(context.assigned.partition).rotate_left(32);
    let mut worker = Worker {
        window: Window::new(config.handler.clone(), config.backoff, seed),
        handler,
        labels: group_labels(context.shared.group),
        reported: start.offset,
        reported_at: Instant::now(),
        context,
    };
    worker.context.progress.set_settled(start.offset);
    worker.context.outbox.send(Body::Begun { offset: start.offset }).await;
    while worker.step().await {}
    worker.report().await;
    End::Drained
}

/// Where a handler starts.
#[derive(Debug, PartialEq, Eq)]
struct Start {
    offset: u64,
    missing: Option<Missing>,
}

/// Why a handler cannot go on where it was.
#[derive(Debug, PartialEq, Eq)]
enum Missing {
    /// These offsets have left the log.
    Before { from: u64, to: u64 },
    /// The log ends before the position: it is not the log that was read.
    After { position: u64, log_end: u64 },
}

/// The committed position, or the start of the log if there is none or the log has lost it (scenario B97).
fn start_position(assigned: &AssignedPartition) -> Start {
    let at = |offset, missing| Start { offset, missing };
    let log_start = assigned.log_start;
    match &assigned.committed {
        None => at(log_start, None),
        Some(committed) if committed.offset < log_start => at(
            log_start,
            Some(Missing::Before {
                from: committed.offset,
                to: log_start - 1,
            }),
        ),
        Some(committed) if committed.offset > assigned.log_end => at(
            log_start,
            Some(Missing::After {
                position: committed.offset,
                log_end: assigned.log_end,
            }),
        ),
        Some(committed) => at(committed.offset, None),
    }
}

fn alarm(context: &WorkerContext, missing: &Missing) {
    let shared = &context.shared;
    let partition = context.assigned.partition;
    let group = shared.group.name();
    let lost = match missing {
        Missing::Before { from, to } => {
            tracing::error!(
                group,
                partition,
                from,
                to,
                "records left the log before they were handled"
            );
            to - from + 1
        }
        Missing::After { position, log_end } => {
            tracing::error!(
                group,
                partition,
                position,
                log_end,
                "the position is after the end of the log, which was truncated or replaced: everything is read again"
            );
            position - log_end
        }
    };
    shared
        .metrics
        .missing_range
        .get_or_create(&partition_labels(shared.group, partition))
        .inc_by(lost);
}

struct Worker {
    window: Window,
    handler: Arc<dyn Handler>,
    context: WorkerContext,
    labels: GroupLabels,
    /// Position last sent to the thread.
    reported: u64,
    reported_at: Instant,
}

impl Worker {
    /// Does the next thing; false once drained.
    async fn step(&mut self) -> bool {
        self.fill();
        if self.report_due() {
            self.report().await;
        }
        if self.context.drain.is_cancelled() {
            return false;
        }
        let now = Instant::now();
        let batch = self.window.take_ready(now);
        self.context
            .progress
            .set_waiting(batch.is_empty() && !self.window.is_empty());
        if batch.is_empty() {
            self.wait(now).await;
            return true;
        }
        let completed = self.hand_over(&batch).await;
        self.account(&completed);
        self.finish(completed).await
    }

    fn fill(&mut self) {
        loop {
            let room = self.window.room();
            if room == 0 {
                return;
            }
            let handler = &self.context.shared.config.handler;
            // In portions, since each may fill the window by bytes.
            let portion = self
                .context
                .intake
                .take(room.min(handler.batch_records), handler.batch_bytes);
            if portion.is_empty() {
                return;
            }
            for record in portion {
                self.window.add(record);
            }
        }
    }

    fn position(&self) -> u64 {
        self.window.committable().unwrap_or(self.reported).max(self.reported)
    }

    fn report_due(&self) -> bool {
        self.position() > self.reported
            && self.reported_at.elapsed() >= self.context.shared.config.handler.commit_interval
    }

    async fn report(&mut self) {
        let position = self.position();
        if position > self.reported {
            self.reported = position;
            self.reported_at = Instant::now();
            self.context
                .outbox
                .send(Body::Settled {
                    offset: position,
                    metadata: String::new(),
                })
                .await;
        }
    }

    /// Waits until there is something to do: a record, the end of a back-off, a commit, the end.
    async fn wait(&self, now: Instant) {
        let due = self.window.next_due(now);
        let moved = self.position() > self.reported;
        let commit_at = self.reported_at + self.context.shared.config.handler.commit_interval;
        tokio::select! {
            biased;
            () = self.context.drain.cancelled() => {}
            () = self.context.intake.wait(), if self.window.room() > 0 => {}
            () = sleep_until(due.unwrap_or(now)), if due.is_some() => {}
            () = sleep_until(commit_at), if moved => {}
        }
    }

    async fn hand_over(&mut self, batch: &[LogRecord]) -> Completed {
        let metrics = &self.context.shared.metrics;
        metrics
            .batch_records
            .get_or_create(&self.labels)
            .observe(batch.len() as f64);
        let handler = Arc::clone(&self.handler);
        let mut handled = std::pin::pin!(AssertUnwindSafe(handler.handle(batch)).catch_unwind());
        let result = loop {
            let commit_at = self.reported_at + self.context.shared.config.handler.commit_interval;
            let moved = self.position() > self.reported;
            tokio::select! {
                biased;
                result = &mut handled => break result,
                () = sleep_until(commit_at), if moved => self.report().await,
            }
        };
        let (now, at) = (Instant::now(), self.context.shared.clock.now());
        match result {
            Ok(outcomes) => {
                if outcomes.len() != batch.len() {
                    tracing::error!(
                        group = self.context.shared.group.name(),
                        given = batch.len(),
                        answered = outcomes.len(),
                        "handler answered another number of outcomes than it got records"
                    );
                }
                self.window.complete(outcomes, now, at, is_replay)
            }
            Err(panic) => {
                let reason = panic_text(panic.as_ref());
                self.context.shared.metrics.panics.get_or_create(&self.labels).inc();
                tracing::error!(
                    group = self.context.shared.group.name(),
                    partition = self.context.assigned.partition,
                    records = batch.len(),
                    reason,
                    "handler panicked"
                );
                self.window.panicked(&reason, now, at)
            }
        }
    }

    fn account(&self, completed: &Completed) {
        let shared = &self.context.shared;
        for class in &completed.retried {
            shared
                .metrics
                .retries
                .get_or_create(&ClassLabels {
                    group: self.labels.group,
                    class,
                })
                .inc();
        }
        self.settled(completed.settled);
    }

    fn settled(&self, records: u64) {
        let shared = &self.context.shared;
        if records > 0 {
            shared.metrics.settled.get_or_create(&self.labels).inc_by(records);
            self.context.progress.add(records);
        }
        self.context.progress.set_settled(self.position());
    }

    /// Writes what must be in `dlq` before its records settle; false if drained meanwhile.
    async fn finish(&mut self, completed: Completed) -> bool {
        let shared = Arc::clone(&self.context.shared);
        let catalogue = shared.bus.catalogue();
        let mut writes: Vec<Write> = Vec::new();
        for record in completed.to_resolve {
            writes.push(Write {
                offset: record.offset,
                class: None,
                record: resolved(catalogue, &record, shared.group),
            });
        }
        for rejected in completed.rejected {
            let class = rejected.rejection.error_class;
            tracing::warn!(
                group = self.labels.group,
                partition = rejected.record.partition,
                offset = rejected.record.offset,
                attempts = rejected.attempts.count,
                class,
                stage = rejected.rejection.stage,
                detail = rejected.rejection.detail,
                "record given up"
            );
            if rejected.record.topic == Topic::Dlq {
                // It lies in `dlq` already: writing it there again would bring it back for ever.
                self.settle_written(rejected.record.offset, Some(class));
                continue;
            }
            writes.push(Write {
                offset: rejected.record.offset,
                class: Some(class),
                record: dead_letter(
                    catalogue,
                    &rejected.record,
                    shared.group,
                    &rejected.rejection,
                    rejected.attempts,
                    &shared.config.host,
                ),
            });
        }
        let mut backoff = Backoff::new(shared.config.backoff, shared.config.seed);
        while !writes.is_empty() {
            let records = writes.iter().map(|write| write.record.clone()).collect();
            let results = confirmed::write(&shared.producer, records, shared.config.ack_watchdog).await;
            let mut last_error: Option<ProduceError> = None;
            let mut left = Vec::new();
            for (write, result) in writes.into_iter().zip(results) {
                match result {
                    Ok(()) => self.settle_written(write.offset, write.class),
                    Err(error) => {
                        last_error = Some(error);
                        left.push(write);
                    }
                }
            }
            writes = left;
            let Some(error) = last_error else { break };
            shared.metrics.dlq_write_failures.get_or_create(&self.labels).inc();
            let delay = backoff.next_delay();
            tracing::error!(
                group = self.labels.group,
                partition = self.context.assigned.partition,
                records = writes.len(),
                %error,
                ?delay,
                "dlq cannot be written: the partition waits"
            );
            if self.report_due() {
                self.report().await;
            }
            self.context.progress.set_waiting(true);
            tokio::select! {
                biased;
                () = self.context.drain.cancelled() => return false,
                () = tokio::time::sleep(delay) => {}
            }
        }
        true
    }

    fn settle_written(&mut self, offset: u64, class: Option<&'static str>) {
        self.window.written(offset);
        if let Some(class) = class {
            self.context
                .shared
                .metrics
                .dead_lettered
                .get_or_create(&ClassLabels {
                    group: self.labels.group,
                    class,
                })
                .inc();
        }
        self.settled(1);
    }
}

/// A record of `dlq` on its way.
struct Write {
    /// Of the record that settles with it.
    offset: u64,
    /// Of a dead letter; none for a resolved replay.
    class: Option<&'static str>,
    record: OutRecord,
}

async fn sleep_until(at: Instant) {
    tokio::time::sleep_until(at.into()).await;
}

/// The message of a panic.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&'static str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Committed;

    fn assigned(committed: Option<u64>) -> AssignedPartition {
        AssignedPartition {
            partition: 0,
            committed: committed.map(|offset| Committed {
                offset,
                metadata: String::new(),
            }),
            log_start: 500,
            log_end: 600,
        }
    }

    #[test]
    fn a_handler_starts_at_its_position_or_where_the_log_begins() {
        for (committed, offset, missing) in [
            (None, 500, None),
            (Some(500), 500, None),
            (Some(600), 600, None),
            (Some(300), 500, Some(Missing::Before { from: 300, to: 499 })),
            (
                Some(700),
                500,
                Some(Missing::After {
                    position: 700,
                    log_end: 600,
                }),
            ),
        ] {
            assert_eq!(start_position(&assigned(committed)), Start { offset, missing });
        }
    }
}
