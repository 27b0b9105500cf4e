//! How to reach the CQL store.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// Settings of the CQL adapter.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CqlConfig {
    /// `host:port` of some nodes; the others are found through them.
    pub contact_points: Vec<String>,
    /// Keyspace of the tables: letters, digits and `_`.
    pub keyspace: String,
    /// Replicas per data centre for a keyspace that `schema apply` creates, or `replication_factor` for the same number
    /// in each.
    pub replication: BTreeMap<String, u32>,
    /// Data centre of this process; without it every node counts as near.
    pub local_datacenter: Option<String>,
    /// Name to log in with; without it no authentication is tried.
    pub username: Option<String>,
    /// Password of `username`.
    pub password: Option<String>,
    /// Whether to keep off ScyllaDB's shard-aware port, which address translation breaks.
    pub disallow_shard_aware_port: bool,
}

impl Default for CqlConfig {
    fn default() -> Self {
        Self {
            contact_points: vec!["127.0.0.1:9042".to_owned()],
            keyspace: "tidings".to_owned(),
            replication: BTreeMap::from([("replication_factor".to_owned(), 3)]),
            local_datacenter: None,
            username: None,
            password: None,
            disallow_shard_aware_port: false,
        }
    }
}

impl fmt::Debug for CqlConfig {
    /// Everything but the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqlConfig")
            .field("contact_points", &self.contact_points)
            .field("keyspace", &self.keyspace)
            .field("replication", &self.replication)
            .field("local_datacenter", &self.local_datacenter)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "..."))
            .field("disallow_shard_aware_port", &self.disallow_shard_aware_port)
            .finish()
    }
}
