//! A device: a real WebSocket client that speaks either subprotocol.

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use jsonwebtoken::{EncodingKey, Header};
use tidings_gateway::encoding::Encoding;
use tidings_proto::v1::{self, server_frame};
use tidings_proto::{json, wire};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::{DEADLINE, NOW, SECRET, World};

pub(crate) struct Device {
    pub(crate) socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    pub(crate) encoding: Encoding,
    pub(crate) connected: v1::Connected,
}

/// A token valid for `ttl_s` from the gateway's time.
pub(crate) fn token(uid: &str, ttl_s: i64) -> String {
    token_with(
        SECRET,
        &serde_json::json!({"sub": uid, "exp": NOW.get() / 1000 + ttl_s}),
    )
}

pub(crate) fn token_with(secret: &str, claims: &serde_json::Value) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes()).expect("a key");
    jsonwebtoken::encode(&Header::default(), claims, &key).expect("a token")
}

/// A first connect frame.
pub(crate) fn connect(uid: &str, device: &str) -> v1::Connect {
    v1::Connect {
        token: token(uid, 3600),
        device_id: device.to_owned(),
        fresh: true,
        ..v1::Connect::default()
    }
}

impl Device {
    /// A connection without session.
    pub(crate) async fn dial(
        world: &World,
        encoding: Option<Encoding>,
        headers: &[(&str, &str)],
    ) -> Result<Self, Error> {
        Self::dial_path(world, "/v1/connect", encoding, headers).await
    }

    pub(crate) async fn dial_path(
        world: &World,
        path: &str,
        encoding: Option<Encoding>,
        headers: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let mut request = format!("ws://{}{path}", world.addr).into_client_request()?;
        let subprotocol = match encoding {
            None => None,
            Some(Encoding::Proto) => Some(wire::SUBPROTOCOL),
            Some(Encoding::Json) => Some(json::SUBPROTOCOL),
        };
        let mut add = |name: &str, value: &str| {
            let name: tokio_tungstenite::tungstenite::http::HeaderName = name.parse().expect("a header name");
            request
                .headers_mut()
                .insert(name, value.parse().expect("a header value"));
        };
        if let Some(subprotocol) = subprotocol {
            add("sec-websocket-protocol", subprotocol);
        }
        for (name, value) in headers {
            add(name, value);
        }
        let (socket, response) = connect_async(request).await?;
        let chosen = response.headers().get("sec-websocket-protocol");
        assert_eq!(chosen.map(|name| name.to_str().expect("text")), subprotocol);
        Ok(Self {
            socket,
            encoding: encoding.unwrap_or(Encoding::Proto),
            connected: v1::Connected::default(),
        })
    }

    /// An open session with protobuf.
    pub(crate) async fn open(world: &World, uid: &str, device: &str) -> Self {
        Self::open_as(world, Encoding::Proto, connect(uid, device)).await
    }

    pub(crate) async fn open_as(world: &World, encoding: Encoding, connect: v1::Connect) -> Self {
        let mut device = Self::dial(world, Some(encoding), &[]).await.expect("a connection");
        device.send(connect).await;
        device.connected = device.expect_connected().await;
        device
    }

    pub(crate) async fn send(&mut self, frame: impl Into<v1::ClientFrame>) {
        let frame = frame.into();
        let message = match self.encoding {
            Encoding::Proto => Message::Binary(wire::encode_client(&frame)),
            Encoding::Json => Message::Text(json::encode_client(&frame).into()),
        };
        self.send_message(message).await;
    }

    pub(crate) async fn send_message(&mut self, message: Message) {
        self.socket.send(message).await.expect("the frame is sent");
    }

    pub(crate) async fn send_bytes(&mut self, bytes: impl Into<Bytes>) {
        self.send_message(Message::Binary(bytes.into())).await;
    }

    pub(crate) async fn message(&mut self) -> Message {
        tokio::time::timeout(DEADLINE, self.socket.next())
            .await
            .expect("a message in time")
            .expect("the connection lives")
            .expect("a message")
    }

    pub(crate) async fn next(&mut self) -> server_frame::Frame {
        let frame = match (self.encoding, self.message().await) {
            (Encoding::Proto, Message::Binary(bytes)) => wire::decode_server(bytes),
            (Encoding::Json, Message::Text(text)) => json::decode_server(&text),
            (encoding, other) => panic!("{encoding:?} got {other:?}"),
        };
        frame.expect("a frame").frame.expect("a kind")
    }

    /// The next frame but heads.
    pub(crate) async fn ack(&mut self) -> v1::MsgAck {
        match self.next().await {
            server_frame::Frame::MsgAck(ack) => ack,
            other => panic!("wanted a link ACK, got {other:?}"),
        }
    }

    pub(crate) async fn error(&mut self) -> v1::Error {
        match self.next().await {
            server_frame::Frame::Error(error) => error,
            other => panic!("wanted an error, got {other:?}"),
        }
    }

    pub(crate) async fn pushed(&mut self) -> (u64, v1::Event) {
        match self.next().await {
            server_frame::Frame::Push(push) => (push.user_seq, push.event.expect("an event")),
            other => panic!("wanted a push, got {other:?}"),
        }
    }

    pub(crate) async fn page(&mut self) -> v1::SyncPage {
        match self.next().await {
            server_frame::Frame::SyncPage(page) => page,
            other => panic!("wanted a page, got {other:?}"),
        }
    }

    pub(crate) async fn expect_connected(&mut self) -> v1::Connected {
        match self.next().await {
            server_frame::Frame::Connected(connected) => connected,
            other => panic!("wanted connected, got {other:?}"),
        }
    }

    /// Proves that nothing came before the answer to this ping, and that the connection lives.
    pub(crate) async fn ping(&mut self) -> v1::Pong {
        self.send(v1::Ping { client_time: 42 }).await;
        match self.next().await {
            server_frame::Frame::Pong(pong) => {
                assert_eq!(pong.client_time, 42);
                pong
            }
            other => panic!("wanted a pong, got {other:?}"),
        }
    }

    /// The end: the closing frame and the WebSocket close code.
    pub(crate) async fn closed(&mut self) -> (v1::Closing, u16) {
        let closing = match self.next().await {
            server_frame::Frame::Closing(closing) => closing,
            other => panic!("wanted closing, got {other:?}"),
        };
        (closing, self.close_code().await)
    }

    pub(crate) async fn close_code(&mut self) -> u16 {
        match self.message().await {
            Message::Close(Some(CloseFrame { code, .. })) => code.into(),
            other => panic!("wanted a close, got {other:?}"),
        }
    }
}
