//! One WebSocket connection to a gateway: frames in, frames out, over bounded channels.
//!
//! A connection is a task of its own, so that a slow socket never holds up the event loop: what does not fit into the
//! outgoing channel waits in the local database, and when the event loop is slow the task stops reading and TCP slows
//! the server down. Dropping the handle ends the task.

use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tidings_proto::{FrameError, v1, wire};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Frames on their way in either direction.
const CHANNEL_FRAMES: usize = 256;
/// Enough for a device; the library's default of 128 KiB is for servers' throughput.
const SOCKET_BUFFER_BYTES: usize = 16 * 1024;
/// A page of a sync round is bounded by the server; this is against a server gone mad.
const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;
/// HTTP statuses with which a gateway refuses a token.
const REFUSED_STATUSES: [u16; 2] = [401, 403];

/// What a connection tells.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "frames are the rule; a box for each would cost more than the one end"
)]
pub(crate) enum Incoming {
    /// The gateway's frame.
    Frame(v1::ServerFrame),
    /// The connection is over.
    Closed(Closed),
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Closed {
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Socket(Box<tungstenite::Error>),
    #[error("the server closed the connection")]
    ByServer,
    #[error("the server sent a frame that is none: {0}")]
    Frame(FrameError),
    #[error("the server does not speak {}", wire::SUBPROTOCOL)]
    Subprotocol,
    #[error("the server refused the token with HTTP status {0}")]
    Unauthenticated(u16),
    #[error("the link was silent for too long")]
    Silent,
    #[error("the server said goodbye ({code:?}): {reason}")]
    Goodbye { code: Option<v1::Code>, reason: String },
}

impl From<tungstenite::Error> for Closed {
    fn from(error: tungstenite::Error) -> Self {
        if let tungstenite::Error::Http(response) = &error
            && REFUSED_STATUSES.contains(&response.status().as_u16())
        {
            return Self::Unauthenticated(response.status().as_u16());
        }
        Self::Socket(Box::new(error))
    }
}

/// A connection in any state from being made to being closed.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) outgoing: mpsc::Sender<v1::ClientFrame>,
    incoming: mpsc::Receiver<Incoming>,
    _stop: DropGuard,
}

impl Connection {
    /// Starts to connect; `hello` is the first frame.
    pub(crate) fn start(url: String, token: String, hello: v1::Connect, connect_timeout: Duration) -> Self {
        let (outgoing, outgoing_frames) = mpsc::channel(CHANNEL_FRAMES);
        let (incoming_frames, incoming) = mpsc::channel(CHANNEL_FRAMES);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            let work = converse(&url, &token, hello, connect_timeout, outgoing_frames, &incoming_frames);
            let reason = tokio::select! {
                reason = work => reason,
                () = stopped.cancelled() => return,
            };
            if incoming_frames.send(Incoming::Closed(reason)).await.is_err() {
                tracing::trace!("nobody waits for the end of this connection");
            }
        });
        Self {
            outgoing,
            incoming,
            _stop: stop.drop_guard(),
        }
    }

    /// The next thing it tells. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Incoming {
        // The task sends `Closed` before it ends, so the channel ends early only with the runtime.
        self.incoming.recv().await.unwrap_or(Incoming::Closed(Closed::ByServer))
    }

    /// Sends what is queued, says goodbye, and waits until it is out; at most `patience`.
    pub(crate) async fn finish(self, patience: Duration) {
        let Self {
            outgoing,
            mut incoming,
            _stop,
        } = self;
        drop(outgoing);
        let closed = async { while !matches!(incoming.recv().await, None | Some(Incoming::Closed(_))) {} };
        if timeout(patience, closed).await.is_err() {
            tracing::debug!("the connection did not close in time");
        }
    }

    /// What it has told already.
    pub(crate) fn try_next(&mut self) -> Option<Incoming> {
        self.incoming.try_recv().ok()
    }
}

/// Connects, says hello, and carries frames until the end.
async fn converse(
    url: &str,
    token: &str,
    hello: v1::Connect,
    connect_timeout: Duration,
    outgoing: mpsc::Receiver<v1::ClientFrame>,
    incoming: &mpsc::Sender<Incoming>,
) -> Closed {
    let socket = match timeout(connect_timeout, connect(url, token)).await {
        Ok(Ok(socket)) => socket,
        Ok(Err(closed)) => return closed,
        Err(_) => return Closed::Timeout(connect_timeout),
    };
    let (sink, stream) = socket.split();
    tokio::select! {
        closed = write(sink, hello, outgoing) => closed,
        closed = read(stream, incoming) => closed,
    }
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn connect(url: &str, token: &str) -> Result<Socket, Closed> {
    let mut request = url.into_client_request()?;
    let headers = request.headers_mut();
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(wire::SUBPROTOCOL));
    if let Ok(bearer) = HeaderValue::from_str(&format!("Bearer {token}")) {
        headers.insert(AUTHORIZATION, bearer);
    }
    let config = WebSocketConfig::default()
        .read_buffer_size(SOCKET_BUFFER_BYTES)
        .write_buffer_size(SOCKET_BUFFER_BYTES)
        .max_frame_size(Some(MAX_FRAME_BYTES))
        .max_message_size(Some(MAX_FRAME_BYTES));
    // Small frames must not wait for each other's TCP ACK.
    let no_delay = true;
    let (socket, response) = connect_async_with_config(request, Some(config), no_delay).await?;
    let chosen = response.headers().get(SEC_WEBSOCKET_PROTOCOL);
    if chosen.is_none_or(|protocol| protocol != wire::SUBPROTOCOL) {
        return Err(Closed::Subprotocol);
    }
    Ok(socket)
}

async fn write(
    mut sink: futures::stream::SplitSink<Socket, Message>,
    hello: v1::Connect,
    mut outgoing: mpsc::Receiver<v1::ClientFrame>,
) -> Closed {
    let mut next = Some(v1::ClientFrame::from(hello));
    loop {
        // What is there already goes out with one flush.
        while let Some(frame) = next {
            let message = Message::Binary(wire::encode_client(&frame));
            if let Err(error) = sink.feed(message).await {
                return error.into();
            }
            next = outgoing.try_recv().ok();
        }
        if let Err(error) = sink.flush().await {
            return error.into();
        }
        next = outgoing.recv().await;
        if next.is_none() {
            // The event loop let go of the connection; that it ends is all that matters now.
            return match sink.close().await {
                Ok(()) => Closed::ByServer,
                Err(error) => error.into(),
            };
        }
    }
}

async fn read(mut stream: futures::stream::SplitStream<Socket>, incoming: &mpsc::Sender<Incoming>) -> Closed {
    while let Some(message) = stream.next().await {
        let frame: Bytes = match message {
            Ok(Message::Binary(frame)) => frame,
            Ok(Message::Text(text)) => {
                return Closed::Frame(FrameError::Malformed(format!("{} bytes of text", text.len())));
            }
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
            Ok(Message::Close(_)) => return Closed::ByServer,
            Err(error) => return error.into(),
        };
        match wire::decode_server(frame) {
            Ok(frame) => {
                if incoming.send(Incoming::Frame(frame)).await.is_err() {
                    return Closed::ByServer;
                }
            }
            Err(FrameError::UnknownType(name)) => tracing::debug!(name, "frame of a newer server"),
            Err(error @ (FrameError::Malformed(_) | FrameError::Field { .. })) => return Closed::Frame(error),
        }
    }
    Closed::ByServer
}
