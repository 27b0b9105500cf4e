//! The turns of an open session: wait for one thing, do it, write what came of it.
//!
//! All times of a session (idle, unconfirmed, ACK merging, expiry, stalls) hang on one timer. Each turn takes what is in
//! the mailbox and some pushes, and the wait is fair: neither a device that floods nor a flood of pushes keeps the
//! other from its turn.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::Message;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tidings_bus::producer::DeliverySink;
use tidings_domain::Conversation;
use tidings_proto::v1::{self, Code, client_frame};
use tidings_proto::validate::Refusal;
use tidings_telemetry::traceparent::TraceContext;
use tokio::time::{Instant, Sleep};

use super::actions::Produce;
use super::budget::RoundBudget;
use super::link::{Link, LinkEvent, protocol_close_code};
use super::open::{self, Opened};
use super::pull::{self, HistoryAnswer, Round, RoundEvent};
use super::{End, frame_too_large};
use crate::acks::{Acks, Recent};
use crate::auth::{Identity, TokenError};
use crate::encoding::{self, Encoding};
use crate::lane::Lane;
use crate::metrics::Stage;
use crate::node::Node;
use crate::table::Handle;

/// Pushes moved to the socket before other things get their turn.
const PUSHES_PER_TURN: usize = 32;

/// Without any reason to wake earlier.
const LONG: Duration = Duration::from_secs(3600);

/// The state of an open session.
pub(super) struct Session {
    pub(super) node: Arc<Node>,
    pub(super) link: Link,
    pub(super) handle: Arc<Handle>,
    pub(super) sink: Arc<dyn DeliverySink>,
    pub(super) identity: Identity,
    pub(super) epoch: u64,
    pub(super) cursor: u64,
    pub(super) trace: Option<TraceContext>,
    pub(super) lanes: HashMap<Conversation, Lane>,
    /// Sends at the producer, by tag.
    pub(super) produces: HashMap<u64, Produce>,
    pub(super) next_tag: u64,
    /// When to tell which sends that they are unconfirmed; ascending, entries of settled sends are passed over.
    pub(super) unconfirmed: VecDeque<(Instant, u64)>,
    pub(super) acks: Acks,
    pub(super) recent: Recent,
    /// What was pushed without a hole: first and last user_seq.
    pub(super) pushed: Option<(u64, u64)>,
    pub(super) round: Option<Round>,
    pub(super) budget: RoundBudget,
    pub(super) histories: FuturesUnordered<BoxFuture<'static, HistoryAnswer>>,
    last_received: Instant,
    expires: Option<Instant>,
    /// Since when no new sends are taken.
    pub(super) draining: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

enum Event {
    Mail,
    Link(LinkEvent),
    Round(RoundEvent),
    History(HistoryAnswer),
    Timer,
}

impl Session {
    pub(super) fn new(node: Arc<Node>, link: Link, opened: Opened, trace: Option<TraceContext>) -> Self {
        let now = Instant::now();
        let mut acks = Acks::new(node.config.ack_interval, node.config.ack_count, opened.cursor);
        if let Some(cursor) = opened.hello.cursor
            && cursor.epoch == opened.epoch
            && cursor.user_seq <= opened.handle.mailbox.head()
        {
            // A cursor that does not fit is reset by the sync it asks for.
            acks.cursor(cursor.user_seq, now);
            opened.handle.mailbox.acknowledged(cursor.user_seq, cursor.user_seq);
        }
        if link.encoding() == Encoding::Json {
            opened.handle.mailbox.track();
        }
        let mailbox = Arc::clone(&opened.handle.mailbox);
        let sink: Arc<dyn DeliverySink> = mailbox;
        Self {
            budget: RoundBudget::new(node.config.sync_burst, node.config.sync_refill, now),
            expires: open::expiry(node.clock.now(), opened.identity.expires),
            node,
            link,
            handle: opened.handle,
            sink,
            identity: opened.identity,
            epoch: opened.epoch,
            cursor: opened.cursor,
            trace,
            lanes: HashMap::new(),
            produces: HashMap::new(),
            next_tag: 1,
            unconfirmed: VecDeque::new(),
            acks,
            recent: Recent::default(),
            pushed: None,
            round: None,
            histories: FuturesUnordered::new(),
            last_received: now,
            draining: None,
            timer: Box::pin(tokio::time::sleep(LONG)),
        }
    }

