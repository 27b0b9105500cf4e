//! This gateway's entries in the route registry.
//!
//! A route is a lease, never proof, and the registry may be away: sessions go on without, push-fanout then asks every
//! gateway, and the heartbeat registers again, paced. **Guarantee.** A session closes as REPLACED only if the registry
//! names another connection of its device; a route that merely lapsed (a registry that lost its data) is registered
//! again.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use tidings_proto::v1::Code;
use tidings_storage::Error;
use tidings_storage::port::{Route, RouteKey, Routes};

use crate::metrics::Metrics;
use crate::table::{Handle, Table};

/// Routes of one heartbeat call.
const HEARTBEAT_BATCH: usize = 500;
/// Registrations under way at once, and at most per heartbeat: a registry that came back is not stormed.
const REGISTRATIONS_AT_ONCE: usize = 16;
const REGISTRATIONS_PER_HEARTBEAT: usize = 2000;

/// Keeps the routes.
pub struct RouteKeeper {
    routes: Arc<dyn Routes>,
    advertise_addr: String,
    boot_id: u64,
    lease: Duration,
    metrics: Metrics,
}

impl RouteKeeper {
    /// Registers under `advertise_addr`.
    #[must_use]
    pub fn new(
        routes: Arc<dyn Routes>,
        advertise_addr: String,
        boot_id: u64,
        lease: Duration,
        metrics: Metrics,
    ) -> Self {
        Self {
            routes,
            advertise_addr,
            boot_id,
            lease,
            metrics,
        }
    }

    /// Registers a session. A registry that does not answer is waited for by the heartbeat.
    pub async fn register(&self, handle: &Handle) {
        let registered = self
            .routes
            .register(
                &handle.key,
                &self.advertise_addr,
                self.boot_id,
                handle.connection_id,
                self.lease,
            )
            .await;
        match registered {
            // The route that was replaced, if at another gateway, is closed there by its next heartbeat.
            Ok(registered) => {
                *handle.route.lock() = Some(Route {
                    gateway: self.advertise_addr.clone(),
                    boot_id: self.boot_id,
                    connection_id: handle.connection_id,
                    epoch: registered.epoch,
                });
                if handle.mailbox.is_ended() {
                    self.unregister(handle).await;
                }
            }
            Err(error) => self.failed("register", &error),
        }
    }

    /// Removes a session's route, if it is still its own.
    pub async fn unregister(&self, handle: &Handle) {
        if handle.route.lock().take().is_none() {
            return;
        }
        if let Err(error) = self
            .routes
            .unregister(&handle.key, self.boot_id, handle.connection_id)
            .await
        {
            // The lease ends it.
            self.failed("unregister", &error);
        }
    }

    /// One heartbeat for all sessions.
    pub async fn heartbeat(&self, table: &Table) {
        let mut routed: Vec<(Arc<Handle>, Route)> = Vec::new();
        let mut unrouted = Vec::new();
        for handle in table.all() {
            let route = handle.route.lock().clone();
            match route {
                Some(route) => routed.push((handle, route)),
                None => unrouted.push(handle),
            }
        }
        for batch in routed.chunks(HEARTBEAT_BATCH) {
            let keys: Vec<(RouteKey, Route)> = batch
                .iter()
                .map(|(handle, route)| (handle.key.clone(), route.clone()))
                .collect();
            match self.routes.heartbeat(&keys, self.lease).await {
                Ok(alive) => {
                    let lost = batch.iter().zip(alive).filter(|(_, alive)| !alive);
                    for ((handle, _), _) in lost {
                        self.metrics.routes_lost.inc();
                        unrouted.push(Arc::clone(handle));
                    }
                }
                Err(error) => {
                    // The rest would fail alike; the leases outlive one missed heartbeat.
                    self.failed("heartbeat", &error);
                    return;
                }
            }
        }
        unrouted.truncate(REGISTRATIONS_PER_HEARTBEAT);
        stream::iter(unrouted)
            .for_each_concurrent(REGISTRATIONS_AT_ONCE, |handle| async move {
                match self.has_successor(&handle).await {
                    Ok(true) => handle.mailbox.close(Code::Replaced),
                    Ok(false) => self.register(&handle).await,
                    // Registering blindly could take the route of a later login; the next heartbeat asks again.
                    Err(error) => self.failed("lookup", &error),
                }
            })
            .await;
    }

    /// Whether the registry names a later login of the device. Epochs are at least the registry's time in microseconds
    ///, so a session that could never register compares its own time.
    async fn has_successor(&self, handle: &Handle) -> Result<bool, Error> {
        let own_epoch = match handle.route.lock().as_ref() {
            Some(route) => route.epoch,
            None => u64::try_from(handle.opened_at.get()).unwrap_or(0).saturating_mul(1000),
        };
        let found = self.routes.lookup(std::slice::from_ref(&handle.key.uid)).await?;
        Ok(found.iter().flatten().any(|(device, route)| {
            *device == handle.key.device
                && (route.boot_id, route.connection_id) != (self.boot_id, handle.connection_id)
                && route.epoch > own_epoch
        }))
    }

    fn failed(&self, operation: &'static str, error: &Error) {
        self.metrics.route_errors.inc();
        tracing::debug!(operation, %error, "route registry");
    }
}
