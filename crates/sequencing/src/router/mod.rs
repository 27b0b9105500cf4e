//! Stage 1: the fold of one `ingress` partition (sequencing.md section 1).
//!
//! Per record, in offset order: duplicate (of an earlier copy of its key), rejected or accepted. Only accepted records
//! move the conversation's head. Every first-of-key record has an intent written (seq:R4), refolded ones too, and is
//! emitted again on every refold (seq:R6): stage 2 tells re-emissions apart by their source position.

mod outcome;
mod outputs;
mod plan;
mod start;
mod window;

use std::collections::HashMap;

use tidings_domain::clock::Millis;
use tidings_domain::state::{ConvHead, Intent, Outcome, RejectReason};
use tidings_domain::{Conversation, DedupKey, DedupKeyHash, LogEpoch, SourcePartition, SourcePosition, Topic};
use tidings_proto::record::Ingress;

use crate::chain::Chain;
use crate::first_seen::FirstSeen;
use crate::guard;
use crate::params::{FOLD_VERSION, Params};
use crate::record::{LogEntry, RejectCause, Resolved, Undecodable};
use crate::stop::Stop;
use crate::touched::Touched;

use outcome::{ConvState, Members};
use outputs::Sequenced;
pub use plan::{Answers, Reads, RouterCheckpoint, RouterPlan, RouterStats};
pub use start::{CommitMetadata, Start};
use window::{Known, Window};

/// A decoded record of the batch.
#[derive(Debug)]
struct Prepared {
    offset: u64,
    append_time: Millis,
    dlq_id: Option<String>,
    record: Result<Keyed, RejectCause>,
}

#[derive(Debug)]
struct Keyed {
    ingress: Ingress,
    key: DedupKey,
    hash: DedupKeyHash,
}

/// The batch between its first `next_reads` and its `decide`.
#[derive(Debug, Default)]
struct Batch {
    records: Vec<Prepared>,
    intents: HashMap<DedupKeyHash, Option<Intent>>,
    asked: Option<Reads>,
    ready: bool,
}

/// The owner of one `ingress` partition, from start to end of its run.
#[derive(Debug)]
pub struct RouterFold {
    params: Params,
    partition: u32,
    next_offset: u64,
    /// Broker time of the last record folded; `None` before the first.
    last_append_time: Option<Millis>,
    window: Window,
    conversations: HashMap<Conversation, ConvState>,
    touched: Touched<Conversation>,
    chain: Chain,
    batch: Option<Batch>,
}

impl RouterFold {
    /// A run from `start`. Without W the run takes `broker_now`, which only costs reads; at the beginning of the first
    /// log nothing can have been folded before, so W is -infinity (seq:R1). A later epoch's log begins with keys of the
    /// epoch before it, so there W is `broker_now` too.
    #[must_use]
    pub fn new(params: Params, partition: u32, start: Start, broker_now: Millis) -> Self {
        let w = if start.offset == 0 && params.log_epoch == LogEpoch::FIRST {
            None
        } else {
            Some(start.w.unwrap_or(broker_now))
        };
        Self {
            window: Window::new(w, params.id_margin(), params.window_bytes_cap),
            params,
            partition,
            next_offset: start.offset,
            last_append_time: None,
            conversations: HashMap::new(),
            touched: Touched::new(),
            chain: Chain::new(SourcePartition {
                topic: Topic::Ingress,
                partition,
            }),
            batch: None,
        }
    }

    /// The offset that the next batch may begin with.
    #[must_use]
    pub const fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// Keys that the window holds, for metrics.
    #[must_use]
    pub fn window_len(&self) -> usize {
        self.window.len()
    }

    /// Conversations in memory, for metrics.
    #[must_use]
    pub fn conversations_len(&self) -> usize {
        self.conversations.len()
    }

    /// The next reads that `batch` needs, or `None` when it can be decided. Ends with the stale guard (seq:G7), so
    /// `broker_now` must be taken at each call.
    pub fn next_reads(&mut self, batch: &[LogEntry], broker_now: Millis) -> Result<Option<Reads>, Stop> {
        let mut current = match self.batch.take() {
            Some(current) => current,
            None => self.prepare(batch)?,
        };
        let reads = match current.asked.clone() {
            Some(asked) => Some(asked),
            None => self.wanted(&current),
        };
        current.asked.clone_from(&reads);
        if reads.is_none() {
            guard::not_stale(&self.params, batch, broker_now)?;
            current.ready = true;
        }
        self.batch = Some(current);
        Ok(reads)
    }

