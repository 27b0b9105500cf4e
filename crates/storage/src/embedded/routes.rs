//! The route registry of one process: a map in memory with leases.
//!
//! The rules are those of the Redis registry (notes/storage.md section 5): a later login wins, heartbeats and removals
//! compare `boot_id` and `connection_id`, a lease that ran out is no route.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidings_domain::clock::{Millis, SharedClock};
use tidings_domain::{DeviceId, Uid};

use crate::Error;
use crate::port::{Registered, Route, RouteKey, Routes};

struct Leased {
    route: Route,
    until: Millis,
}

/// Routes in memory. One process has one gateway, so its connections bound the map.
pub struct LocalRoutes {
    clock: SharedClock,
    users: Mutex<HashMap<Uid, HashMap<DeviceId, Leased>>>,
}

impl fmt::Debug for LocalRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalRoutes")
            .field("users", &self.users.lock().len())
            .finish_non_exhaustive()
    }
}

impl LocalRoutes {
    /// An empty registry; `clock` decides when leases end.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        Self {
            clock,
            users: Mutex::default(),
        }
    }
}

#[async_trait]
impl Routes for LocalRoutes {
    async fn register(
        &self,
        key: &RouteKey,
        gateway: &str,
        boot_id: u64,
        connection_id: u64,
        lease: Duration,
    ) -> Result<Registered, Error> {
        let now = self.clock.now();
        let mut users = self.users.lock();
        let devices = users.entry(key.uid.clone()).or_default();
        devices.retain(|_, leased| leased.until > now);
        let replaced = devices.remove(&key.device).map(|leased| leased.route);
        // Also larger than the previous one when the clock steps back (scenario B09).
        let micros = u64::try_from(now.get()).unwrap_or(0).saturating_mul(1000);
        let epoch = replaced.as_ref().map_or(0, |route| route.epoch + 1).max(micros);
        let route = Route {
            gateway: gateway.to_owned(),
            boot_id,
            connection_id,
            epoch,
        };
        let until = now.plus(lease);
        devices.insert(key.device.clone(), Leased { route, until });
        Ok(Registered { epoch, replaced })
    }

    async fn heartbeat(&self, routes: &[(RouteKey, Route)], lease: Duration) -> Result<Vec<bool>, Error> {
        let now = self.clock.now();
        let mut users = self.users.lock();
        let extended = routes.iter().map(|(key, route)| {
            let leased = users
                .get_mut(&key.uid)
                .and_then(|devices| devices.get_mut(&key.device))
                .filter(|leased| leased.until > now)
                .filter(|leased| is_connection(&leased.route, route.boot_id, route.connection_id));
            match leased {
                Some(leased) => {
                    leased.until = now.plus(lease);
                    true
                }
                None => false,
            }
        });
        Ok(extended.collect())
    }

    async fn unregister(&self, key: &RouteKey, boot_id: u64, connection_id: u64) -> Result<bool, Error> {
        let mut users = self.users.lock();
        let Some(devices) = users.get_mut(&key.uid) else {
            return Ok(false);
        };
        let mine = devices
            .get(&key.device)
            .is_some_and(|leased| is_connection(&leased.route, boot_id, connection_id));
        if mine {
            devices.remove(&key.device);
        }
        if devices.is_empty() {
            users.remove(&key.uid);
        }
        Ok(mine)
    }

    async fn lookup(&self, uids: &[Uid]) -> Result<Vec<Vec<(DeviceId, Route)>>, Error> {
        let now = self.clock.now();
        let users = self.users.lock();
        let live = |uid| {
            let devices = users.get(uid).into_iter().flatten();
            devices
                .filter(|(_, leased)| leased.until > now)
                .map(|(device, leased)| (device.clone(), leased.route.clone()))
                .collect()
        };
        Ok(uids.iter().map(live).collect())
    }
}

fn is_connection(route: &Route, boot_id: u64, connection_id: u64) -> bool {
    route.boot_id == boot_id && route.connection_id == connection_id
}
