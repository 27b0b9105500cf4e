//! What other tasks and threads hand to a session: pushes, delivery reports, requests to close.
//!
//! ```text
//! delivery service ──push──┐
//! producer thread ─report──┼─► Mailbox ──wake──► the session's task takes all at once
//! shutdown, replacement ───┘
//! ```
//!
//! **Guarantee.** Bounded: reports by the session's limit of unacknowledged sends, pushes by the window (req:C9) and by
//! events and bytes. A push that finds no room is not queued: the session is told its head only, as one number however
//! many there were, and the device pulls. Nobody waits to put something in; the lock is never held across an await.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::ws::Message;
use parking_lot::Mutex;
use tidings_bus::producer::{Confirmation, DeliverySink, ProduceError};
use tidings_domain::clock::Millis;
use tidings_proto::v1::Code;
use tokio::sync::Notify;

use crate::acks::MessageRef;
use crate::config::GatewayConfig;
use crate::ingress::InFlight;
use crate::metrics::Metrics;

/// Pushes remembered for the measure "stored", beyond the window; older ones are not measured.
const MEASURED: usize = 256;

/// A push on its way to the socket.
#[derive(Debug, Clone)]
pub struct QueuedPush {
    /// Its number in the user's stream.
    pub user_seq: u64,
    /// The encoded frame.
    pub frame: Message,
    /// Size of the frame in bytes.
    pub bytes: usize,
    /// Broker time of the ingress record, if it is a message.
    pub append_time: Option<Millis>,
    /// Which message it is, if [`Mailbox::is_tracked`].
    pub message: Option<MessageRef>,
}

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// Queued.
    HandedOver,
    /// The session will be told its head.
    Notified,
    /// The session is closing.
    Closed,
}

/// A delivery report.
#[derive(Debug)]
pub struct Report {
    /// The tag the record was enqueued with.
    pub tag: u64,
    /// What the log said.
    pub result: Result<Confirmation, ProduceError>,
}

/// What the session must do beside writing pushes.
#[derive(Debug, Default)]
pub struct Taken {
    /// Delivery reports in the order they came.
    pub reports: Vec<Report>,
    /// End with this code.
    pub close: Option<Code>,
    /// Take no more sends and end when nothing is pending.
    pub drain: bool,
}

/// An event that was pushed and is not known to be stored.
#[derive(Debug, Clone, Copy)]
struct Handed {
    user_seq: u64,
    append_time: Option<Millis>,
}

/// Who gets the report of an orphaned send.
type Heir = (Arc<Mailbox>, u64);

#[derive(Default)]
struct State {
    closed: bool,
    close: Option<Code>,
    drain: bool,
    reports: Vec<Report>,
    /// Sends of the ended session that are still to be reported, with their heirs.
    orphaned: HashMap<u64, Option<Heir>>,
    pushes: VecDeque<QueuedPush>,
    push_bytes: usize,
    tell_head: Option<u64>,
    /// Largest user_seq heard of.
    head: u64,
    /// Pushed and not stored, ascending.
    handed: VecDeque<Handed>,
    /// The device received up to this.
    delivered: u64,
}

/// The mailbox of one session. It is the session's [`DeliverySink`]: tags are the session's own, so no table over all
/// sessions is needed, and a report that comes after the session's end is freed with the mailbox.
pub struct Mailbox {
    window: usize,
    max_events: usize,
    max_bytes: usize,
    state: Mutex<State>,
    wake: Notify,
    tracked: AtomicBool,
    in_flight: Arc<InFlight>,
    metrics: Metrics,
}

impl Mailbox {
    /// An empty mailbox of a device that stands at `cursor` in a stream of length `head`.
    #[must_use]
    pub fn new(config: &GatewayConfig, in_flight: Arc<InFlight>, metrics: Metrics, cursor: u64, head: u64) -> Self {
        Self {
            window: config.push_window,
            max_events: config.queue_events,
            max_bytes: config.queue_bytes,
            state: Mutex::new(State {
                head,
                delivered: cursor,
                ..State::default()
            }),
            wake: Notify::new(),
            tracked: AtomicBool::new(false),
            in_flight,
            metrics,
        }
    }

    /// Waits until there may be something to take.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// From now on pushes say which message they are: the device acknowledges by msg_id.
    pub fn track(&self) {
        self.tracked.store(true, Ordering::Relaxed);
    }

    /// Whether pushes should say which message they are.
    #[must_use]
    pub fn is_tracked(&self) -> bool {
        self.tracked.load(Ordering::Relaxed)
    }

