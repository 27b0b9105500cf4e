//! Pulling: sync rounds relayed from offline-inbox, history from storage-consumer.
//!
//! **Guarantee.** One round at a time; pages are taken from the inbox only as the socket takes them (req:C7). A round
//! ends with the inbox's end marker or with a typed error, never with an empty page that looks like an end (req:C3). A
//! second Sync during a round extends it: the round goes on from where it is instead of ending. Pushes go on meanwhile;
//! the device orders by user_seq.

use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use tidings_proto::record::SenderRole;
use tidings_proto::rpc::Channel;
use tidings_proto::v1::history_client::HistoryClient;
use tidings_proto::v1::inbox_client::InboxClient;
use tidings_proto::v1::{self, Code, HistoryRangeRequest, SyncChunk, SyncRequest, sync_chunk};
use tidings_proto::validate::{self, HistoryRange};
use tokio::time::Instant;
use tonic::{Status, Streaming};

use super::turns::Session;
use crate::delivery::message_ref;
use crate::peek;

/// How long the inbox may take for the next page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(15);

/// History requests of one session under way.
const MAX_HISTORIES: usize = 4;

/// When to come again after an error.
const RETRY_AFTER_MS: u32 = 2000;

enum RoundState {
    Opening(BoxFuture<'static, Result<Streaming<SyncChunk>, Status>>),
    Streaming(Box<Streaming<SyncChunk>>),
}

/// A sync round.
pub(super) struct Round {
    state: RoundState,
    /// Cursor after the last page.
    after: u64,
    /// Another Sync came meanwhile.
    again: bool,
    /// Since when the socket waits for a page.
    waiting_since: Option<Instant>,
}

/// What a round brought.
pub(super) enum RoundEvent {
    Chunk(sync_chunk::Chunk),
    Failed(Status),
    /// The stream ended without an end marker.
    Cut,
    Stalled,
}

impl Round {
    fn begin(inbox: &InboxClient<Channel>, request: SyncRequest) -> Self {
        let mut inbox = inbox.clone();
        Self {
            after: request.after_user_seq,
            state: RoundState::Opening(Box::pin(async move {
                inbox.sync(request).await.map(tonic::Response::into_inner)
            })),
            again: false,
            waiting_since: None,
        }
    }

    /// The socket would take a page.
    pub(super) fn waits(&mut self) {
        self.waiting_since.get_or_insert_with(Instant::now);
    }

    /// When the inbox has taken too long.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting_since.map(|since| since + PAGE_TIMEOUT)
    }
}

/// What the round brings next. Cancel safe: the call and the stream live in the round.
pub(super) async fn next(round: &mut Option<Round>) -> RoundEvent {
    let Some(round) = round else {
        return std::future::pending().await;
    };
    loop {
        match &mut round.state {
            RoundState::Opening(call) => match call.await {
                Ok(stream) => round.state = RoundState::Streaming(Box::new(stream)),
                Err(status) => return RoundEvent::Failed(status),
            },
            RoundState::Streaming(stream) => {
                return match stream.next().await {
                    Some(Ok(SyncChunk { chunk: Some(chunk) })) => RoundEvent::Chunk(chunk),
                    // Of a later version; the round goes on.
                    Some(Ok(SyncChunk { chunk: None })) => continue,
                    Some(Err(status)) => RoundEvent::Failed(status),
                    None => RoundEvent::Cut,
                };
            }
        }
    }
}

/// The answer to a history request.
pub(super) struct HistoryAnswer {
    request: HistoryRange,
    result: Result<v1::HistoryRangeResponse, Status>,
}

impl Session {
    /// Begins or extends a round.
    pub(super) fn sync(&mut self, frame: &v1::Sync, now: Instant) {
        let cursor = match validate::sync(frame) {
            Ok(cursor) => cursor,
            Err(refusal) => return self.refuse(&refusal, 0),
        };
        match self.identity.role {
            SenderRole::User => {}
            SenderRole::Service => {
                return self.error(v1::Error {
                    code: Code::Unsupported as i32,
                    field: "frame".to_owned(),
                    reason: "service accounts have no stream".to_owned(),
                    ..v1::Error::default()
                });
            }
        }
        if cursor.epoch == self.epoch {
            if let Some((first, last)) = self.pushed
                && cursor.user_seq + 1 >= first
                && cursor.user_seq < last
            {
                self.node.metrics.client_gaps.inc();
            }
            // Beyond the head it is no ACK; the inbox answers with a reset.
            if cursor.user_seq <= self.handle.mailbox.head() {
                self.cursor_ack(cursor.user_seq, now);
            }
        }
        if let Some(round) = &mut self.round {
            round.again = true;
            return;
        }
        if let Err(wait) = self.budget.take(now) {
            return self.error(v1::Error {
                code: Code::RateLimited as i32,
                field: "sync".to_owned(),
                reason: "too many sync rounds".to_owned(),
                limit: u64::from(self.node.config.sync_burst),
                retry_after_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
                ..v1::Error::default()
            });
        }
        self.node.metrics.sync_rounds.inc();
        self.begin_round(cursor);
    }

    fn begin_round(&mut self, cursor: v1::Cursor) {
        let request = SyncRequest {
            viewer_uid: self.identity.uid.as_str().to_owned(),
            device_id: self.handle.key.device.as_str().to_owned(),
            after_user_seq: cursor.user_seq,
            epoch: cursor.epoch,
            page_events: self.node.config.sync_page_events,
            page_bytes: self.node.config.sync_page_bytes,
        };
        self.round = Some(Round::begin(&self.node.inbox, request));
    }

