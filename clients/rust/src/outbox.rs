//! What is to be sent: one lane per conversation, the resend ladder, the window. Pure: time and randomness come in.
//!
//! Guarantee (req:C2): within a conversation messages go out in the order in which the user pressed send, also over
//! resends and reconnects. A lane sends ahead within the window; when its oldest message gets no ACK in time or a
//! retryable refusal, the whole lane goes back to it, waits, and sends everything from there again in order. Only a
//! message that failed or was refused for good is passed over.
//!
//! `lane_seq` counts 1, 2, 3 ... per session and conversation and is kept on a resend. If the gateway expects a lower
//! number than that of the oldest message, the messages before it never got there and the lane is renumbered.
//!
//! The ladder (req:A3) counts tries that went unanswered while connected. Being offline spends no try; a new session
//! sends again at once. `resend_horizon` after the first send it ends in any case.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use rand::{Rng, RngExt};
use tidings_domain::clock::Millis;
use tidings_domain::{Conversation, MsgId};
use tidings_proto::v1;
use tokio::time::Instant;

use crate::bucket::Bucket;
use crate::config::ClientConfig;

/// A message to be sent, as it lies in the local database.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// Ascending in the order in which the user pressed send.
    pub(crate) local_id: i64,
    pub(crate) conversation: Conversation,
    pub(crate) msg_id: MsgId,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    pub(crate) first_send_time: Millis,
    /// When the automatic sending began: the first send, or the last one by hand.
    pub(crate) since: Millis,
    /// Of the last try, if there was one.
    pub(crate) retry_count: u32,
    /// There may have been a try before: by an earlier process.
    pub(crate) tried: bool,
    /// How often it got a new id.
    pub(crate) renewals: u32,
}

/// The ladder and the window.
#[derive(Debug, Clone)]
pub(crate) struct OutboxSettings {
    pub(crate) ack_timeouts: [Duration; 3],
    pub(crate) resend_delays: Vec<Duration>,
    pub(crate) resend_jitter: f64,
    pub(crate) resend_horizon: Duration,
    pub(crate) max_unacked: usize,
    pub(crate) max_sends_per_second: u32,
}

impl From<&ClientConfig> for OutboxSettings {
    fn from(config: &ClientConfig) -> Self {
        Self {
            ack_timeouts: config.ack_timeouts,
            resend_delays: config.resend_delays.clone(),
            resend_jitter: config.resend_jitter,
            resend_horizon: config.resend_horizon,
            max_unacked: config.max_unacked,
            max_sends_per_second: config.max_sends_per_second.max(1),
        }
    }
}

impl OutboxSettings {
    fn ack_timeout(&self, step: usize) -> Duration {
        self.ack_timeouts[step.min(2)]
    }

    /// Delay before resend number `step` (from 1); `None`: the ladder is spent.
    fn delay(&self, step: usize, rng: &mut impl Rng) -> Option<Duration> {
        let base = *self.resend_delays.get(step.checked_sub(1)?)?;
        let share: f64 = rng.random();
        Some(base + base.mul_f64(self.resend_jitter.clamp(0.0, 1.0) * share))
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Status {
    Waiting,
    InFlight { deadline: Instant },
}

#[derive(Debug)]
struct Pending {
    entry: Entry,
    /// 0: not sent in this session.
    lane_seq: u64,
    /// Unanswered or refused tries.
    step: usize,
    status: Status,
    /// Tries that were not answered with "this id is not valid": while there is one, the id must stay.
    open_tries: u32,
}

#[derive(Debug)]
struct Lane {
    pending: VecDeque<Pending>,
    next_lane_seq: u64,
    /// Nothing is sent before.
    hold_until: Option<Instant>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            pending: VecDeque::new(),
            next_lane_seq: 1,
            hold_until: None,
        }
    }
}

/// What a link ACK came to.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// Durable in the log.
    Sent(Entry),
    /// Refused for good.
    Refused { entry: Entry, code: i32, doubt: Doubt },
    /// The ladder is spent.
    Failed(Entry),
    /// The message will be sent again, or is not here any more.
    Nothing,
}

/// What a permanent refusal leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The message cannot be accepted as it is.
    None,
    /// Every try was refused for its id alone: under a new one it may be sent (architecture.md section 4).
    IdOnly,
    /// This try was refused for its id, but an earlier one may have been accepted.
    EarlierTry,
}

/// What is to be done now.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// To be sent, in this order.
    pub(crate) send: Vec<Outgoing>,
    /// The ladder is spent.
    pub(crate) failed: Vec<Entry>,
}

/// One try.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) local_id: i64,
    pub(crate) retry_count: u32,
    pub(crate) frame: v1::UserAction,
}

/// All lanes of a device.
#[derive(Debug)]
pub(crate) struct Outbox {
    settings: OutboxSettings,
    lanes: BTreeMap<Conversation, Lane>,
    lane_of: HashMap<MsgId, Conversation>,
    rate: Bucket,
    connected: bool,
}

