//! Device ACKs: merged maxima per session, written as one record (req:B4).
//!
//! ```text
//! Ack │ Connect, Sync (cursor) │ DeliveredAck, ReadAck, Read ─► maxima ─► due after 100 ms or 64 ─► DeviceState
//! ```
//!
//! **Guarantee.** At most one record of a session is without broker confirm; what comes meanwhile is merged, never
//! queued. Numbers only grow, so a report that repeats what was written writes nothing, and one that failed is merged
//! back. The state is bounded: conversations beyond [`MAX_CONVS`] are left out, which costs a late receipt and no
//! message.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tidings_domain::{Conversation, MsgId};
use tidings_proto::validate::{AckReport, MAX_ACK_CONVS};
use tokio::time::Instant;

/// Conversations waiting to be written.
const MAX_CONVS: usize = 1000;

/// Pushed messages remembered for the per-message forms.
const MAX_RECENT: usize = 1024;

/// Maxima of one session.
#[derive(Debug)]
pub struct Acks {
    interval: Duration,
    max_count: u32,
    delivered: u64,
    stored: u64,
    convs: Positions,
    reads: Positions,
    /// ACKs merged since the last record.
    count: u32,
    /// When the first of them came.
    since: Option<Instant>,
    /// The record without broker confirm.
    writing: Option<Report>,
    written: (u64, u64),
}

/// What one record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Received up to this user_seq.
    pub delivered: u64,
    /// Stored up to this user_seq.
    pub stored: u64,
    /// Stored up to conv_seq.
    pub convs: Vec<(Conversation, u64)>,
    /// Read up to conv_seq.
    pub reads: Vec<(Conversation, u64)>,
}

impl Acks {
    /// Nothing to write; the device's record stands at `cursor`.
    #[must_use]
    pub fn new(interval: Duration, max_count: u32, cursor: u64) -> Self {
        Self {
            interval,
            max_count,
            delivered: cursor,
            stored: cursor,
            convs: Positions::default(),
            reads: Positions::default(),
            count: 0,
            since: None,
            writing: None,
            written: (cursor, cursor),
        }
    }

    /// Received up to this user_seq.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Stored up to this user_seq.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Merges a cumulative ACK.
    pub fn report(&mut self, report: AckReport, now: Instant) {
        self.positions(report.delivered, report.stored);
        for (conversation, conv_seq) in report.convs {
            self.convs.raise(conversation, conv_seq);
        }
        self.touched(now);
    }

    /// Merges a cursor, which is a storage ACK.
    pub fn cursor(&mut self, stored: u64, now: Instant) {
        self.positions(stored, stored);
        self.touched(now);
    }

    /// Merges a contiguous receipt.
    pub fn received(&mut self, delivered: u64, now: Instant) {
        self.positions(delivered, 0);
        self.touched(now);
    }

    /// Merges a read report.
    pub fn read(&mut self, conversation: Conversation, conv_seq: u64, now: Instant) {
        self.reads.raise(conversation, conv_seq);
        self.touched(now);
    }

    fn positions(&mut self, delivered: u64, stored: u64) {
        self.stored = self.stored.max(stored);
        self.delivered = self.delivered.max(delivered).max(stored);
    }

    fn touched(&mut self, now: Instant) {
        if self.news() {
            self.count += 1;
            self.since.get_or_insert(now);
        }
    }

    fn news(&self) -> bool {
        (self.delivered, self.stored) != self.written || !self.convs.due.is_empty() || !self.reads.due.is_empty()
    }

