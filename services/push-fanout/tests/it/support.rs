//! A push-fanout with its log, routes, and gateways that follow a script.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tidings_bus::{ConsumerGroup, Headers};
use tidings_domain::{DeviceId, Topic, Uid};
use tidings_proto::record::Push;
use tidings_proto::rpc::{self, Channel};
use tidings_proto::v1::delivery_server::{self, DeliveryServer};
use tidings_proto::v1::{DeliverOutcome, DeliverRequest, DeliverResponse, DeliverResult};
use tidings_push_fanout::gateways::Gateways;
use tidings_push_fanout::{Config, Dependencies, start};
use tidings_storage::embedded::LocalRoutes;
use tidings_storage::port::{RouteKey, Routes};
use tidings_testing::{Embedded, Faulty, Script, Service, eventually};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// How long the gateways may take in these tests.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(300);
/// Batches on the way to one gateway in these tests.
pub(crate) const IN_FLIGHT: usize = 2;

/// Of `push`.
pub(crate) const PARTITIONS: u32 = 4;

const LEASE: Duration = Duration::from_secs(90);

/// What a gateway does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Answers every batch.
    Answers,
    /// Takes batches and answers none.
    Silent,
    /// Ends the stream when a batch comes.
    Ends,
    /// Refuses to open a stream.
    Refuses,
    /// Never answers the opening of a stream.
    HangsOnOpen,
}

type BeforeAnswer = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

struct State {
    manner: Manner,
    batches: Vec<DeliverRequest>,
    /// Streams opened, batches of each are numbered from 1.
    streams: usize,
    /// Outcome by uid; handed over if none is set.
    outcomes: BTreeMap<String, DeliverOutcome>,
    before_answer: Option<BeforeAnswer>,
}

#[derive(Clone)]
pub(crate) struct Gateway(Arc<Mutex<State>>);

impl Gateway {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            manner: Manner::Answers,
            batches: Vec::new(),
            streams: 0,
            outcomes: BTreeMap::new(),
            before_answer: None,
        })))
    }

    pub(crate) fn behave(&self, manner: Manner) {
        self.0.lock().manner = manner;
    }

    pub(crate) fn outcome(&self, uid: &str, outcome: DeliverOutcome) {
        self.0.lock().outcomes.insert(uid.to_owned(), outcome);
    }

    /// Done once, after a batch came and before it is answered.
    pub(crate) fn before_answer(&self, hook: BeforeAnswer) {
        self.0.lock().before_answer = Some(hook);
    }

    pub(crate) fn streams(&self) -> usize {
        self.0.lock().streams
    }

    pub(crate) fn batches(&self) -> Vec<DeliverRequest> {
        self.0.lock().batches.clone()
    }

    /// What was delivered: (uid, device, connection, user_seq, event), in order.
    pub(crate) fn delivered(&self) -> Vec<(String, String, u64, u64, Bytes)> {
        let batches = self.batches();
        let items = batches.into_iter().flat_map(|batch| batch.items);
        items
            .flat_map(|item| {
                let event = item.event;
                item.targets.into_iter().map(move |target| {
                    let event = event.clone();
                    (
                        target.uid,
                        target.device_id,
                        target.connection_id,
                        target.user_seq,
                        event,
                    )
                })
            })
            .collect()
    }

    fn answer(&self, request: &DeliverRequest) -> DeliverResponse {
        let state = self.0.lock();
        let results = request.items.iter().flat_map(|item| &item.targets).map(|target| {
            let outcome = state.outcomes.get(&target.uid).copied();
            DeliverResult {
                uid: target.uid.clone(),
                device_id: target.device_id.clone(),
                connection_id: target.connection_id,
                outcome: outcome.unwrap_or(DeliverOutcome::HandedOver) as i32,
                user_seq: target.user_seq,
            }
        });
        DeliverResponse {
            batch_id: request.batch_id,
            results: results.collect(),
        }
    }

    async fn serve(
        self,
        mut requests: Streaming<DeliverRequest>,
        answers: mpsc::Sender<Result<DeliverResponse, Status>>,
    ) {
        while let Some(Ok(request)) = requests.next().await {
            let (manner, hook) = {
                let mut state = self.0.lock();
                state.batches.push(request.clone());
                (state.manner, state.before_answer.take())
            };
            if let Some(hook) = hook {
                hook().await;
            }
            match manner {
                Manner::Answers => {
                    let answered = answers.send(Ok(self.answer(&request))).await;
                    if answered.is_err() {
                        return;
                    }
                }
                Manner::Ends => return,
                Manner::Silent | Manner::Refuses | Manner::HangsOnOpen => {}
            }
        }
    }
}

#[tonic::async_trait]
impl delivery_server::Delivery for Gateway {
    type DeliverStream = Pin<Box<dyn Stream<Item = Result<DeliverResponse, Status>> + Send>>;

    async fn deliver(
        &self,
        request: Request<Streaming<DeliverRequest>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let manner = {
            let mut state = self.0.lock();
            state.streams += 1;
            state.manner
        };
        match manner {
            Manner::Refuses => return Err(Status::unavailable("not now")),
            Manner::HangsOnOpen => std::future::pending::<()>().await,
            Manner::Answers | Manner::Silent | Manner::Ends => {}
        }
        let (answers, stream) = mpsc::channel(16);
        tokio::spawn(self.clone().serve(request.into_inner(), answers));
        Ok(Response::new(ReceiverStream::new(stream).boxed()))
    }
}

