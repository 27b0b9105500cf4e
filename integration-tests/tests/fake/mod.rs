//! A server of the frame protocol in memory, right or wrong on demand: the harness is tested against it.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Result, bail};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use parking_lot::Mutex;
use prost::Message as _;
use tidings_domain::{Conversation, ConversationKind, Uid};
use tidings_integration_tests::system::{Part, System};
use tidings_proto::v1;
use tidings_proto::v1::client_frame::Frame as ClientFrame;
use tidings_proto::v1::server_frame::Frame as ServerFrame;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

const EPOCH: u64 = 7;
const PAGE: usize = 100;
/// Frames on the way to one session.
const FRAMES: usize = 10_000;

/// How the server misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is right, and cuts every n-th session just before a link ACK.
    LoseAckEvery(u64),
    /// It acknowledges every n-th message and forgets it.
    ForgetEvery(u64),
    /// It loses ACKs and knows no idempotency key.
    NoDedup(u64),
    /// It pushes every n-th event to nobody and never tells the head.
    Mute(u64),
}

#[derive(Default)]
struct Store {
    conversations: HashMap<String, Vec<v1::Message>>,
    streams: HashMap<String, Vec<v1::Event>>,
    sessions: HashMap<(String, String), (u64, mpsc::Sender<ServerFrame>)>,
    sends: u64,
    connections: u64,
}

pub(crate) struct FakeServer {
    url: String,
}

impl FakeServer {
    pub(crate) async fn start(fault: Fault) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("ws://{}", listener.local_addr()?);
        let store = Arc::new(Mutex::new(Store::default()));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A session that ends with an error is one that was cut.
                tokio::spawn(session(stream, Arc::clone(&store), fault));
            }
        });
        Ok(Self { url })
    }
}

#[async_trait]
impl System for FakeServer {
    fn gateway_urls(&self) -> Vec<String> {
        vec![self.url.clone()]
    }

    fn token(&self, uid: &Uid) -> Result<String> {
        Ok(uid.as_str().to_owned())
    }

    fn parts(&self) -> Vec<Part> {
        Vec::new()
    }

    fn kill(&mut self, _part: Part) -> Result<()> {
        bail!("it has no parts")
    }

    fn start_again(&mut self, _part: Part) -> Result<()> {
        bail!("it has no parts")
    }

    async fn wait_ready(&mut self) -> Result<()> {
        Ok(())
    }

    async fn keep_state(&self) -> Result<()> {
        Ok(())
    }

    async fn dead_letters(&self) -> Result<Vec<serde_json::Value>> {
        Ok(Vec::new())
    }
}

#[expect(
    clippy::result_large_err,
    reason = "the callback's type is that of the WebSocket library"
)]
fn subprotocol(
    _request: &Request,
    mut response: Response,
) -> Result<Response, tokio_tungstenite::tungstenite::handshake::server::ErrorResponse> {
    let value = tokio_tungstenite::tungstenite::http::HeaderValue::from_static("tidings.v1.proto");
    response.headers_mut().insert("sec-websocket-protocol", value);
    Ok(response)
}

async fn session(stream: TcpStream, store: Arc<Mutex<Store>>, fault: Fault) -> Result<()> {
    let mut socket = tokio_tungstenite::accept_hdr_async(stream, subprotocol).await?;
    let (frames, mut outgoing) = mpsc::channel(FRAMES);
    let mut who: Option<(String, String)> = None;
    loop {
        tokio::select! {
            Some(frame) = outgoing.recv() => {
                let bytes = v1::ServerFrame { frame: Some(frame) }.encode_to_vec();
                socket.send(Message::Binary(bytes.into())).await?;
            }
            message = socket.next() => {
                let Some(Ok(Message::Binary(bytes))) = message else { bail!("the session ended") };
                let Some(frame) = v1::ClientFrame::decode(bytes)?.frame else { bail!("no frame") };
                if let ClientFrame::Connect(connect) = &frame {
                    who = Some((connect.token.clone(), connect.device_id.clone()));
                }
                let Some(who) = &who else { bail!("no Connect") };
                for answer in store.lock().answer(who, frame, &frames, fault)? {
                    frames.try_send(answer)?;
                }
            }
        }
    }
}

