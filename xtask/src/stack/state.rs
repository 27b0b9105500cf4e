//! What `stack.json` says: the nodes of one stack, their ports and pids. Written before a node starts and after every
//! change, always by rename, so that a reader sees the old or the new state and nothing between.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Node, Options, ports};

/// The content of `stack.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub name: String,
    pub kafka: Kafka,
    pub cql: Cql,
    pub redis: Redis,
    /// The pids of all nodes that were started and not stopped.
    pub pids: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kafka {
    /// `host:port` of all brokers, separated by commas.
    pub bootstrap: String,
    pub cluster_id: String,
    pub brokers: Vec<Broker>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broker {
    pub node_id: u32,
    pub port: u16,
    pub controller_port: u16,
    /// Absent in a stack that was made before there was one.
    #[serde(default)]
    pub fault_listener: Option<FaultListener>,
    pub pid: Option<u32>,
}

/// A second listener of a broker, for clients that should meet faults. Kafka's clients follow the addresses a broker
/// advertises, so a proxy before the first listener would see their first connection only; this one advertises the
/// address of the proxy. Nobody listens there until a test puts its proxy there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultListener {
    /// Where the broker listens: the proxy's target.
    pub port: u16,
    /// What the broker advertises: where the proxy has to listen, and the clients' bootstrap server.
    pub advertised_port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cql {
    /// `host:port` of every node.
    pub contact_points: Vec<String>,
    pub nodes: Vec<CqlNode>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqlNode {
    pub number: u32,
    pub address: Ipv4Addr,
    pub port: u16,
    pub storage_port: u16,
    pub ssl_storage_port: u16,
    pub pid: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redis {
    /// `redis://host:port`
    pub url: String,
    pub port: u16,
    pub pid: Option<u32>,
}

impl State {
    /// A stack of the wanted size on ports that are free now; nothing runs yet.
    pub fn plan(options: &Options) -> Result<Self> {
        let mut state = Self {
            name: options.name.clone(),
            kafka: Kafka {
                bootstrap: String::new(),
                cluster_id: random_cluster_id(),
                brokers: (1..=options.brokers.unwrap_or(1))
                    .map(|node_id| Broker {
                        node_id,
                        port: 0,
                        controller_port: 0,
                        fault_listener: None,
                        pid: None,
                    })
                    .collect(),
            },
            cql: Cql {
                contact_points: Vec::new(),
                nodes: (1..=options.cassandra_nodes.unwrap_or(1))
                    .map(|number| {
                        let last = u8::try_from(number).context("too many Cassandra nodes")?;
                        let address = Ipv4Addr::new(127, 0, 0, last);
                        Ok(CqlNode {
                            number,
                            address,
                            port: 0,
                            storage_port: 0,
                            ssl_storage_port: 0,
                            pid: None,
                        })
                    })
                    .collect::<Result<_>>()?,
            },
            redis: Redis {
                url: String::new(),
                port: 0,
                pid: None,
            },
            pids: Vec::new(),
        };
        state.take_free_ports()?;
        Ok(state)
    }

    /// Gives every node new free ports. Only for a stack of which nothing runs.
    pub fn take_free_ports(&mut self) -> Result<()> {
        ensure!(self.pids.is_empty(), "a running stack keeps its ports");
        // Cassandra's nodes share their ports: each has an address of its own.
        let addresses: Vec<IpAddr> = self.cql.nodes.iter().map(|node| IpAddr::V4(node.address)).collect();
        let mut free = ports::free(4 * self.kafka.brokers.len() + 4, &addresses)?.into_iter();
        let mut next = || free.next().context("one port per use was taken");
        for broker in &mut self.kafka.brokers {
            broker.port = next()?;
            broker.controller_port = next()?;
            broker.fault_listener = Some(FaultListener {
                port: next()?,
                advertised_port: next()?,
            });
        }
        let (port, storage_port, ssl_storage_port) = (next()?, next()?, next()?);
        for node in &mut self.cql.nodes {
            node.port = port;
            node.storage_port = storage_port;
            node.ssl_storage_port = ssl_storage_port;
        }
        self.redis.port = next()?;

        let bootstrap: Vec<String> = self
            .kafka
            .brokers
            .iter()
            .map(|broker| format!("127.0.0.1:{}", broker.port))
            .collect();
        self.kafka.bootstrap = bootstrap.join(",");
        self.cql.contact_points = self
            .cql
            .nodes
            .iter()
            .map(|node| format!("{}:{}", node.address, node.port))
            .collect();
        self.redis.url = format!("redis://127.0.0.1:{}", self.redis.port);
        Ok(())
    }

    /// All nodes, in the order in which they are shown.
    pub fn nodes(&self) -> Vec<Node> {
        let kafka = self.kafka.brokers.iter().map(|broker| Node::Kafka(broker.node_id));
        let cassandra = self.cql.nodes.iter().map(|node| Node::Cassandra(node.number));
        kafka.chain(cassandra).chain([Node::Redis]).collect()
    }

    /// The address clients connect to.
    pub fn address(&self, node: Node) -> Result<SocketAddr> {
        Ok(match node {
            Node::Kafka(id) => SocketAddr::from((Ipv4Addr::LOCALHOST, self.broker(id)?.port)),
            Node::Cassandra(number) => {
                let node = self.cql_node(number)?;
                SocketAddr::from((node.address, node.port))
            }
            Node::Redis => SocketAddr::from((Ipv4Addr::LOCALHOST, self.redis.port)),
        })
    }

    /// Everything a node listens on.
    pub fn listeners(&self, node: Node) -> Result<Vec<SocketAddr>> {
        let mut listeners = vec![self.address(node)?];
        match node {
            Node::Kafka(id) => {
                let broker = self.broker(id)?;
                let fault_port = broker.fault_listener.map(|listener| listener.port);
                for port in [broker.controller_port].into_iter().chain(fault_port) {
                    listeners.push(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
                }
            }
            Node::Cassandra(number) => {
                let node = self.cql_node(number)?;
                listeners.push(SocketAddr::from((node.address, node.storage_port)));
            }
            Node::Redis => {}
        }
        Ok(listeners)
    }

    pub fn broker(&self, node_id: u32) -> Result<&Broker> {
        let broker = self.kafka.brokers.iter().find(|broker| broker.node_id == node_id);
        broker.with_context(|| format!("stack `{}` has no broker {node_id}", self.name))
    }

    pub fn cql_node(&self, number: u32) -> Result<&CqlNode> {
        let node = self.cql.nodes.iter().find(|node| node.number == number);
        node.with_context(|| format!("stack `{}` has no Cassandra node {number}", self.name))
    }

    /// The pid a node was started with, if it was not stopped since.
    pub fn pid(&self, node: Node) -> Result<Option<u32>> {
        Ok(match node {
            Node::Kafka(id) => self.broker(id)?.pid,
            Node::Cassandra(number) => self.cql_node(number)?.pid,
            Node::Redis => self.redis.pid,
        })
    }

    pub fn set_pid(&mut self, node: Node, pid: Option<u32>) {
        match node {
            Node::Kafka(id) => {
                for broker in self.kafka.brokers.iter_mut().filter(|broker| broker.node_id == id) {
                    broker.pid = pid;
                }
            }
            Node::Cassandra(number) => {
                for node in self.cql.nodes.iter_mut().filter(|node| node.number == number) {
                    node.pid = pid;
                }
            }
            Node::Redis => self.redis.pid = pid,
        }
        let brokers = self.kafka.brokers.iter().filter_map(|broker| broker.pid);
        let cassandra = self.cql.nodes.iter().filter_map(|node| node.pid);
        self.pids = brokers.chain(cassandra).chain(self.redis.pid).collect();
    }

    /// The environment of a service that should use this stack: where its parts are, and how often data can be
    /// replicated on it.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        let topic_profile = if self.kafka.brokers.len() >= 3 {
            "replicated"
        } else {
            "single"
        };
        let replication_factor = self.cql.nodes.len().min(3);
        vec![
            ("TIDINGS__KAFKA__BOOTSTRAP_SERVERS", self.kafka.bootstrap.clone()),
            ("TIDINGS__KAFKA__TOPIC_PROFILE", topic_profile.to_owned()),
            ("TIDINGS__CQL__CONTACT_POINTS", self.cql.contact_points.join(",")),
            ("TIDINGS__CQL__REPLICATION_FACTOR", replication_factor.to_string()),
            ("TIDINGS__REDIS__URL", self.redis.url.clone()),
        ]
    }

    /// Reads a `stack.json`; `None` if there is none.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        serde_json::from_str(&text)
            .map(Some)
            .with_context(|| format!("reading {}", path.display()))
    }

    /// Writes `stack.json` and, beside it, `stack.env`.
    pub fn write(&self, path: &Path) -> Result<()> {
        let env: String = self
            .env()
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        replace(&path.with_extension("env"), &env)?;
        replace(path, &format!("{}\n", serde_json::to_string_pretty(self)?))
    }
}

fn replace(path: &Path, text: &str) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    fs::write(&partial, text).with_context(|| format!("writing {}", path.display()))?;
    fs::rename(&partial, path).with_context(|| format!("writing {}", path.display()))
}

