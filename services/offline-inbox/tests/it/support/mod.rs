//! An offline-inbox with its log, a feeder in the router's place, and a client of its reads.

pub(crate) mod feeder;
pub(crate) mod probe;

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tidings_bus::{Bus, ConsumerGroup, Headers};
use tidings_domain::{Conversation, DeviceId, Topic, Uid};
use tidings_offline_inbox::{Config, Dependencies, start};
use tidings_proto::record::{DeviceState, Inbox, Push};
use tidings_proto::rpc::{self, Channel};
use tidings_proto::v1::inbox_client::InboxClient;
use tidings_proto::v1::{self, OpenRequest, OpenResponse, SyncChunk, SyncRequest, event, sync_chunk};
use tidings_storage::embedded::{EmbeddedStore, LocalHotWindow};
use tidings_storage::port::{HotWindow, InboxReader, InboxStore};
use tidings_testing::{Embedded, Faulty, Script, Service, eventually};
use tonic::Status;

use self::feeder::Feeder;
use self::probe::ProbedBus;

pub(crate) struct World {
    pub(crate) embedded: Embedded,
    /// Of the fold's store.
    pub(crate) fold: Script,
    /// Of the reader.
    pub(crate) reader: Script,
    /// Of the hot window.
    pub(crate) hot: Script,
    pub(crate) service: Service,
    pub(crate) feeder: Feeder,
    pub(crate) pushes_too_early: probe::Violations,
    client: InboxClient<Channel>,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::on(Embedded::new()).await
    }

    pub(crate) async fn on(embedded: Embedded) -> Self {
        Self::with(embedded, Arc::new(LocalHotWindow::default())).await
    }

    /// With a hot window of the test's own.
    pub(crate) async fn with<H: HotWindow>(embedded: Embedded, hot: Arc<H>) -> Self {
        let (store, reader, hot) = (
            Faulty::<EmbeddedStore>::new(embedded.store.clone()),
            Faulty::<EmbeddedStore>::new(embedded.store.clone()),
            Faulty::new(hot),
        );
        let scripts = (store.script.clone(), reader.script.clone(), hot.script.clone());
        let bus = ProbedBus::new(embedded.bus.clone(), embedded.store.clone());
        let pushes_too_early = bus.violations.clone();
        let context = Service::context("offline-inbox");
        let config: Config =
            tidings_chassis::config::load(include_str!("../../../config.default.toml"), None, std::iter::empty())
                .expect("the defaults are valid");
        let dependencies = Dependencies {
            bus: Arc::new(bus),
            store: Arc::new(store),
            reader: Arc::new(reader),
            hot: Arc::new(hot),
            clock: Arc::new(embedded.clock.clone()),
            guarded: true,
        };
        let (server, running) = start(&context, &config, dependencies)
            .await
            .expect("the service starts");
        Self {
            feeder: Feeder::new(embedded.bus.catalogue()),
            embedded,
            fold: scripts.0,
            reader: scripts.1,
            hot: scripts.2,
            service: Service::new(context, running),
            pushes_too_early,
            client: InboxClient::new(rpc::in_process(server)),
        }
    }

    /// Stops in order; gives what is on disk and the feeder, which goes on as the same run.
    pub(crate) async fn stop(self) -> (Embedded, Feeder) {
        let Self {
            embedded,
            service,
            feeder,
            client,
            pushes_too_early,
            ..
        } = self;
        drop(client);
        service.stop().await;
        assert_eq!(
            *pushes_too_early.lock(),
            Vec::<String>::new(),
            "pushed before the row was readable"
        );
        (embedded, feeder)
    }

    pub(crate) async fn restarted(self) -> Self {
        let (embedded, feeder) = self.stop().await;
        Self {
            feeder,
            ..Self::on(embedded.reopened()).await
        }
    }

    /// Appends a message of the conversation of `sender` and `uid` to the stream of `uid`.
    pub(crate) async fn message(&mut self, uid: &str, peer: &str, conv_seq: u64) {
        let event = message(uid, peer, conv_seq);
        self.feeder.append(&self.embedded, uid, event).await;
    }

    /// Appends a record without a link, as a gateway does.
    pub(crate) async fn device_state(&self, state: &DeviceState) {
        self.raw(
            state.uid.as_str(),
            Some(Inbox::DeviceState(state.clone()).encode()),
            Headers::new(),
        )
        .await;
    }

    pub(crate) async fn raw(&self, uid: &str, value: Option<Bytes>, headers: Headers) -> u64 {
        self.embedded.append(Topic::Inbox, uid, value, headers).await.offset
    }

    pub(crate) async fn until_rows(&self, uid: &str, count: usize) {
        eventually(&format!("{count} rows of {uid}"), async || {
            stream(&self.embedded, uid).await.len() >= count
        })
        .await;
    }

    pub(crate) async fn until_metric(&self, series: &str, least: f64) {
        eventually(series, async || self.service.metric(series) >= least).await;
    }

    pub(crate) async fn open(&self, uid: &str, device: &str, fresh: bool) -> Result<OpenResponse, Status> {
        let request = OpenRequest {
            viewer_uid: uid.to_owned(),
            device_id: device.to_owned(),
            fresh,
        };
        self.client.clone().open(request).await.map(tonic::Response::into_inner)
    }

    pub(crate) async fn epoch(&self) -> u64 {
        self.embedded.store.cursor_epoch().await.expect("an epoch")
    }

    /// The chunks of a round, and the status if it ended with one.
    pub(crate) async fn sync(&self, request: SyncRequest) -> (Vec<sync_chunk::Chunk>, Option<Status>) {
        let round = async {
            let mut chunks = Vec::new();
            let mut stream = match self.client.clone().sync(request).await {
                Ok(response) => response.into_inner(),
                Err(status) => return (chunks, Some(status)),
            };
            loop {
                match stream.message().await {
                    Ok(Some(SyncChunk { chunk })) => chunks.push(chunk.expect("a chunk of a known kind")),
                    Ok(None) => return (chunks, None),
                    Err(status) => return (chunks, Some(status)),
                }
            }
        };
        tokio::time::timeout(tidings_testing::DEADLINE, round)
            .await
            .expect("a round ends")
    }

    pub(crate) async fn request(&self, uid: &str, after: u64) -> SyncRequest {
        SyncRequest {
            viewer_uid: uid.to_owned(),
            device_id: "phone".to_owned(),
            after_user_seq: after,
            epoch: self.epoch().await,
            ..SyncRequest::default()
        }
    }

    /// A round of pages only: the numbers of each page, and the end's (head, next).
    pub(crate) async fn pages(&self, request: SyncRequest) -> (Vec<Vec<u64>>, (u64, u64)) {
        let (chunks, status) = self.sync(request).await;
        assert!(status.is_none(), "{status:?}");
        let mut pages = Vec::new();
        let mut end = None;
        for chunk in chunks {
            let sync_chunk::Chunk::Events(page) = chunk else {
                panic!("not a page: {chunk:?}");
            };
            assert_eq!(end, None, "nothing comes after the end");
            assert!(page.end_of_backlog || !page.events.is_empty(), "an empty page");
            if page.end_of_backlog {
                end = Some((page.head_seq, page.next_user_seq));
            }
            if !page.events.is_empty() {
                pages.push(page.events.iter().map(|event| event.user_seq).collect());
            }
        }
        (pages, end.expect("an end marker"))
    }

    pub(crate) async fn heads(&self, uids: &[&str]) -> Result<Vec<u64>, Status> {
        let request = v1::HeadsRequest {
            uids: uids.iter().map(|uid| (*uid).to_owned()).collect(),
        };
        let response = self.client.clone().heads(request).await?;
        Ok(response.into_inner().head_seqs)
    }
}

