//! The router's run: executes what the pure fold decides (sequencing.md, stage 1).
//!
//! ```text
//! batch ─► reads (R2 order) ─► decide ─► intents, members ┐ both at once (section 5: verified)
//!                                    └─► outputs ─────────┘ in source order (G3)
//! checkpoint: heads (R7) ─► all outputs acknowledged in order (R8a) ─► commit with W (R8)
//! ```
//!
//! Every write of a batch is acknowledged before the next batch is decided, so R4 and R5 hold at R7 and the window may
//! evict by R10.

use std::sync::Arc;

use async_trait::async_trait;
use tidings_bus::fold::{Emitter, Fold, FoldCommit, FoldError, FoldFactory, FoldStart};
use tidings_bus::source::AssignedPartition;
use tidings_bus::{BrokerTime, LogRecord};
use tidings_chassis::folding::{emit_dead_letters, emit_outputs, log_entry, not_begun, stopped, store_call};
use tidings_sequencing::router::{Answers, Reads, RouterFold, RouterPlan, Start};
use tidings_sequencing::{LogEntry, Params};
use tidings_storage::port::RouterStore;

use crate::metrics::Metrics;

/// Makes the runs.
#[derive(Clone)]
pub struct RouterRuns {
    /// Constants.
    pub params: Params,
    /// The fold's store.
    pub store: Arc<dyn RouterStore>,
    /// The broker's clock.
    pub broker_time: BrokerTime,
    /// Metrics.
    pub metrics: Metrics,
}

impl FoldFactory for RouterRuns {
    fn new_run(&self, partition: u32) -> Box<dyn Fold> {
        Box::new(RouterRun {
            runs: self.clone(),
            partition,
            fold: None,
        })
    }
}

struct RouterRun {
    runs: RouterRuns,
    partition: u32,
    /// Set by `begin`.
    fold: Option<RouterFold>,
}

impl RouterRun {
    fn seed(&self) -> u64 {
        u64::from(self.partition)
    }

    async fn read(&self, reads: &Reads) -> Result<Answers, FoldError> {
        let store = &self.runs.store;
        let seed = self.seed();
        Ok(match reads {
            Reads::ConvHeads(conversations) => {
                Answers::ConvHeads(store_call("read conv_head", seed, || store.conv_heads(conversations)).await?)
            }
            Reads::Members(conversations) => {
                Answers::Members(store_call("read members", seed, || store.members(conversations)).await?)
            }
            Reads::Intents(keys) => {
                self.runs.metrics.intent_reads.inc_by(keys.len() as u64);
                Answers::Intents(store_call("read intents", seed, || store.intents(keys)).await?)
            }
        })
    }

    async fn write(&self, plan: &RouterPlan) -> Result<(), FoldError> {
        let store = &self.runs.store;
        let intents = async {
            if plan.intents.is_empty() {
                return Ok(());
            }
            store_call("write intents", self.seed(), || store.write_intents(&plan.intents)).await
        };
        let members = async {
            if plan.members.is_empty() {
                return Ok(());
            }
            store_call("write members", self.seed(), || store.write_members(&plan.members)).await
        };
        tokio::try_join!(intents, members).map(|_| ())
    }
}

/// Enqueues a plan's outputs and dead letters in source order.
async fn emit(plan: RouterPlan, batch: &[LogRecord], emitter: &mut dyn Emitter) -> Result<(), FoldError> {
    emit_outputs(plan.outputs, emitter).await?;
    emit_dead_letters(&plan.rejects, &plan.resolved, batch, emitter).await
}

#[async_trait]
impl Fold for RouterRun {
    async fn begin(&mut self, assigned: &AssignedPartition) -> Result<FoldStart, FoldError> {
        let start = match &assigned.committed {
            Some(committed) => {
                Start::from_commit(committed.offset, &committed.metadata).map_err(|stop| stopped(&stop))?
            }
            // Without a position the log's first record, only if nothing was ever removed before it: otherwise the
            // group's offsets were lost and folding from here would number messages anew (scenario B97).
            None if assigned.log_start == 0 => Start::at_log_start(0),
            None => {
                return Err(FoldError::Stop {
                    offset: assigned.log_start,
                    reason: format!(
                        "no committed position, and the log begins at {} instead of 0",
                        assigned.log_start
                    ),
                });
            }
        };
        let now = self.runs.broker_time.now();
        self.fold = Some(RouterFold::new(self.runs.params, self.partition, start, now));
        Ok(FoldStart { offset: start.offset })
    }

    async fn apply(&mut self, batch: &[LogRecord], emitter: &mut dyn Emitter) -> Result<(), FoldError> {
        let entries: Vec<LogEntry> = batch.iter().map(log_entry).collect();
        let mut fold = self.fold.take().ok_or_else(not_begun)?;
        while let Some(reads) = fold
            .next_reads(&entries, self.runs.broker_time.now())
            .map_err(|stop| stopped(&stop))?
        {
            fold.load(self.read(&reads).await?).map_err(|stop| stopped(&stop))?;
        }
        let mut plan = fold.decide(&entries).map_err(|stop| stopped(&stop))?;
        self.runs.metrics.decided(plan.stats);
        // Relaxation of section 5: outputs are emitted while the intents are written; both are awaited here.
        let outputs = RouterPlan {
            outputs: std::mem::take(&mut plan.outputs),
            rejects: std::mem::take(&mut plan.rejects),
            resolved: std::mem::take(&mut plan.resolved),
            ..RouterPlan::default()
        };
        tokio::try_join!(self.write(&plan), emit(outputs, batch, emitter))?;
        self.fold = Some(fold);
        Ok(())
    }

    async fn checkpoint(&mut self, emitter: &mut dyn Emitter) -> Result<Option<FoldCommit>, FoldError> {
        let Some(checkpoint) = self.fold.as_mut().ok_or_else(not_begun)?.checkpoint() else {
            return Ok(None);
        };
        let store = &self.runs.store;
        let heads = &checkpoint.conv_heads;
        if !heads.is_empty() {
            store_call("write conv_head", self.seed(), || store.write_conv_heads(heads)).await?;
        }
        emitter.settled().await?;
        if let Some(fold) = self.fold.as_mut() {
            fold.checkpoint_committed();
        }
        Ok(Some(FoldCommit {
            offset: checkpoint.next_offset,
            metadata: checkpoint.metadata().to_string(),
        }))
    }
}
