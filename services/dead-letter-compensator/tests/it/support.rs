//! A compensator with its log and a client of its list.

use std::sync::Arc;

use bytes::Bytes;
use tidings_bus::dead_letter::{Attempts, Rejection, dead_letter};
use tidings_bus::{Bus, ConsumerGroup, Headers, LogRecord, OutRecord};
use tidings_dead_letter_compensator::{Config, Dependencies, start};
use tidings_domain::Topic;
use tidings_domain::clock::Millis;
use tidings_proto::rpc::{self, Channel};
use tidings_proto::v1::dead_letters_client::DeadLettersClient;
use tidings_proto::v1::{DeadLetter, ListDeadLettersRequest, ListDeadLettersResponse};
use tidings_storage::embedded::EmbeddedStore;
use tidings_storage::port::{DeadLetterRow, DeadLetterStore};
use tidings_testing::{Embedded, Faulty, NOW, Script, Service, eventually};
use tonic::Status;

pub(crate) struct World {
    pub(crate) embedded: Embedded,
    pub(crate) script: Script,
    pub(crate) service: Service,
    client: DeadLettersClient<Channel>,
}

impl World {
    pub(crate) fn start() -> Self {
        Self::on(Embedded::new())
    }

    /// Starts the service. Must be called within a runtime.
    pub(crate) fn on(embedded: Embedded) -> Self {
        let store = Faulty::<EmbeddedStore>::new(embedded.store.clone());
        let script = store.script.clone();
        let context = Service::context("dead-letter-compensator");
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
            client: DeadLettersClient::new(rpc::in_process(server)),
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

    pub(crate) async fn append(&self, record: OutRecord) {
        let key = record.key.unwrap_or_default();
        let key = String::from_utf8(key.to_vec()).expect("text keys");
        self.embedded
            .append_to(Topic::Dlq, record.partition, &key, record.value, record.headers)
            .await;
    }

    pub(crate) async fn entry(&self, dlq_id: &str) -> Option<DeadLetterRow> {
        self.embedded.store.get(dlq_id).await.expect("an entry")
    }

    pub(crate) async fn until_entry(&self, dlq_id: &str) -> DeadLetterRow {
        eventually(dlq_id, async || self.entry(dlq_id).await.is_some()).await;
        self.entry(dlq_id).await.expect("an entry")
    }

    pub(crate) async fn list(&self, request: ListDeadLettersRequest) -> Result<ListDeadLettersResponse, Status> {
        self.client.clone().list(request).await.map(tonic::Response::into_inner)
    }

    /// The whole list, page by page.
    pub(crate) async fn listed(&self, request: &ListDeadLettersRequest) -> Vec<DeadLetter> {
        let mut entries = Vec::new();
        let mut request = request.clone();
        loop {
            let page = self.list(request.clone()).await.expect("a page");
            entries.extend(page.entries);
            if page.next_after_id.is_empty() {
                return entries;
            }
            request.after_id = page.next_after_id;
        }
    }

    pub(crate) fn committed(embedded: &Embedded) -> u64 {
        embedded.committed(ConsumerGroup::DeadLetterCompensator).iter().sum()
    }
}

/// A record of `topic` that some service cannot handle.
pub(crate) fn origin(topic: Topic, offset: u64, value: Option<&'static [u8]>) -> LogRecord {
    let mut headers = Headers::new();
    headers.push("traceparent", Bytes::from_static(b"00-1-2-01"));
    LogRecord {
        topic,
        partition: 3,
        offset,
        append_time: Millis(NOW.get() - 5_000),
        key: Some(Bytes::from_static(b"d:alice:bob")),
        value: value.map(Bytes::from_static),
        headers,
    }
}

/// Its dead letter, as the consumer runtime writes it.
pub(crate) fn dead(embedded: &Embedded, record: &LogRecord, group: ConsumerGroup, class: &'static str) -> OutRecord {
    let rejection = Rejection {
        error_class: class,
        detail: "field msg_id is missing".to_owned(),
        stage: "decode",
    };
    let attempts = Attempts {
        count: 5,
        first: Millis(NOW.get() - 4_000),
        last: Millis(NOW.get() - 1_000),
    };
    dead_letter(embedded.bus.catalogue(), record, group, &rejection, attempts, "host-1")
}
