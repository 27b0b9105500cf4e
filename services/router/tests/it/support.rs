//! A router with its log, and what it emitted.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tidings_bus::Headers;
use tidings_domain::clock::Clock;
use tidings_domain::{Action, ContentHash, Conversation, DeviceId, MsgId, SourcePartition, SourcePosition, Topic, Uid};
use tidings_proto::record::{Inbox, Ingress, SenderRole};
use tidings_proto::v1::{self, event};
use tidings_router::{Config, Dependencies, start};
use tidings_storage::embedded::EmbeddedStore;
use tidings_testing::{Embedded, Faulty, NOW, Script, Service, eventually};

pub(crate) struct World {
    pub(crate) embedded: Embedded,
    pub(crate) script: Script,
    pub(crate) service: Service,
}

impl World {
    pub(crate) fn start() -> Self {
        Self::on(Embedded::new())
    }

    /// Starts a router. Must be called within a runtime.
    pub(crate) fn on(embedded: Embedded) -> Self {
        let store = Faulty::<EmbeddedStore>::new(embedded.store.clone());
        let script = store.script.clone();
        let context = Service::context("router");
        let config: Config =
            tidings_chassis::config::load(include_str!("../../config.default.toml"), None, std::iter::empty())
                .expect("the defaults are valid");
        let dependencies = Dependencies {
            bus: embedded.bus.clone(),
            store: Arc::new(store),
            clock: Arc::new(embedded.clock.clone()),
            guarded: true,
        };
        let running = start(&context, &config, dependencies).expect("the router starts");
        Self {
            embedded,
            script,
            service: Service::new(context, running),
        }
    }

    pub(crate) async fn stop(self) -> Embedded {
        self.service.stop().await;
        self.embedded
    }

    /// An orderly restart: everything is dropped, the same directory opened again.
    pub(crate) async fn restarted(self) -> Self {
        Self::on(self.stop().await.reopened())
    }

    pub(crate) async fn send(&self, action: &Ingress) -> u64 {
        send(&self.embedded, action).await
    }

    pub(crate) async fn raw(&self, key: &str, value: Option<Bytes>) -> u64 {
        self.embedded
            .append(Topic::Ingress, key, value, Headers::new())
            .await
            .offset
    }

    pub(crate) fn decided(&self, decision: &str) -> u64 {
        let value = self
            .service
            .metric(&format!("tidings_router_records_total{{decision=\"{decision}\"}}"));
        // A count.
        value as u64
    }

    pub(crate) async fn until_decided(&self, decision: &str, count: u64) {
        eventually(&format!("{count} records {decision}"), async || {
            self.decided(decision) >= count
        })
        .await;
    }

    /// The messages in `history`.
    pub(crate) fn history(&self) -> Vec<v1::Message> {
        history(&self.embedded)
    }

    pub(crate) async fn until_history(&self, count: usize) -> Vec<v1::Message> {
        eventually("records in history", async || self.history().len() >= count).await;
        self.history()
    }
}

pub(crate) async fn send(embedded: &Embedded, action: &Ingress) -> u64 {
    let key = action.conversation.as_str();
    embedded
        .append(Topic::Ingress, key, Some(action.encode()), Headers::new())
        .await
        .offset
}

pub(crate) fn history(embedded: &Embedded) -> Vec<v1::Message> {
    let decode = |value: Option<Bytes>| v1::Message::decode(value.expect("a value")).expect("a message");
    embedded
        .records(Topic::History)
        .into_iter()
        .map(|record| decode(record.value))
        .collect()
}

/// What each user's stream becomes: the fresh part of `inbox` by the rule of seq:I2, in log order.
pub(crate) fn streams(embedded: &Embedded) -> BTreeMap<String, Vec<event::Kind>> {
    let mut folded: BTreeMap<(u32, SourcePartition), SourcePosition> = BTreeMap::new();
    let mut streams: BTreeMap<String, Vec<event::Kind>> = BTreeMap::new();
    for record in embedded.records(Topic::Inbox) {
        let link = record.link().expect("a sound link").expect("emitted by a fold");
        let v = folded.get(&(record.partition, link.source)).copied();
        // A re-emission, or behind a gap that a later run fills.
        if Some(link.src) <= v || link.prev > v {
            continue;
        }
        folded.insert((record.partition, link.source), link.src);
        let Inbox::Append(append) = Inbox::decode(record.value.as_ref()).expect("an inbox record") else {
            panic!("the router emits appends only");
        };
        let event = v1::Event::decode(append.event).expect("an event").kind.expect("a kind");
        for uid in append.uids {
            streams.entry(uid.as_str().to_owned()).or_default().push(event.clone());
        }
    }
    streams
}

/// The messages of a stream as (conv_seq, body).
pub(crate) fn messages(stream: &[event::Kind]) -> Vec<(u64, Bytes)> {
    stream
        .iter()
        .filter_map(|kind| match kind {
            event::Kind::Message(message) => Some((message.conv_seq, message.body.clone())),
            event::Kind::Rejection(_) | event::Kind::Receipt(_) | event::Kind::ReadSync(_) => None,
        })
        .collect()
}

/// The rejections of a stream.
pub(crate) fn rejections(stream: &[event::Kind]) -> Vec<v1::Rejection> {
    stream
        .iter()
        .filter_map(|kind| match kind {
            event::Kind::Rejection(rejection) => Some(rejection.clone()),
            event::Kind::Message(_) | event::Kind::Receipt(_) | event::Kind::ReadSync(_) => None,
        })
        .collect()
}

pub(crate) fn uid(name: &str) -> Uid {
    Uid::parse(name).expect("a uid")
}

/// The `n`th text of `sender` to `to`.
pub(crate) fn text(sender: &str, to: &str, n: u8) -> Ingress {
    Ingress {
        action: Action::Send,
        conversation: Conversation::direct(&uid(sender), &uid(to)),
        sender: uid(sender),
        sender_role: SenderRole::User,
        device: DeviceId::parse("phone").expect("a device"),
        msg_id: MsgId::mint(NOW, [n; 10]),
        op_id: None,
        content_hash: ContentHash([n; 16]),
        target: None,
        content_type: "text".to_owned(),
        body: Bytes::from(format!("text {n}")),
        client_time: NOW,
        first_send_time: NOW,
        retry_count: 0,
        member: None,
    }
}

pub(crate) fn now(world: &World) -> i64 {
    world.embedded.clock.now().get()
}