impl Store {
    fn answer(
        &mut self,
        (uid, device): &(String, String),
        frame: ClientFrame,
        frames: &mpsc::Sender<ServerFrame>,
        fault: Fault,
    ) -> Result<Vec<ServerFrame>> {
        let head = self.streams.get(uid).map_or(0, Vec::len) as u64;
        Ok(match frame {
            ClientFrame::Connect(connect) => {
                self.connections += 1;
                let key = (uid.clone(), device.clone());
                self.sessions.insert(key, (self.connections, frames.clone()));
                vec![ServerFrame::Connected(v1::Connected {
                    epoch: EPOCH,
                    cursor: if connect.fresh { head } else { 0 },
                    head_seq: head,
                    ..v1::Connected::default()
                })]
            }
            ClientFrame::Action(action) => self.send(uid, device, &action, fault)?,
            ClientFrame::Sync(sync) => self.pages(uid, sync.cursor.unwrap_or_default().user_seq),
            ClientFrame::Ping(_) => {
                let head_seq = if matches!(fault, Fault::Mute(_)) { 0 } else { head };
                vec![ServerFrame::Pong(v1::Pong {
                    head_seq,
                    ..v1::Pong::default()
                })]
            }
            ClientFrame::History(request) => vec![ServerFrame::HistoryPage(v1::HistoryPage {
                request_id: request.request_id,
                messages: self
                    .conversations
                    .get(&request.conversation)
                    .cloned()
                    .unwrap_or_default(),
                ..v1::HistoryPage::default()
            })],
            ClientFrame::Ack(_) | ClientFrame::DeliveredAck(_) | ClientFrame::ReadAck(_) | ClientFrame::Read(_) => {
                Vec::new()
            }
        })
    }

    fn send(&mut self, uid: &str, device: &str, action: &v1::UserAction, fault: Fault) -> Result<Vec<ServerFrame>> {
        self.sends += 1;
        let conversation = Conversation::parse(&action.conversation)?;
        let messages = self.conversations.entry(action.conversation.clone()).or_default();
        let is_known = messages.iter().any(|known| known.msg_id == action.msg_id);
        let forgets = matches!(fault, Fault::ForgetEvery(every) if self.sends.is_multiple_of(every));
        if (!is_known || matches!(fault, Fault::NoDedup(_))) && !forgets {
            let message = v1::Message {
                conversation: action.conversation.clone(),
                conv_seq: messages.len() as u64 + 1,
                sender: uid.to_owned(),
                device: device.to_owned(),
                msg_id: action.msg_id.clone(),
                action: action.action,
                body: action.body.clone(),
                ..v1::Message::default()
            };
            messages.push(message.clone());
            let ConversationKind::Direct(low, high) = conversation.kind() else {
                bail!("a group");
            };
            for user in [low, high] {
                self.append(user.as_str(), &message, fault);
            }
        }
        if let Fault::LoseAckEvery(every) | Fault::NoDedup(every) = fault
            && self.sends.is_multiple_of(every)
        {
            bail!("the ACK is lost");
        }
        Ok(vec![ServerFrame::MsgAck(v1::MsgAck {
            msg_id: action.msg_id.clone(),
            conversation: action.conversation.clone(),
            code: v1::Code::Ok as i32,
            ..v1::MsgAck::default()
        })])
    }

    fn append(&mut self, user: &str, message: &v1::Message, fault: Fault) {
        let stream = self.streams.entry(user.to_owned()).or_default();
        let event = v1::Event {
            kind: Some(v1::event::Kind::Message(message.clone())),
        };
        stream.push(event.clone());
        let user_seq = stream.len() as u64;
        if matches!(fault, Fault::Mute(every) if self.sends.is_multiple_of(every)) {
            return;
        }
        for ((uid, device), (_, session)) in &self.sessions {
            if uid != user {
                continue;
            }
            let mut event = event.clone();
            if let Some(v1::event::Kind::Message(echo)) = &mut event.kind
                && (uid, device) == (&message.sender, &message.device)
            {
                echo.body = Bytes::new();
            }
            // A session that is gone has nobody to tell.
            let _ = session.try_send(ServerFrame::Push(v1::Push {
                user_seq,
                event: Some(event),
            }));
        }
    }

    fn pages(&self, uid: &str, after: u64) -> Vec<ServerFrame> {
        let stream = self.streams.get(uid).map_or(&[][..], Vec::as_slice);
        let head_seq = stream.len() as u64;
        let mut pages = Vec::new();
        let mut next = after;
        loop {
            let from = usize::try_from(next).unwrap_or(usize::MAX).min(stream.len());
            let events: Vec<v1::Push> = (next + 1..)
                .zip(&stream[from..])
                .take(PAGE)
                .map(|(user_seq, event)| v1::Push {
                    user_seq,
                    event: Some(event.clone()),
                })
                .collect();
            next += events.len() as u64;
            let has_more = next < head_seq;
            pages.push(ServerFrame::SyncPage(v1::SyncPage {
                events,
                has_more,
                end_of_backlog: !has_more,
                head_seq,
                next_user_seq: next,
            }));
            if !has_more {
                return pages;
            }
        }
    }
}