    /// Takes the answers to the reads last asked for.
    pub fn load(&mut self, answers: Answers) -> Result<(), Stop> {
        let not_read = Stop::NotRead {
            offset: self.next_offset,
            what: "an answer to every read",
        };
        let Some(batch) = self.batch.as_mut() else {
            return Err(not_read);
        };
        let used = self.touched.now();
        match (batch.asked.take(), answers) {
            (Some(Reads::ConvHeads(asked)), Answers::ConvHeads(heads)) if asked.len() == heads.len() => {
                for (conversation, head) in asked.into_iter().zip(heads) {
                    let state = ConvState::read(&conversation, head, used);
                    self.conversations.insert(conversation, state);
                }
            }
            (Some(Reads::Members(asked)), Answers::Members(members)) if asked.len() == members.len() => {
                for (conversation, intervals) in asked.iter().zip(members) {
                    if let Some(state) = self.conversations.get_mut(conversation) {
                        state.members = Members::Group(Some(intervals));
                    }
                }
            }
            (Some(Reads::Intents(asked)), Answers::Intents(intents)) if asked.len() == intents.len() => {
                for (key, intent) in asked.iter().zip(intents) {
                    batch.intents.insert(key.hash16(), intent);
                }
            }
            _ => return Err(not_read),
        }
        Ok(())
    }

    /// Decides the batch for which `next_reads` has answered `None`. After an error the run is over.
    pub fn decide(&mut self, batch: &[LogEntry]) -> Result<RouterPlan, Stop> {
        let current = match self.batch.take() {
            Some(current)
                if current.ready
                    && current.records.len() == batch.len()
                    && current.records.first().map(|r| r.offset) == batch.first().map(|e| e.offset) =>
            {
                current
            }
            Some(_) | None => {
                return Err(Stop::NotRead {
                    offset: batch.first().map_or(self.next_offset, |entry| entry.offset),
                    what: "everything next_reads asks for",
                });
            }
        };
        let mut plan = RouterPlan::default();
        let before = self.window.len();
        for prepared in current.records {
            let Prepared {
                offset,
                append_time,
                dlq_id,
                record,
            } = prepared;
            match record {
                Ok(record) => {
                    self.decide_one(offset, append_time, record, &current.intents, &mut plan)?;
                    plan.resolved.extend(dlq_id.map(|dlq_id| Resolved { offset, dlq_id }));
                }
                Err(cause) => {
                    plan.stats.undecodable += 1;
                    plan.rejects.push(Undecodable { offset, cause });
                }
            }
            self.next_offset = offset + 1;
            self.last_append_time = Some(append_time);
        }
        // R10: the intents of this batch are not acknowledged yet, those of the batches before it are.
        self.window.evict(self.window.len() - before);
        Ok(plan)
    }

    /// What to write and commit now; `None` if no record was folded since the run began. The intents and member rows of
    /// everything decided must be acknowledged before the heads are written (seq:R7).
    pub fn checkpoint(&mut self) -> Option<RouterCheckpoint> {
        let w = self.last_append_time?;
        let conversations = &self.conversations;
        // R7. A key comes again under a later stamp if it was touched after a checkpoint that is still in flight.
        let conv_heads = self
            .touched
            .issue()
            .filter_map(|(stamp, conversation)| {
                let state = conversations.get(conversation).filter(|state| state.stamp == stamp)?;
                let head = ConvHead {
                    head: state.head,
                    countable: state.countable,
                    applied: state.applied?,
                };
                Some((conversation.clone(), head))
            })
            .collect();
        Some(RouterCheckpoint {
            conv_heads,
            next_offset: self.next_offset,
            w,
            fold_version: FOLD_VERSION,
        })
    }

    /// The last checkpoint's heads are durable and its position is handed to the commit: conversations it covers may
    /// leave memory (seq:R10), those unused for longest first. The window stays: its cap alone evicts.
    pub fn checkpoint_committed(&mut self) {
        self.touched.committed();
        let excess = self.conversations.len().saturating_sub(self.params.kept_states);
        if excess == 0 || self.batch.is_some() {
            return;
        }
        let mut covered: Vec<(u64, Conversation)> = self
            .conversations
            .iter()
            .filter(|(_, state)| self.touched.is_covered(state.stamp))
            .map(|(conversation, state)| (state.used, conversation.clone()))
            .collect();
        covered.sort_unstable();
        for (_, conversation) in covered.into_iter().take(excess) {
            self.conversations.remove(&conversation);
        }
    }

    /// Decodes the batch once.
    fn prepare(&self, batch: &[LogEntry]) -> Result<Batch, Stop> {
        guard::in_order(batch, self.next_offset)?;
        let records = batch
            .iter()
            .map(|entry| Prepared {
                offset: entry.offset,
                append_time: entry.append_time,
                dlq_id: entry.dlq_id.clone(),
                record: self.keyed(entry),
            })
            .collect();
        Ok(Batch {
            records,
            ..Batch::default()
        })
    }

    fn keyed(&self, entry: &LogEntry) -> Result<Keyed, RejectCause> {
        let ingress = Ingress::decode(entry.value.as_ref())?;
        let expected =
            (self.params.partition_of)(ingress.conversation.as_str().as_bytes(), self.params.partitions.ingress);
        if expected != self.partition {
            return Err(RejectCause::Misplaced { expected });
        }
        let key = ingress.key();
        let hash = key.hash16();
        Ok(Keyed { ingress, key, hash })
    }