/// The rows of a stream as (user_seq, event).
pub(crate) async fn stream(embedded: &Embedded, uid: &str) -> Vec<(u64, event::Kind)> {
    let rows = embedded.store.rows_after(&user(uid), 0, 10_000).await.expect("rows");
    rows.into_iter()
        .map(|row| {
            let event = v1::Event::decode(row.event).expect("an event");
            (row.seq, event.kind.expect("a kind"))
        })
        .collect()
}

/// The conversation numbers of the messages in a stream; panics at a hole in the stream.
pub(crate) async fn conv_seqs(embedded: &Embedded, uid: &str) -> Vec<u64> {
    let mut seqs = Vec::new();
    for (expected, (user_seq, kind)) in (1..).zip(stream(embedded, uid).await) {
        assert_eq!(user_seq, expected, "contiguous from 1");
        if let event::Kind::Message(message) = kind {
            seqs.push(message.conv_seq);
        }
    }
    seqs
}

/// The pushes in the log as (uid, user_seq), each once: a later run may repeat them.
pub(crate) fn pushes(embedded: &Embedded, uid: &str) -> Vec<u64> {
    let mut seqs: Vec<u64> = embedded
        .records(Topic::Push)
        .iter()
        .flat_map(|record| Push::decode(record.value.as_ref()).expect("a push").targets)
        .filter(|(target, _)| target.as_str() == uid)
        .map(|(_, user_seq)| user_seq)
        .collect();
    seqs.dedup();
    seqs
}

