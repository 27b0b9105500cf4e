//! The inbox's run: executes what the pure fold decides (sequencing.md, stage 2).
//!
//! ```text
//! batch ─► reads (heads first, I3) ─► decide ─► rows and dead-letter intents acknowledged (I5)
//!        ─► pushes (I6), receipts (I7), dead letters, in source order ─► hot window (best effort)
//! checkpoint: all outputs acknowledged in order (R8a) ─► registers, heads (I8a) ─► ckpt (I8b)
//! ```
//!
//! The position that counts is the checkpoint's: offset and V in one cell (I1). What the group commits is for lag only.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidings_bus::fold::{Emitter, Fold, FoldCommit, FoldError, FoldFactory, FoldStart};
use tidings_bus::source::AssignedPartition;
use tidings_bus::{BrokerTime, LogRecord};
use tidings_chassis::folding::{emit_dead_letters, emit_outputs, log_entry, not_begun, stopped, store_call};
use tidings_resilience::{Breaker, Classify};
use tidings_sequencing::inbox::{Answers, InboxFold, InboxPlan, Reads};
use tidings_sequencing::{LogEntry, Params};
use tidings_storage::port::{CheckpointWrites, HotWindow, InboxStore};

use crate::metrics::Metrics;

/// Makes the runs.
#[derive(Clone)]
pub struct InboxRuns {
    /// Constants.
    pub params: Params,
    /// Id of this store's streams: reports of devices under another are ignored.
    pub cursor_epoch: u64,
    /// The fold's store.
    pub store: Arc<dyn InboxStore>,
    /// The hot window.
    pub hot: Arc<dyn HotWindow>,
    /// Spares the fold the waiting while the hot window is down.
    pub hot_breaker: Arc<Mutex<Breaker>>,
    /// The broker's clock.
    pub broker_time: BrokerTime,
    /// Metrics.
    pub metrics: Metrics,
}

impl FoldFactory for InboxRuns {
    fn new_run(&self, partition: u32) -> Box<dyn Fold> {
        Box::new(InboxRun {
            runs: self.clone(),
            partition,
            fold: None,
        })
    }
}

struct InboxRun {
    runs: InboxRuns,
    partition: u32,
    /// Set by `begin`.
    fold: Option<InboxFold>,
}

impl InboxRun {
    fn seed(&self) -> u64 {
        u64::from(self.partition)
    }

    async fn read(&self, reads: &Reads) -> Result<Answers, FoldError> {
        let store = &self.runs.store;
        let seed = self.seed();
        Ok(match reads {
            Reads::DlqIntents(ids) => {
                let call = || store.dlq_intents(self.partition, ids);
                Answers::DlqIntents(store_call("read dead-letter intents", seed, call).await?)
            }
            Reads::InboxHeads(uids) => {
                Answers::InboxHeads(store_call("read inbox_head", seed, || store.inbox_heads(uids)).await?)
            }
            Reads::FindRows(wanted) => {
                Answers::FindRows(store_call("find rows", seed, || store.find_rows(wanted)).await?)
            }
            Reads::DeviceRegisters(devices) => {
                let call = || store.device_registers(devices);
                Answers::DeviceRegisters(store_call("read device registers", seed, call).await?)
            }
            Reads::UserConvRegisters(convs) => {
                let call = || store.user_conv_registers(convs);
                Answers::UserConvRegisters(store_call("read user_conv registers", seed, call).await?)
            }
        })
    }

    async fn write(&self, plan: &InboxPlan) -> Result<(), FoldError> {
        let store = &self.runs.store;
        let rows = async {
            if plan.rows.is_empty() {
                return Ok(());
            }
            store_call("write rows", self.seed(), || store.write_rows(&plan.rows)).await
        };
        let intents = async {
            if plan.dlq_intents.is_empty() {
                return Ok(());
            }
            let call = || store.write_dlq_intents(self.partition, &plan.dlq_intents);
            store_call("write dead-letter intents", self.seed(), call).await
        };
        tokio::try_join!(rows, intents).map(|_| ())
    }