    /// When a record must be written; `None` while nothing is new or one is under way.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let since = self.since.filter(|_| self.writing.is_none())?;
        Some(if self.count >= self.max_count {
            since
        } else {
            since + self.interval
        })
    }

    /// What to write now. [`Self::done`] must follow.
    pub fn take(&mut self, now: Instant) -> Option<Report> {
        if self.writing.is_some() || !self.news() {
            return None;
        }
        let report = Report {
            delivered: self.delivered,
            stored: self.stored,
            convs: self.convs.take(),
            reads: self.reads.take(),
        };
        self.written = (self.delivered, self.stored);
        self.count = 0;
        // What did not fit the record is due after another interval.
        self.since = self.news().then_some(now);
        self.writing = Some(report.clone());
        Some(report)
    }

    /// The record was confirmed, or not: then its content is due again.
    pub fn done(&mut self, confirmed: bool, now: Instant) {
        let Some(report) = self.writing.take() else { return };
        if confirmed {
            return;
        }
        self.written = (0, 0);
        self.convs.put_back(report.convs);
        self.reads.put_back(report.reads);
        // Not at once, so that a log that is away is not tried in a tight loop.
        self.count = 0;
        self.since = Some(now);
    }
}

/// Positions in conversations: what is to be written, and what was, so that a repeated ACK writes nothing.
#[derive(Debug, Default)]
struct Positions {
    due: BTreeMap<Conversation, u64>,
    written: BTreeMap<Conversation, u64>,
}

impl Positions {
    fn raise(&mut self, conversation: Conversation, conv_seq: u64) {
        if self
            .written
            .get(&conversation)
            .is_some_and(|written| *written >= conv_seq)
        {
            return;
        }
        if let Some(due) = self.due.get_mut(&conversation) {
            *due = (*due).max(conv_seq);
        } else if self.due.len() < MAX_CONVS {
            self.due.insert(conversation, conv_seq);
        }
    }

    /// At most as many as a record takes.
    fn take(&mut self) -> Vec<(Conversation, u64)> {
        let taken: Vec<_> = std::iter::from_fn(|| self.due.pop_first())
            .take(MAX_ACK_CONVS)
            .collect();
        if self.written.len() + taken.len() > MAX_CONVS {
            // Forgetting costs a record when an old ACK is repeated.
            self.written.clear();
        }
        self.written.extend(taken.iter().cloned());
        taken
    }

    fn put_back(&mut self, taken: Vec<(Conversation, u64)>) {
        for (conversation, conv_seq) in taken {
            self.written.remove(&conversation);
            self.raise(conversation, conv_seq);
        }
    }
}

/// Which message a pushed event was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRef {
    /// Its id.
    pub msg_id: MsgId,
    /// Where.
    pub conversation: Conversation,
    /// Its number there.
    pub conv_seq: u64,
}

#[derive(Debug)]
struct RecentPush {
    user_seq: u64,
    message: Option<MessageRef>,
    received: bool,
}

/// The last events that went to the device, for the per-message ACKs of req:B6.
#[derive(Debug, Default)]
pub struct Recent {
    pushes: VecDeque<RecentPush>,
}

impl Recent {
    /// An event went to the device. One that is no message cannot be acknowledged by msg_id and counts as received.
    pub fn pushed(&mut self, user_seq: u64, message: Option<MessageRef>) {
        if self.pushes.iter().rev().any(|push| push.user_seq == user_seq) {
            return;
        }
        if self.pushes.len() >= MAX_RECENT {
            self.pushes.pop_front();
        }
        let received = message.is_none();
        let at = self.pushes.partition_point(|push| push.user_seq < user_seq);
        self.pushes.insert(
            at,
            RecentPush {
                user_seq,
                message,
                received,
            },
        );
    }

    /// The message with this id, if it was pushed lately.
    #[must_use]
    pub fn find(&self, msg_id: &MsgId) -> Option<&MessageRef> {
        let messages = self.pushes.iter().rev().filter_map(|push| push.message.as_ref());
        messages.into_iter().find(|message| message.msg_id == *msg_id)
    }

    /// The device received this message: gives up to which user_seq it has received everything above `delivered`.
    pub fn received(&mut self, msg_id: &MsgId, delivered: u64) -> u64 {
        for push in &mut self.pushes {
            push.received |= push.message.as_ref().is_some_and(|message| message.msg_id == *msg_id);
        }
        let mut contiguous = delivered;
        for push in &self.pushes {
            if push.user_seq <= contiguous {
                continue;
            }
            if push.user_seq > contiguous + 1 || !push.received {
                break;
            }
            contiguous = push.user_seq;
        }
        contiguous
    }
}

