//! From a durable event to the devices that are connected.
//!
//! ```text
//! push records ─► routes of all targets (one call) ─► one batch per gateway ─► results
//! ```
//!
//! **Guarantee.** A record is settled once its first attempt is handed to the gateways or no route exists
//! (architecture.md section 3). Push only speeds up what the inbox holds already: what fails here is pulled, because
//! the next heartbeat's `head_seq` shows the device that it is behind (req:A4, req:C5). Pushes of one uid keep their
//! order: they are of one partition, and one stream leads to each gateway.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use parking_lot::Mutex;
use prost::Message as _;
use tidings_bus::LogRecord;
use tidings_bus::dead_letter::Rejection;
use tidings_bus::handler::{Handler, Outcome};
use tidings_chassis::Supervisor;
use tidings_domain::{DeviceId, Uid};
use tidings_proto::record::Push;
use tidings_proto::v1::{DeliverItem, DeliverOutcome, DeliverResult, DeliverTarget};
use tidings_storage::port::{Route, RouteKey, Routes};

use crate::config::PushFanoutConfig;
use crate::gateways::Gateways;
use crate::metrics::{Metrics, PushResult};
use crate::stream::GatewayStream;

/// Pushes events to connected devices.
pub struct FanOut {
    routes: Arc<dyn Routes>,
    gateways: Arc<dyn Gateways>,
    config: PushFanoutConfig,
    metrics: Metrics,
    tasks: Supervisor,
    streams: Mutex<HashMap<String, GatewayStream>>,
}

/// Bytes of one batch, passed by at most one event: well below the 4 MiB that a gRPC message may have.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Streams kept open at most; a gateway that restarts under a new address leaves its old one behind.
const MAX_STREAMS: usize = 256;

impl FanOut {
    /// Wires the step; streams are tasks of `tasks`.
    #[must_use]
    pub fn new(
        routes: Arc<dyn Routes>,
        gateways: Arc<dyn Gateways>,
        config: PushFanoutConfig,
        metrics: Metrics,
        tasks: Supervisor,
    ) -> Self {
        Self {
            routes,
            gateways,
            config,
            metrics,
            tasks,
            streams: Mutex::new(HashMap::new()),
        }
    }

    fn stream(&self, address: &str) -> anyhow::Result<GatewayStream> {
        let mut streams = self.streams.lock();
        if let Some(stream) = streams.get(address) {
            return Ok(stream.clone());
        }
        if streams.len() >= MAX_STREAMS {
            // Dropping the handles ends their tasks once idle; those in use are opened again at once.
            streams.clear();
        }
        let (stream, task) = GatewayStream::new(
            self.gateways.channel(address)?,
            self.config.deliver_timeout,
            self.config.max_batches_in_flight,
            self.metrics.clone(),
            self.tasks.shutdown.clone(),
        );
        self.tasks.spawn_finite(format!("deliver-{address}"), task);
        streams.insert(address.to_owned(), stream.clone());
        Ok(stream)
    }

    /// Sends to all gateways at once, and settles what they answer.
    async fn deliver(&self, batches: BTreeMap<String, Vec<DeliverItem>>, known: &HashMap<RouteKey, Route>) {
        let sends = batches
            .into_iter()
            .map(|(address, items)| async move { self.deliver_to(&address, items, known).await });
        join_all(sends).await;
    }