    /// Whether the session has ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.state.lock().closed
    }

    /// Queues a push, or remembers to tell the head.
    pub fn push(&self, push: QueuedPush) -> Handover {
        let handover = {
            let mut state = self.state.lock();
            if state.closed || state.close.is_some() {
                return Handover::Closed;
            }
            state.head = state.head.max(push.user_seq);
            let waiting = state.pushes.len();
            let unacked = state.unacked();
            if unacked >= self.window
                || waiting >= self.max_events
                || (waiting > 0 && state.push_bytes + push.bytes > self.max_bytes)
            {
                state.tell_head = state.tell_head.max(Some(push.user_seq));
                Handover::Notified
            } else {
                state.remember(Handed {
                    user_seq: push.user_seq,
                    append_time: push.append_time,
                });
                state.push_bytes += push.bytes;
                state.pushes.push_back(push);
                self.metrics.push_queue_events.inc();
                Handover::HandedOver
            }
        };
        self.wake.notify_one();
        handover
    }

    /// The next push for the socket.
    pub fn pop(&self) -> Option<QueuedPush> {
        let mut state = self.state.lock();
        let push = state.pushes.pop_front()?;
        state.push_bytes -= push.bytes;
        self.metrics.push_queue_events.dec();
        Some(push)
    }

    /// The head to tell the device, once all pushes have gone: before them it would make the device pull what is on its
    /// way.
    pub fn take_head(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if state.pushes.is_empty() {
            state.tell_head.take()
        } else {
            None
        }
    }

    /// Everything but pushes and heads.
    pub fn take(&self) -> Taken {
        let mut state = self.state.lock();
        Taken {
            reports: std::mem::take(&mut state.reports),
            close: state.close,
            drain: state.drain,
        }
    }

    /// The device received up to `delivered` and stored up to `stored`. Gives the append times of what was stored just
    /// now.
    pub fn acknowledged(&self, delivered: u64, stored: u64) -> Vec<Millis> {
        let mut state = self.state.lock();
        state.delivered = state.delivered.max(delivered).max(stored);
        let mut times = Vec::new();
        while state.handed.front().is_some_and(|handed| handed.user_seq <= stored) {
            times.extend(state.handed.pop_front().and_then(|handed| handed.append_time));
        }
        times
    }

    /// Learns of the stream's length from elsewhere.
    pub fn learn_head(&self, head: u64) {
        let mut state = self.state.lock();
        state.head = state.head.max(head);
    }

    /// Tells the device that its stream is now at least this long.
    pub fn tell_head(&self, head: u64) {
        let mut state = self.state.lock();
        state.head = state.head.max(head);
        state.tell_head = state.tell_head.max(Some(head));
        drop(state);
        self.wake.notify_one();
    }

    /// The largest user_seq heard of.
    pub fn head(&self) -> u64 {
        self.state.lock().head
    }

    /// Asks the session to end with `code`. The first code counts.
    pub fn close(&self, code: Code) {
        self.state.lock().close.get_or_insert(code);
        self.wake.notify_one();
    }

    /// Asks the session to take no more sends and to end when nothing is pending.
    pub fn drain(&self) {
        self.state.lock().drain = true;
        self.wake.notify_one();
    }

    fn report(&self, tag: u64, result: Result<Confirmation, ProduceError>) {
        let heir = {
            let mut state = self.state.lock();
            match state.orphaned.remove(&tag) {
                Some(heir) => heir,
                None => {
                    // After the end nobody reads; before it the session does.
                    if !state.closed {
                        state.reports.push(Report { tag, result });
                        self.wake.notify_one();
                    }
                    return;
                }
            }
        };
        if let Some((mailbox, tag)) = heir {
            mailbox.report(tag, result);
        }
    }

    /// The session ends while this send is to be reported; false if the report is here already.
    pub(crate) fn orphan(&self, tag: u64) -> bool {
        let mut state = self.state.lock();
        let reported = state.reports.iter().any(|report| report.tag == tag);
        if !reported {
            state.orphaned.insert(tag, None);
        }
        !reported
    }

    /// Whether the orphaned send is still to be reported.
    pub(crate) fn is_orphaned(&self, tag: u64) -> bool {
        self.state.lock().orphaned.contains_key(&tag)
    }

    /// Sends the report of an orphaned send on to `heir`, under its tag; false if it came already.
    pub(crate) fn bequeath(&self, tag: u64, heir: &Arc<Self>, heir_tag: u64) -> bool {
        match self.state.lock().orphaned.get_mut(&tag) {
            Some(slot) => {
                *slot = Some((Arc::clone(heir), heir_tag));
                true
            }
            None => false,
        }
    }

    /// As if a record had been handed to the producer.
    #[cfg(test)]
    pub(crate) fn assume_in_flight(&self) {
        assert!(self.in_flight.enter(usize::MAX));
        self.metrics.produces_in_flight.inc();
    }

    /// The session has ended: pushes are dropped from here on, they stay in the inbox.
    pub fn ended(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let waiting = i64::try_from(state.pushes.len()).unwrap_or(i64::MAX);
        state.pushes.clear();
        state.push_bytes = 0;
        self.metrics.push_queue_events.dec_by(waiting);
    }
}

