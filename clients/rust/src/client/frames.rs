//! What the gateway's frames do to the device.

use std::time::Duration;

use tidings_domain::MsgId;
use tidings_proto::v1;
use tidings_proto::v1::server_frame::Frame;
use tokio::time::Instant;

use super::{Client, minter};
use crate::connection::{Closed, Incoming};
use crate::error::Error;
use crate::event::{ClientEvent, RefusalReason};
use crate::outbox::{Answer, Doubt, Entry};
use crate::state::{Cause, MessageState};
use crate::store::Change;
use crate::stream::Arrival;

/// Frames taken in one turn.
const FRAMES_PER_TURN: usize = 128;
/// Events in one transaction.
const EVENTS_PER_COMMIT: usize = 500;
/// A message gets at most this many new ids; a server that refuses all of them is not to be argued with.
const MAX_RENEWALS: u32 = 3;

impl Client {
    /// Takes a frame and those behind it, then commits what came.
    pub(super) async fn take_frames(&mut self, first: Incoming) -> Result<(), Error> {
        let now = Instant::now();
        self.link.heard(now);
        let mut synced = false;
        let mut next = Some(first);
        let mut taken = 0;
        while let Some(incoming) = next.take() {
            match incoming {
                Incoming::Frame(frame) => synced |= self.take_frame(frame, now).await?,
                Incoming::Closed(closed) => {
                    self.commit(now).await?;
                    if let Closed::Unauthenticated(_) = closed {
                        return Err(Error::Unauthenticated {
                            reason: closed.to_string(),
                        });
                    }
                    self.disconnected(&closed, Duration::ZERO, now);
                    return Ok(());
                }
            }
            if self.stream.ready() >= EVENTS_PER_COMMIT {
                self.commit(now).await?;
            }
            taken += 1;
            if taken < FRAMES_PER_TURN {
                next = self.link.try_next();
            }
        }
        self.commit(now).await?;
        if synced {
            // The link has proved itself.
            self.backoff.reset();
            self.tell(ClientEvent::Synced {
                user_seq: self.stream.cursor().user_seq,
            });
        }
        Ok(())
    }

    /// Takes one frame; tells whether a sync round ended.
    async fn take_frame(&mut self, frame: v1::ServerFrame, now: Instant) -> Result<bool, Error> {
        let Some(frame) = frame.frame else {
            return Ok(false);
        };
        match frame {
            Frame::Connected(connected) => self.greeted(connected, now).await?,
            Frame::MsgAck(ack) => self.link_ack(ack, now).await?,
            Frame::Push(push) => self.arrive(push, now),
            Frame::SyncPage(page) => {
                for push in page.events {
                    self.arrive(push, now);
                }
                self.stream.page(page.end_of_backlog, page.head_seq, now, &mut self.rng);
                return Ok(page.end_of_backlog);
            }
            Frame::Head(head) => self.stream.head_is(head.head_seq),
            Frame::Pong(pong) => self.stream.head_is(pong.head_seq),
            Frame::CursorReset(reset) => {
                self.commit(now).await?;
                // From the floor, so that nothing is missed; what is here already is known by its keys.
                let cursor = v1::Cursor {
                    epoch: reset.epoch,
                    user_seq: reset.floor_seq,
                };
                self.start_at(cursor).await?;
                self.stream.head_is(reset.head_seq);
                self.tell(ClientEvent::CursorReset);
            }
            Frame::Truncated(truncated) => {
                self.commit(now).await?;
                if self.stream.truncated(truncated.floor_seq, now) {
                    let cursor = self.stream.cursor();
                    self.db.run(move |store| store.set_cursor(cursor)).await?;
                    self.acks.note(now);
                }
                self.tell(ClientEvent::Truncated {
                    floor_seq: truncated.floor_seq,
                    unread: truncated.unread,
                });
            }
            Frame::HistoryPage(page) => self.history(page).await?,
            Frame::Error(error) => {
                tracing::debug!(error.code, error.field, error.reason, "the server refused a frame");
                if v1::Code::try_from(error.code).is_ok_and(v1::Code::is_retryable) {
                    let after = Duration::from_millis(u64::from(error.retry_after_ms));
                    if error.request_id == 0 {
                        self.stream.round_refused(after, now);
                    } else {
                        self.holes.refused(error.request_id, after, now);
                    }
                }
            }
            Frame::Closing(closing) => {
                self.commit(now).await?;
                self.goodbye(closing, now)?;
            }
        }
        Ok(false)
    }

    async fn history(&mut self, page: v1::HistoryPage) -> Result<(), Error> {
        if !self.holes.answered(&page) {
            tracing::debug!(page.request_id, "history that was not asked for");
            return Ok(());
        }
        let epoch = self.stream.cursor().epoch;
        let changes = self
            .db
            .run(move |store| store.apply_history(epoch, page.messages))
            .await?;
        for change in changes {
            self.tell_change(change);
        }
        Ok(())
    }

    fn goodbye(&mut self, closing: v1::Closing, now: Instant) -> Result<(), Error> {
        let code = v1::Code::try_from(closing.code).ok();
        match code {
            Some(v1::Code::Replaced) => return Err(Error::Replaced),
            Some(v1::Code::Unauthenticated) => return Err(Error::Unauthenticated { reason: closing.reason }),
            // Every other reason passes, also one of a newer server.
            Some(_) | None => {}
        }
        let at_least = Duration::from_millis(u64::from(closing.reconnect_after_ms));
        let reason = Closed::Goodbye {
            code,
            reason: closing.reason,
        };
        self.disconnected(&reason, at_least, now);
        Ok(())
    }

