//! The receiving half of a device: cursor, dedup keys, gaps, sync, ACKs (req:A6, req:B3, req:B4, req:C3-C5).
//!
//! An event is committed only if its `user_seq` is the next after the cursor; later ones wait in a bounded buffer and
//! start a sync round. Committing moves the cursor and enters the keys together, as one database transaction would. A
//! message whose keys are there is committed without being shown.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use prost::Message as _;
use tidings_domain::{ContentHasher, Conversation, MsgId, Uid};
use tidings_proto::v1;
use tokio::time::Instant;

use crate::oracle::{Entry, EventKind, Ledger, MessageKey};

/// Events that wait for a gap to be filled; what is beyond comes with the sync round.
const MAX_WAITING: usize = 1_000;
/// Storage ACKs are coalesced (req:B4).
const ACK_INTERVAL: Duration = Duration::from_millis(100);
/// Conversations named in one ACK.
const MAX_ACK_CONVS: usize = 100;
/// A round whose next page does not come is begun again.
const ROUND_TIMEOUT: Duration = Duration::from_secs(15);
/// Rounds are limited by the server: a burst of 3, one more each 2 s (req:C7).
const ROUND_INTERVAL: Duration = Duration::from_millis(500);

/// An event that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Number and content.
    pub entry: Entry,
    /// False if the message had been shown before.
    pub shown: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    Idle,
    /// Wanted, not before this time.
    Wanted(Instant),
    /// Asked for; given up at this time.
    Running(Instant),
}

/// The receiving half of one device.
#[derive(Debug)]
pub struct Stream {
    /// Epoch of the cursor; `None` until the first session.
    epoch: Option<u64>,
    uid: Option<Uid>,
    cursor: u64,
    waiting: BTreeMap<u64, v1::Event>,
    by_number: HashSet<(String, u64)>,
    by_id: HashSet<MessageKey>,
    convs: BTreeMap<String, u64>,
    ack_at: Option<Instant>,
    round: Round,
    repeats: u64,
    rounds: u64,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            epoch: None,
            uid: None,
            cursor: 0,
            waiting: BTreeMap::new(),
            by_number: HashSet::new(),
            by_id: HashSet::new(),
            convs: BTreeMap::new(),
            ack_at: None,
            round: Round::Idle,
            repeats: 0,
            rounds: 0,
        }
    }
}

impl Stream {
    /// The stream of a fresh device of `uid`.
    pub fn of(uid: Uid) -> Self {
        Self {
            uid: Some(uid),
            ..Self::default()
        }
    }

    /// What the next `Connect` carries; `None` if the device is fresh.
    pub fn position(&self) -> Option<v1::Cursor> {
        self.epoch.map(|epoch| v1::Cursor {
            epoch,
            user_seq: self.cursor,
        })
    }

    /// Up to where the device has committed.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Deliveries of what was committed already.
    pub fn repeats(&self) -> u64 {
        self.repeats
    }

    /// Sync rounds asked for.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// A session began. True if it was the device's first: then the server says where it starts.
    pub fn connected(&mut self, now: Instant, connected: &v1::Connected) -> bool {
        let is_first = self.epoch.is_none();
        if is_first {
            self.epoch = Some(connected.epoch);
            self.cursor = connected.cursor;
        }
        self.waiting.clear();
        self.round = Round::Wanted(now);
        is_first
    }

    /// The device is told to start again.
    pub fn reset(&mut self, now: Instant, reset: &v1::CursorReset) {
        self.epoch = Some(reset.epoch);
        self.cursor = reset.floor_seq;
        self.waiting.clear();
        self.want_round(now);
    }

    /// Events below the floor are gone.
    pub fn truncated(&mut self, truncated: &v1::Truncated) {
        self.cursor = self.cursor.max(truncated.floor_seq);
    }

    /// A pushed event.
    pub fn pushed(&mut self, now: Instant, push: v1::Push) -> Vec<Committed> {
        let is_gap = push.user_seq > self.cursor + 1;
        let committed = self.take(now, push);
        if is_gap && !self.waiting.is_empty() {
            self.want_round(now);
        }
        committed
    }

