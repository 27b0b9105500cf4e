//! Stage 2: the fold of one `inbox` partition (sequencing.md section 1).
//!
//! A fresh append gives each of its users the next `user_seq`: a row, then a push. A device state moves the registers of
//! its device and of the conversations it names, and what grows there becomes a receipt, back into `inbox`. What is not
//! fresh is nothing at all.

mod event;
mod plan;
mod prepare;
mod receipts;
mod registers;
mod unread;
mod user;

use std::collections::HashMap;

use tidings_domain::clock::Millis;
use tidings_domain::state::{Checkpoint, InboxRow};
use tidings_domain::{Conversation, DeviceId, Position, SourcePartition, SourcePosition, Topic, Uid};

use crate::chain::Chain;
use crate::first_seen::FirstSeen;
use crate::guard;
use crate::params::{FOLD_VERSION, Params};
use crate::record::{LogEntry, Resolved, Undecodable};
use crate::stop::Stop;
use crate::touched::Touched;

pub use plan::{Answers, InboxCheckpoint, InboxPlan, InboxStats, Reads};
use prepare::{Append, Change, Folded, Ignored, Prepared, Preparer, Report, Verdict};
use registers::Effect;
use unread::Unread;
use user::{Cell, User};

/// A register that the next checkpoint writes.
#[derive(Debug, Clone)]
enum Key {
    Head(Uid),
    Device(Uid, DeviceId),
    Conversation(Uid, Conversation),
}

/// The batch between its first `next_reads` and its `decide`.
#[derive(Debug)]
struct Batch {
    records: Vec<Prepared>,
    /// V after the batch.
    folded: Folded,
    dlq_intents: Option<Vec<(String, Position)>>,
    rows: HashMap<Uid, Option<u64>>,
    asked: Option<Reads>,
    ready: bool,
}

/// The owner of one `inbox` partition, from start to end of its run.
#[derive(Debug)]
pub struct InboxFold {
    params: Params,
    cursor_epoch: u64,
    partition: u32,
    next_offset: u64,
    /// V.
    folded: Folded,
    began_at: u64,
    users: HashMap<Uid, User>,
    touched: Touched<Key>,
    /// First copies of dead letters that this run has folded or read and not yet checkpointed.
    first_copies: HashMap<String, Position>,
    /// Position of the last checkpoint issued.
    issued: Position,
    chain: Chain,
    batch: Option<Batch>,
}

impl InboxFold {
    /// A run from the checkpoint read: offset and V from one cell (seq:I1). The service writes the cell back before it
    /// reads the log at [`Self::next_offset`], because what it read may be a phantom. `cursor_epoch` is the store's
    /// stream id: device states of another one are ignored.
    pub fn new(
        params: Params,
        cursor_epoch: u64,
        partition: u32,
        checkpoint: Option<Checkpoint>,
    ) -> Result<Self, Stop> {
        let checkpoint = checkpoint.unwrap_or(Checkpoint {
            fold_version: FOLD_VERSION,
            ..Checkpoint::default()
        });
        if checkpoint.fold_version != FOLD_VERSION {
            return Err(Stop::FoldVersion {
                offset: checkpoint.next_offset,
                found: checkpoint.fold_version,
                supported: FOLD_VERSION,
            });
        }
        Ok(Self {
            issued: params.position(checkpoint.next_offset),
            params,
            cursor_epoch,
            partition,
            next_offset: checkpoint.next_offset,
            folded: checkpoint.folded,
            began_at: checkpoint.next_offset,
            users: HashMap::new(),
            touched: Touched::new(),
            first_copies: HashMap::new(),
            chain: Chain::new(SourcePartition {
                topic: Topic::Inbox,
                partition,
            }),
            batch: None,
        })
    }