    pub(super) async fn run(&mut self) -> End {
        loop {
            // Every turn, so that neither side of the session can starve the other.
            if let Some(end) = self.mail().or_else(|| self.drained()) {
                return end;
            }
            self.write_pushes();
            self.arm_timer();
            let end = match self.next_event().await {
                Event::Mail => None,
                Event::Link(LinkEvent::Drained | LinkEvent::Blocked) => None,
                Event::Link(LinkEvent::Message(message)) => self.message(&message),
                Event::Link(LinkEvent::Closed(error)) => Some(match error.as_ref().and_then(protocol_close_code) {
                    Some(code) => End::Protocol(code),
                    None => End::Gone,
                }),
                Event::Round(event) => {
                    self.round_event(event);
                    None
                }
                Event::History(answer) => {
                    self.history_answer(answer);
                    None
                }
                Event::Timer => self.tick(),
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    async fn next_event(&mut self) -> Event {
        let may_pull = self.link.is_idle();
        let Self {
            link,
            handle,
            round,
            histories,
            timer,
            ..
        } = self;
        tokio::select! {
            () = handle.mailbox.woken() => Event::Mail,
            event = link.next() => Event::Link(event),
            event = pull::next(round), if may_pull && round.is_some() => Event::Round(event),
            Some(answer) = histories.next(), if may_pull => Event::History(answer),
            () = timer.as_mut() => Event::Timer,
        }
    }

    /// Moves pushes to the socket as far as it takes them.
    fn write_pushes(&mut self) {
        let mut room = PUSHES_PER_TURN.saturating_sub(self.link.waiting());
        while room > 0
            && let Some(push) = self.handle.mailbox.pop()
        {
            room -= 1;
            if let Some(appended) = push.append_time {
                let took = self.node.writer.broker_now().since(appended);
                self.node.metrics.end_to_end(Stage::HandedOver, took);
            }
            self.pushed = Some(match self.pushed {
                Some((first, last)) if push.user_seq == last + 1 => (first, push.user_seq),
                Some((first, last)) if (first..=last).contains(&push.user_seq) => (first, last),
                Some(_) | None => (push.user_seq, push.user_seq),
            });
            if self.handle.mailbox.is_tracked() {
                self.recent.pushed(push.user_seq, push.message);
            }
            self.link.send_message(push.frame);
        }
        if let Some(head_seq) = self.handle.mailbox.take_head() {
            self.link.send(v1::Head { head_seq });
        }
    }

    /// What others left in the mailbox.
    fn mail(&mut self) -> Option<End> {
        let taken = self.handle.mailbox.take();
        for report in taken.reports {
            self.delivery_report(report);
        }
        if taken.drain && self.draining.is_none() {
            self.draining = Some(Instant::now());
        }
        taken.close.map(|code| {
            let reason = if code == Code::Replaced {
                "a later login of this device"
            } else {
                ""
            };
            End::close(code, reason)
        })
    }

    /// The end of a session that takes no more sends: when nothing is pending or it took too long.
    fn drained(&self) -> Option<End> {
        let since = self.draining?;
        (self.produces.is_empty() || since.elapsed() >= self.node.config.drain)
            .then(|| End::close(Code::GoingAway, "the gateway stops"))
    }

    fn message(&mut self, message: &Message) -> Option<End> {
        let now = Instant::now();
        self.last_received = now;
        let decoded = self.link.encoding().decode(message)?;
        let limit = self.link.encoding().max_frame_bytes(&self.node.limits);
        let bytes = encoding::size(message);
        let oversize = (bytes > limit).then(|| frame_too_large(bytes, limit));
        match (decoded, oversize) {
            (
                Ok(v1::ClientFrame {
                    frame: Some(client_frame::Frame::Action(action)),
                }),
                oversize,
            ) => self.action(&action, oversize, now),
            (_, Some(error)) => self.error(error),
            (Err(error), None) => self.error(error.to_error()),
            (Ok(frame), None) => return self.frame(frame, now),
        }
        None
    }

    fn frame(&mut self, frame: v1::ClientFrame, now: Instant) -> Option<End> {
        use client_frame::Frame;
        match frame.frame {
            Some(Frame::Connect(connect)) => return self.renew(&connect),
            Some(Frame::Action(action)) => self.action(&action, None, now),
            Some(Frame::Ack(ack)) => self.ack(&ack, now),
            Some(Frame::DeliveredAck(ack)) => self.delivered_ack(&ack, now),
            Some(Frame::ReadAck(ack)) => self.read_ack(&ack, now),
            Some(Frame::Read(read)) => self.read(&read, now),
            Some(Frame::Sync(sync)) => self.sync(&sync, now),
            Some(Frame::History(request)) => self.history(&request),
            Some(Frame::Ping(ping)) => self.link.send(v1::Pong {
                head_seq: self.handle.mailbox.head(),
                server_time: self.node.writer.broker_now().get(),
                client_time: ping.client_time,
            }),
            // The decoders name an unknown frame themselves.
            None => self.error(v1::Error {
                code: Code::UnknownFrame as i32,
                ..v1::Error::default()
            }),
        }
        None
    }

    /// A further connect frame carries a newer token, so that a session outlives its first (scenario B117).
    fn renew(&mut self, connect: &v1::Connect) -> Option<End> {
        if connect.device_id != self.handle.key.device.as_str() {
            self.error(v1::Error {
                code: Code::InvalidArgument as i32,
                field: "device_id".to_owned(),
                reason: "the session is another device's".to_owned(),
                ..v1::Error::default()
            });
            return None;
        }
        match self.node.authenticator.verify(&connect.token) {
            Ok(identity) if identity.uid == self.identity.uid => {
                self.expires = open::expiry(self.node.clock.now(), identity.expires);
                self.identity = identity;
                self.link.send(open::connected(
                    &self.node,
                    &self.identity,
                    &self.handle,
                    self.epoch,
                    self.cursor.max(self.acks.stored()),
                ));
                None
            }
            Ok(_) => Some(End::close(Code::Unauthenticated, TokenError::OtherUid.to_string())),
            Err(error) => Some(End::close(Code::Unauthenticated, error.to_string())),
        }
    }

    pub(super) fn refuse(&mut self, refusal: &Refusal, request_id: u64) {
        self.error(refusal.to_error(request_id));
    }

    pub(super) fn error(&mut self, error: v1::Error) {
        self.node.metrics.refused(error.code());
        self.link.send(error);
    }

    /// Sets the timer to the earliest thing that is due.
    fn arm_timer(&mut self) {
        if self.link.is_idle()
            && let Some(round) = &mut self.round
        {
            round.waits();
        }
        let config = &self.node.config;
        let due = [
            Some(self.last_received + config.idle_timeout),
            self.expires,
            self.acks.due(),
            self.unconfirmed.front().map(|(due, _)| *due),
            self.link.blocked_since().map(|since| since + config.write_stall),
            self.draining.map(|since| since + config.drain),
            self.round.as_ref().and_then(Round::due),
        ];
        // A deadline that moved back is left to fire early: that costs one wake-up, a reset per frame would cost more.
        if let Some(due) = due.into_iter().flatten().min()
            && (due < self.timer.deadline() || self.timer.is_elapsed())
        {
            self.timer.as_mut().reset(due);
        }
    }

    fn tick(&mut self) -> Option<End> {
        let now = Instant::now();
        let config = &self.node.config;
        if self.expires.is_some_and(|due| due <= now) {
            return Some(End::close(Code::Unauthenticated, "the token has expired"));
        }
        if self.last_received + config.idle_timeout <= now {
            return Some(End::close(Code::IdleTimeout, "no frame in time"));
        }
        if self
            .link
            .blocked_since()
            .is_some_and(|since| since + config.write_stall <= now)
        {
            return Some(End::close(Code::SlowConsumer, "the connection takes nothing"));
        }
        if self.round.as_ref().and_then(Round::due).is_some_and(|due| due <= now) {
            self.round_event(RoundEvent::Stalled);
        }
        self.tell_unconfirmed(now);
        if self.acks.due().is_some_and(|due| due <= now) {
            self.write_acks(now);
        }
        None
    }

    /// What is left of an ended session.
    pub(super) fn into_parts(self) -> (Link, Arc<Handle>) {
        (self.link, self.handle)
    }

    /// The last things an ending session does for its device.
    pub(super) fn leave(&mut self, end: &End) {
        // Merged ACKs are worth a record; nobody waits for its report.
        self.write_acks(Instant::now());
        match end {
            End::Close { .. } => self.answer_pending(),
            End::Protocol(_) | End::Gone => {}
        }
        self.orphan_pending();
    }
}