impl Outbox {
    pub(crate) fn new(settings: OutboxSettings, entries: Vec<Entry>) -> Self {
        let rate = Bucket::new(
            settings.max_sends_per_second,
            Duration::from_secs(1) / settings.max_sends_per_second,
        );
        let mut outbox = Self {
            settings,
            lanes: BTreeMap::new(),
            lane_of: HashMap::new(),
            rate,
            connected: false,
        };
        for entry in entries {
            outbox.push(entry);
        }
        outbox
    }

    /// Adds a message; `local_id`s ascend.
    pub(crate) fn push(&mut self, entry: Entry) {
        self.lane_of.insert(entry.msg_id, entry.conversation.clone());
        let lane = self.lanes.entry(entry.conversation.clone()).or_default();
        lane.pending.push_back(Pending {
            open_tries: u32::from(entry.tried),
            entry,
            lane_seq: 0,
            step: 0,
            status: Status::Waiting,
        });
    }

    /// Whether the message is still to be sent.
    pub(crate) fn contains(&self, msg_id: MsgId) -> bool {
        self.lane_of.contains_key(&msg_id)
    }

    /// The server's limit of sends without an ACK.
    pub(crate) fn limit_window(&mut self, max_unacked: usize) {
        self.settings.max_unacked = max_unacked.max(1);
    }

    /// Messages without a final answer.
    pub(crate) fn len(&self) -> usize {
        self.lane_of.len()
    }

    /// Sends of this session without an answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.lanes.values().map(Lane::in_flight).sum()
    }

    /// A new session: lanes count from 1 again, and everything is sent again from the oldest on.
    pub(crate) fn connected(&mut self) {
        self.connected = true;
        for lane in self.lanes.values_mut() {
            lane.go_back(None);
            lane.next_lane_seq = 1;
            for pending in &mut lane.pending {
                pending.lane_seq = 0;
            }
        }
    }

    /// The session is over; no try is spent until the next one.
    pub(crate) fn disconnected(&mut self) {
        self.connected = false;
        for lane in self.lanes.values_mut() {
            lane.go_back(None);
        }
    }

    /// Takes a message out: its echo or rejection came.
    pub(crate) fn remove(&mut self, msg_id: MsgId) -> Option<Entry> {
        let conversation = self.lane_of.remove(&msg_id)?;
        let lane = self.lanes.get_mut(&conversation)?;
        let at = lane.position(msg_id)?;
        let removed = lane.pending.remove(at)?;
        self.drop_if_idle(&conversation);
        Some(removed.entry)
    }

    /// Applies a link ACK.
    pub(crate) fn acknowledged(&mut self, msg_id: MsgId, ack: &v1::MsgAck, now: Instant, rng: &mut impl Rng) -> Answer {
        let Some(lane) = self
            .lane_of
            .get(&msg_id)
            .and_then(|conversation| self.lanes.get_mut(conversation))
        else {
            return Answer::Nothing;
        };
        let Some(at) = lane.position(msg_id) else {
            return Answer::Nothing;
        };
        let code = v1::Code::try_from(ack.code).ok();
        if code == Some(v1::Code::Ok) {
            return self.remove(msg_id).map_or(Answer::Nothing, Answer::Sent);
        }
        // A code of a newer server says by its flag what to do.
        if !code.map_or(ack.retryable, v1::Code::is_retryable) {
            let id_refused = matches!(code, Some(v1::Code::InvalidMsgId | v1::Code::MsgIdExpired));
            let doubt = match (id_refused, lane.pending[at].open_tries) {
                (false, _) => Doubt::None,
                (true, 0 | 1) => Doubt::IdOnly,
                (true, _) => Doubt::EarlierTry,
            };
            return self.remove(msg_id).map_or(Answer::Nothing, |entry| Answer::Refused {
                entry,
                code: ack.code,
                doubt,
            });
        }
        if lane.pending[at].status == Status::Waiting {
            // It will be sent again already: the answer to a try before the lane went back.
            return Answer::Nothing;
        }
        if code == Some(v1::Code::LaneOutOfOrder) {
            if at > 0 {
                // It was sent behind a message whose own answer decides; a late one must not send the lane back twice.
                return Answer::Nothing;
            }
            let oldest = lane.pending[at].lane_seq;
            if (1..oldest).contains(&ack.expected_lane_seq) {
                lane.renumber(ack.expected_lane_seq);
                return Answer::Nothing;
            }
        }
        let after = Duration::from_millis(u64::from(ack.retry_after_ms));
        match lane.step_back(&self.settings, now, after, rng) {
            None => Answer::Nothing,
            Some(failed) => self.remove(failed).map_or(Answer::Nothing, Answer::Failed),
        }
    }

    /// What is to be done now; at most `room` sends. `wall` is the server's time as far as known.
    pub(crate) fn due(&mut self, now: Instant, wall: Millis, room: usize, rng: &mut impl Rng) -> Due {
        let mut due = Due::default();
        for msg_id in self.spent(now, wall, rng) {
            due.failed.extend(self.remove(msg_id));
        }
        if !self.connected {
            return due;
        }
        while due.send.len() < room && self.in_flight() < self.settings.max_unacked && self.rate.next_at(now) <= now {
            let Some(lane) = self
                .lanes
                .values_mut()
                .filter(|lane| lane.hold_until.is_none_or(|until| until <= now))
                .filter_map(|lane| Some((lane.first_waiting()?.entry.local_id, lane)))
                .min_by_key(|(local_id, _)| *local_id)
                .map(|(_, lane)| lane)
            else {
                break;
            };
            self.rate.take(now);
            due.send.extend(lane.send_next(&self.settings, now, wall));
        }
        due
    }

    /// When `due` has something to do next.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        if !self.connected {
            return None;
        }
        let window_open = self.in_flight() < self.settings.max_unacked;
        self.lanes
            .values()
            .filter_map(|lane| {
                let ack = match lane.pending.front()?.status {
                    Status::InFlight { deadline } => Some(deadline),
                    Status::Waiting => None,
                };
                let send = (window_open && lane.first_waiting().is_some())
                    .then(|| lane.hold_until.unwrap_or(now).max(self.rate.next_at(now)));
                ack.into_iter().chain(send).min()
            })
            .min()
    }

    /// Lanes whose oldest message got no ACK in time go back; gives the messages whose ladder is spent.
    fn spent(&mut self, now: Instant, wall: Millis, rng: &mut impl Rng) -> Vec<MsgId> {
        let mut spent = Vec::new();
        for lane in self.lanes.values_mut() {
            spent.extend(
                lane.pending
                    .iter()
                    .filter(|pending| wall.since(pending.entry.since) > self.settings.resend_horizon)
                    .map(|pending| pending.entry.msg_id),
            );
            let timed_out = lane
                .pending
                .front()
                .is_some_and(|oldest| matches!(oldest.status, Status::InFlight { deadline } if deadline <= now));
            if timed_out {
                spent.extend(lane.step_back(&self.settings, now, Duration::ZERO, rng));
            }
        }
        spent
    }

    fn drop_if_idle(&mut self, conversation: &Conversation) {
        // The lane of this session goes on counting, so it stays while connected.
        if !self.connected && self.lanes.get(conversation).is_some_and(|lane| lane.pending.is_empty()) {
            self.lanes.remove(conversation);
        }
    }
}

