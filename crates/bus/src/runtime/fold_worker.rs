//! One run of a fold (seq:G3, seq:G6): begin, apply batch after batch, checkpoint, commit.
//!
//! **Guarantee.** A run commits only what its own checkpoint returned, and nothing after a fault in its ledger or in the
//! generation of the producer it began with. Whatever it does is raced with that fault, so it ends also in the middle of
//! a read that hangs. It takes what is queued and never waits to fill a batch.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use super::emitter::{RunEmitter, RunLedger};
use super::shared_producer::Lease;
use super::worker::{Body, End, FailureCause, WorkerContext};
use crate::fold::{Fold, FoldError, FoldFactory};
use crate::metrics::group_labels;
use crate::record::LogRecord;
use crate::source::AssignedPartition;

/// How often the ack watchdog looks at a run's ledger.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a partition until it is drained or fails.
pub(super) async fn run(context: WorkerContext, factory: Arc<dyn FoldFactory>) -> End {
    let shared = &context.shared;
    let lease = match shared.producer.lease() {
        Ok(lease) => lease,
        Err(error) => return failed(FailureCause::Transient, &error),
    };
    let ledger = RunLedger::new(Arc::clone(&shared.producer), lease.generation(), shared.metrics.clone());
    let emitter = RunEmitter::new(
        Arc::clone(&ledger),
        lease.clone(),
        Arc::clone(&shared.bus),
        shared.group,
        Arc::clone(&shared.clock),
        shared.config.ack_watchdog,
        shared.config.host.clone(),
    );
    let run = Run {
        fold: factory.new_run(context.assigned.partition),
        emitter,
        guard: Guard {
            lease,
            ledger,
            clock: Arc::clone(&shared.clock),
            ack_watchdog: shared.config.ack_watchdog,
        },
        uncheckpointed: 0,
        checkpointed_at: Instant::now(),
        context,
    };
    // `Continue` cannot come out of the loop of a run.
    match run.drive().await {
        ControlFlow::Break(end) => end,
        ControlFlow::Continue(never) => match never {},
    }
}

type Step<T> = ControlFlow<End, T>;

struct Run {
    fold: Box<dyn Fold>,
    emitter: RunEmitter,
    guard: Guard,
    /// Records applied since the last checkpoint.
    uncheckpointed: usize,
    checkpointed_at: Instant,
    context: WorkerContext,
}

/// Ends the run as soon as the producer has failed.
struct Guard {
    lease: Lease,
    ledger: Arc<RunLedger>,
    clock: tidings_domain::clock::SharedClock,
    ack_watchdog: Duration,
}

enum Woken {
    Records,
    Checkpoint,
    Drain,
}

impl Run {
    async fn drive(mut self) -> Step<std::convert::Infallible> {
        let drain = self.context.drain.clone();
        let begin = async {
            tokio::select! {
                biased;
                // Nothing has been done that could be kept.
                () = drain.cancelled() => None,
                begun = self.fold.begin(&self.context.assigned) => Some(begun),
            }
        };
        let Some(begun) = self.guard.race(begin).await? else {
            return ControlFlow::Break(End::Drained);
        };
        let start = self.guard.judge(begun)?;
        not_before_log(&self.context.assigned, start.offset)?;
        self.context.progress.set_settled(start.offset);
        self.context.outbox.send(Body::Begun { offset: start.offset }).await;
        loop {
            match self.next().await? {
                Woken::Records => {
                    self.apply().await?;
                    let config = &self.context.shared.config.fold;
                    if self.uncheckpointed >= config.checkpoint_records
                        || (self.uncheckpointed > 0 && self.checkpointed_at.elapsed() >= config.checkpoint_interval)
                    {
                        self.checkpoint().await?;
                    }
                }
                Woken::Checkpoint => self.checkpoint().await?,
                Woken::Drain => {
                    if self.uncheckpointed > 0 {
                        self.checkpoint().await?;
                    }
                    return ControlFlow::Break(End::Drained);
                }
            }
        }
    }

    /// Waits for something to do.
    async fn next(&mut self) -> Step<Woken> {
        let config = &self.context.shared.config.fold;
        // The interval is counted from the first record after a checkpoint on: what is not there needs none.
        let idle = config.idle_checkpoint.min(
            config
                .checkpoint_interval
                .saturating_sub(self.checkpointed_at.elapsed()),
        );
        let drain = self.context.drain.clone();
        let dirty = self.uncheckpointed > 0;
        let wait = async {
            tokio::select! {
                biased;
                () = drain.cancelled() => Woken::Drain,
                () = self.context.intake.wait() => Woken::Records,
                () = tokio::time::sleep(idle), if dirty => Woken::Checkpoint,
            }
        };
        self.guard.race(wait).await
    }