/// Position of the partition of `uid` in its checkpoint.
pub(crate) async fn checkpointed(embedded: &Embedded, uid: &str) -> u64 {
    let partition = embedded.bus.catalogue().partition(Topic::Inbox, uid.as_bytes());
    let checkpoint = embedded.store.checkpoint(partition).await.expect("a checkpoint");
    checkpoint.map_or(0, |checkpoint| checkpoint.next_offset)
}

pub(crate) fn committed(embedded: &Embedded, uid: &str) -> u64 {
    let partition = embedded.bus.catalogue().partition(Topic::Inbox, uid.as_bytes());
    embedded.committed(ConsumerGroup::OfflineInbox)[partition as usize]
}

pub(crate) fn user(name: &str) -> Uid {
    Uid::parse(name).expect("a uid")
}

pub(crate) fn device(name: &str) -> DeviceId {
    DeviceId::parse(name).expect("a device")
}

pub(crate) fn conversation(a: &str, b: &str) -> Conversation {
    Conversation::direct(&user(a), &user(b))
}

/// An encoded event with a message of the conversation of `a` and `b`.
pub(crate) fn message(a: &str, b: &str, conv_seq: u64) -> Bytes {
    sized(a, b, conv_seq, 10)
}

pub(crate) fn sized(a: &str, b: &str, conv_seq: u64, body: usize) -> Bytes {
    v1::Event {
        kind: Some(event::Kind::Message(v1::Message {
            conversation: conversation(a, b).as_str().to_owned(),
            conv_seq,
            countable_seq: conv_seq,
            sender: b.to_owned(),
            msg_id: Bytes::from_static(&[1; 16]),
            action: v1::Action::Send as i32,
            content_type: "text".to_owned(),
            body: Bytes::from(vec![b'x'; body]),
            ..v1::Message::default()
        })),
    }
    .encode_to_vec()
    .into()
}

/// Another uid of the same inbox partition.
pub(crate) fn neighbour(embedded: &Embedded, uid: &str) -> String {
    same_partition(embedded, uid, true)
}

/// A uid of another inbox partition.
pub(crate) fn stranger(embedded: &Embedded, uid: &str) -> String {
    same_partition(embedded, uid, false)
}

fn same_partition(embedded: &Embedded, uid: &str, same: bool) -> String {
    let partition = |name: &str| embedded.bus.catalogue().partition(Topic::Inbox, name.as_bytes());
    (0..)
        .map(|n| format!("user{n}"))
        .find(|name| (partition(name) == partition(uid)) == same)
        .expect("one of many")
}
