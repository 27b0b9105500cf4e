//! The user's stream on this device: what is next, what waits beyond a gap, when to pull. Pure: time and randomness
//! come in.
//!
//! Guarantee (req:C3, req:C5): events come out in the order of `user_seq` without a gap, each once; the cursor follows
//! what was committed to the local database and nothing else (scenarios B29, B33). A gap is pulled when it lasts longer
//! than `gap_patience`, when more than `max_waiting` events wait beyond it, or when a heartbeat shows a head that was
//! not received.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rand::{Rng, RngExt};
use tidings_proto::v1;
use tokio::time::Instant;

use crate::bucket::Bucket;
use crate::config::ClientConfig;

/// When to pull.
#[derive(Debug, Clone)]
pub(crate) struct StreamSettings {
    pub(crate) gap_patience: Duration,
    pub(crate) max_waiting: usize,
    pub(crate) max_buffered: usize,
    pub(crate) sync_burst: u32,
    pub(crate) sync_interval: Duration,
    pub(crate) sync_timeout: Duration,
    pub(crate) pull_interval: (Duration, Duration),
}

impl From<&ClientConfig> for StreamSettings {
    fn from(config: &ClientConfig) -> Self {
        Self {
            gap_patience: config.gap_patience,
            max_waiting: config.max_waiting,
            max_buffered: config.max_buffered,
            sync_burst: config.sync_burst,
            sync_interval: config.sync_interval,
            sync_timeout: config.sync_timeout,
            pull_interval: config.pull_interval,
        }
    }
}

/// An event with its place in the user's stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Arrived {
    pub(crate) user_seq: u64,
    /// `None`: of a kind this version does not know. It has its place all the same.
    pub(crate) event: Option<v1::event::Kind>,
}

/// What became of an event that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// New: next in order or waiting beyond a gap.
    New,
    /// It was there already: the ACK is to be repeated.
    Duplicate,
    /// It waits in the buffer already, or the buffer is full and it will be pulled.
    Ignored,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Round {
    Idle,
    Running { deadline: Instant },
}

/// Where the device stands in its user's stream.
#[derive(Debug)]
pub(crate) struct Stream {
    settings: StreamSettings,
    epoch: u64,
    /// Committed up to here.
    cursor: u64,
    /// Received without a gap up to here; at least `cursor`.
    received: u64,
    /// The largest head heard of.
    head: u64,
    /// Next in order, to be committed.
    ready: VecDeque<Arrived>,
    /// Beyond a gap.
    waiting: BTreeMap<u64, Option<v1::event::Kind>>,
    round: Round,
    /// A reason to pull that does not go away by itself.
    asked: bool,
    gap_since: Option<Instant>,
    not_before: Option<Instant>,
    next_pull: Option<Instant>,
    bucket: Bucket,
    connected: bool,
}

impl Stream {
    pub(crate) fn new(settings: StreamSettings, cursor: v1::Cursor) -> Self {
        let bucket = Bucket::new(settings.sync_burst, settings.sync_interval);
        Self {
            settings,
            epoch: cursor.epoch,
            cursor: cursor.user_seq,
            received: cursor.user_seq,
            head: cursor.user_seq,
            ready: VecDeque::new(),
            waiting: BTreeMap::new(),
            round: Round::Idle,
            asked: false,
            gap_since: None,
            not_before: None,
            next_pull: None,
            bucket,
            connected: false,
        }
    }

    /// The committed position: what is told to the server.
    pub(crate) fn cursor(&self) -> v1::Cursor {
        v1::Cursor {
            epoch: self.epoch,
            user_seq: self.cursor,
        }
    }

    /// Received without a gap up to this `user_seq`.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Events waiting beyond a gap.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A session began: sync on connect, whatever the head.
    pub(crate) fn connected(&mut self, head: u64, now: Instant, rng: &mut impl Rng) {
        self.connected = true;
        self.round = Round::Idle;
        self.not_before = None;
        self.asked = true;
        self.head = self.head.max(head);
        self.schedule_pull(now, rng);
    }

    pub(crate) fn disconnected(&mut self) {
        self.connected = false;
        self.round = Round::Idle;
    }

    /// Starts anew at `cursor`: nothing that was received under another cursor counts.
    pub(crate) fn reset(&mut self, cursor: v1::Cursor) {
        self.epoch = cursor.epoch;
        self.cursor = cursor.user_seq;
        self.received = cursor.user_seq;
        self.head = cursor.user_seq;
        self.ready.clear();
        self.waiting.clear();
        self.round = Round::Idle;
        self.gap_since = None;
        self.asked = true;
    }

    /// Events up to and including `floor` are gone: the stream goes on after it. Tells whether the cursor moves. What is
    /// ready must have been committed.
    pub(crate) fn truncated(&mut self, floor: u64, now: Instant) -> bool {
        if floor <= self.received {
            return false;
        }
        self.received = floor;
        self.cursor = floor;
        self.head = self.head.max(floor);
        self.waiting = self.waiting.split_off(&(floor + 1));
        self.close_gap();
        self.extend_round(now);
        true
    }