impl State {
    /// Pushes that the device has not said it received.
    fn unacked(&self) -> usize {
        self.handed.len() - self.handed.partition_point(|handed| handed.user_seq <= self.delivered)
    }

    fn remember(&mut self, handed: Handed) {
        // A repeated push is counted once; the deque stays ascending.
        if self.handed.back().is_none_or(|last| last.user_seq < handed.user_seq) {
            if self.handed.len() >= MEASURED + self.unacked() {
                self.handed.pop_front();
            }
            self.handed.push_back(handed);
        }
    }
}

impl DeliverySink for Mailbox {
    fn delivered(&self, tag: u64, result: Result<Confirmation, ProduceError>) {
        self.in_flight.leave();
        self.metrics.produces_in_flight.dec();
        self.report(tag, result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn mailbox(change: impl FnOnce(&mut GatewayConfig)) -> Mailbox {
        let mut config = Config::defaults().gateway;
        change(&mut config);
        Mailbox::new(&config, Arc::default(), Metrics::default(), 0, 0)
    }

    fn push(user_seq: u64) -> QueuedPush {
        QueuedPush {
            user_seq,
            frame: Message::Binary(vec![0; 100].into()),
            bytes: 100,
            append_time: Some(Millis(1000 + i64::try_from(user_seq).expect("small"))),
            message: None,
        }
    }

    #[test]
    fn beyond_the_window_only_the_head_is_told_until_acknowledged() {
        let mailbox = mailbox(|config| config.push_window = 2);
        assert_eq!(mailbox.push(push(1)), Handover::HandedOver);
        assert_eq!(mailbox.push(push(2)), Handover::HandedOver);
        assert_eq!(mailbox.push(push(3)), Handover::Notified);
        assert_eq!(mailbox.push(push(4)), Handover::Notified);
        assert_eq!(mailbox.take_head(), None, "not before the pushes");
        while mailbox.pop().is_some() {}
        assert_eq!(mailbox.take_head(), Some(4), "merged to one number");
        assert_eq!(mailbox.take_head(), None);
        assert_eq!(mailbox.acknowledged(1, 1), vec![Millis(1001)]);
        assert_eq!(mailbox.push(push(5)), Handover::HandedOver);
        assert_eq!(mailbox.push(push(6)), Handover::Notified);
        assert_eq!(mailbox.head(), 6);
    }

    #[test]
    fn the_queue_is_bounded_in_events_and_bytes() {
        let by_events = mailbox(|config| {
            config.push_window = 100;
            config.queue_events = 3;
        });
        let outcomes: Vec<_> = (1..=5).map(|n| by_events.push(push(n))).collect();
        assert_eq!(
            outcomes[2..],
            [Handover::HandedOver, Handover::Notified, Handover::Notified]
        );
        let by_bytes = mailbox(|config| {
            config.push_window = 100;
            config.queue_bytes = 250;
        });
        let outcomes: Vec<_> = (1..=3).map(|n| by_bytes.push(push(n))).collect();
        assert_eq!(outcomes[1..], [Handover::HandedOver, Handover::Notified]);
        assert_eq!(by_bytes.pop().map(|push| push.user_seq), Some(1));
        assert_eq!(by_bytes.push(push(4)), Handover::HandedOver);
    }

    #[test]
    fn a_closing_session_takes_no_pushes_and_keeps_its_first_code() {
        let mailbox = mailbox(|_| ());
        mailbox.close(Code::Replaced);
        mailbox.close(Code::GoingAway);
        assert_eq!(mailbox.push(push(1)), Handover::Closed);
        assert_eq!(mailbox.take().close, Some(Code::Replaced));
    }
}
