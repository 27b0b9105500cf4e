//! Logs, producers and clocks of one schedule.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::{LogEpoch, Position, Topic, Uid};
use tidings_proto::header::SourceLink;
use tidings_sequencing::router::Start;
use tidings_sequencing::{LogEntry, Output, Params, Partitions};

use crate::reference::Reference;
use crate::store::{Store, Write};
use crate::tape::Tape;

pub(crate) const INGRESS_PARTITIONS: u32 = 2;
pub(crate) const INBOX_PARTITIONS: u32 = 2;
pub(crate) const SKEW: i64 = 20;
pub(crate) const CLOCK_ERROR: i64 = 5;
/// Cursor epoch of the store.
pub(crate) const EPOCH: u64 = 77;

/// FNV-1a: any function does, as long as all use the same.
pub(crate) fn partition_of(key: &[u8], partitions: u32) -> u32 {
    let hash = key
        .iter()
        .fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    hash % partitions
}

pub(crate) fn inbox_partition(uid: &Uid) -> u32 {
    partition_of(uid.as_str().as_bytes(), INBOX_PARTITIONS)
}

pub(crate) fn position(offset: u64) -> Position {
    Position::new(LogEpoch::FIRST, offset)
}

pub(crate) fn params(window_bytes_cap: usize, kept_states: usize) -> Params {
    let millis = |ms: i64| Duration::from_millis(ms.unsigned_abs());
    Params {
        skew: millis(SKEW),
        gateway_clock_error: millis(CLOCK_ERROR),
        broker_clock_error: millis(CLOCK_ERROR),
        guard_limit: None,
        log_epoch: LogEpoch::FIRST,
        window_bytes_cap,
        kept_states,
        partitions: Partitions {
            ingress: INGRESS_PARTITIONS,
            history: 1,
            inbox: INBOX_PARTITIONS,
        },
        partition_of,
    }
}

/// One run of a fold, as its producer and the store's client see it.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Outputs enqueued and not delivered, per destination.
    queues: BTreeMap<(Topic, u32), VecDeque<Sent>>,
    /// Writes issued and not acknowledged.
    writes: usize,
    /// An output was lost: the run must end.
    pub(crate) failed: bool,
    /// The process is gone: what is in flight may still land.
    pub(crate) dead: bool,
}

#[derive(Debug, Clone)]
enum Sent {
    Output(Output),
    DeadLetter { id: String },
}

impl Run {
    pub(crate) fn written(&self) -> bool {
        self.writes == 0
    }

    pub(crate) fn settled(&self) -> bool {
        self.queues.values().all(VecDeque::is_empty)
    }
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) tape: Tape,
    pub(crate) params: Params,
    pub(crate) faults: bool,
    pub(crate) draining: bool,
    pub(crate) now: i64,
    pub(crate) ingress: Vec<Vec<LogEntry>>,
    pub(crate) inbox: Vec<Vec<LogEntry>>,
    pub(crate) pushes: Vec<Output>,
    pub(crate) dead_letters: BTreeSet<String>,
    /// Damaged inbox records as they were sent, for mended replays.
    pub(crate) originals: Vec<(u32, String, Bytes)>,
    pub(crate) commits: HashMap<u32, (u64, String)>,
    pub(crate) store: Store,
    pub(crate) runs: Vec<Run>,
    pending: Vec<(usize, Write)>,
    pub(crate) reference: Reference,
}

impl World {
    pub(crate) fn new(mut tape: Tape, faults: bool) -> Self {
        // Small and large windows and caches, so that evictions happen at every place.
        let window = [1 << 20, 0, 3 * 192][tape.pick(3)];
        let kept = [1_000, 0, 2][tape.pick(3)];
        Self {
            tape,
            params: params(window, kept),
            faults,
            draining: false,
            now: 1_000_000,
            ingress: vec![Vec::new(); INGRESS_PARTITIONS as usize],
            inbox: vec![Vec::new(); INBOX_PARTITIONS as usize],
            pushes: Vec::new(),
            dead_letters: BTreeSet::new(),
            originals: Vec::new(),
            commits: HashMap::new(),
            store: Store::default(),
            runs: Vec::new(),
            pending: Vec::new(),
            reference: Reference::default(),
        }
    }

    fn error(&mut self) -> i64 {
        [0, -CLOCK_ERROR, CLOCK_ERROR][self.tape.pick(3)]
    }

    /// A broker's clock.
    pub(crate) fn broker_now(&mut self) -> Millis {
        Millis(self.now + self.error())
    }

    /// A gateway's clock.
    pub(crate) fn gateway_now(&mut self) -> i64 {
        self.now + self.error()
    }

    pub(crate) fn start_of(&mut self, partition: u32) -> Start {
        match self.commits.get(&partition).cloned() {
            None => Start::at_log_start(0),
            Some((offset, metadata)) => {
                let known = if self.tape.chance(20) { "" } else { metadata.as_str() };
                Start::from_commit(offset, known).expect("this version")
            }
        }
    }

    // --- logs ---

