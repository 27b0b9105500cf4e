//! The scripted gateway, and a client to be tested against it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tidings_client::{ClientConfig, ClientEvent, Database, Error, Events, Handle, MessageState};
use tidings_domain::clock::{Clock as _, SystemClock};
use tidings_domain::{Conversation, DeviceId, MsgId, Uid};
use tidings_proto::v1::client_frame::Frame;
use tidings_proto::{v1, validate, wire};
use tidings_resilience::BackoffPolicy;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header::SEC_WEBSOCKET_PROTOCOL;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

/// Far longer than anything takes; a test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const EPOCH: u64 = 77;

pub(crate) fn uid(name: &str) -> Uid {
    Uid::parse(name).expect("valid")
}

pub(crate) fn conversation() -> Conversation {
    Conversation::direct(&uid("alice"), &uid("bob"))
}

pub(crate) fn now() -> i64 {
    SystemClock.now().get()
}

/// Waits for something that must come.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

/// A message of bob's with an id of its own.
pub(crate) fn message_of(sender: &str, n: u64, conv_seq: u64) -> v1::Message {
    let mut random = [9; 10];
    random[2..].copy_from_slice(&n.to_be_bytes());
    let text = format!("message {n}");
    v1::Message {
        conversation: conversation().into(),
        conv_seq,
        countable_seq: conv_seq,
        sender: sender.to_owned(),
        device: "desk".to_owned(),
        msg_id: Bytes::copy_from_slice(
            MsgId::mint(tidings_domain::clock::Millis(1_790_000_000_000), random).as_bytes(),
        ),
        action: v1::Action::Send as i32,
        append_time: now(),
        content_type: "text".to_owned(),
        content_hash: hash(text.as_bytes()),
        body: text.into(),
        ..v1::Message::default()
    }
}

pub(crate) fn hash(text: &[u8]) -> Bytes {
    let hash = validate::content_hash(tidings_domain::Action::Send, "text", text, None, None);
    Bytes::copy_from_slice(hash.as_bytes())
}

pub(crate) fn push(user_seq: u64, kind: v1::event::Kind) -> v1::Push {
    v1::Push {
        user_seq,
        event: Some(v1::Event { kind: Some(kind) }),
    }
}

/// Bob's message number `n` as event number `n`.
pub(crate) fn push_of(n: u64) -> v1::Push {
    push(n, v1::event::Kind::Message(message_of("bob", n, n)))
}

/// The echo of an action to the device that sent it.
pub(crate) fn echo(user_seq: u64, action: &v1::UserAction, conv_seq: u64) -> v1::Push {
    push(
        user_seq,
        v1::event::Kind::Message(v1::Message {
            conversation: action.conversation.clone(),
            conv_seq,
            sender: "alice".to_owned(),
            device: "phone".to_owned(),
            msg_id: action.msg_id.clone(),
            action: action.action,
            append_time: now(),
            content_type: action.content_type.clone(),
            content_hash: hash(&action.body),
            ..v1::Message::default()
        }),
    )
}

/// Listens where a client connects to.
pub(crate) struct Gateway {
    listener: TcpListener,
}

impl Gateway {
    pub(crate) async fn start() -> Self {
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.expect("binds"),
        }
    }

    pub(crate) fn config(&self, database: impl Into<Database>) -> ClientConfig {
        let address = self.listener.local_addr().expect("is bound");
        let mut config = ClientConfig::new(
            &format!("ws://{address}/v1/connect"),
            "token",
            uid("alice"),
            DeviceId::parse("phone").expect("valid"),
            database,
        );
        config.reconnect = BackoffPolicy::new(Duration::from_millis(5), Duration::from_millis(50), 2.0, 1.0);
        config.max_sends_per_second = 10_000;
        config.ack_coalesce = Duration::from_millis(20);
        config.gap_patience = Duration::from_millis(50);
        config.sync_interval = Duration::from_millis(50);
        config
    }

    /// The next WebSocket connection.
    #[expect(clippy::result_large_err, reason = "the callback's signature is the library's")]
    pub(crate) async fn accept(&self) -> Session {
        let accepted = async {
            let (tcp, _) = self.listener.accept().await.expect("accepts");
            accept_hdr_async(
                tcp,
                |_: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
                    response
                        .headers_mut()
                        .insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(wire::SUBPROTOCOL));
                    Ok(response)
                },
            )
            .await
            .expect("a WebSocket handshake")
        };
        Session {
            socket: soon("a connection", accepted).await,
            acks: Vec::new(),
            reads: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }

    /// A connection that is greeted with the cursor at `cursor` and the head at `head`.
    pub(crate) async fn greet(&self, cursor: u64, head: u64) -> (Session, v1::Connect) {
        self.greet_with(v1::Connected {
            epoch: EPOCH,
            cursor,
            head_seq: head,
            server_time: now(),
            limits: None,
            uid: "alice".to_owned(),
        })
        .await
    }

    pub(crate) async fn greet_with(&self, connected: v1::Connected) -> (Session, v1::Connect) {
        let mut session = self.accept().await;
        let Frame::Connect(hello) = session.frame().await else {
            panic!("the first frame is a connect");
        };
        session.send(connected).await;
        (session, hello)
    }

    /// A session with the round on connect answered by "nothing new".
    pub(crate) async fn synced(&self, cursor: u64) -> Session {
        let (mut session, _) = self.greet(cursor, cursor).await;
        session.sync().await;
        session.end_of_backlog(Vec::new(), cursor).await;
        session
    }
}

/// One connection as the gateway sees it.
pub(crate) struct Session {
    socket: WebSocketStream<TcpStream>,
    /// ACKs seen while waiting for something else.
    pub(crate) acks: Vec<v1::Ack>,
    /// Read reports that came before they were asked for.
    reads: VecDeque<v1::Read>,
    /// Actions that came before they were asked for.
    actions: VecDeque<v1::UserAction>,
}