    /// Fills the hot window. Readers verify it against the rows, so a failure costs speed only.
    async fn warm(&self, plan: &InboxPlan) {
        if plan.rows.is_empty() || !self.runs.hot_breaker.lock().allows(Instant::now()) {
            return;
        }
        let events: Vec<_> = plan
            .rows
            .iter()
            .map(|(uid, row)| (uid.clone(), row.seq, row.event.clone()))
            .collect();
        match self.runs.hot.append(&events).await {
            Ok(()) => self.runs.hot_breaker.lock().succeeded(),
            Err(error) => {
                self.runs.metrics.hot_window_errors.inc();
                self.runs.hot_breaker.lock().failed(error.class(), Instant::now());
                tracing::debug!(%error, "hot window not filled");
            }
        }
    }

    fn count(&self, plan: &InboxPlan) {
        let metrics = &self.runs.metrics;
        let stats = plan.stats;
        metrics.events_appended.inc_by(stats.rows);
        metrics.reemissions.inc_by(stats.reemissions);
        metrics.prefix_gaps.inc_by(stats.prefix_gaps);
        metrics.receipts.inc_by(stats.receipts);
        metrics.device_states.inc_by(stats.device_states);
        if stats.prefix_gaps > 0 {
            tracing::warn!(
                partition = self.partition,
                records = stats.prefix_gaps,
                "records behind a lost one of their run; the source's next run repeats them"
            );
        }
    }
}

/// Enqueues pushes, receipts and dead letters, each kind in source order.
async fn emit(plan: &mut InboxPlan, batch: &[LogRecord], emitter: &mut dyn Emitter) -> Result<(), FoldError> {
    emit_outputs(std::mem::take(&mut plan.pushes), emitter).await?;
    emit_outputs(std::mem::take(&mut plan.receipts), emitter).await?;
    emit_dead_letters(&plan.rejects, &plan.resolved, batch, emitter).await
}

#[async_trait]
impl Fold for InboxRun {
    async fn begin(&mut self, assigned: &AssignedPartition) -> Result<FoldStart, FoldError> {
        let store = &self.runs.store;
        let checkpoint = store_call("read ckpt", self.seed(), || store.checkpoint(self.partition)).await?;
        if let Some(checkpoint) = &checkpoint {
            // I1: what was read may be a phantom of a dead owner on one replica; written back it is everybody's.
            let pos = tidings_domain::Position::new(self.runs.params.log_epoch, checkpoint.next_offset);
            let call = || store.write_checkpoint(self.partition, checkpoint, pos);
            store_call("re-assert ckpt", self.seed(), call).await?;
        } else if assigned.log_start > 0 {
            return Err(FoldError::Stop {
                offset: assigned.log_start,
                reason: format!(
                    "no checkpoint, and the log begins at {} instead of 0",
                    assigned.log_start
                ),
            });
        }
        let fold = InboxFold::new(self.runs.params, self.runs.cursor_epoch, self.partition, checkpoint)
            .map_err(|stop| stopped(&stop))?;
        let offset = fold.next_offset();
        self.fold = Some(fold);
        Ok(FoldStart { offset })
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
        self.write(&plan).await?;
        emit(&mut plan, batch, emitter).await?;
        self.warm(&plan).await;
        self.count(&plan);
        self.fold = Some(fold);
        Ok(())
    }

    async fn checkpoint(&mut self, emitter: &mut dyn Emitter) -> Result<Option<FoldCommit>, FoldError> {
        let Some(checkpoint) = self.fold.as_mut().ok_or_else(not_begun)?.checkpoint() else {
            return Ok(None);
        };
        emitter.settled().await?;
        let store = &self.runs.store;
        let writes = CheckpointWrites {
            devices: checkpoint.devices,
            user_convs: checkpoint.user_convs,
            heads: checkpoint.heads,
        };
        store_call("write registers", self.seed(), || store.write_registers(&writes)).await?;
        let cell = &checkpoint.checkpoint;
        let call = || store.write_checkpoint(self.partition, cell, checkpoint.pos);
        store_call("write ckpt", self.seed(), call).await?;
        if let Some(fold) = self.fold.as_mut() {
            fold.checkpoint_committed();
        }
        Ok(Some(FoldCommit {
            offset: cell.next_offset,
            metadata: format!("fold_version={}", cell.fold_version),
        }))
    }
}