/// The gateways by their address; an unknown one cannot be called.
struct ByAddress(BTreeMap<String, Gateway>);

#[tonic::async_trait]
impl Gateways for ByAddress {
    fn channel(&self, address: &str) -> anyhow::Result<Channel> {
        let gateway = self.0.get(address);
        let gateway = gateway.ok_or_else(|| anyhow::anyhow!("no gateway {address}"))?;
        Ok(rpc::in_process(DeliveryServer::new(gateway.clone())))
    }

    async fn all(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

pub(crate) struct World {
    pub(crate) embedded: Embedded,
    pub(crate) routes: Arc<LocalRoutes>,
    pub(crate) script: Script,
    pub(crate) service: Service,
    /// `gateway-1` and `gateway-2`.
    pub(crate) gateways: [Gateway; 2],
}

impl World {
    /// Starts the service. Must be called within a runtime.
    pub(crate) fn start() -> Self {
        Self::on(Embedded::new())
    }

    pub(crate) fn on(embedded: Embedded) -> Self {
        let routes = Arc::new(LocalRoutes::new(Arc::new(embedded.clock.clone())));
        let faulty = Faulty::new(routes.clone());
        let script = faulty.script.clone();
        let gateways = [Gateway::new(), Gateway::new()];
        let context = Service::context("push-fanout");
        let settings = [
            (
                "TIDINGS__PUSH_FANOUT__DELIVER_TIMEOUT_MS",
                TIMEOUT.as_millis().to_string(),
            ),
            ("TIDINGS__PUSH_FANOUT__MAX_BATCHES_IN_FLIGHT", IN_FLIGHT.to_string()),
        ];
        let config: Config = tidings_chassis::config::load(
            include_str!("../../config.default.toml"),
            None,
            settings.into_iter().map(|(key, value)| (key.to_owned(), value)),
        )
        .expect("the configuration is valid");
        let by_address = ["gateway-1", "gateway-2"]
            .into_iter()
            .map(str::to_owned)
            .zip(gateways.iter().cloned());
        let dependencies = Dependencies {
            bus: embedded.bus.clone(),
            routes: Arc::new(faulty),
            gateways: Arc::new(ByAddress(by_address.collect())),
            clock: Arc::new(embedded.clock.clone()),
        };
        let running = start(&context, &config, dependencies).expect("the service starts");
        Self {
            embedded,
            routes,
            script,
            service: Service::new(context, running),
            gateways,
        }
    }

    /// A device connects.
    pub(crate) async fn connect(&self, uid: &str, device: &str, gateway: &str, connection: u64) {
        register(&self.routes, uid, device, gateway, connection).await;
    }

    pub(crate) async fn routed(&self, uid: &str) -> Vec<u64> {
        let found = self.routes.lookup(&[user(uid)]).await.expect("a look-up");
        found.iter().flatten().map(|(_, route)| route.connection_id).collect()
    }

    /// Appends a push record, as offline-inbox emits it.
    pub(crate) async fn push(&self, targets: &[(&str, u64)], event: &'static str) {
        self.raw(targets[0].0, Some(push_record(targets, event.as_bytes())))
            .await;
    }

    /// One record to each partition, so that as many batches are on the way at once.
    pub(crate) async fn push_everywhere(&self, targets: &[(&str, u64)], event: &'static str) {
        for partition in 0..PARTITIONS {
            let value = push_record(targets, event.as_bytes());
            self.embedded
                .append_to(Topic::Push, partition, targets[0].0, Some(value), Headers::new())
                .await;
        }
    }

    /// Always to partition 0, as if all uids were of one inbox partition.
    pub(crate) async fn raw(&self, key: &str, value: Option<Bytes>) {
        self.embedded
            .append_to(Topic::Push, 0, key, value, Headers::new())
            .await;
    }

    pub(crate) fn pushes(&self, result: &str) -> f64 {
        self.service
            .metric(&format!("tidings_pushes_total{{result=\"{result}\"}}"))
    }

    pub(crate) async fn until_pushes(&self, result: &str, count: f64) {
        eventually(&format!("{count} pushes {result}"), async || {
            self.pushes(result) >= count
        })
        .await;
    }

    /// Waits until so many records are settled, stops, and asserts that they are committed.
    pub(crate) async fn settled(self, records: u64) -> Embedded {
        self.service.until_settled(ConsumerGroup::PushFanout, records).await;
        self.service.stop().await;
        let committed: u64 = self.embedded.committed(ConsumerGroup::PushFanout).iter().sum();
        assert_eq!(committed, records);
        self.embedded
    }
}

pub(crate) async fn register(routes: &LocalRoutes, uid: &str, device: &str, gateway: &str, connection: u64) {
    let key = RouteKey {
        uid: user(uid),
        device: DeviceId::parse(device).expect("a device"),
    };
    routes
        .register(&key, gateway, 7, connection, LEASE)
        .await
        .expect("registered");
}

pub(crate) fn push_record(targets: &[(&str, u64)], event: &[u8]) -> Bytes {
    Push {
        targets: targets.iter().map(|(uid, seq)| (user(uid), *seq)).collect(),
        event: Bytes::copy_from_slice(event),
    }
    .encode()
}

pub(crate) fn user(name: &str) -> Uid {
    Uid::parse(name).expect("a uid")
}
