//! The sessions of this gateway, by user.
//!
//! Sharded by uid; a lock is held for a look-up and never across an await. A device has one session: a later login
//! takes the place of the earlier one, which is closed as REPLACED (scenario B23).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use tidings_domain::Uid;
use tidings_domain::clock::Millis;
use tidings_proto::v1::Code;
use tidings_storage::port::{Route, RouteKey};

use crate::encoding::Encoding;
use crate::mailbox::Mailbox;

/// Number of shards: far more than cores, so that look-ups rarely meet.
const SHARDS: usize = 64;

/// A session as others see it.
pub struct Handle {
    /// Whose device.
    pub key: RouteKey,
    /// The connection within the process.
    pub connection_id: u64,
    /// How it is spoken to.
    pub encoding: Encoding,
    /// It came with an empty database: it may not have the messages that this device sent before.
    pub fresh: bool,
    /// Where to hand things to it.
    pub mailbox: Arc<Mailbox>,
    /// When it was opened.
    pub opened_at: Millis,
    /// Its route, while the registry has it.
    pub route: Mutex<Option<Route>>,
}

/// All sessions.
pub struct Table {
    hasher: RandomState,
    shards: Vec<RwLock<HashMap<Uid, Vec<Arc<Handle>>>>>,
    sessions: AtomicUsize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            sessions: AtomicUsize::new(0),
        }
    }
}

impl Table {
    fn shard(&self, uid: &Uid) -> &RwLock<HashMap<Uid, Vec<Arc<Handle>>>> {
        // The remainder is below the number of shards.
        #[expect(clippy::cast_possible_truncation)]
        let at = self.hasher.hash_one(uid) as usize % SHARDS;
        &self.shards[at]
    }

    /// Adds a session and closes the one of the same device that it replaces.
    pub fn insert(&self, handle: &Arc<Handle>) {
        let replaced = {
            let mut shard = self.shard(&handle.key.uid).write();
            let sessions = shard.entry(handle.key.uid.clone()).or_default();
            let replaced = sessions
                .iter()
                .position(|other| other.key.device == handle.key.device)
                .map(|at| sessions.swap_remove(at));
            sessions.push(Arc::clone(handle));
            replaced
        };
        match replaced {
            Some(earlier) => earlier.mailbox.close(Code::Replaced),
            None => {
                self.sessions.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Removes a session, if it is still the device's.
    pub fn remove(&self, handle: &Handle) {
        let mut shard = self.shard(&handle.key.uid).write();
        let Some(sessions) = shard.get_mut(&handle.key.uid) else {
            return;
        };
        let before = sessions.len();
        sessions.retain(|other| other.connection_id != handle.connection_id);
        if sessions.len() < before {
            self.sessions.fetch_sub(1, Ordering::Relaxed);
        }
        if sessions.is_empty() {
            shard.remove(&handle.key.uid);
        }
    }

    /// The sessions of a user.
    #[must_use]
    pub fn of(&self, uid: &Uid) -> Vec<Arc<Handle>> {
        self.shard(uid).read().get(uid).cloned().unwrap_or_default()
    }

    /// The session of a device.
    #[must_use]
    pub fn of_device(&self, key: &RouteKey) -> Option<Arc<Handle>> {
        let shard = self.shard(&key.uid).read();
        shard.get(&key.uid)?.iter().find(|handle| handle.key == *key).cloned()
    }

    /// All sessions at some moment.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Handle>> {
        let mut all = Vec::with_capacity(self.len());
        for shard in &self.shards {
            all.extend(shard.read().values().flatten().cloned());
        }
        all
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use tidings_domain::DeviceId;

    use super::*;
    use crate::config::Config;
    use crate::metrics::Metrics;

    fn handle(device: &str, connection_id: u64) -> Arc<Handle> {
        Arc::new(Handle {
            key: RouteKey {
                uid: Uid::parse("ann").expect("a uid"),
                device: DeviceId::parse(device).expect("a device"),
            },
            connection_id,
            encoding: Encoding::Proto,
            mailbox: Arc::new(Mailbox::new(
                &Config::defaults().gateway,
                Arc::default(),
                Metrics::default(),
                0,
                0,
            )),
            fresh: false,
            opened_at: Millis(0),
            route: Mutex::new(None),
        })
    }

    #[test]
    fn the_later_login_of_a_device_replaces_the_earlier() {
        let table = Table::default();
        let (first, second, other) = (handle("phone", 1), handle("phone", 2), handle("tablet", 3));
        table.insert(&first);
        table.insert(&other);
        table.insert(&second);
        assert_eq!(first.mailbox.take().close, Some(Code::Replaced));
        assert_eq!(other.mailbox.take().close, None);
        assert_eq!(table.len(), 2);
        // The end of the earlier session leaves the later one alone (scenario B19).
        table.remove(&first);
        let mut left: Vec<u64> = table.of(&first.key.uid).iter().map(|h| h.connection_id).collect();
        left.sort_unstable();
        assert_eq!(left, [2, 3]);
        table.remove(&second);
        table.remove(&other);
        assert!(table.is_empty() && table.all().is_empty());
    }
}