    async fn apply(&mut self) -> Step<()> {
        let config = &self.context.shared.config.fold;
        let batch = self.context.intake.take(config.batch_records, config.batch_bytes);
        let Some(first) = batch.first() else {
            return ControlFlow::Continue(());
        };
        if self.uncheckpointed == 0 {
            self.checkpointed_at = Instant::now();
        }
        self.emitter.begin_batch(first.offset);
        self.observe(&batch);
        let applied = self.guard.race(self.fold.apply(&batch, &mut self.emitter)).await?;
        self.guard.judge(applied)?;
        self.uncheckpointed += batch.len();
        ControlFlow::Continue(())
    }

    fn observe(&self, batch: &[LogRecord]) {
        let shared = &self.context.shared;
        shared
            .metrics
            .batch_records
            .get_or_create(&group_labels(shared.group))
            .observe(batch.len() as f64);
    }

    async fn checkpoint(&mut self) -> Step<()> {
        let done = self.guard.race(self.fold.checkpoint(&mut self.emitter)).await?;
        let commit = self.guard.judge(done)?;
        let records = self.uncheckpointed;
        self.uncheckpointed = 0;
        self.checkpointed_at = Instant::now();
        if let Some(commit) = commit {
            // seq:R8a: a fault that came in the meantime forbids the commit.
            self.guard.check()?;
            let shared = &self.context.shared;
            shared
                .metrics
                .settled
                .get_or_create(&group_labels(shared.group))
                .inc_by(records as u64);
            self.context.progress.set_settled(commit.offset);
            self.context.progress.add(records as u64);
            self.context
                .outbox
                .send(Body::Settled {
                    offset: commit.offset,
                    metadata: commit.metadata,
                })
                .await;
        }
        ControlFlow::Continue(())
    }
}

impl Guard {
    /// Does `work` unless the producer fails first.
    async fn race<T>(&self, work: impl Future<Output = T>) -> Step<T> {
        let mut work = pin!(work);
        let mut tick = interval(WATCH_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.lease.broken().cancelled() => return ControlFlow::Break(self.broken()),
                done = &mut work => return ControlFlow::Continue(done),
                _ = tick.tick() => self.ledger.watch(self.clock.now(), self.ack_watchdog),
            }
        }
    }

    fn check(&self) -> Step<()> {
        if self.lease.broken().is_cancelled() || self.ledger.fault().is_some() {
            return ControlFlow::Break(self.broken());
        }
        ControlFlow::Continue(())
    }

    fn broken(&self) -> End {
        let reason = self.ledger.fault().map_or_else(
            || "the shared producer failed in another run".to_owned(),
            |fault| fault.to_string(),
        );
        End::Failed {
            cause: FailureCause::Producer,
            reason,
        }
    }

    /// What an error of the fold means for the run.
    fn judge<T>(&self, result: Result<T, FoldError>) -> Step<T> {
        let error = match result {
            Ok(value) => return ControlFlow::Continue(value),
            Err(error) => error,
        };
        // The fold may have wrapped it: the ledger and the lease know.
        self.check()?;
        ControlFlow::Break(match error {
            FoldError::Transient(reason) => End::Failed {
                cause: FailureCause::Transient,
                reason,
            },
            FoldError::Producer(fault) => End::Failed {
                cause: FailureCause::Producer,
                reason: fault.to_string(),
            },
            FoldError::Stop { offset, reason } => End::Stop { offset, reason },
        })
    }
}

/// A fold whose position is before the log stops (scenario B97): records it never saw are gone.
fn not_before_log(assigned: &AssignedPartition, offset: u64) -> Step<()> {
    // The end is not looked at here: the log may have grown since the assignment, by records that an owner on its way
    // out has folded. The source refuses a start beyond the end as it is now.
    if offset >= assigned.log_start {
        return ControlFlow::Continue(());
    }
    let reason = format!(
        "the position is before the log: offsets {offset} to {} are missing",
        assigned.log_start - 1
    );
    ControlFlow::Break(End::Stop { offset, reason })
}

fn failed(cause: FailureCause, error: &dyn std::error::Error) -> End {
    End::Failed {
        cause,
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_before_the_log_stops_and_names_what_is_missing() {
        let assigned = AssignedPartition {
            partition: 0,
            committed: None,
            log_start: 500,
            log_end: 600,
        };
        // Beyond the end too: the source looks at the end as it is now.
        for offset in [500, 600, 601] {
            assert!(not_before_log(&assigned, offset).is_continue());
        }
        let ControlFlow::Break(End::Stop { reason, .. }) = not_before_log(&assigned, 300) else {
            panic!("continues");
        };
        assert!(reason.contains("300 to 499"), "{reason}");
    }
}
