//! One WebSocket session, frame by frame.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use prost::Message as _;
use tidings_proto::v1;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// From the TCP connection to the `Connected` frame.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Thousands of sessions share one process.
const BUFFER_BYTES: usize = 8 * 1024;

/// Who connects, and where the device stands.
#[derive(Debug, Clone)]
pub struct Hello {
    /// `ws://host:port`
    pub gateway: String,
    /// The user's token.
    pub token: String,
    /// The device.
    pub device: String,
    /// Absent if fresh.
    pub cursor: Option<v1::Cursor>,
}

/// An open session.
pub struct Session {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// Frames that [`Session::wait_for`] passed over, for later ones.
    passed: VecDeque<v1::server_frame::Frame>,
}

/// A test that passes over more has lost sight of them.
const MAX_PASSED: usize = 10_000;

impl Session {
    /// Connects and introduces the device.
    pub async fn open(hello: &Hello) -> Result<(Self, v1::Connected)> {
        tokio::time::timeout(CONNECT_TIMEOUT, Self::open_unbounded(hello))
            .await
            .map_err(|_| anyhow!("{}: no session within {CONNECT_TIMEOUT:?}", hello.gateway))?
            .with_context(|| format!("opening a session at {}", hello.gateway))
    }

    async fn open_unbounded(hello: &Hello) -> Result<(Self, v1::Connected)> {
        let mut session = Self::open_socket(&hello.gateway).await?;
        session
            .send(v1::client_frame::Frame::Connect(v1::Connect {
                token: hello.token.clone(),
                device_id: hello.device.clone(),
                fresh: hello.cursor.is_none(),
                cursor: hello.cursor,
                client: "integration-tests".to_owned(),
            }))
            .await?;
        let answer = session.next().await?;
        let v1::server_frame::Frame::Connected(connected) = answer else {
            bail!("Connect was answered with {answer:?}");
        };
        Ok((session, connected))
    }

    /// The socket alone, without introducing anybody.
    pub async fn open_socket(gateway: &str) -> Result<Self> {
        let mut request = format!("{gateway}/v1/connect").into_client_request()?;
        request
            .headers_mut()
            .insert("sec-websocket-protocol", "tidings.v1.proto".parse()?);
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(0);
        let (socket, _) = tokio_tungstenite::connect_async_with_config(request, Some(config), true).await?;
        Ok(Self {
            socket,
            passed: VecDeque::new(),
        })
    }

    /// Sends one frame.
    pub async fn send(&mut self, frame: v1::client_frame::Frame) -> Result<()> {
        let bytes = v1::ClientFrame { frame: Some(frame) }.encode_to_vec();
        self.send_bytes(bytes.into()).await
    }

    /// Sends what may not be a frame.
    pub async fn send_bytes(&mut self, bytes: Bytes) -> Result<()> {
        Ok(self.socket.send(Message::Binary(bytes)).await?)
    }

    /// The next frame. Cancel-safe.
    pub async fn next(&mut self) -> Result<v1::server_frame::Frame> {
        loop {
            match self.socket.next().await.context("the session ended")?? {
                Message::Binary(bytes) => {
                    return v1::ServerFrame::decode(bytes)?
                        .frame
                        .context("an empty or unknown frame");
                }
                Message::Close(reason) => bail!("the gateway closed the session: {reason:?}"),
                Message::Ping(_) | Message::Pong(_) => {}
                Message::Text(text) => bail!("a text message in a binary session: {text}"),
                Message::Frame(_) => bail!("a raw frame while reading"),
            }
        }
    }

    /// The first frame for which `pick` gives a value. Frames it passes over are kept for later calls: what they wait
    /// for may have come before.
    pub async fn wait_for<T>(
        &mut self,
        what: &str,
        deadline: Duration,
        mut pick: impl FnMut(v1::server_frame::Frame) -> Option<T>,
    ) -> Result<T> {
        let end = Instant::now() + deadline;
        for at in 0..self.passed.len() {
            if let Some(value) = pick(self.passed[at].clone()) {
                self.passed.remove(at);
                return Ok(value);
            }
        }
        loop {
            let frame = tokio::time::timeout_at(end, self.next())
                .await
                .map_err(|_| anyhow!("{what}: not within {deadline:?}"))??;
            if let Some(value) = pick(frame.clone()) {
                return Ok(value);
            }
            ensure!(
                self.passed.len() < MAX_PASSED,
                "{what}: {MAX_PASSED} frames were passed over"
            );
            self.passed.push_back(frame);
        }
    }

    /// The answer to the action with this msg_id.
    pub async fn ack_of(&mut self, msg_id: &[u8], deadline: Duration) -> Result<v1::MsgAck> {
        self.wait_for("the link ACK", deadline, |frame| {
            let v1::server_frame::Frame::MsgAck(ack) = frame else {
                return None;
            };
            (ack.msg_id == msg_id).then_some(ack)
        })
        .await
    }

    /// Ends the session in order.
    pub async fn close(mut self) -> Result<()> {
        Ok(self.socket.close(None).await?)
    }
}