    pub(super) fn round_event(&mut self, event: RoundEvent) {
        let Some(round) = &mut self.round else { return };
        round.waiting_since = None;
        let failure = match event {
            RoundEvent::Chunk(sync_chunk::Chunk::Events(events)) => return self.sync_page(events),
            RoundEvent::Chunk(sync_chunk::Chunk::Truncated(truncated)) => {
                round.after = round.after.max(truncated.floor_seq);
                return self.link.send(v1::Truncated {
                    floor_seq: truncated.floor_seq,
                    unread: truncated.unread,
                });
            }
            RoundEvent::Chunk(sync_chunk::Chunk::Reset(reset)) => {
                self.round = None;
                return self.link.send(v1::CursorReset {
                    epoch: reset.epoch,
                    head_seq: reset.head_seq,
                    floor_seq: reset.floor_seq,
                });
            }
            RoundEvent::Failed(status) => status.to_string(),
            RoundEvent::Cut => "the round was cut".to_owned(),
            RoundEvent::Stalled => format!("no page within {} s", PAGE_TIMEOUT.as_secs()),
        };
        // Counted; the readiness gate says at a higher level when the inbox is away for all.
        tracing::debug!(error = failure, "sync round failed");
        self.round = None;
        self.node.metrics.sync_rounds_failed.inc();
        self.unavailable("sync", 0);
    }

    fn sync_page(&mut self, mut events: v1::SyncEvents) {
        let Some(round) = &mut self.round else { return };
        round.after = events.next_user_seq.max(round.after);
        let after = round.after;
        let ended = events.end_of_backlog;
        let again = std::mem::take(&mut round.again);
        self.handle.mailbox.learn_head(events.head_seq);
        if self.handle.mailbox.is_tracked() {
            for stored in &events.events {
                let message = peek::message(&stored.event).and_then(message_ref);
                self.recent.pushed(stored.user_seq, message);
            }
        }
        if ended && again {
            // Not the end: the Sync that came meanwhile may be about newer events than the inbox looked at.
            events.end_of_backlog = false;
        }
        let is_empty = events.events.is_empty() && !events.end_of_backlog;
        if !is_empty {
            match self.link.encoding().sync_page(events.into()) {
                Ok(page) => self.link.send_message(page),
                Err(error) => {
                    tracing::error!(%error, "stored event cannot be encoded for a JSON session");
                    return self.round_event(RoundEvent::Cut);
                }
            }
        }
        if ended {
            self.round = None;
            if again {
                self.begin_round(v1::Cursor {
                    epoch: self.epoch,
                    user_seq: after,
                });
            }
        } else if again && let Some(round) = &mut self.round {
            round.again = true;
        }
    }

    /// Asks for a range of history.
    pub(super) fn history(&mut self, frame: &v1::HistoryRequest) {
        let range = match validate::history(frame, &self.identity.uid) {
            Ok(range) => range,
            Err(refusal) => return self.refuse(&refusal, frame.request_id),
        };
        if self.histories.len() >= MAX_HISTORIES {
            return self.error(v1::Error {
                code: Code::Overloaded as i32,
                field: "request_id".to_owned(),
                reason: "too many history requests at once".to_owned(),
                limit: MAX_HISTORIES as u64,
                request_id: frame.request_id,
                retry_after_ms: RETRY_AFTER_MS,
            });
        }
        let viewer_uid = self.identity.uid.as_str().to_owned();
        self.histories
            .push(Box::pin(ask_history(self.node.history.clone(), viewer_uid, range)));
    }

    pub(super) fn history_answer(&mut self, answer: HistoryAnswer) {
        let HistoryAnswer { request, result } = answer;
        let response = match result {
            Ok(response) => response,
            Err(status)
                if matches!(
                    status.code(),
                    tonic::Code::PermissionDenied | tonic::Code::Unimplemented
                ) =>
            {
                // Neither gets better by asking again.
                let code = if status.code() == tonic::Code::Unimplemented {
                    Code::Unsupported
                } else {
                    Code::Forbidden
                };
                return self.error(v1::Error {
                    code: code as i32,
                    field: "conversation".to_owned(),
                    reason: status.message().to_owned(),
                    request_id: request.request_id,
                    ..v1::Error::default()
                });
            }
            Err(status) => {
                tracing::debug!(%status, "history not available");
                return self.unavailable("history", request.request_id);
            }
        };
        let page = v1::RawHistoryPage {
            request_id: request.request_id,
            conversation: request.conversation.as_str().to_owned(),
            messages: response.messages,
            has_more: response.has_more,
            from_conv_seq: response.from_conv_seq,
            to_conv_seq: response.to_conv_seq,
        };
        match self.link.encoding().history_page(page) {
            Ok(page) => self.link.send_message(page),
            Err(error) => {
                tracing::error!(%error, "stored message cannot be encoded for a JSON session");
                self.unavailable("history", request.request_id);
            }
        }
    }

    fn unavailable(&mut self, what: &'static str, request_id: u64) {
        self.error(v1::Error {
            code: Code::Unavailable as i32,
            field: what.to_owned(),
            reason: format!("{what} is not available for now"),
            request_id,
            retry_after_ms: RETRY_AFTER_MS,
            ..v1::Error::default()
        });
    }
}

async fn ask_history(mut history: HistoryClient<Channel>, viewer_uid: String, request: HistoryRange) -> HistoryAnswer {
    let range = HistoryRangeRequest {
        viewer_uid,
        conversation: request.conversation.as_str().to_owned(),
        from_conv_seq: request.from,
        to_conv_seq: request.to,
        limit: request.limit,
    };
    let result = history.range(range).await.map(tonic::Response::into_inner);
    HistoryAnswer { request, result }
}
