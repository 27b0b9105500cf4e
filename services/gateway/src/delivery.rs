//! gRPC `Delivery`: push-fanout hands over events for the sessions of this gateway.
//!
//! **Guarantee.** Results tell what was done and never more: HANDED_OVER means queued on the connection. The bytes of an
//! event are framed once per (item, user_seq, encoding) and shared by all devices. The sending device gets its own
//! message as an echo without the body (architecture.md section 3, decision 4). Nothing here waits: a stream's batches
//! are answered in order as fast as they come.

use std::pin::Pin;
use std::sync::Arc;

use axum::extract::ws::Message;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use prost::Message as _;
use tidings_domain::{Conversation, Uid};
use tidings_proto::FrameError;
use tidings_proto::v1::{
    self, DeliverItem, DeliverOutcome, DeliverRequest, DeliverResponse, DeliverResult, DeliverTarget, delivery_server,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::acks::MessageRef;
use crate::encoding::{self, Encoding};
use crate::mailbox::{Handover, QueuedPush};
use crate::metrics::{Metrics, PushOutcome};
use crate::peek::{self, MessageView};
use crate::table::{Handle, Table};

/// The service.
#[derive(Clone)]
pub struct DeliveryService {
    table: Arc<Table>,
    metrics: Metrics,
    shutdown: CancellationToken,
}

impl DeliveryService {
    /// Delivers to the sessions of `table`; streams end with `shutdown`.
    #[must_use]
    pub fn new(table: Arc<Table>, metrics: Metrics, shutdown: CancellationToken) -> Self {
        Self {
            table,
            metrics,
            shutdown,
        }
    }

    /// Hands over one batch.
    #[must_use]
    pub fn deliver_batch(&self, request: DeliverRequest) -> DeliverResponse {
        let mut results = Vec::new();
        for item in &request.items {
            self.deliver_item(item, &mut results);
        }
        DeliverResponse {
            batch_id: request.batch_id,
            results,
        }
    }

    fn deliver_item(&self, item: &DeliverItem, results: &mut Vec<DeliverResult>) {
        let mut frames = Frames::new(&item.event);
        for target in &item.targets {
            // A malformed uid has no session.
            let sessions = Uid::parse(&target.uid).map_or_else(|_| Vec::new(), |uid| self.table.of(&uid));
            let mut wanted = sessions.iter().filter(|session| is_wanted(session, target)).peekable();
            if wanted.peek().is_none() {
                self.metrics.delivered(PushOutcome::NotHere, 1);
                results.push(DeliverResult {
                    uid: target.uid.clone(),
                    device_id: target.device_id.clone(),
                    connection_id: target.connection_id,
                    outcome: DeliverOutcome::NotHere as i32,
                    user_seq: target.user_seq,
                });
            }
            for session in wanted {
                results.push(DeliverResult {
                    uid: target.uid.clone(),
                    device_id: session.key.device.as_str().to_owned(),
                    connection_id: session.connection_id,
                    outcome: self.hand_over(session, target.user_seq, &mut frames) as i32,
                    user_seq: target.user_seq,
                });
            }
        }
    }

    fn hand_over(&self, session: &Handle, user_seq: u64, frames: &mut Frames<'_>) -> DeliverOutcome {
        let frame = match frames.frame(session, user_seq) {
            Ok(frame) => frame,
            Err(error) => {
                // The event is in the inbox as it is; the device learns of it by its head and sees the same there.
                tracing::error!(%error, user_seq, "event cannot be encoded for a JSON session");
                session.mailbox.tell_head(user_seq);
                self.metrics.delivered(PushOutcome::Notified, 1);
                return DeliverOutcome::Notified;
            }
        };
        let push = QueuedPush {
            user_seq,
            bytes: encoding::size(&frame),
            frame,
            append_time: frames.view.and_then(|view| view.append_time()),
            message: frames
                .view
                .filter(|_| session.mailbox.is_tracked())
                .and_then(message_ref),
        };
        let (outcome, counted) = match session.mailbox.push(push) {
            Handover::HandedOver => (DeliverOutcome::HandedOver, PushOutcome::HandedOver),
            Handover::Notified => (DeliverOutcome::Notified, PushOutcome::Notified),
            Handover::Closed => (DeliverOutcome::Closed, PushOutcome::Closed),
        };
        self.metrics.delivered(counted, 1);
        outcome
    }
}

/// A target without device means every session of the uid; a connection that is named must be that one.
fn is_wanted(session: &Handle, target: &DeliverTarget) -> bool {
    target.device_id.is_empty()
        || (session.key.device.as_str() == target.device_id
            && (target.connection_id == 0 || session.connection_id == target.connection_id))
}

/// What per-message ACKs need of a message.
#[must_use]
pub fn message_ref(view: MessageView<'_>) -> Option<MessageRef> {
    Some(MessageRef {
        msg_id: view.msg_id()?,
        conversation: Conversation::parse(view.conversation).ok()?,
        conv_seq: view.conv_seq,
    })
}

/// The frames of one event, made when first needed.
struct Frames<'a> {
    event: &'a Bytes,
    view: Option<MessageView<'a>>,
    echo: Option<Bytes>,
    /// Frames made so far; an item has one user_seq per user and users come one after the other, so the last few do.
    made: Vec<(Encoding, bool, u64, Message)>,
}

/// Both encodings, each whole and as an echo.
const FRAMES_KEPT: usize = 4;

impl<'a> Frames<'a> {
    fn new(event: &'a Bytes) -> Self {
        Self {
            event,
            view: peek::message(event),
            echo: None,
            made: Vec::new(),
        }
    }

    fn frame(&mut self, session: &Handle, user_seq: u64) -> Result<Message, FrameError> {
        // A fresh session gets its own messages whole: it may be a new installation under an old name.
        let is_echo = !session.fresh
            && self.view.is_some_and(|view| {
                view.sender == session.key.uid.as_str() && view.device == session.key.device.as_str()
            });
        let wanted = (session.encoding, is_echo, user_seq);
        if let Some((.., frame)) = self.made.iter().find(|(e, echo, seq, _)| (*e, *echo, *seq) == wanted) {
            return Ok(frame.clone());
        }
        let event = if is_echo { self.echo()? } else { self.event.clone() };
        let frame = session.encoding.push(user_seq, &event)?;
        if self.made.len() >= FRAMES_KEPT {
            self.made.remove(0);
        }
        self.made.push((session.encoding, is_echo, user_seq, frame.clone()));
        Ok(frame)
    }

    /// The event without its body.
    fn echo(&mut self) -> Result<Bytes, FrameError> {
        if let Some(echo) = &self.echo {
            return Ok(echo.clone());
        }
        let mut event =
            v1::Event::decode(self.event.clone()).map_err(|error| FrameError::Malformed(error.to_string()))?;
        if let Some(v1::event::Kind::Message(message)) = &mut event.kind {
            message.body = Bytes::new();
        }
        let echo = Bytes::from(event.encode_to_vec());
        self.echo = Some(echo.clone());
        Ok(echo)
    }
}

#[tonic::async_trait]
impl delivery_server::Delivery for DeliveryService {
    type DeliverStream = Pin<Box<dyn Stream<Item = Result<DeliverResponse, Status>> + Send>>;

    async fn deliver(
        &self,
        request: Request<Streaming<DeliverRequest>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let service = self.clone();
        let responses = request
            .into_inner()
            .map(move |batch| batch.map(|batch| service.deliver_batch(batch)))
            .take_until(self.shutdown.clone().cancelled_owned());
        Ok(Response::new(Box::pin(responses)))
    }
}
