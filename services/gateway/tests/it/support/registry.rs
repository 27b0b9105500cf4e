//! The route registry, which the test can take away or make slow.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidings_domain::clock::SharedClock;
use tidings_domain::{DeviceId, Uid};
use tidings_storage::Error;
use tidings_storage::embedded::LocalRoutes;
use tidings_storage::port::{Registered, Route, RouteKey, Routes};
use tokio::sync::oneshot;

pub(crate) struct Registry {
    inner: LocalRoutes,
    down: AtomicBool,
    /// The next registration waits for this.
    gate: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Registry {
    pub(crate) fn new(clock: SharedClock) -> Self {
        Self {
            inner: LocalRoutes::new(clock),
            down: AtomicBool::new(false),
            gate: Mutex::new(None),
        }
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// Lets the next registration wait until the sender is used.
    pub(crate) fn delay_next(&self) -> oneshot::Sender<()> {
        let (open, gate) = oneshot::channel();
        *self.gate.lock() = Some(gate);
        open
    }

    /// Whether the delayed registration has begun.
    pub(crate) fn is_delaying(&self) -> bool {
        self.gate.lock().is_none()
    }

    fn check(&self, operation: &'static str) -> Result<(), Error> {
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::Unavailable {
                operation,
                reason: "down".to_owned(),
            });
        }
        Ok(())
    }
}

#[async_trait]
impl Routes for Registry {
    async fn register(
        &self,
        key: &RouteKey,
        gateway: &str,
        boot_id: u64,
        connection_id: u64,
        lease: Duration,
    ) -> Result<Registered, Error> {
        self.check("register")?;
        let gate = self.gate.lock().take();
        if let Some(gate) = gate {
            gate.await.expect("the test opens the gate");
        }
        self.inner.register(key, gateway, boot_id, connection_id, lease).await
    }

    async fn heartbeat(&self, routes: &[(RouteKey, Route)], lease: Duration) -> Result<Vec<bool>, Error> {
        self.check("heartbeat")?;
        self.inner.heartbeat(routes, lease).await
    }

    async fn unregister(&self, key: &RouteKey, boot_id: u64, connection_id: u64) -> Result<bool, Error> {
        self.check("unregister")?;
        self.inner.unregister(key, boot_id, connection_id).await
    }

    async fn lookup(&self, uids: &[Uid]) -> Result<Vec<Vec<(DeviceId, Route)>>, Error> {
        self.inner.lookup(uids).await
    }
}