/// 16 random bytes in URL-safe base64 without padding, as Kafka wants its cluster ids.
fn random_cluster_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..22)
        .map(|position: u8| {
            let random = usize::try_from(RandomState::new().hash_one(position) % 64).unwrap_or_default();
            let index = match position {
                // A leading `-` would be read as an option.
                0 => random % 62,
                // The last character holds two bits of the 128; the others must be zero.
                21 => random & 0b11_0000,
                _ => random,
            };
            char::from(ALPHABET[index])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned() -> State {
        State::plan(&Options {
            name: "unit".into(),
            brokers: Some(3),
            cassandra_nodes: None,
        })
        .unwrap()
    }

    #[test]
    fn a_plan_survives_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stack.json");
        assert_eq!(State::read(&path).unwrap(), None);

        let mut state = planned();
        state.set_pid(Node::Kafka(2), Some(4711));
        state.set_pid(Node::Redis, Some(4712));
        state.write(&path).unwrap();

        let read = State::read(&path).unwrap().unwrap();
        assert_eq!(read, state);
        assert_eq!(read.pids, vec![4711, 4712]);
        assert_eq!(read.pid(Node::Kafka(2)).unwrap(), Some(4711));
        assert_eq!(read.pid(Node::Kafka(1)).unwrap(), None);
        assert!(read.pid(Node::Kafka(4)).is_err());
        let env = fs::read_to_string(directory.path().join("stack.env")).unwrap();
        assert!(env.contains(&format!(
            "TIDINGS__KAFKA__BOOTSTRAP_SERVERS={}\n",
            state.kafka.bootstrap
        )));
    }

    #[test]
    fn every_listener_has_a_port_of_its_own() {
        let state = planned();
        let mut listeners: Vec<SocketAddr> = state
            .nodes()
            .into_iter()
            .flat_map(|node| state.listeners(node).unwrap())
            .collect();
        let count = listeners.len();
        listeners.sort();
        listeners.dedup();
        assert_eq!((count, listeners.len()), (12, 12));
        assert_eq!(state.kafka.bootstrap.split(',').count(), 3);
    }

    #[test]
    fn a_running_stack_keeps_its_ports() {
        let mut state = planned();
        state.set_pid(Node::Redis, Some(4711));
        assert!(state.take_free_ports().is_err());
    }

    #[test]
    fn cluster_ids_are_sixteen_bytes_in_base64() {
        for _ in 0..200 {
            let id = random_cluster_id();
            assert_eq!(id.len(), 22);
            assert!(!id.starts_with(['-', '_']));
            assert!(id.ends_with(['A', 'Q', 'g', 'w']), "{id}");
        }
    }
}