    /// A page of a round.
    pub fn page(&mut self, now: Instant, page: v1::SyncPage) -> Vec<Committed> {
        let mut committed = Vec::new();
        for push in page.events {
            committed.extend(self.take(now, push));
        }
        self.round = if page.end_of_backlog {
            Round::Idle
        } else {
            Round::Running(now + ROUND_TIMEOUT)
        };
        if page.end_of_backlog && page.head_seq > self.cursor {
            self.want_round(now);
        }
        committed
    }

    /// The server says where the stream ends.
    pub fn head(&mut self, now: Instant, head_seq: u64) {
        if head_seq > self.cursor {
            self.want_round(now);
        }
    }

    /// The round was refused.
    pub fn round_refused(&mut self, now: Instant, retry_after: Duration) {
        self.round = Round::Wanted(now + retry_after.max(ROUND_INTERVAL));
    }

    /// The frames to be sent now: an ACK and the start of a round.
    pub fn poll(&mut self, now: Instant) -> Vec<v1::client_frame::Frame> {
        let mut frames = Vec::new();
        let Some(epoch) = self.epoch else {
            return frames;
        };
        if self.ack_at.is_some_and(|at| at <= now) {
            self.ack_at = None;
            let convs = std::mem::take(&mut self.convs).into_iter().take(MAX_ACK_CONVS);
            frames.push(v1::client_frame::Frame::Ack(v1::Ack {
                epoch,
                delivered: self.cursor,
                stored: self.cursor,
                convs: convs
                    .map(|(conversation, conv_seq)| v1::AckConv { conversation, conv_seq })
                    .collect(),
            }));
        }
        match self.round {
            Round::Wanted(at) | Round::Running(at) if at <= now => {
                self.round = Round::Running(now + ROUND_TIMEOUT);
                self.rounds += 1;
                frames.push(v1::client_frame::Frame::Sync(v1::Sync {
                    cursor: self.position(),
                }));
            }
            Round::Wanted(_) | Round::Running(_) | Round::Idle => {}
        }
        frames
    }

    /// When [`Stream::poll`] has something to do next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let round = match self.round {
            Round::Idle => None,
            Round::Wanted(at) | Round::Running(at) => Some(at),
        };
        self.ack_at.into_iter().chain(round).min()
    }

    fn want_round(&mut self, now: Instant) {
        if self.round == Round::Idle {
            self.round = Round::Wanted(now + ROUND_INTERVAL);
        }
    }

    fn take(&mut self, now: Instant, push: v1::Push) -> Vec<Committed> {
        // What it has stored already it acknowledges again.
        self.ack_at.get_or_insert(now + ACK_INTERVAL);
        if push.user_seq <= self.cursor {
            self.repeats += 1;
            return Vec::new();
        }
        let Some(event) = push.event else {
            return Vec::new();
        };
        if self.waiting.len() < MAX_WAITING || push.user_seq == self.cursor + 1 {
            self.waiting.insert(push.user_seq, event);
        }
        let mut committed = Vec::new();
        while let Some(event) = self.waiting.remove(&(self.cursor + 1)) {
            committed.push(self.commit(&event));
        }
        self.waiting = self.waiting.split_off(&(self.cursor + 1));
        committed
    }

    fn commit(&mut self, event: &v1::Event) -> Committed {
        self.cursor += 1;
        let event = kind_of(event);
        let shown = match &event {
            EventKind::Message { key, conv_seq, .. } => {
                let conversation = key.conversation.as_str().to_owned();
                // One's own messages are nobody's to hear of as delivered.
                if self.uid.as_ref() != Some(&key.sender) {
                    let newest = self.convs.entry(conversation.clone()).or_default();
                    *newest = (*newest).max(*conv_seq);
                }
                let is_new_number = self.by_number.insert((conversation, *conv_seq));
                let is_new_id = self.by_id.insert(key.clone());
                is_new_number && is_new_id
            }
            EventKind::Other(_) => true,
        };
        Committed {
            entry: Entry {
                user_seq: self.cursor,
                event,
            },
            shown,
        }
    }
}

/// What an event is to the oracle. A message that breaks the protocol is "something else": the oracle will miss it.
pub fn kind_of(event: &v1::Event) -> EventKind {
    if let Some(v1::event::Kind::Message(message)) = &event.kind
        && message.action == v1::Action::Send as i32
        && let Some(key) = key_of(message)
    {
        return EventKind::Message {
            key,
            conv_seq: message.conv_seq,
            body: (!message.body.is_empty()).then(|| Ledger::body_hash(&message.body)),
        };
    }
    EventKind::Other(ContentHasher::new().part(&event.encode_to_vec()).finish())
}