    /// Takes an event.
    pub(crate) fn arrive(&mut self, push: v1::Push, now: Instant) -> Arrival {
        let user_seq = push.user_seq;
        if user_seq <= self.received {
            return Arrival::Duplicate;
        }
        self.head = self.head.max(user_seq);
        if user_seq == self.received + 1 {
            self.received = user_seq;
            self.ready.push_back(Arrived {
                user_seq,
                event: push.event.and_then(|event| event.kind),
            });
            self.close_gap();
            return Arrival::New;
        }
        if self.waiting.contains_key(&user_seq) || self.waiting.len() >= self.settings.max_buffered {
            return Arrival::Ignored;
        }
        self.waiting.insert(user_seq, push.event.and_then(|event| event.kind));
        self.gap_since.get_or_insert(now);
        Arrival::New
    }

    /// Takes out what is next in order, at most `most` events.
    pub(crate) fn take_ready(&mut self, most: usize) -> Vec<Arrived> {
        let most = most.min(self.ready.len());
        self.ready.drain(..most).collect()
    }

    /// Events that `take_ready` has.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Takes over what waited and is next in order now.
    fn close_gap(&mut self) {
        while let Some(event) = self.waiting.remove(&(self.received + 1)) {
            self.received += 1;
            self.ready.push_back(Arrived {
                user_seq: self.received,
                event,
            });
        }
        if self.waiting.is_empty() {
            self.gap_since = None;
        }
    }

    /// Everything up to `user_seq` is in the local database.
    pub(crate) fn committed(&mut self, user_seq: u64) {
        self.cursor = self.cursor.max(user_seq.min(self.received));
    }

    /// A heartbeat or notice said where the head is.
    pub(crate) fn head_is(&mut self, head: u64) {
        self.head = self.head.max(head);
    }

    /// A page of the round came; its events have been taken in.
    pub(crate) fn page(&mut self, end_of_backlog: bool, head: u64, now: Instant, rng: &mut impl Rng) {
        self.head = self.head.max(head);
        if end_of_backlog {
            self.round = Round::Idle;
            self.schedule_pull(now, rng);
        } else {
            self.extend_round(now);
        }
    }

    /// The server did not do the round.
    pub(crate) fn round_refused(&mut self, retry_after: Duration, now: Instant) {
        if let Round::Running { .. } = self.round {
            self.round = Round::Idle;
            self.asked = true;
            self.not_before = Some(now + retry_after.max(self.settings.sync_interval));
        }
    }

    /// Whether a round is to be started now; if so it counts as started.
    pub(crate) fn start_round(&mut self, now: Instant) -> bool {
        if let Round::Running { deadline } = self.round {
            if now < deadline {
                return false;
            }
            self.round = Round::Idle;
            self.asked = true;
        }
        if self.round_due(now).is_none_or(|at| at > now) || !self.bucket.take(now) {
            return false;
        }
        self.asked = false;
        // A gap that this round does not fill is a new reason after as long again.
        self.gap_since = self.gap_since.map(|_| now);
        self.not_before = None;
        self.round = Round::Running {
            deadline: now + self.settings.sync_timeout,
        };
        true
    }

    /// When `start_round` has something to do next.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        match self.round {
            Round::Running { deadline } if self.connected => Some(deadline),
            Round::Running { .. } => None,
            Round::Idle => self.round_due(now),
        }
    }

    /// When the next round is due, if one is.
    fn round_due(&self, now: Instant) -> Option<Instant> {
        if !self.connected {
            return None;
        }
        let pressing = self.asked || self.waiting.len() > self.settings.max_waiting || self.head_is_missing();
        let reasons = [
            pressing.then_some(now),
            self.gap_since.map(|since| since + self.settings.gap_patience),
            self.next_pull,
        ];
        let due = reasons.into_iter().flatten().min()?;
        let allowed = self.not_before.unwrap_or(due).max(self.bucket.next_at(now));
        Some(due.max(allowed))
    }

    /// A head was heard of that neither came nor waits.
    fn head_is_missing(&self) -> bool {
        let newest = self.waiting.last_key_value().map_or(self.received, |(seq, _)| *seq);
        self.head > newest
    }

    fn extend_round(&mut self, now: Instant) {
        if let Round::Running { deadline } = &mut self.round {
            *deadline = now + self.settings.sync_timeout;
        }
    }

    fn schedule_pull(&mut self, now: Instant, rng: &mut impl Rng) {
        let (shortest, longest) = self.settings.pull_interval;
        let share: f64 = rng.random();
        self.next_pull = Some(now + shortest + longest.saturating_sub(shortest).mul_f64(share));
    }
}

#[cfg(test)]
mod tests;
