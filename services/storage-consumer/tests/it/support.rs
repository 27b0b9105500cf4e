//! A storage-consumer with its log and a client of its reads.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tidings_bus::{Bus, Headers};
use tidings_domain::{Conversation, MsgId, Topic};
use tidings_proto::rpc::{self, Channel};
use tidings_proto::v1::history_client::HistoryClient;
use tidings_proto::v1::{self, HistoryRangeRequest, HistoryRangeResponse};
use tidings_storage::embedded::EmbeddedStore;
use tidings_storage::port::HistoryStore;
use tidings_storage_consumer::{Config, Dependencies, start};
use tidings_testing::{Embedded, Faulty, NOW, Script, Service, eventually};
use tonic::Status;

pub(crate) struct World {
    pub(crate) embedded: Embedded,
    pub(crate) script: Script,
    pub(crate) service: Service,
    client: HistoryClient<Channel>,
}

impl World {
    pub(crate) fn start() -> Self {
        Self::on(Embedded::new())
    }

    /// Starts the service. Must be called within a runtime.
    pub(crate) fn on(embedded: Embedded) -> Self {
        let store = Faulty::<EmbeddedStore>::new(embedded.store.clone());
        let script = store.script.clone();
        let context = Service::context("storage-consumer");
        let config: Config =
            tidings_chassis::config::load(include_str!("../../config.default.toml"), None, std::iter::empty())
                .expect("the defaults are valid");
        let dependencies = Dependencies {
            bus: embedded.bus.clone(),
            store: Arc::new(store),
            clock: Arc::new(embedded.clock.clone()),
        };
        let (server, running) = start(&context, &config, dependencies).expect("the service starts");
        Self {
            embedded,
            script,
            service: Service::new(context, running),
            client: HistoryClient::new(rpc::in_process(server)),
        }
    }

    pub(crate) async fn stop(self) -> Embedded {
        let Self {
            embedded,
            service,
            client,
            ..
        } = self;
        drop(client);
        service.stop().await;
        embedded
    }

    /// Appends a sequenced message as the router emits it.
    pub(crate) async fn sequenced(&self, conversation: &str, conv_seq: u64) {
        self.message(&message(conversation, conv_seq)).await;
    }

    pub(crate) async fn message(&self, message: &v1::Message) {
        self.raw(&message.conversation, Some(message.encode_to_vec().into()))
            .await;
    }

    pub(crate) async fn raw(&self, key: &str, value: Option<Bytes>) -> u64 {
        self.embedded
            .append(Topic::History, key, value, Headers::new())
            .await
            .offset
    }

    /// The numbers that have a row.
    pub(crate) async fn rows(&self, conversation: &str) -> Vec<u64> {
        rows(&self.embedded, conversation).await
    }

    pub(crate) async fn until_rows(&self, conversation: &str, expected: &[u64]) {
        eventually(&format!("rows {expected:?} of {conversation}"), async || {
            self.rows(conversation).await == expected
        })
        .await;
    }

    pub(crate) async fn range(
        &self,
        viewer: &str,
        conversation: &str,
        (from, to): (u64, u64),
        limit: u32,
    ) -> Result<HistoryRangeResponse, Status> {
        let request = HistoryRangeRequest {
            viewer_uid: viewer.to_owned(),
            conversation: conversation.to_owned(),
            from_conv_seq: from,
            to_conv_seq: to,
            limit,
        };
        self.client
            .clone()
            .range(request)
            .await
            .map(tonic::Response::into_inner)
    }
}

pub(crate) async fn rows(embedded: &Embedded, conversation: &str) -> Vec<u64> {
    let conversation = Conversation::parse(conversation).expect("a conversation");
    let rows = embedded.store.history_range(&conversation, 1, u64::MAX, 10_000).await;
    rows.expect("rows").iter().map(|row| row.conv_seq).collect()
}

pub(crate) fn msg_id(conv_seq: u64) -> MsgId {
    let mut random = [0; 10];
    random[..8].copy_from_slice(&conv_seq.to_be_bytes());
    MsgId::mint(NOW, random)
}

pub(crate) fn message(conversation: &str, conv_seq: u64) -> v1::Message {
    v1::Message {
        conversation: conversation.to_owned(),
        conv_seq,
        countable_seq: conv_seq,
        sender: "alice".to_owned(),
        device: "phone".to_owned(),
        msg_id: Bytes::copy_from_slice(msg_id(conv_seq).as_bytes()),
        action: v1::Action::Send as i32,
        append_time: NOW.get(),
        content_type: "text".to_owned(),
        body: Bytes::from(format!("text {conv_seq}")),
        content_hash: Bytes::from_static(&[1; 16]),
        ..v1::Message::default()
    }
}

/// Numbers of the messages of a page.
pub(crate) fn numbers(page: &HistoryRangeResponse) -> Vec<u64> {
    page.messages
        .iter()
        .map(|message| v1::Message::decode(message.clone()).expect("a message").conv_seq)
        .collect()
}

/// Another conversation of the same partition, so that its key alone makes it independent.
pub(crate) fn neighbour(embedded: &Embedded, conversation: &str) -> String {
    let partition = |name: &str| embedded.bus.catalogue().partition(Topic::History, name.as_bytes());
    (0..)
        .map(|n| format!("d:alice:user{n}"))
        .find(|name| name != conversation && partition(name) == partition(conversation))
        .expect("one of many")
}