    fn entry(
        &mut self,
        offset: u64,
        value: Option<Bytes>,
        link: Option<SourceLink>,
        dlq_id: Option<String>,
    ) -> LogEntry {
        LogEntry {
            offset,
            append_time: self.broker_now(),
            key: None,
            value,
            link: Ok(link),
            dlq_id,
        }
    }

    pub(crate) fn append_ingress(&mut self, partition: u32, value: Bytes) {
        let offset = self.ingress[partition as usize].len() as u64;
        let entry = self.entry(offset, Some(value), None, None);
        self.reference.ingress(partition, &entry);
        self.ingress[partition as usize].push(entry);
    }

    /// Appends to `inbox` what no fold emitted; the caller tells the reference.
    pub(crate) fn append_inbox(&mut self, q: u32, value: Bytes, dlq_id: Option<String>) -> LogEntry {
        let offset = self.inbox[q as usize].len() as u64;
        let entry = self.entry(offset, Some(value), None, dlq_id);
        self.inbox[q as usize].push(entry.clone());
        entry
    }

    fn append_emitted(&mut self, q: u32, output: Output) {
        let offset = self.inbox[q as usize].len() as u64;
        let link = output.link;
        // Every copy of an output is damaged or none: whether it can be decoded is a function of its source position.
        let mark = (link.src.pos.offset() * 31 + u64::from(link.src.idx) * 7 + u64::from(link.source.partition)) % 11;
        let damaged = self.faults && mark == 3;
        let value = if damaged {
            Bytes::from_static(b"\xff")
        } else {
            output.value.clone()
        };
        let entry = self.entry(offset, Some(value), Some(link), None);
        self.reference.emitted(q, &entry, &output.value, damaged);
        if damaged {
            self.originals.push((q, format!("inbox/{q}/{offset}"), output.value));
        }
        self.inbox[q as usize].push(entry);
    }

    // --- producers ---

    pub(crate) fn emit(&mut self, run: usize, outputs: Vec<Output>) {
        for output in outputs {
            let destination = (output.topic, output.partition);
            self.runs[run]
                .queues
                .entry(destination)
                .or_default()
                .push_back(Sent::Output(output));
        }
    }

    pub(crate) fn dead_letter(&mut self, run: usize, ids: Vec<String>) {
        let queue = self.runs[run].queues.entry((Topic::Dlq, 0)).or_default();
        queue.extend(ids.into_iter().map(|id| Sent::DeadLetter { id }));
    }

    /// Lets one output arrive, or loses it. Later ones of the same run go on: a loss in the middle.
    pub(crate) fn deliver_one(&mut self) -> bool {
        let candidates: Vec<(usize, (Topic, u32))> = self
            .runs
            .iter()
            .enumerate()
            .flat_map(|(i, run)| {
                let waiting = run.queues.iter().filter(|(_, queue)| !queue.is_empty());
                waiting.map(move |(destination, _)| (i, *destination))
            })
            .collect();
        if candidates.is_empty() {
            return false;
        }
        let (run, destination) = candidates[self.tape.pick(candidates.len())];
        let lost = self.faults && !self.draining && self.tape.chance(5);
        let state = &mut self.runs[run];
        let Some(queue) = state.queues.get_mut(&destination) else {
            return false;
        };
        let Some(sent) = queue.pop_front() else { return false };
        if lost {
            state.failed = true;
            return true;
        }
        match sent {
            Sent::DeadLetter { id } => {
                self.dead_letters.insert(id);
            }
            Sent::Output(output) => match output.topic {
                Topic::Inbox => self.append_emitted(output.partition, output),
                Topic::History => self.reference.history(&output),
                Topic::Push => self.pushes.push(output),
                Topic::Ingress | Topic::Trace | Topic::Dlq => panic!("no output of a fold: {output:?}"),
            },
        }
        true
    }

    // --- store ---

    pub(crate) fn issue(&mut self, run: usize, writes: impl IntoIterator<Item = Write>) {
        for write in writes {
            self.pending.push((run, write));
            self.runs[run].writes += 1;
        }
    }

    /// Lets one write in flight take effect, in any order.
    pub(crate) fn apply_one(&mut self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let at = self.tape.pick(self.pending.len());
        let (run, write) = self.pending.remove(at);
        self.runs[run].writes -= 1;
        self.store.apply(write);
        true
    }

    /// A run is gone. What it had in flight is cut off, or lands late.
    pub(crate) fn end(&mut self, run: usize) {
        self.runs[run].dead = true;
        if self.tape.chance(50) {
            let keep = self.tape.pick(4);
            let mut kept = 0;
            self.pending.retain(|(of, _)| {
                kept += usize::from(*of == run);
                *of != run || kept <= keep
            });
        }
        if self.tape.chance(50) {
            let keep = self.tape.pick(4);
            for queue in self.runs[run].queues.values_mut() {
                queue.truncate(keep);
            }
        }
    }

    /// Nothing of dead runs is in flight any more.
    pub(crate) fn settle_the_dead(&mut self) {
        while self.deliver_one() {}
        while self.apply_one() {}
    }
}