impl Lane {
    fn in_flight(&self) -> usize {
        self.pending
            .iter()
            .filter(|pending| matches!(pending.status, Status::InFlight { .. }))
            .count()
    }

    fn position(&self, msg_id: MsgId) -> Option<usize> {
        self.pending.iter().position(|pending| pending.entry.msg_id == msg_id)
    }

    fn first_waiting(&self) -> Option<&Pending> {
        self.pending.iter().find(|pending| pending.status == Status::Waiting)
    }

    /// Everything is to be sent again, in order.
    fn go_back(&mut self, hold_until: Option<Instant>) {
        self.hold_until = hold_until;
        for pending in &mut self.pending {
            pending.status = Status::Waiting;
        }
    }

    /// The oldest message's try came to nothing: back to it. Gives it if its ladder is spent.
    fn step_back(
        &mut self,
        settings: &OutboxSettings,
        now: Instant,
        at_least: Duration,
        rng: &mut impl Rng,
    ) -> Option<MsgId> {
        let oldest = self.pending.front_mut()?;
        oldest.step += 1;
        let (step, msg_id) = (oldest.step, oldest.entry.msg_id);
        match settings.delay(step, rng) {
            Some(delay) => {
                self.go_back(Some(now + delay.max(at_least)));
                None
            }
            None => {
                // The others go on at once, without it.
                self.go_back(None);
                Some(msg_id)
            }
        }
    }

    /// The gateway never got the numbers before the oldest message's: count from what it expects.
    fn renumber(&mut self, from: u64) {
        self.go_back(None);
        self.next_lane_seq = from;
        for pending in &mut self.pending {
            pending.lane_seq = 0;
        }
    }

    fn send_next(&mut self, settings: &OutboxSettings, now: Instant, wall: Millis) -> Option<Outgoing> {
        self.hold_until = None;
        let pending = self
            .pending
            .iter_mut()
            .find(|pending| pending.status == Status::Waiting)?;
        if pending.lane_seq == 0 {
            pending.lane_seq = self.next_lane_seq;
            self.next_lane_seq += 1;
        }
        let entry = &mut pending.entry;
        if entry.tried {
            entry.retry_count = entry.retry_count.saturating_add(1);
        }
        entry.tried = true;
        pending.open_tries = pending.open_tries.saturating_add(1);
        pending.status = Status::InFlight {
            deadline: now + settings.ack_timeout(pending.step),
        };
        Some(Outgoing {
            local_id: entry.local_id,
            retry_count: entry.retry_count,
            frame: v1::UserAction {
                action: v1::Action::Send as i32,
                lane_seq: pending.lane_seq,
                conversation: entry.conversation.as_str().to_owned(),
                msg_id: Bytes::copy_from_slice(entry.msg_id.as_bytes()),
                content_type: entry.content_type.clone(),
                body: entry.body.clone(),
                client_time: wall.get(),
                first_send_time: entry.first_send_time.get(),
                retry_count: entry.retry_count,
                ..v1::UserAction::default()
            },
        })
    }
}

#[cfg(test)]
mod tests;