    fn arrive(&mut self, push: v1::Push, now: Instant) {
        match self.stream.arrive(push, now) {
            Arrival::New => self.acks.note(now),
            Arrival::Duplicate => {
                self.counts.duplicates += 1;
                // The server did not get the ACK: it is repeated, nothing else happens (req:A6).
                self.acks.note(now);
            }
            Arrival::Ignored => {}
        }
    }

    /// Commits what is next in order, then shows and acknowledges it.
    async fn commit(&mut self, now: Instant) -> Result<(), Error> {
        loop {
            let ready = self.stream.take_ready(EVENTS_PER_COMMIT);
            let Some(last) = ready.last().map(|arrived| arrived.user_seq) else {
                return Ok(());
            };
            let epoch = self.stream.cursor().epoch;
            let mut mint = minter(self.wall(), &mut self.rng);
            let applied = self.db.run(move |store| store.apply(epoch, ready, &mut mint)).await?;
            self.stream.committed(last);
            self.acks.note(now);
            for (conversation, conv_seq) in applied.stored {
                self.acks.stored(conversation, conv_seq, now);
            }
            for change in applied.changes {
                self.tell_change(change);
            }
        }
    }

    fn tell_change(&mut self, change: Change) {
        match change {
            Change::Shown(message) => self.tell(ClientEvent::Shown(message)),
            Change::State {
                conversation,
                msg_id,
                state,
                reason,
            } => {
                // Whatever the stream says about it, it is not to be sent any more.
                self.outbox.remove(msg_id);
                self.tell(ClientEvent::StateChanged {
                    conversation,
                    msg_id,
                    state,
                    refusal: reason.map(RefusalReason::Log),
                });
            }
            Change::Renewed { old, entry } => self.go_on_as(old, entry),
            Change::Hole(hole) => {
                self.counts.holes += 1;
                self.holes.found(hole);
            }
            Change::ReadSync {
                conversation,
                read,
                moved,
            } => {
                self.reads.confirmed(&conversation, read);
                if moved {
                    self.tell(ClientEvent::ReadSync { conversation, read });
                }
            }
            Change::Duplicate => self.counts.duplicates += 1,
            Change::Conflict { user_seq } => {
                self.counts.conflicts += 1;
                tracing::warn!(user_seq, "an event contradicts what is in the local database");
            }
            Change::Unreadable { user_seq } => {
                self.counts.unreadable += 1;
                tracing::warn!(user_seq, "an event that this version cannot read");
            }
        }
    }

    fn go_on_as(&mut self, old: MsgId, entry: Entry) {
        self.outbox.remove(old);
        self.tell(ClientEvent::Renewed { old, new: entry.msg_id });
        self.outbox.push(entry);
    }

    async fn link_ack(&mut self, ack: v1::MsgAck, now: Instant) -> Result<(), Error> {
        let Ok(msg_id) = MsgId::from_slice(&ack.msg_id) else {
            tracing::warn!(ack.code, ack.reason, "a link ACK without a message");
            return Ok(());
        };
        if !self.outbox.contains(msg_id) {
            return self.late_ack(msg_id, &ack).await;
        }
        match self.outbox.acknowledged(msg_id, &ack, now, &mut self.rng) {
            Answer::Nothing => Ok(()),
            Answer::Sent(entry) => self.finish_sending(vec![entry], Cause::LinkAck, None).await,
            Answer::Failed(entry) => self.finish_sending(vec![entry], Cause::LadderSpent, None).await,
            Answer::Refused { entry, code, doubt } => match doubt {
                Doubt::IdOnly if entry.renewals < MAX_RENEWALS => self.renew(entry, &ack).await,
                Doubt::IdOnly | Doubt::None => {
                    let refusal = v1::Code::try_from(code).ok().map(RefusalReason::Gateway);
                    self.finish_sending(vec![entry], Cause::Refusal, refusal).await
                }
                // An earlier try may have been accepted: its echo will tell. Until then it is failed, not refused.
                Doubt::EarlierTry => self.finish_sending(vec![entry], Cause::LadderSpent, None).await,
            },
        }
    }

    /// An ACK for what is no longer to be sent; it still counts for a message that was given up.
    async fn late_ack(&mut self, msg_id: MsgId, ack: &v1::MsgAck) -> Result<(), Error> {
        if ack.code != v1::Code::Ok as i32 {
            return Ok(());
        }
        let changed = self
            .db
            .run(move |store| {
                let Some((local_id, message)) = store.own(msg_id)? else {
                    return Ok(None);
                };
                let changed = store.move_states(&[(local_id, Cause::LinkAck)])?;
                Ok(changed
                    .first()
                    .map(|(_, state): &(i64, MessageState)| (message.conversation, *state)))
            })
            .await?;
        if let Some((conversation, state)) = changed {
            self.tell(ClientEvent::StateChanged {
                conversation,
                msg_id,
                state,
                refusal: None,
            });
        }
        Ok(())
    }

    /// The device's clock was wrong when the id was minted: correct it and mint a new one.
    async fn renew(&mut self, entry: Entry, ack: &v1::MsgAck) -> Result<(), Error> {
        if ack.server_time > 0 {
            self.clock_offset_ms = ack.server_time.saturating_sub(self.clock.now().get());
        }
        let (msg_id, now) = self.mint();
        let local_id = entry.local_id;
        let mut renewed = self.db.run(move |store| store.renew_id(local_id, msg_id, now)).await?;
        renewed.renewals = entry.renewals + 1;
        self.go_on_as(entry.msg_id, renewed);
        Ok(())
    }
}