    /// The offset that the next batch may begin with.
    #[must_use]
    pub const fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// Users in memory, for metrics.
    #[must_use]
    pub fn users_len(&self) -> usize {
        self.users.len()
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
            None => self.wanted(&mut current)?,
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
            (Some(Reads::DlqIntents(asked)), Answers::DlqIntents(first)) if asked.len() == first.len() => {
                for (dlq_id, first) in asked.into_iter().zip(first) {
                    self.first_copies.extend(first.map(|first| (dlq_id, first)));
                }
                Self::settle_replays(&self.params, &mut self.first_copies, batch)?;
            }
            (Some(Reads::InboxHeads(asked)), Answers::InboxHeads(heads)) if asked.len() == heads.len() => {
                self.users.extend(
                    asked
                        .into_iter()
                        .zip(heads)
                        .map(|(uid, head)| (uid, User::read(head, used))),
                );
            }
            (Some(Reads::FindRows(asked)), Answers::FindRows(rows)) if asked.len() == rows.len() => {
                batch
                    .rows
                    .extend(asked.into_iter().zip(rows).map(|((uid, ..), row)| (uid, row)));
            }
            (Some(Reads::DeviceRegisters(asked)), Answers::DeviceRegisters(registers))
                if asked.len() == registers.len() =>
            {
                for ((uid, device), register) in asked.into_iter().zip(registers) {
                    if let Some(user) = self.users.get_mut(&uid) {
                        user.devices.insert(device, Cell::read(register));
                    }
                }
            }
            (Some(Reads::UserConvRegisters(asked)), Answers::UserConvRegisters(registers))
                if asked.len() == registers.len() =>
            {
                for ((uid, conversation), register) in asked.into_iter().zip(registers) {
                    if let Some(user) = self.users.get_mut(&uid) {
                        user.conversations.insert(conversation, Cell::read(register));
                    }
                }
            }
            _ => return Err(not_read),
        }
        Ok(())
    }

    /// Decides the batch for which `next_reads` has answered `None`. After an error the run is over.
    pub fn decide(&mut self, batch: &[LogEntry]) -> Result<InboxPlan, Stop> {
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
        let mut plan = InboxPlan {
            dlq_intents: current.dlq_intents.unwrap_or_default(),
            ..InboxPlan::default()
        };
        plan.stats.replays = plan.dlq_intents.len() as u64;
        for prepared in current.records {
            let Prepared {
                offset,
                append_time,
                dlq_id,
                verdict,
            } = prepared;
            let resolves = match verdict {
                Verdict::Apply { source, change } => {
                    self.apply(offset, append_time, source, change, &current.rows, &mut plan)?;
                    true
                }
                Verdict::Replay(_) => {
                    return Err(Stop::NotRead {
                        offset,
                        what: "dead-letter intent",
                    });
                }
                Verdict::Reject(cause) => {
                    plan.stats.undecodable += 1;
                    plan.rejects.push(Undecodable { offset, cause });
                    false
                }
                Verdict::Ignore(ignored) => {
                    match ignored {
                        Ignored::Reemission => plan.stats.reemissions += 1,
                        Ignored::PrefixGap => plan.stats.prefix_gaps += 1,
                        Ignored::RepeatedReplay => plan.stats.repeated_replays += 1,
                    }
                    true
                }
            };
            if resolves {
                plan.resolved.extend(dlq_id.map(|dlq_id| Resolved { offset, dlq_id }));
            }
            self.next_offset = offset + 1;
        }
        self.folded = current.folded;
        Ok(plan)
    }

    /// What to write now; `None` if no record was folded since the run began. Everything decided must be written, sent and
    /// acknowledged in order before the registers are written (seq:I8a), the registers before the heads, the heads before
    /// the cell.
    pub fn checkpoint(&mut self) -> Option<InboxCheckpoint> {
        if self.next_offset == self.began_at {
            return None;
        }
        let pos = self.params.position(self.next_offset);
        self.issued = pos;
        let mut out = InboxCheckpoint {
            devices: Vec::new(),
            user_convs: Vec::new(),
            heads: Vec::new(),
            checkpoint: Checkpoint {
                fold_version: FOLD_VERSION,
                next_offset: self.next_offset,
                folded: self.folded.clone(),
            },
            pos,
        };
        let users = &self.users;
        for (stamp, key) in self.touched.issue() {
            // A key comes again under a later stamp if it was touched after a checkpoint that is still in flight.
            match key {
                Key::Head(uid) => {
                    let user = users.get(uid).filter(|user| user.stamp == stamp);
                    out.heads
                        .extend(user.and_then(|user| Some((uid.clone(), user.assigned?))));
                }
                Key::Device(uid, device) => {
                    let cell = users.get(uid).and_then(|user| user.devices.get(device));
                    let register = cell.filter(|cell| cell.stamp == stamp).and_then(|cell| cell.register);
                    out.devices
                        .extend(register.map(|register| ((uid.clone(), device.clone()), register)));
                }
                Key::Conversation(uid, conversation) => {
                    let cell = users.get(uid).and_then(|user| user.conversations.get(conversation));
                    let register = cell.filter(|cell| cell.stamp == stamp).and_then(|cell| cell.register);
                    out.user_convs
                        .extend(register.map(|register| ((uid.clone(), conversation.clone()), register)));
                }
            }
        }
        Some(out)
    }

    /// The last checkpoint is durable: users it covers may leave memory (seq:I9), those unused for longest first.
    pub fn checkpoint_committed(&mut self) {
        self.touched.committed();
        if self.batch.is_some() {
            return;
        }
        let issued = self.issued;
        self.first_copies.retain(|_, first| *first >= issued);
        let weight: usize = self.users.values().map(User::weight).sum();
        let mut excess = weight.saturating_sub(self.params.kept_states);
        if excess == 0 {
            return;
        }
        let mut covered: Vec<(u64, Uid, usize)> = self
            .users
            .iter()
            .filter(|(_, user)| self.touched.is_covered(user.last_stamp))
            .map(|(uid, user)| (user.used, uid.clone(), user.weight()))
            .collect();
        covered.sort_unstable();
        for (_, uid, weight) in covered {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(weight);
            self.users.remove(&uid);
        }
    }

    fn prepare(&mut self, batch: &[LogEntry]) -> Result<Batch, Stop> {
        guard::in_order(batch, self.next_offset)?;
        let preparer = Preparer {
            params: &self.params,
            cursor_epoch: self.cursor_epoch,
            partition: self.partition,
        };
        let mut folded = self.folded.clone();
        Ok(Batch {
            records: preparer.prepare(batch, &mut folded)?,
            folded,
            dlq_intents: None,
            rows: HashMap::new(),
            asked: None,
            ready: false,
        })
    }

    fn settle_replays(
        params: &Params,
        first_copies: &mut HashMap<String, Position>,
        batch: &mut Batch,
    ) -> Result<(), Stop> {
        let intents = prepare::settle_replays(&mut batch.records, first_copies, |offset| params.position(offset))?;
        batch.dlq_intents = Some(intents);
        Ok(())
    }

    /// The reads in their order: which records are fresh, heads, rows behind heads, registers.
    fn wanted(&mut self, batch: &mut Batch) -> Result<Option<Reads>, Stop> {
        if batch.dlq_intents.is_none() {
            let mut wanted = FirstSeen::default();
            for dlq_id in batch.records.iter().filter_map(|prepared| prepared.dlq_id.as_ref()) {
                if !self.first_copies.contains_key(dlq_id) {
                    wanted.add(dlq_id.clone());
                }
            }
            if let Some(wanted) = wanted.into_list() {
                return Ok(Some(Reads::DlqIntents(wanted)));
            }
            Self::settle_replays(&self.params, &mut self.first_copies, batch)?;
        }
        let changes = || {
            batch.records.iter().filter_map(|prepared| match &prepared.verdict {
                Verdict::Apply { change, .. } => Some((self.params.position(prepared.offset), change)),
                Verdict::Replay(_) | Verdict::Reject(_) | Verdict::Ignore(_) => None,
            })
        };
        Ok(Unread { users: &self.users }.next(changes, &batch.rows))
    }

    fn apply(
        &mut self,
        offset: u64,
        append_time: Millis,
        source: Option<(SourcePartition, SourcePosition)>,
        change: Change,
        rows: &HashMap<Uid, Option<u64>>,
        plan: &mut InboxPlan,
    ) -> Result<(), Stop> {
        let off = self.params.position(offset);
        match change {
            Change::Append(append) => {
                plan.stats.appends += 1;
                self.append(append, off, append_time, source, rows, plan)
            }
            Change::Report(report) => self.report(&report, off, plan),
            Change::OtherCursorEpoch => {
                plan.stats.other_cursor_epoch += 1;
                Ok(())
            }
        }
    }

    /// I4 and the appended marks.
    fn append(
        &mut self,
        append: Append,
        off: Position,
        append_time: Millis,
        source: Option<(SourcePartition, SourcePosition)>,
        rows: &HashMap<Uid, Option<u64>>,
        plan: &mut InboxPlan,
    ) -> Result<(), Stop> {
        let mut targets = Vec::with_capacity(append.uids.len());
        for uid in append.uids {
            let user = user(&mut self.users, &uid, off)?;
            user.used = self.touched.now();
            let seq = user.assign(&uid, off, rows.get(&uid).copied())?;
            self.touched.touch(&mut user.stamp, || Key::Head(uid.clone()));
            user.last_stamp = user.stamp;
            if let Some((conversation, mark)) = &append.place {
                let cell = user.conversations.get_mut(conversation).ok_or(Stop::NotRead {
                    offset: off.offset(),
                    what: "user_conv register",
                })?;
                match registers::appended(&mut cell.register, *mark, off) {
                    Effect::Done | Effect::Grew(_) => self
                        .touched
                        .touch(&mut cell.stamp, || Key::Conversation(uid.clone(), conversation.clone())),
                    Effect::Unchanged => {}
                }
            }
            plan.stats.rows += 1;
            plan.rows.push((
                uid.clone(),
                InboxRow {
                    seq,
                    off,
                    src: source,
                    append_time,
                    event: append.event.clone(),
                },
            ));
            targets.push((uid, seq));
        }
        plan.pushes.extend(receipts::push(
            &mut self.chain,
            self.partition,
            off,
            targets,
            append.event,
        ));
        Ok(())
    }

    /// A device state under the register rule.
    fn report(&mut self, report: &Report, off: Position, plan: &mut InboxPlan) -> Result<(), Stop> {
        let offset = off.offset();
        let uid = &report.uid;
        let user = user(&mut self.users, uid, off)?;
        user.used = self.touched.now();
        let head = user.exact_head(off);
        let ahead = user.ahead_of(off);
        let cell = user.devices.get_mut(&report.device).ok_or(Stop::NotRead {
            offset,
            what: "device register",
        })?;
        if registers::is_done(cell.register.map(|r| r.off), off) {
            plan.stats.device_states_done += 1;
        } else {
            let Some(head) = head else {
                return Err(Stop::RegisterBehindHead {
                    offset,
                    uid: uid.clone(),
                    head: ahead.map_or(off, |head| head.off),
                });
            };
            plan.stats.device_states += 1;
            registers::progressed(&mut cell.register, report.delivered, report.stored, head, off);
        }
        self.touched
            .touch(&mut cell.stamp, || Key::Device(uid.clone(), report.device.clone()));
        user.last_stamp = user.last_stamp.max(cell.stamp);
        for (place, conv_report) in (0u32..).zip(&report.conversations) {
            let conversation = &conv_report.conversation;
            let cell = user.conversations.get_mut(conversation).ok_or(Stop::NotRead {
                offset,
                what: "user_conv register",
            })?;
            let growth = match registers::reported(&mut cell.register, conv_report, off) {
                Effect::Unchanged => continue,
                Effect::Done => None,
                Effect::Grew(growth) => Some(growth),
            };
            self.touched
                .touch(&mut cell.stamp, || Key::Conversation(uid.clone(), conversation.clone()));
            user.last_stamp = user.last_stamp.max(cell.stamp);
            if let Some(growth) = growth {
                let before = plan.receipts.len();
                receipts::grown(
                    &self.params,
                    &mut self.chain,
                    (off, place),
                    uid,
                    conversation,
                    growth,
                    &mut plan.receipts,
                );
                plan.stats.receipts += (plan.receipts.len() - before) as u64;
            }
        }
        Ok(())
    }
}

fn user<'a>(users: &'a mut HashMap<Uid, User>, uid: &Uid, off: Position) -> Result<&'a mut User, Stop> {
    users.get_mut(uid).ok_or(Stop::NotRead {
        offset: off.offset(),
        what: "inbox_head",
    })
}