    /// R2: heads of the conversations touched first, then their members, only then intents.
    fn wanted(&self, batch: &Batch) -> Option<Reads> {
        let records = || {
            batch
                .records
                .iter()
                .filter_map(|p| Some((p.offset, p.record.as_ref().ok()?)))
        };
        let mut heads = FirstSeen::default();
        let mut members = FirstSeen::default();
        for (_, record) in records() {
            let conversation = &record.ingress.conversation;
            match self.conversations.get(conversation) {
                None => {
                    heads.add(conversation.clone());
                }
                Some(ConvState {
                    members: Members::Group(None),
                    ..
                }) => {
                    members.add(conversation.clone());
                }
                Some(_) => {}
            }
        }
        if let Some(heads) = heads.into_list() {
            return Some(Reads::ConvHeads(heads));
        }
        if let Some(members) = members.into_list() {
            return Some(Reads::Members(members));
        }
        let mut intents = FirstSeen::default();
        for (offset, record) in records() {
            if !batch.intents.contains_key(&record.hash) && self.must_read_intent(offset, record) {
                intents.add(record.key.clone());
            }
        }
        intents.into_list().map(Reads::Intents)
    }

    /// R3: the window does not know the key, and either the conversation is ahead of the record, or the id is old enough
    /// for an earlier copy to lie outside the window.
    fn must_read_intent(&self, offset: u64, record: &Keyed) -> bool {
        let off = self.params.position(offset);
        self.window.get(&record.hash).is_none()
            && (self
                .conversations
                .get(&record.ingress.conversation)
                .is_some_and(|state| state.is_ahead_of(off))
                || self.window.may_have_missed(record.key.id_time()))
    }

    /// R3 for one record.
    fn decide_one(
        &mut self,
        offset: u64,
        append_time: Millis,
        record: Keyed,
        intents: &HashMap<DedupKeyHash, Option<Intent>>,
        plan: &mut RouterPlan,
    ) -> Result<(), Stop> {
        let off = self.params.position(offset);
        let known = match self.window.get(&record.hash) {
            Some(known) => Some(*known),
            None if self.must_read_intent(offset, &record) => intents
                .get(&record.hash)
                .ok_or(Stop::NotRead { offset, what: "intent" })?
                .map(Known::from),
            None => None,
        };
        let Keyed { ingress, key, hash } = record;
        let used = self.touched.now();
        let state = self.conversations.get_mut(&ingress.conversation).ok_or(Stop::NotRead {
            offset,
            what: "conv_head",
        })?;
        state.used = used;
        let src = SourcePosition::first(off);
        let outcome = match known {
            Some(known) if known.off > off => {
                return Err(Stop::IntentAhead {
                    offset,
                    first: known.off,
                });
            }
            Some(known) if known.off < off => {
                if known.content_hash == ingress.content_hash {
                    plan.stats.duplicates += 1;
                } else {
                    plan.stats.conflicts += 1;
                    if outcome::has_stream(&ingress) {
                        let reason = RejectReason::IdConflict;
                        outputs::rejected(&self.params, &mut self.chain, src, &ingress, reason, &mut plan.outputs);
                    }
                }
                self.window.insert(hash, known, append_time);
                return Ok(());
            }
            Some(known) if known.content_hash != ingress.content_hash => {
                return Err(Stop::SameOffsetOtherHash { offset });
            }
            Some(known) => {
                plan.stats.refolded += 1;
                if !state.is_ahead_of(off) {
                    let folded = outcome::fold(state, &ingress);
                    if folded != known.outcome {
                        return Err(Stop::OutcomeDiffers {
                            offset,
                            stored: known.outcome,
                            folded,
                        });
                    }
                }
                known.outcome
            }
            None => match state.applied {
                Some(applied) if off <= applied => return Err(Stop::IntentMissing { offset, applied }),
                Some(_) | None => outcome::fold(state, &ingress),
            },
        };
        match outcome {
            Outcome::Accepted {
                conv_seq,
                countable_seq,
            } => {
                plan.stats.accepted += 1;
                state.accept(conv_seq, countable_seq, off);
                self.touched.touch(&mut state.stamp, || ingress.conversation.clone());
                let sequenced = Sequenced {
                    conv_seq,
                    countable_seq,
                    append_time,
                };
                let recipients = outcome::recipients(&state.members, conv_seq, &ingress);
                outputs::accepted(
                    &self.params,
                    &mut self.chain,
                    src,
                    &ingress,
                    sequenced,
                    recipients,
                    &mut plan.outputs,
                );
            }
            Outcome::Rejected(reason) => {
                plan.stats.rejected += 1;
                if outcome::has_stream(&ingress) {
                    outputs::rejected(&self.params, &mut self.chain, src, &ingress, reason, &mut plan.outputs);
                }
            }
        }
        let content_hash = ingress.content_hash;
        self.window.insert(
            hash,
            Known {
                off,
                content_hash,
                outcome,
            },
            append_time,
        );
        plan.intents.push((
            key,
            Intent {
                outcome,
                content_hash,
                off,
                append_time,
            },
        ));
        Ok(())
    }
}
