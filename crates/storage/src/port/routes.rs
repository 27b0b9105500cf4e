//! Routes: which gateway holds a device's connection. A lease, never proof (notes/storage.md section 5).

use std::time::Duration;

use async_trait::async_trait;
use tidings_domain::{DeviceId, Uid};

use crate::Error;

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey {
    /// Whose.
    pub uid: Uid,
    /// Which.
    pub device: DeviceId,
}

/// Where a device's connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// `host:port` of the gateway's internal listener.
    pub gateway: String,
    /// The gateway process: a restarted gateway has another.
    pub boot_id: u64,
    /// The connection within the process.
    pub connection_id: u64,
    /// Larger for a later login; set by the registry.
    pub epoch: u64,
}

/// The answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Epoch of the new route.
    pub epoch: u64,
    /// The route it replaced; its connection must be closed with REPLACED.
    pub replaced: Option<Route>,
}

/// The route registry.
#[async_trait]
pub trait Routes: Send + Sync + 'static {
    /// Registers a route with a lease; the later login wins.
    async fn register(
        &self,
        key: &RouteKey,
        gateway: &str,
        boot_id: u64,
        connection_id: u64,
        lease: Duration,
    ) -> Result<Registered, Error>;

    /// Extends leases. Result i is false if route i is no longer this connection's (the session must close).
    async fn heartbeat(&self, routes: &[(RouteKey, Route)], lease: Duration) -> Result<Vec<bool>, Error>;

    /// Removes a route if it is still this connection's (compare-and-delete, scenario B19).
    async fn unregister(&self, key: &RouteKey, boot_id: u64, connection_id: u64) -> Result<bool, Error>;

    /// Live routes of each user.
    async fn lookup(&self, uids: &[Uid]) -> Result<Vec<Vec<(DeviceId, Route)>>, Error>;
}
