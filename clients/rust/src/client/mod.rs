//! The event loop: owns the channels, the clock, the local database and the state machines, and does the I/O between
//! them.
//!
//! Scheme: every turn it does what is due (sends, sync rounds, ACKs, heartbeats, reconnects), then waits for a command,
//! a frame or the next deadline. Frames that are there already are taken together, so that their events share one
//! transaction. Nothing is acknowledged or shown before it is committed (req:B3).

mod frames;
mod link;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidings_domain::clock::{Millis, SharedClock};
use tidings_domain::{Conversation, MsgId};
use tidings_proto::v1;
use tidings_proto::validate::{self, Limits};
use tidings_resilience::Backoff;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::acks::AckBook;
use crate::config::{ClientConfig, Database};
use crate::connection::Incoming;
use crate::error::Error;
use crate::event::{ClientEvent, RefusalReason};
use crate::handle::{Command, Diagnostics, Handle, Recipient};
use crate::holes::Holes;
use crate::outbox::{Entry, Outbox};
use crate::reads::ReadBook;
use crate::state::{Cause, MessageState};
use crate::store::{NewMessage, OffThread, Store};
use crate::stream::Stream;
use link::Link;

/// Commands waiting for the event loop; more make the callers wait.
const COMMAND_QUEUE: usize = 256;
/// Commands taken in one turn: what shares a transaction.
const COMMANDS_PER_TURN: usize = 64;
/// Read reports taken over from an earlier process.
const MAX_UNCONFIRMED_READS: u32 = 1_000;
/// How long the farewell may take.
const FINISH_PATIENCE: Duration = Duration::from_secs(1);
/// Age from which a resend by hand needs the server's word that it lacks the message (req:A3).
const RESEND_BY_HAND_HORIZON: Duration = Duration::from_secs(30 * 24 * 3600);

/// The device's half of the protocol. [`run`](Self::run) it; talk to it through the [`Handle`].
pub struct Client {
    config: ClientConfig,
    clock: SharedClock,
    rng: StdRng,
    db: OffThread,
    /// The local data is empty: the server says where the stream begins.
    fresh: bool,
    outbox: Outbox,
    stream: Stream,
    acks: AckBook,
    holes: Holes,
    reads: ReadBook,
    link: Link,
    backoff: Backoff,
    limits: Limits,
    clock_offset_ms: i64,
    commands: mpsc::Receiver<Command>,
    events: broadcast::Sender<ClientEvent>,
    counts: Diagnostics,
}

/// What woke the event loop.
#[expect(clippy::large_enum_variant, reason = "lives for one turn")]
enum Wake {
    Command(Option<Command>),
    Incoming(Incoming),
    Deadline,
}

impl Client {
    /// Opens the local database. Blocks for the disk.
    pub fn open(config: ClientConfig, clock: SharedClock, mut rng: StdRng) -> Result<(Self, Handle), Error> {
        let store = Store::open(&config.database, &config.uid, &config.device_id)?;
        let cursor = store.cursor()?;
        let outbox = Outbox::new((&config).into(), store.outbox()?);
        let unconfirmed = store.unconfirmed_reads(MAX_UNCONFIRMED_READS)?;
        let (command_sender, commands) = mpsc::channel(COMMAND_QUEUE);
        let events = broadcast::Sender::new(config.event_buffer.max(1));
        let handle = Handle {
            commands: command_sender,
            events: events.downgrade(),
        };
        let client = Self {
            db: OffThread::new(store, config.database == Database::Memory),
            fresh: cursor.is_none(),
            outbox,
            stream: Stream::new((&config).into(), cursor.unwrap_or_default()),
            acks: AckBook::new(config.ack_coalesce),
            holes: Holes::default(),
            reads: ReadBook::new(config.read_interval, unconfirmed),
            link: Link::Down {
                retry_at: Instant::now(),
            },
            backoff: Backoff::new(config.reconnect, rng.random()),
            limits: config.limits,
            clock_offset_ms: 0,
            commands,
            events,
            counts: Diagnostics::default(),
            config,
            clock,
            rng,
        };
        Ok((client, handle))
    }

    /// Runs until [`Handle::close`] or until every handle is dropped.
    ///
    /// # Errors
    /// When it makes no sense to go on: the local database failed, the token was refused, or the same device logged in
    /// elsewhere ([`Error::Replaced`], scenario B23).
    pub async fn run(mut self) -> Result<(), Error> {
        loop {
            self.do_what_is_due().await?;
            let deadline = self.next_deadline();
            let wake = tokio::select! {
                command = self.commands.recv() => Wake::Command(command),
                incoming = self.link.next() => Wake::Incoming(incoming),
                () = until(deadline) => Wake::Deadline,
            };
            match wake {
                Wake::Deadline => {}
                Wake::Incoming(incoming) => self.take_frames(incoming).await?,
                Wake::Command(Some(command)) => {
                    if self.obey(command).await? == Obeyed::Close {
                        self.farewell().await;
                        return Ok(());
                    }
                }
                Wake::Command(None) => {
                    self.farewell().await;
                    return Ok(());
                }
            }
        }
    }