    /// Sends to one gateway: one batch, or one after the other if it would be too large.
    async fn deliver_to(&self, address: &str, items: Vec<DeliverItem>, known: &HashMap<RouteKey, Route>) {
        let mut left = items.into_iter();
        loop {
            let batch = portion(&mut left);
            if batch.is_empty() {
                return;
            }
            let targets = count_targets(&batch);
            let results = match self.stream(address) {
                Ok(stream) => stream.deliver(batch).await.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match results {
                Ok(results) => self.settle(&results, known).await,
                Err(error) => {
                    // What follows would come out of order, and wait as long again.
                    let targets = targets + count_targets(left.as_slice());
                    tracing::warn!(
                        gateway = address,
                        error,
                        targets,
                        "push not handed over, the devices will pull"
                    );
                    self.metrics.pushed(PushResult::GatewayUnreachable, targets);
                    return;
                }
            }
        }
    }

    async fn settle(&self, results: &[DeliverResult], known: &HashMap<RouteKey, Route>) {
        for result in results {
            let counted = match result.outcome() {
                DeliverOutcome::HandedOver => PushResult::HandedOver,
                DeliverOutcome::Notified => PushResult::Notified,
                DeliverOutcome::Closed => PushResult::Closed,
                DeliverOutcome::NotHere => {
                    self.remove_route(result, known).await;
                    PushResult::NotHere
                }
                // Cumulative ACKs are for the re-push ladder.
                DeliverOutcome::Acked | DeliverOutcome::Unspecified => continue,
            };
            self.metrics.pushed(counted, 1);
        }
    }

    /// The gateway does not have the connection: its route is stale. Compare-and-delete, so that a newer one stays.
    async fn remove_route(&self, result: &DeliverResult, known: &HashMap<RouteKey, Route>) {
        let (Ok(uid), Ok(device)) = (Uid::parse(&result.uid), DeviceId::parse(&result.device_id)) else {
            return;
        };
        let key = RouteKey { uid, device };
        let Some(route) = known.get(&key) else { return };
        match self.routes.unregister(&key, route.boot_id, route.connection_id).await {
            Ok(true) => {
                self.metrics.routes_removed.inc();
            }
            Ok(false) => {}
            // The lease ends it.
            Err(error) => tracing::debug!(%error, "stale route not removed"),
        }
    }

    /// Routes cannot be read: ask every gateway for the users' sessions.
    async fn broadcast(&self, pushes: &[Push]) -> BTreeMap<String, Vec<DeliverItem>> {
        self.metrics.broadcasts.inc();
        let items: Vec<DeliverItem> = pushes
            .iter()
            .map(|push| DeliverItem {
                targets: push
                    .targets
                    .iter()
                    .map(|(uid, user_seq)| target(uid, *user_seq, None))
                    .collect(),
                event: push.event.clone(),
            })
            .collect();
        self.gateways
            .all()
            .await
            .into_iter()
            .map(|address| (address, items.clone()))
            .collect()
    }

    /// One batch per gateway that holds a device of a target.
    fn by_route(
        &self,
        pushes: &[Push],
        routes_of: &HashMap<&Uid, Vec<(DeviceId, Route)>>,
    ) -> BTreeMap<String, Vec<DeliverItem>> {
        let mut batches: BTreeMap<String, Vec<DeliverItem>> = BTreeMap::new();
        for push in pushes {
            let mut per_gateway: BTreeMap<&str, Vec<DeliverTarget>> = BTreeMap::new();
            for (uid, user_seq) in &push.targets {
                let routes = routes_of.get(uid).map_or(&[][..], Vec::as_slice);
                if routes.is_empty() {
                    self.metrics.pushed(PushResult::NoRoute, 1);
                }
                for (device, route) in routes {
                    per_gateway.entry(&route.gateway).or_default().push(target(
                        uid,
                        *user_seq,
                        Some((device, route.connection_id)),
                    ));
                }
            }
            for (gateway, targets) in per_gateway {
                let item = DeliverItem {
                    targets,
                    event: push.event.clone(),
                };
                batches.entry(gateway.to_owned()).or_default().push(item);
            }
        }
        batches
    }
}

/// The next items that make one batch.
fn portion(items: &mut std::vec::IntoIter<DeliverItem>) -> Vec<DeliverItem> {
    let mut bytes = 0;
    let mut batch = Vec::new();
    while bytes < MAX_BATCH_BYTES {
        let Some(item) = items.next() else { break };
        bytes += item.encoded_len();
        batch.push(item);
    }
    batch
}

fn count_targets(items: &[DeliverItem]) -> usize {
    items.iter().map(|item| item.targets.len()).sum()
}

fn target(uid: &Uid, user_seq: u64, device: Option<(&DeviceId, u64)>) -> DeliverTarget {
    DeliverTarget {
        uid: uid.as_str().to_owned(),
        user_seq,
        device_id: device.map_or_else(String::new, |(device, _)| device.as_str().to_owned()),
        connection_id: device.map_or(0, |(_, connection_id)| connection_id),
    }
}

#[async_trait]
impl Handler for FanOut {
    async fn handle(&self, batch: &[LogRecord]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut pushes = Vec::with_capacity(batch.len());
        for record in batch {
            match Push::decode(record.value.as_ref()) {
                Ok(push) => {
                    pushes.push(push);
                    outcomes.push(Outcome::Done);
                }
                Err(error) => outcomes.push(Outcome::Reject(Rejection {
                    error_class: "decode",
                    detail: error.to_string(),
                    stage: "decode",
                })),
            }
        }
        let mut uids: Vec<Uid> = pushes
            .iter()
            .flat_map(|push| push.targets.iter().map(|(uid, _)| uid.clone()))
            .collect();
        uids.sort();
        uids.dedup();
        if uids.is_empty() {
            return outcomes;
        }
        match self.routes.lookup(&uids).await {
            Ok(found) => {
                let known = uids
                    .iter()
                    .zip(&found)
                    .flat_map(|(uid, routes)| {
                        routes.iter().map(|(device, route)| {
                            (
                                RouteKey {
                                    uid: uid.clone(),
                                    device: device.clone(),
                                },
                                route.clone(),
                            )
                        })
                    })
                    .collect();
                let routes_of = uids.iter().zip(found).collect();
                self.deliver(self.by_route(&pushes, &routes_of), &known).await;
            }
            Err(error) => {
                tracing::warn!(%error, "routes cannot be read, asking every gateway");
                self.deliver(self.broadcast(&pushes).await, &HashMap::new()).await;
            }
        }
        outcomes
    }
}