impl Session {
    pub(crate) async fn send(&mut self, frame: impl Into<v1::ServerFrame>) {
        let message = Message::Binary(wire::encode_server(&frame.into()));
        self.socket.send(message).await.expect("the client is there");
    }

    /// The next frame, whatever it is.
    pub(crate) async fn frame(&mut self) -> Frame {
        loop {
            let message = soon("a frame", self.socket.next())
                .await
                .expect("the connection is open")
                .expect("a message");
            if let Message::Binary(bytes) = message {
                return wire::decode_client(bytes)
                    .expect("a frame")
                    .frame
                    .expect("a decoded frame is never empty");
            }
        }
    }

    /// The next user action; ACKs and heartbeats in between are fine.
    pub(crate) async fn action(&mut self) -> v1::UserAction {
        if let Some(action) = self.actions.pop_front() {
            return action;
        }
        loop {
            match self.frame().await {
                Frame::Action(action) => return action,
                Frame::Ack(ack) => self.acks.push(ack),
                Frame::Ping(_) | Frame::Sync(_) => {}
                other @ (Frame::Connect(_)
                | Frame::DeliveredAck(_)
                | Frame::ReadAck(_)
                | Frame::Read(_)
                | Frame::History(_)) => panic!("unexpected {other:?}"),
            }
        }
    }

    /// The next sync request's cursor.
    pub(crate) async fn sync(&mut self) -> v1::Cursor {
        loop {
            match self.frame().await {
                Frame::Sync(sync) => return sync.cursor.expect("a sync has a cursor"),
                Frame::Ack(ack) => self.acks.push(ack),
                Frame::Action(action) => self.actions.push_back(action),
                Frame::Read(read) => self.reads.push_back(read),
                Frame::Ping(_) => {}
                other @ (Frame::Connect(_) | Frame::DeliveredAck(_) | Frame::ReadAck(_) | Frame::History(_)) => {
                    panic!("unexpected {other:?}")
                }
            }
        }
    }

    /// Reads until an ACK says that everything up to `user_seq` is stored.
    pub(crate) async fn stored(&mut self, user_seq: u64) -> v1::Ack {
        loop {
            if let Frame::Ack(ack) = self.frame().await {
                self.acks.push(ack.clone());
                if ack.stored >= user_seq {
                    return ack;
                }
            }
        }
    }

    pub(crate) async fn end_of_backlog(&mut self, events: Vec<v1::Push>, head: u64) {
        self.send(v1::SyncPage {
            events,
            has_more: false,
            end_of_backlog: true,
            head_seq: head,
            next_user_seq: head,
        })
        .await;
    }

    /// The next read report.
    pub(crate) async fn read(&mut self) -> v1::Read {
        if let Some(read) = self.reads.pop_front() {
            return read;
        }
        loop {
            if let Frame::Read(read) = self.frame().await {
                return read;
            }
        }
    }

    /// The next request for history.
    pub(crate) async fn history(&mut self) -> v1::HistoryRequest {
        loop {
            if let Frame::History(request) = self.frame().await {
                return request;
            }
        }
    }

    /// A link ACK.
    pub(crate) async fn answer(&mut self, action: &v1::UserAction, code: v1::Code) {
        self.send(v1::MsgAck {
            msg_id: action.msg_id.clone(),
            action: action.action,
            conversation: action.conversation.clone(),
            code: code as i32,
            server_time: now(),
            retryable: code.is_retryable(),
            ..v1::MsgAck::default()
        })
        .await;
    }
}

/// A running client.
pub(crate) struct Device {
    pub(crate) handle: Handle,
    pub(crate) events: Events,
    pub(crate) run: JoinHandle<Result<(), Error>>,
}

impl Device {
    pub(crate) fn start(config: ClientConfig) -> Self {
        let (handle, events, run) = tidings_client::spawn(config).expect("opens");
        Self { handle, events, run }
    }

    pub(crate) async fn send(&self, text: &str) -> MsgId {
        self.handle
            .send(uid("bob"), "text", text.to_owned())
            .await
            .expect("is taken")
    }

    /// The next event that `pick` wants.
    pub(crate) async fn event<T>(&mut self, what: &str, mut pick: impl FnMut(ClientEvent) -> Option<T>) -> T {
        soon(what, async {
            loop {
                let event = self.events.next().await.expect("the client runs");
                if let Some(picked) = pick(event) {
                    return picked;
                }
            }
        })
        .await
    }

    /// Bodies of the next `count` messages shown.
    pub(crate) async fn shown(&mut self, count: usize) -> Vec<String> {
        let mut bodies = Vec::new();
        while bodies.len() < count {
            let body = self
                .event("a message to be shown", |event| match event {
                    ClientEvent::Shown(message) => Some(String::from_utf8_lossy(&message.body).into_owned()),
                    _ => None,
                })
                .await;
            bodies.push(body);
        }
        bodies
    }

    /// Waits until an own message reaches this state, and gives the states on the way.
    pub(crate) async fn reaches(&mut self, msg_id: MsgId, wanted: MessageState) -> Vec<MessageState> {
        let mut states = Vec::new();
        while states.last() != Some(&wanted) {
            let state = self
                .event(&format!("{wanted:?}"), |event| match event {
                    ClientEvent::StateChanged { msg_id: of, state, .. } if of == msg_id => Some(state),
                    _ => None,
                })
                .await;
            states.push(state);
        }
        states
    }

    pub(crate) async fn stop(self) {
        self.handle.close().await;
        soon("the end", self.run).await.expect("no panic").expect("a good end");
    }
}
