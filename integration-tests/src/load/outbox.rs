//! The sending half of a device: lanes and the ladder (req:A3, req:C2).
//!
//! One lane per conversation: what is not acknowledged stays in the order of pressing. In a session every frame of a
//! lane has the next `lane_seq`, which a resend keeps; after a retryable refusal or a time-out the lane goes back to its
//! oldest frame and sends all again in order. A new session numbers its lanes anew and sends all again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::{Conversation, MsgId};
use tidings_proto::v1;
use tokio::time::Instant;

/// Unacknowledged sends of a device (req:A3).
const MAX_UNACKED: usize = 16;
/// Sends of a device per second: 20 (req:A3).
const SEND_INTERVAL: Duration = Duration::from_millis(50);
/// How long the n-th attempt waits for its ACK; later ones as long as the last.
const ACK_TIMEOUTS: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(6), Duration::from_secs(12)];
/// Between the n-th attempt's time-out and the next attempt.
const RESEND_DELAYS: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(7),
    Duration::from_secs(15),
    Duration::from_secs(30),
];
/// After `LANE_OUT_OF_ORDER`: what is expected is on its way or has to be sent again.
const REORDER_DELAY: Duration = Duration::from_millis(100);

/// A message to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Where.
    pub conversation: Conversation,
    /// Its id, the same on every resend.
    pub msg_id: MsgId,
    /// Its text.
    pub body: Bytes,
    /// When the button was pressed.
    pub pressed_at: Millis,
}

/// What an ACK or a time-out made of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// Link ACK with code 0.
    Acknowledged(Conversation, MsgId),
    /// Refused for good.
    Refused(Conversation, MsgId, i32),
    /// The ladder was spent; the lane needs a new session.
    Failed(Conversation, MsgId),
    /// The lane numbers of both sides have parted: the session must be made anew.
    LaneLost,
}

#[derive(Debug)]
struct InFlight {
    message: Outgoing,
    /// 0: not sent in this session.
    lane_seq: u64,
    /// Sent in any session.
    is_sent: bool,
    retry_count: u32,
}

#[derive(Debug, Default)]
struct Lane {
    next_lane_seq: u64,
    frames: VecDeque<InFlight>,
    /// Attempts of the oldest frame; 0: none yet.
    attempt: usize,
    /// The oldest frame's ACK is due.
    ack_due: Option<Instant>,
    /// The lane sends all again.
    resend_at: Option<Instant>,
}

/// The sending half of one device.
#[derive(Debug, Default)]
pub struct Outbox {
    lanes: BTreeMap<Conversation, Lane>,
    waiting: VecDeque<Outgoing>,
    next_send: Option<Instant>,
    connected: bool,
    resends: u64,
}

impl Outbox {
    /// The button was pressed.
    pub fn press(&mut self, message: Outgoing) {
        self.waiting.push_back(message);
    }

    /// A session began: lanes are numbered anew and all that is not acknowledged is sent again.
    pub fn connected(&mut self, now: Instant) {
        self.connected = true;
        for lane in self.lanes.values_mut() {
            lane.next_lane_seq = 1;
            for frame in &mut lane.frames {
                frame.lane_seq = 0;
            }
            // A new session is no step of the ladder.
            lane.attempt = lane.attempt.saturating_sub(1);
            lane.ack_due = None;
            lane.resend_at = (!lane.frames.is_empty()).then_some(now);
        }
    }

    /// The session ended.
    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    /// Messages pressed and not settled.
    pub fn unsettled(&self) -> usize {
        self.waiting.len() + self.unacked()
    }

    /// Frames sent again so far.
    pub fn resends(&self) -> u64 {
        self.resends
    }

    /// Frames to be sent now, and messages whose ladder is spent. `jitter` (0 to 1) spreads resends.
    pub fn poll(&mut self, now: Instant, jitter: f64, frames: &mut Vec<v1::UserAction>) -> Vec<Settled> {
        let mut settled = Vec::new();
        if !self.connected {
            return settled;
        }
        for (conversation, lane) in &mut self.lanes {
            if lane.ack_due.is_some_and(|due| due <= now) {
                lane.ack_due = None;
                match RESEND_DELAYS.get(lane.attempt.saturating_sub(1)) {
                    Some(&delay) => lane.resend_at = Some(now + delay + delay.mul_f64(jitter / 2.0)),
                    None => {
                        lane.attempt = 0;
                        if let Some(frame) = lane.frames.pop_front() {
                            settled.push(Settled::Failed(conversation.clone(), frame.message.msg_id));
                        }
                    }
                }
            }
            if lane.resend_at.is_some_and(|at| at <= now) {
                lane.resend_all(now, frames, &mut self.resends);
            }
        }
        self.send_waiting(now, frames);
        settled
    }

