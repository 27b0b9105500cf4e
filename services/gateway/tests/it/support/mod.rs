//! A gateway with a scripted log, fake neighbours and devices.

pub(crate) mod device;
pub(crate) mod log;
pub(crate) mod neighbours;
pub(crate) mod registry;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tidings_chassis::{Context, Running, Secret};
use tidings_domain::clock::{ManualClock, Millis};
use tidings_domain::{MsgId, Uid};
use tidings_gateway::config::GatewayConfig;
use tidings_gateway::{Config, Dependencies, Internal, start};
use tidings_proto::rpc;
use tidings_proto::v1::delivery_client::DeliveryClient;
use tidings_proto::v1::history_client::HistoryClient;
use tidings_proto::v1::history_server::HistoryServer;
use tidings_proto::v1::inbox_client::InboxClient;
use tidings_proto::v1::inbox_server::InboxServer;
use tidings_proto::v1::{self, DeliverItem, DeliverOutcome, DeliverRequest, DeliverTarget};
use tidings_storage::port::Routes;

use self::log::Log;
use self::neighbours::{FakeHistory, FakeInbox};
use self::registry::Registry;

/// Longest wait for anything; a test that waits for it fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// What the gateway's clock shows.
pub(crate) const NOW: Millis = Millis(1_700_000_000_000);

pub(crate) const SECRET: &str = "a secret of the tests";

/// The name of the gateway in routes.
pub(crate) const ADDRESS: &str = "gateway.test:9090";

pub(crate) struct World {
    pub(crate) log: Arc<Log>,
    pub(crate) inbox: FakeInbox,
    pub(crate) history: FakeHistory,
    pub(crate) routes: Arc<Registry>,
    pub(crate) clock: ManualClock,
    pub(crate) context: Context,
    pub(crate) addr: SocketAddr,
    pub(crate) delivery: DeliveryClient<rpc::Channel>,
    pub(crate) running: Option<Running>,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(|_| ()).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut GatewayConfig)) -> Self {
        let clock = ManualClock::at(NOW);
        let log = Arc::new(Log::new(Arc::new(clock.clone())));
        let (inbox, history) = (FakeInbox::default(), FakeHistory::default());
        let routes = Arc::new(Registry::new(Arc::new(clock.clone())));
        let mut config = Config::defaults();
        config.gateway.listen = "127.0.0.1:0".parse().expect("an address");
        config.gateway.hs256_secret = Secret::new(SECRET);
        change(&mut config.gateway);
        let context = Context::new("gateway", tidings_chassis::Shared::defaults());
        let dependencies = Dependencies {
            bus: log.clone(),
            routes: routes.clone(),
            inbox: InboxClient::new(rpc::in_process(InboxServer::new(inbox.clone()))),
            history: HistoryClient::new(rpc::in_process(HistoryServer::new(history.clone()))),
            clock: Arc::new(clock.clone()),
            seed: 7,
            internal: Internal::InProcess {
                address: ADDRESS.to_owned(),
            },
            web: None,
        };
        let gateway = start(&context, config, dependencies).await.expect("the gateway starts");
        Self {
            log,
            inbox,
            history,
            routes,
            clock,
            context,
            addr: gateway.public_addr,
            delivery: DeliveryClient::new(rpc::in_process(gateway.delivery)),
            running: Some(gateway.running),
        }
    }

    /// Hands events over as push-fanout does; gives the outcomes.
    pub(crate) async fn deliver(&self, items: Vec<DeliverItem>) -> Vec<DeliverOutcome> {
        let request = DeliverRequest { batch_id: 5, items };
        let call = async {
            let mut responses = self
                .delivery
                .clone()
                .deliver(tokio_stream::once(request))
                .await
                .expect("the stream opens")
                .into_inner();
            responses.message().await.expect("a response").expect("one per batch")
        };
        let response = tokio::time::timeout(DEADLINE, call).await.expect("an answer in time");
        assert_eq!(response.batch_id, 5);
        response.results.iter().map(v1::DeliverResult::outcome).collect()
    }

    /// Delivers one event to all sessions of a user.
    pub(crate) async fn push(&self, uid: &str, user_seq: u64, event: Bytes) -> Vec<DeliverOutcome> {
        self.deliver(vec![item(uid, user_seq, event)]).await
    }

    /// The devices in the route registry.
    pub(crate) async fn routed(&self, uid: &str) -> Vec<String> {
        let found = self
            .routes
            .lookup(&[Uid::parse(uid).expect("a uid")])
            .await
            .expect("a look-up");
        found
            .into_iter()
            .flatten()
            .map(|(device, _)| device.as_str().to_owned())
            .collect()
    }

    /// The metrics as scraped.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let text = self.context.registry.encode();
        let line = text
            .lines()
            .find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
        let line = line.unwrap_or_else(|| panic!("no series {series} in\n{text}"));
        line[series.len() + 1..].parse().expect("a number")
    }
}

pub(crate) fn item(uid: &str, user_seq: u64, event: Bytes) -> DeliverItem {
    DeliverItem {
        targets: vec![DeliverTarget {
            uid: uid.to_owned(),
            user_seq,
            ..DeliverTarget::default()
        }],
        event,
    }
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(DEADLINE, waiting).await.is_err() {
        panic!("not in time: {what}");
    }
}

/// A message id of the tests' time.
pub(crate) fn msg_id(n: u64) -> MsgId {
    msg_id_at(NOW, n)
}

pub(crate) fn msg_id_at(time: Millis, n: u64) -> MsgId {
    let mut random = [0; 10];
    random[..8].copy_from_slice(&n.to_be_bytes());
    MsgId::mint(time, random)
}

pub(crate) fn id_bytes(id: MsgId) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

/// A text from the session's user to `to_uid`.
pub(crate) fn text(lane_seq: u64, to_uid: &str, n: u64, body: &str) -> v1::UserAction {
    v1::UserAction {
        action: v1::Action::Send as i32,
        lane_seq,
        to_uid: to_uid.to_owned(),
        msg_id: id_bytes(msg_id(n)),
        content_type: "text".to_owned(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        client_time: NOW.get(),
        first_send_time: NOW.get(),
        ..v1::UserAction::default()
    }
}

/// An encoded event with a message.
pub(crate) fn event(sender: &str, device: &str, to: &str, n: u64, body: &str) -> Bytes {
    let (low, high) = if sender <= to { (sender, to) } else { (to, sender) };
    v1::Event {
        kind: Some(v1::event::Kind::Message(v1::Message {
            conversation: format!("d:{low}:{high}"),
            conv_seq: n,
            countable_seq: n,
            sender: sender.to_owned(),
            device: device.to_owned(),
            msg_id: id_bytes(msg_id(n)),
            action: v1::Action::Send as i32,
            append_time: NOW.get() - 40,
            content_type: "text".to_owned(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            content_hash: Bytes::from_static(&[9; 16]),
            ..v1::Message::default()
        })),
    }
    .encode_to_vec()
    .into()
}