#[cfg(test)]
mod tests {
    use tidings_domain::Uid;
    use tidings_domain::clock::Millis;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);

    fn conversation(n: usize) -> Conversation {
        let uid = |text: &str| Uid::parse(text).expect("a uid");
        Conversation::direct(&uid("ann"), &uid(&format!("user{n:04}")))
    }

    fn ack(n: u64, convs: &[(usize, u64)]) -> AckReport {
        AckReport {
            epoch: 1,
            delivered: n,
            stored: n,
            convs: convs.iter().map(|(c, seq)| (conversation(*c), *seq)).collect(),
        }
    }

    /// req:B4: ten thousand single ACKs make at most 160 records, at whatever pace the log confirms.
    #[test]
    fn a_backlog_of_ten_thousand_makes_at_most_160_records() {
        let start = Instant::now();
        let mut acks = Acks::new(INTERVAL, 64, 0);
        let mut records = 0;
        for n in 1..=10_000u64 {
            acks.report(ack(n, &[(1, n)]), start);
            if acks.due().is_some_and(|due| due <= start) {
                acks.take(start).expect("due");
                records += 1;
                acks.done(true, start);
            }
        }
        assert_eq!(records, 156);
        let rest = acks.take(start).expect("the rest");
        assert_eq!(
            (rest.stored, &rest.convs[..]),
            (10_000, &[(conversation(1), 10_000)][..])
        );
    }

    #[test]
    fn while_a_record_is_under_way_acks_are_merged() {
        let now = Instant::now();
        let mut acks = Acks::new(INTERVAL, 64, 0);
        acks.report(ack(1, &[]), now);
        assert_eq!(acks.due(), Some(now + INTERVAL));
        acks.take(now).expect("due");
        for n in 2..=500 {
            acks.report(ack(n, &[]), now);
            assert_eq!(acks.due(), None);
        }
        assert_eq!(acks.take(now), None);
        acks.done(true, now);
        assert_eq!(acks.due(), Some(now));
        assert_eq!(acks.take(now).expect("due").stored, 500);
    }

    #[test]
    fn a_repeated_ack_writes_nothing_and_a_failed_record_comes_again() {
        let now = Instant::now();
        let mut acks = Acks::new(INTERVAL, 64, 7);
        acks.report(ack(7, &[]), now);
        assert_eq!((acks.due(), acks.take(now)), (None, None));
        acks.report(ack(9, &[(1, 4)]), now);
        let report = acks.take(now).expect("due");
        acks.done(false, now);
        assert_eq!(acks.due(), Some(now + INTERVAL));
        assert_eq!(acks.take(now), Some(report));
        acks.done(true, now);
        acks.report(ack(8, &[(1, 4)]), now);
        assert_eq!(acks.take(now), None, "positions never go back");
    }

    #[test]
    fn a_record_takes_a_hundred_conversations() {
        let now = Instant::now();
        let mut acks = Acks::new(INTERVAL, 64, 0);
        for n in 0..250 {
            acks.read(conversation(n), 1, now);
        }
        let mut sizes = Vec::new();
        while let Some(report) = acks.take(now) {
            sizes.push(report.reads.len());
            acks.done(true, now);
        }
        assert_eq!(sizes, [100, 100, 50]);
    }

    fn message(n: u8) -> MessageRef {
        MessageRef {
            msg_id: MsgId::mint(Millis(1_700_000_000_000), [n; 10]),
            conversation: conversation(1),
            conv_seq: u64::from(n),
        }
    }

    #[test]
    fn single_receipts_count_only_without_a_hole() {
        let mut recent = Recent::default();
        for n in [11, 12, 14] {
            recent.pushed(u64::from(n), Some(message(n)));
        }
        recent.pushed(13, None);
        assert_eq!(recent.received(&message(12).msg_id, 10), 10, "11 is missing");
        assert_eq!(recent.received(&message(11).msg_id, 10), 13);
        assert_eq!(recent.received(&message(14).msg_id, 13), 14);
        assert_eq!(recent.find(&message(12).msg_id), Some(&message(12)));
        assert_eq!(recent.find(&message(99).msg_id), None);
    }
}