    /// The answer to a frame. `None`: nothing is settled by it.
    pub fn answered(&mut self, now: Instant, ack: &v1::MsgAck) -> Option<Settled> {
        let conversation = Conversation::parse(&ack.conversation).ok()?;
        let msg_id = MsgId::from_slice(&ack.msg_id).ok()?;
        let lane = self.lanes.get_mut(&conversation)?;
        let at = lane.frames.iter().position(|frame| frame.message.msg_id == msg_id)?;
        if ack.code == v1::Code::Ok as i32 || !ack.retryable {
            lane.frames.remove(at);
            if at == 0 {
                lane.attempt = 1;
                if lane.frames.is_empty() {
                    lane.resend_at = None;
                }
                let is_waiting = !lane.frames.is_empty() && lane.resend_at.is_none();
                lane.ack_due = is_waiting.then(|| now + ACK_TIMEOUTS[0]);
            }
            return Some(if ack.code == v1::Code::Ok as i32 {
                Settled::Acknowledged(conversation, msg_id)
            } else {
                Settled::Refused(conversation, msg_id, ack.code)
            });
        }
        let delay = if ack.code == v1::Code::LaneOutOfOrder as i32 {
            let oldest = lane.frames.front().map_or(0, |frame| frame.lane_seq);
            if ack.expected_lane_seq < oldest {
                return Some(Settled::LaneLost);
            }
            REORDER_DELAY
        } else {
            let ladder = RESEND_DELAYS[0];
            ladder.max(Duration::from_millis(u64::from(ack.retry_after_ms)))
        };
        lane.ack_due = None;
        let at = now + delay;
        lane.resend_at = Some(lane.resend_at.map_or(at, |known| known.min(at)));
        None
    }

    /// When [`Outbox::poll`] has something to do next.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.connected {
            return None;
        }
        let lanes = self
            .lanes
            .values()
            .flat_map(|lane| [lane.ack_due, lane.resend_at])
            .flatten();
        let next_send = (!self.waiting.is_empty() && self.unacked() < MAX_UNACKED)
            .then_some(self.next_send)
            .flatten();
        lanes.chain(next_send).min()
    }

    fn unacked(&self) -> usize {
        self.lanes.values().map(|lane| lane.frames.len()).sum()
    }

    fn send_waiting(&mut self, now: Instant, frames: &mut Vec<v1::UserAction>) {
        while self.unacked() < MAX_UNACKED && self.next_send.is_none_or(|at| at <= now) {
            let Some(message) = self.waiting.pop_front() else {
                return;
            };
            let lane = self.lanes.entry(message.conversation.clone()).or_insert_with(|| Lane {
                next_lane_seq: 1,
                ..Lane::default()
            });
            if lane.frames.is_empty() {
                lane.attempt = 1;
                lane.ack_due = Some(now + ACK_TIMEOUTS[0]);
            }
            let mut frame = InFlight {
                message,
                lane_seq: 0,
                is_sent: false,
                retry_count: 0,
            };
            // Behind a lane that waits to send again it only takes its place.
            if lane.resend_at.is_none() {
                frame.lane_seq = lane.next_lane_seq;
                frame.is_sent = true;
                lane.next_lane_seq += 1;
                frames.push(frame.action());
            }
            lane.frames.push_back(frame);
            self.next_send = Some(now + SEND_INTERVAL);
        }
    }
}

impl Lane {
    fn resend_all(&mut self, now: Instant, frames: &mut Vec<v1::UserAction>, resends: &mut u64) {
        self.resend_at = None;
        self.attempt += 1;
        for frame in &mut self.frames {
            if frame.lane_seq == 0 {
                frame.lane_seq = self.next_lane_seq;
                self.next_lane_seq += 1;
            }
            if frame.is_sent {
                frame.retry_count += 1;
                *resends += 1;
            }
            frame.is_sent = true;
            frames.push(frame.action());
        }
        let patience = ACK_TIMEOUTS[(self.attempt - 1).min(ACK_TIMEOUTS.len() - 1)];
        self.ack_due = (!self.frames.is_empty()).then(|| now + patience);
    }
}