/// The ids of a message.
pub fn key_of(message: &v1::Message) -> Option<MessageKey> {
    Some(MessageKey {
        conversation: Conversation::parse(&message.conversation).ok()?,
        sender: Uid::parse(&message.sender).ok()?,
        msg_id: MsgId::from_slice(&message.msg_id).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidings_domain::clock::Millis;

    use super::*;

    fn push(user_seq: u64, conv_seq: u64) -> v1::Push {
        let id = MsgId::mint(Millis(1_700_000_000_000), [u8::try_from(conv_seq).unwrap(); 10]);
        v1::Push {
            user_seq,
            event: Some(v1::Event {
                kind: Some(v1::event::Kind::Message(v1::Message {
                    conversation: "d:a:b".to_owned(),
                    conv_seq,
                    sender: "a".to_owned(),
                    msg_id: Bytes::copy_from_slice(id.as_bytes()),
                    action: v1::Action::Send as i32,
                    body: Bytes::from_static(b"x"),
                    ..v1::Message::default()
                })),
            }),
        }
    }

    fn numbers(committed: &[Committed]) -> Vec<(u64, bool)> {
        committed.iter().map(|c| (c.entry.user_seq, c.shown)).collect()
    }

    fn connected(now: Instant) -> Stream {
        let mut stream = Stream::default();
        let first = v1::Connected {
            epoch: 9,
            ..v1::Connected::default()
        };
        assert!(stream.connected(now, &first));
        let frames = stream.poll(now);
        assert!(matches!(frames[..], [v1::client_frame::Frame::Sync(_)]), "{frames:?}");
        let end = v1::SyncPage {
            end_of_backlog: true,
            ..v1::SyncPage::default()
        };
        stream.page(now, end);
        stream
    }

    #[tokio::test]
    async fn an_event_beyond_a_gap_waits_and_starts_a_round() {
        // B29: a live event before the catch-up must not move the cursor.
        let now = Instant::now();
        let mut stream = connected(now);
        assert_eq!(numbers(&stream.pushed(now, push(3, 3))), vec![]);
        assert_eq!(stream.position().unwrap().user_seq, 0);
        let frames = stream.poll(now + ROUND_INTERVAL);
        assert!(
            frames.iter().any(|f| matches!(f, v1::client_frame::Frame::Sync(_))),
            "{frames:?}"
        );
        let page = v1::SyncPage {
            events: vec![push(1, 1), push(2, 2)],
            end_of_backlog: true,
            head_seq: 3,
            ..v1::SyncPage::default()
        };
        let committed = stream.page(now, page);
        assert_eq!(numbers(&committed), vec![(1, true), (2, true), (3, true)]);
        assert_eq!(stream.cursor(), 3);
    }

    #[tokio::test]
    async fn a_repeat_is_acknowledged_again_and_not_shown() {
        let now = Instant::now();
        let mut stream = connected(now);
        stream.pushed(now, push(1, 1));
        let acks = stream.poll(now + ACK_INTERVAL);
        assert!(matches!(&acks[..], [v1::client_frame::Frame::Ack(ack)] if ack.stored == 1 && ack.convs.len() == 1));
        assert_eq!(numbers(&stream.pushed(now, push(1, 1))), vec![]);
        let acks = stream.poll(now + ACK_INTERVAL);
        assert!(matches!(&acks[..], [v1::client_frame::Frame::Ack(ack)] if ack.stored == 1));
        // The same message under another number: the server is at fault, the keys catch it.
        assert_eq!(numbers(&stream.pushed(now, push(2, 1))), vec![(2, false)]);
        assert_eq!(stream.repeats(), 1);
    }

    #[tokio::test]
    async fn a_lost_round_is_begun_again() {
        let now = Instant::now();
        let mut stream = connected(now);
        stream.head(now, 5);
        let later = now + ROUND_INTERVAL;
        assert_eq!(stream.poll(later).len(), 1);
        assert_eq!(stream.poll(later + ROUND_TIMEOUT / 2).len(), 0);
        assert_eq!(stream.poll(later + ROUND_TIMEOUT).len(), 1);
        assert_eq!(stream.rounds(), 3);
    }
}