    async fn do_what_is_due(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        self.tend_link(now);
        let wall = self.wall();
        let room = self.link.room();
        let due = self.outbox.due(now, wall, room, &mut self.rng);
        if !due.failed.is_empty() {
            self.finish_sending(due.failed, Cause::LadderSpent, None).await?;
        }
        let resends: Vec<(i64, u32)> = due
            .send
            .iter()
            .filter(|out| out.retry_count > 0)
            .map(|out| (out.local_id, out.retry_count))
            .collect();
        if !resends.is_empty() {
            self.counts.resends += resends.len() as u64;
            self.db.run(move |store| store.note_resends(&resends)).await?;
        }
        for out in due.send {
            self.link.send(out.frame);
        }
        if self.link.is_up() {
            if self.stream.start_round(now) {
                self.counts.sync_rounds += 1;
                self.link.send(v1::Sync {
                    cursor: Some(self.stream.cursor()),
                });
            }
            self.send_acks(now);
            for read in self.reads.due(now, self.link.room()) {
                self.link.send(read);
            }
            for request in self.holes.due(now) {
                let request_id = request.request_id;
                if !self.link.send(request) {
                    self.holes.refused(request_id, self.config.sync_interval, now);
                }
            }
        }
        Ok(())
    }

    fn send_acks(&mut self, now: Instant) {
        for ack in self.acks.due(now, self.stream.cursor(), self.stream.received()) {
            self.counts.acked_delivered = ack.delivered;
            self.counts.acked_stored = ack.stored;
            if !self.link.send(ack) {
                self.acks.note(now);
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut deadlines = vec![self.link.next_deadline(&self.config)];
        if self.link.is_up() {
            deadlines.push(self.stream.next_deadline(now));
            deadlines.push(self.acks.next_deadline());
            deadlines.push(self.holes.next_deadline(now));
            if self.link.room() > 0 {
                deadlines.push(self.outbox.next_deadline(now));
                deadlines.push(self.reads.next_deadline(now));
            }
        }
        deadlines.into_iter().flatten().min()
    }

    /// Takes a command and those behind it; sends in a row share a transaction.
    async fn obey(&mut self, first: Command) -> Result<Obeyed, Error> {
        let mut commands = VecDeque::from([first]);
        while commands.len() < COMMANDS_PER_TURN
            && let Ok(command) = self.commands.try_recv()
        {
            commands.push_back(command);
        }
        let mut sends = Vec::new();
        while let Some(command) = commands.pop_front() {
            match command {
                Command::Send {
                    to,
                    content_type,
                    body,
                    reply,
                } => match self.check_new(to, content_type, body, sends.len()) {
                    Ok(message) => sends.push((message, reply)),
                    Err(error) => answer(reply, Err(error)),
                },
                Command::Resend { msg_id, reply } => {
                    self.store_new(std::mem::take(&mut sends)).await?;
                    let result = self.resend_by_hand(msg_id).await?;
                    answer(reply, result);
                }
                Command::Read {
                    conversation,
                    conv_seq,
                    reply,
                } => {
                    let result = self.mark_read(conversation, conv_seq).await?;
                    answer(reply, result);
                }
                Command::Messages {
                    conversation,
                    limit,
                    reply,
                } => {
                    self.store_new(std::mem::take(&mut sends)).await?;
                    let messages = self.db.run(move |store| store.messages(&conversation, limit)).await?;
                    answer(reply, Ok(messages));
                }
                Command::Diagnostics { reply } => answer(reply, self.diagnostics()),
                Command::Close => {
                    self.store_new(sends).await?;
                    return Ok(Obeyed::Close);
                }
            }
        }
        self.store_new(sends).await?;
        Ok(Obeyed::GoOn)
    }

    /// Checks a message as the server will, so that what it would refuse is refused at once.
    fn check_new(
        &mut self,
        to: Recipient,
        content_type: String,
        body: Bytes,
        more: usize,
    ) -> Result<NewMessage, Error> {
        if self.outbox.len() + more >= self.config.max_outbox {
            return Err(Error::OutboxFull {
                limit: self.config.max_outbox,
            });
        }
        let now = self.wall();
        let (msg_id, _) = self.mint();
        let (conversation, to_uid) = match to {
            Recipient::User(uid) => (String::new(), uid.into()),
            Recipient::Conversation(conversation) => (conversation.into(), String::new()),
        };
        let frame = v1::UserAction {
            action: v1::Action::Send as i32,
            lane_seq: 1,
            conversation,
            to_uid,
            msg_id: Bytes::copy_from_slice(msg_id.as_bytes()),
            content_type,
            body,
            ..v1::UserAction::default()
        };
        let admitted = validate::user_action(&frame, &self.config.uid, &self.limits, now)?;
        Ok(NewMessage {
            conversation: admitted.conversation,
            msg_id,
            content_type: admitted.content_type,
            body: admitted.body,
            content_hash: admitted.content_hash,
            first_send_time: now,
        })
    }

    async fn store_new(
        &mut self,
        sends: Vec<(NewMessage, oneshot::Sender<Result<MsgId, Error>>)>,
    ) -> Result<(), Error> {
        if sends.is_empty() {
            return Ok(());
        }
        let (messages, replies): (Vec<_>, Vec<_>) = sends.into_iter().unzip();
        let added = self.db.run(move |store| store.add_outgoing(&messages)).await?;
        for ((entry, stored), reply) in added.into_iter().zip(replies) {
            let msg_id = entry.msg_id;
            self.outbox.push(entry);
            answer(reply, Ok(msg_id));
            self.tell(ClientEvent::Shown(stored));
        }
        Ok(())
    }

    async fn resend_by_hand(&mut self, msg_id: MsgId) -> Result<Result<(), Error>, Error> {
        let now = self.wall();
        if now.since(msg_id.time()) > RESEND_BY_HAND_HORIZON {
            return Ok(Err(Error::NotResendable(msg_id)));
        }
        let Some(entry) = self.db.run(move |store| store.resend_by_hand(msg_id, now)).await? else {
            return Ok(Err(Error::NotResendable(msg_id)));
        };
        self.tell(ClientEvent::StateChanged {
            conversation: entry.conversation.clone(),
            msg_id,
            state: MessageState::Sending,
            refusal: None,
        });
        self.outbox.push(entry);
        Ok(Ok(()))
    }

    async fn mark_read(&mut self, conversation: Conversation, conv_seq: u64) -> Result<Result<(), Error>, Error> {
        let frame = v1::Read {
            conversation: conversation.as_str().to_owned(),
            conv_seq,
        };
        if let Err(refusal) = validate::read(&frame, &self.config.uid) {
            return Ok(Err(refusal.into()));
        }
        let read_in = conversation.clone();
        self.db.run(move |store| store.read(&read_in, conv_seq)).await?;
        self.reads.read(conversation, conv_seq);
        Ok(Ok(()))
    }

    /// Moves the states of messages that left the outbox.
    async fn finish_sending(
        &mut self,
        entries: Vec<Entry>,
        cause: Cause,
        refusal: Option<RefusalReason>,
    ) -> Result<(), Error> {
        let moves: Vec<(i64, Cause)> = entries.iter().map(|entry| (entry.local_id, cause)).collect();
        let changed = self.db.run(move |store| store.move_states(&moves)).await?;
        for (local_id, state) in changed {
            if let Some(entry) = entries.iter().find(|entry| entry.local_id == local_id) {
                self.tell(ClientEvent::StateChanged {
                    conversation: entry.conversation.clone(),
                    msg_id: entry.msg_id,
                    state,
                    refusal,
                });
            }
        }
        Ok(())
    }

    async fn farewell(&mut self) {
        if self.link.is_up() {
            // What is committed is acknowledged now rather than at the next connect.
            self.send_acks(Instant::now() + self.config.ack_coalesce);
        }
        self.link.finish(FINISH_PATIENCE).await;
    }

    fn diagnostics(&self) -> Diagnostics {
        let cursor = self.stream.cursor();
        Diagnostics {
            connected: self.link.is_up(),
            epoch: cursor.epoch,
            cursor: cursor.user_seq,
            received: self.stream.received(),
            head: self.stream.head(),
            waiting: self.stream.waiting(),
            outbox: self.outbox.len(),
            unacknowledged: self.outbox.in_flight(),
            clock_offset_ms: self.clock_offset_ms,
            ..self.counts.clone()
        }
    }

    /// The server's time as far as known.
    fn wall(&self) -> Millis {
        Millis(self.clock.now().get().saturating_add(self.clock_offset_ms))
    }

    /// A new message id with its time (req:A1).
    fn mint(&mut self) -> (MsgId, Millis) {
        minter(self.wall(), &mut self.rng)()
    }

    /// Tells the app; it is fine if nobody listens, since everything is in the local database.
    fn tell(&self, event: ClientEvent) {
        if self.events.send(event).is_err() {
            tracing::trace!("nobody listens to the events");
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Obeyed {
    GoOn,
    Close,
}

/// Makes ids of time `wall` from randomness of its own, so that it can go to another thread.
fn minter(wall: Millis, rng: &mut StdRng) -> impl FnMut() -> (MsgId, Millis) + Send + use<> {
    let mut own = StdRng::from_rng(rng);
    move || (MsgId::mint(wall, own.random()), wall)
}

fn answer<T>(reply: oneshot::Sender<T>, value: T) {
    if reply.send(value).is_err() {
        tracing::trace!("the caller did not wait for the answer");
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