impl InFlight {
    fn action(&self) -> v1::UserAction {
        v1::UserAction {
            action: v1::Action::Send as i32,
            lane_seq: self.lane_seq,
            conversation: self.message.conversation.as_str().to_owned(),
            msg_id: Bytes::copy_from_slice(self.message.msg_id.as_bytes()),
            content_type: "text".to_owned(),
            body: self.message.body.clone(),
            client_time: self.message.pressed_at.get(),
            first_send_time: self.message.pressed_at.get(),
            retry_count: self.retry_count,
            ..v1::UserAction::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use tidings_domain::Uid;

    use super::*;

    fn conversation() -> Conversation {
        Conversation::direct(&Uid::parse("a").unwrap(), &Uid::parse("b").unwrap())
    }

    fn id(number: u8) -> MsgId {
        MsgId::mint(Millis(1_700_000_000_000), [number; 10])
    }

    fn outbox(messages: u8, now: Instant) -> Outbox {
        let mut outbox = Outbox::default();
        outbox.connected(now);
        for number in 0..messages {
            outbox.press(Outgoing {
                conversation: conversation(),
                msg_id: id(number),
                body: Bytes::from_static(b"x"),
                pressed_at: Millis(1),
            });
        }
        outbox
    }

    /// (message, lane_seq, retry_count) of what is sent until `until`.
    fn sent(outbox: &mut Outbox, now: &mut Instant, until: Instant) -> Vec<(MsgId, u64, u32)> {
        let mut sent = Vec::new();
        loop {
            let mut frames = Vec::new();
            outbox.poll(*now, 0.0, &mut frames);
            let ids = frames.iter().map(|frame| {
                (
                    MsgId::from_slice(&frame.msg_id).unwrap(),
                    frame.lane_seq,
                    frame.retry_count,
                )
            });
            sent.extend(ids);
            match outbox.next_deadline() {
                Some(next) if next <= until => *now = next,
                Some(_) | None => return sent,
            }
        }
    }

    fn ack(number: u8, code: v1::Code, retryable: bool) -> v1::MsgAck {
        v1::MsgAck {
            msg_id: Bytes::copy_from_slice(id(number).as_bytes()),
            conversation: conversation().as_str().to_owned(),
            code: code as i32,
            retryable,
            ..v1::MsgAck::default()
        }
    }

    #[tokio::test]
    async fn at_most_sixteen_are_unacknowledged_and_twenty_go_out_per_second() {
        let start = Instant::now();
        let mut now = start;
        let mut outbox = outbox(30, now);
        let first = sent(&mut outbox, &mut now, start + Duration::from_secs(2));
        assert_eq!(first.len(), 16);
        assert_eq!(now, start + Duration::from_millis(15 * 50));
        assert_eq!(first[15], (id(15), 16, 0));
        let settled = outbox.answered(now, &ack(0, v1::Code::Ok, false));
        assert_eq!(settled, Some(Settled::Acknowledged(conversation(), id(0))));
        assert_eq!(
            sent(&mut outbox, &mut now, start + Duration::from_secs(2)),
            vec![(id(16), 17, 0)]
        );
    }

    #[tokio::test]
    async fn a_lost_ack_sends_the_lane_again_with_the_same_ids_and_numbers() {
        let start = Instant::now();
        let mut now = start;
        let mut outbox = outbox(2, now);
        sent(&mut outbox, &mut now, start + Duration::from_secs(1));
        // 3 s for the ACK, 1 s before the resend.
        let again = sent(&mut outbox, &mut now, start + Duration::from_millis(4_500));
        assert_eq!(again, vec![(id(0), 1, 1), (id(1), 2, 1)]);
    }

    #[tokio::test]
    async fn a_new_session_numbers_anew_and_keeps_the_order() {
        let start = Instant::now();
        let mut now = start;
        let mut outbox = outbox(3, now);
        sent(&mut outbox, &mut now, start + Duration::from_secs(1));
        outbox.answered(now, &ack(0, v1::Code::Ok, false));
        outbox.disconnected();
        assert_eq!(outbox.next_deadline(), None);
        outbox.connected(now);
        let again = sent(&mut outbox, &mut now, start + Duration::from_secs(1));
        assert_eq!(again, vec![(id(1), 1, 1), (id(2), 2, 1)]);
    }

    #[tokio::test]
    async fn after_a_retryable_refusal_the_lane_goes_back_to_its_oldest() {
        let start = Instant::now();
        let mut now = start;
        let mut outbox = outbox(3, now);
        sent(&mut outbox, &mut now, start + Duration::from_secs(1));
        assert_eq!(outbox.answered(now, &ack(0, v1::Code::Unconfirmed, true)), None);
        let again = sent(&mut outbox, &mut now, start + Duration::from_secs(2));
        assert_eq!(again, vec![(id(0), 1, 1), (id(1), 2, 1), (id(2), 3, 1)]);
        let refused = outbox.answered(now, &ack(1, v1::Code::InvalidArgument, false));
        let code = v1::Code::InvalidArgument as i32;
        assert_eq!(refused, Some(Settled::Refused(conversation(), id(1), code)));
    }

    #[tokio::test]
    async fn the_ladder_ends() {
        let start = Instant::now();
        let mut now = start;
        let mut outbox = outbox(1, now);
        let mut attempts = 0;
        let failed = loop {
            let mut frames = Vec::new();
            let settled = outbox.poll(now, 0.0, &mut frames);
            attempts += frames.len();
            if let Some(settled) = settled.first() {
                break settled.clone();
            }
            now = outbox.next_deadline().unwrap();
        };
        assert_eq!(failed, Settled::Failed(conversation(), id(0)));
        assert_eq!(attempts, 6);
        // req:A3: 113 s without jitter.
        assert_eq!(now - start, Duration::from_secs(3 + 6 + 12 * 4 + 1 + 3 + 7 + 15 + 30));
    }
}
