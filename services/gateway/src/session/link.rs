//! The socket of one session: writes coalesced, both directions at once, bounded.
//!
//! Frames are fed to the socket one after the other and flushed once when none is left (no timer). Reading stops while
//! too many answers wait, so a device that sends and never reads is slowed by its own TCP window. The websocket library
//! buffers at most `write_buffer_size` before it writes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures::{Sink, Stream};
use tidings_proto::v1;
use tokio::time::Instant;

use crate::encoding::Encoding;

/// Answers that may wait before reading stops.
const MAX_WAITING: usize = 128;

/// How long the last frames may take, and how long the device has to answer the close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What the socket did.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// Everything that waited is with the system.
    Drained,
    /// The socket takes nothing more for now: [`Link::blocked_since`] is set.
    Blocked,
    /// A message came.
    Message(Message),
    /// The device closed, or the connection broke.
    Closed(Option<axum::Error>),
}

/// A connection.
pub(crate) struct Link {
    socket: WebSocket,
    encoding: Encoding,
    waiting: VecDeque<Message>,
    /// Fed and not flushed.
    dirty: bool,
    /// Since when the socket has taken nothing although something waits.
    blocked_since: Option<Instant>,
}

impl Link {
    /// Wraps an upgraded socket.
    #[must_use]
    pub(crate) fn new(socket: WebSocket, encoding: Encoding) -> Self {
        Self {
            socket,
            encoding,
            waiting: VecDeque::new(),
            dirty: false,
            blocked_since: None,
        }
    }

    /// How frames are written.
    #[must_use]
    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Queues a frame.
    pub(crate) fn send(&mut self, frame: impl Into<v1::ServerFrame>) {
        self.send_message(self.encoding.frame(&frame.into()));
    }

    /// Queues an encoded frame.
    pub(crate) fn send_message(&mut self, message: Message) {
        self.waiting.push_back(message);
    }

    /// Whether the socket would take more at once.
    #[must_use]
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.dirty
    }

    /// Frames that wait for the socket.
    #[must_use]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Since when the socket has taken nothing although something waits.
    #[must_use]
    pub(crate) fn blocked_since(&self) -> Option<Instant> {
        self.blocked_since
    }

    /// The next event; writes meanwhile. Cancel safe.
    pub(crate) async fn next(&mut self) -> LinkEvent {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<LinkEvent> {
        match self.poll_write(context) {
            Poll::Ready(Ok(true)) => return Poll::Ready(LinkEvent::Drained),
            Poll::Ready(Ok(false)) => self.blocked_since = None,
            Poll::Ready(Err(error)) => return Poll::Ready(LinkEvent::Closed(Some(error))),
            Poll::Pending => {
                if self.blocked_since.is_none() {
                    self.blocked_since = Some(Instant::now());
                    return Poll::Ready(LinkEvent::Blocked);
                }
            }
        }
        if self.waiting.len() > MAX_WAITING {
            return Poll::Pending;
        }
        Pin::new(&mut self.socket)
            .poll_next(context)
            .map(|message| match message {
                Some(Ok(message)) => {
                    // The library queued the answer; it leaves with the next flush.
                    self.dirty |= matches!(message, Message::Ping(_));
                    LinkEvent::Message(message)
                }
                Some(Err(error)) => LinkEvent::Closed(Some(error)),
                None => LinkEvent::Closed(None),
            })
    }

    /// Feeds and flushes; true if that emptied the queue just now.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, axum::Error>> {
        let mut socket = Pin::new(&mut self.socket);
        while !self.waiting.is_empty() {
            futures::ready!(socket.as_mut().poll_ready(context))?;
            self.blocked_since = None;
            if let Some(message) = self.waiting.pop_front() {
                socket.as_mut().start_send(message)?;
                self.dirty = true;
            }
        }
        if self.dirty {
            futures::ready!(socket.poll_flush(context))?;
            self.dirty = false;
            self.blocked_since = None;
            return Poll::Ready(Ok(true));
        }
        Poll::Ready(Ok(false))
    }

    /// Sends what waits and a close frame, then waits shortly for the device's close, so that a reset does not overtake
    /// the last frames.
    pub(crate) async fn close(mut self, code: u16, reason: &str) {
        self.waiting.push_back(Message::Close(Some(CloseFrame {
            code,
            reason: reason.into(),
        })));
        let ending = async {
            while let Some(message) = self.waiting.pop_front() {
                self.socket.send(message).await?;
            }
            while let Some(message) = poll_fn(|context| Pin::new(&mut self.socket).poll_next(context)).await {
                message?;
            }
            Ok::<_, axum::Error>(())
        };
        // The connection ends either way; a device that did not get the close notices the end.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, ending).await;
    }
}

/// The close code for a connection that broke, where the protocol has one: what the library tells apart is only in its
/// text.
#[must_use]
pub(crate) fn protocol_close_code(error: &axum::Error) -> Option<u16> {
    let text = error.to_string();
    if text.contains("UTF-8") || text.contains("utf-8") {
        Some(1007)
    } else if text.contains("too long") || text.contains("Space limit") {
        Some(1009)
    } else if text.contains("protocol error") {
        Some(1002)
    } else {
        None
    }
}
