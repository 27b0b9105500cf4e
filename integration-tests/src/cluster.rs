//! The six services on the stack of `TIDINGS_TEST_STACK`, under names of their own.
//!
//! Every cluster has its own topics, groups, keyspace and Redis keys, so that tests share one stack; topics and schema
//! are made by the commands an operator uses. Each service may be given another address of a dependency, such as that of
//! a [`crate::fault_proxy::FaultProxy`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use parking_lot::Mutex;
use tidings_bus::catalogue::{Catalogue, Durability, PartitionCounts};
use tidings_domain::{Topic, Uid};
use tokio::sync::OwnedMutexGuard;
use xtask::stack::{FaultListener, Node, Signal, Stack, ports};

use crate::process::{self, Process, Spec, binary, log_directory};
use crate::system::{Part, System};
use crate::{kafka, seed, token};

/// Names the `stack.json` of the stack the tests run on.
pub const STACK_VARIABLE: &str = "TIDINGS_TEST_STACK";
const SECRET: &str = "the secret of the end-to-end tests";
const INTERNAL_TOKEN: &str = "internal-token-of-the-end-to-end-tests";
/// A killed member's partitions are given away after this; the default of 30 s makes every kill last that long.
const SESSION_TIMEOUT_MS: u32 = 6_000;

/// What a cluster is made of.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The test: the name of its logs.
    pub test: String,
    /// How many gateways.
    pub gateways: usize,
    /// How many of each consumer; the compensator stays alone.
    pub replicas: usize,
    /// Added to the environment of these parts, after everything else.
    pub env: Vec<(Part, String, String)>,
}

impl ClusterOptions {
    /// One gateway and nothing special.
    pub fn new(test: &str) -> Self {
        Self {
            test: test.to_owned(),
            gateways: 1,
            replicas: 1,
            env: Vec::new(),
        }
    }

    /// Another number of gateways.
    #[must_use]
    pub fn gateways(mut self, gateways: usize) -> Self {
        self.gateways = gateways;
        self
    }

    /// Another number of each consumer.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// A setting of one part.
    #[must_use]
    pub fn set(mut self, part: Part, name: &str, value: impl Into<String>) -> Self {
        self.env.push((part, name.to_owned(), value.into()));
        self
    }
}

/// The stack of [`STACK_VARIABLE`].
pub fn stack() -> Result<Stack> {
    let Some(path) = std::env::var_os(STACK_VARIABLE) else {
        bail!(
            "{STACK_VARIABLE} is not set; run the tests by `cargo xtask test --only e2e`, or start a stack by \
             `cargo xtask stack up` and set it to the path of target/stack/default/stack.json"
        );
    };
    // A relative path is meant from the workspace, where people type it; tests run in their package.
    Stack::load(&xtask::workspace::root().join(path))
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    public: u16,
    internal: u16,
    admin: u16,
}

/// Clusters of one test binary follow each other: two at a time are two dozen processes, and a machine of two cores
/// then fails in ways that no test asked for (the broker loses its own session).
static ONE_AT_A_TIME: LazyLock<Arc<tokio::sync::Mutex<()>>> = LazyLock::new(Arc::default);

/// The running services.
pub struct Cluster {
    name: String,
    stack: Arc<Mutex<Stack>>,
    env: Vec<(String, String)>,
    ports: BTreeMap<Part, Ports>,
    processes: BTreeMap<Part, Process>,
    log_directory: PathBuf,
    _turn: OwnedMutexGuard<()>,
}

impl Cluster {
    /// Makes topics and schema, starts all services and waits until each is ready.
    pub async fn start(options: ClusterOptions) -> Result<Self> {
        let turn = Arc::clone(&ONE_AT_A_TIME).lock_owned().await;
        let stack = stack()?;
        let name = seed::run_name();
        let mut parts: Vec<Part> = (0..options.gateways).map(Part::Gateway).collect();
        let kinds = [
            Part::Router,
            Part::StorageConsumer,
            Part::OfflineInbox,
            Part::PushFanout,
        ];
        for kind in kinds {
            parts.extend((0..options.replicas).map(kind));
        }
        parts.push(Part::DeadLetterCompensator(0));
        let mut free = ports::free(3 * parts.len(), &[IpAddr::V4(Ipv4Addr::LOCALHOST)])?.into_iter();
        let mut next = || free.next().context("one port per use was taken");
        let mut ports = BTreeMap::new();
        for &part in &parts {
            let taken = Ports {
                public: next()?,
                internal: next()?,
                admin: next()?,
            };
            ports.insert(part, taken);
        }
        let mut cluster = Self {
            env: shared_env(&stack, &name),
            name,
            stack: Arc::new(Mutex::new(stack)),
            ports,
            processes: BTreeMap::new(),
            log_directory: log_directory(&options.test)?,
            _turn: turn,
        };
        cluster.tidings(&["schema", "apply"]).await?;
        cluster.tidings(&["topics", "apply"]).await?;
        for &part in &parts {
            let spec = cluster.spec(part, &options)?;
            cluster.processes.insert(part, Process::start(spec)?);
        }
        cluster.wait_ready().await?;
        Ok(cluster)
    }

    /// The name of this run: the prefix of its topics, keys and users.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One of its processes.
    pub fn process(&mut self, part: Part) -> Result<&mut Process> {
        let process = self.processes.get_mut(&part);
        process.with_context(|| format!("this cluster has no {part}"))
    }

    /// The admin address of a part.
    pub fn admin(&self, part: Part) -> Result<SocketAddr> {
        Ok(loopback(self.ports_of(part)?.admin))
    }

    /// The public address of a gateway.
    pub fn gateway(&self, number: usize) -> Result<SocketAddr> {
        Ok(loopback(self.ports_of(Part::Gateway(number))?.public))
    }

    /// The topics as the services see them.
    pub fn catalogue(&self) -> Catalogue {
        Catalogue::with_prefix(&self.name, Durability::Single, PartitionCounts::DEV)
    }

    /// The brokers.
    pub fn bootstrap(&self) -> String {
        self.stack.lock().state().kafka.bootstrap.clone()
    }

    /// Records ever written to a topic.
    pub async fn records(&self, topic: Topic) -> Result<u64> {
        let broker = self.stack.lock().state().address(Node::Kafka(1))?;
        let catalogue = self.catalogue();
        let spec = catalogue.spec(topic);
        kafka::records(broker, &spec.name, spec.partitions).await
    }

    /// Does something to the stack, such as killing a broker. The calls block, so they run beside the async tasks.
    pub async fn with_stack<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Stack) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let stack = Arc::clone(&self.stack);
        tokio::task::spawn_blocking(move || work(&mut stack.lock()))
            .await
            .context("the work on the stack panicked")?
    }

    /// Kills a broker and starts it again; returns when it serves.
    pub async fn restart_broker(&self) -> Result<()> {
        self.with_stack(|stack| stack.restart(Node::Kafka(1), Signal::SIGKILL))
            .await
    }

    /// Runs the command line tool with the settings of this cluster and gives what it printed.
    pub async fn tidings(&self, args: &[&str]) -> Result<String> {
        process::run_tidings(args, &self.env).await
    }

    fn ports_of(&self, part: Part) -> Result<Ports> {
        let ports = self.ports.get(&part).copied();
        ports.with_context(|| format!("this cluster has no {part}"))
    }

    fn spec(&self, part: Part, options: &ClusterOptions) -> Result<Spec> {
        let ports = self.ports_of(part)?;
        let mut env = self.env.clone();
        let mut set = |name: &str, value: String| env.push((name.to_owned(), value));
        set("TIDINGS__ADMIN__LISTEN", loopback(ports.admin).to_string());
        set("TIDINGS__INTERNAL__LISTEN", loopback(ports.internal).to_string());
        set(
            "TIDINGS__INTERNAL__ADVERTISE_ADDR",
            loopback(ports.internal).to_string(),
        );
        for (name, value) in own_env(part, &self.ports) {
            set(name, value);
        }
        for (_, name, value) in options.env.iter().filter(|(of, _, _)| *of == part) {
            set(name, value.clone());
        }
        Ok(Spec {
            name: part.to_string(),
            program: binary(part.binary())?,
            args: Vec::new(),
            env,
            log_directory: self.log_directory.clone(),
            admin: loopback(ports.admin),
        })
    }
}

#[async_trait]
impl System for Cluster {
    fn gateway_urls(&self) -> Vec<String> {
        let gateways = self.ports.iter().filter(|(part, _)| matches!(part, Part::Gateway(_)));
        gateways
            .map(|(_, ports)| format!("ws://{}", loopback(ports.public)))
            .collect()
    }

    fn token(&self, uid: &Uid) -> Result<String> {
        token::mint(SECRET, uid)
    }

    fn parts(&self) -> Vec<Part> {
        self.processes.keys().copied().collect()
    }

    fn kill(&mut self, part: Part) -> Result<()> {
        self.process(part)?.kill()
    }

    fn start_again(&mut self, part: Part) -> Result<()> {
        self.process(part)?.start_again()
    }

    async fn wait_ready(&mut self) -> Result<()> {
        for process in self.processes.values_mut() {
            process.wait_ready().await?;
        }
        Ok(())
    }

    async fn keep_state(&self) -> Result<()> {
        for process in self.processes.values() {
            process.keep_state().await?;
        }
        Ok(())
    }

    async fn dead_letters(&self) -> Result<Vec<serde_json::Value>> {
        let compensator = loopback(self.ports_of(Part::DeadLetterCompensator(0))?.internal).to_string();
        let args = ["dlq", "ls", "--compensator", &compensator, "--with-value", "--json"];
        json_lines(&self.tidings(&args).await?)
    }
}

/// One JSON value per line.
pub(crate) fn json_lines(text: &str) -> Result<Vec<serde_json::Value>> {
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("`{line}` is not JSON")))
        .collect()
}

/// Where a proxy before the broker has to listen, and what it has to reach.
pub fn fault_listener(stack: &Stack) -> Result<(SocketAddr, SocketAddr)> {
    let FaultListener { port, advertised_port } = stack.state().broker(1)?.fault_listener.with_context(|| {
        format!(
            "stack `{0}` was made before brokers had a listener for proxies; `cargo xtask stack down --name {0}`, then `up`",
            stack.state().name
        )
    })?;
    Ok((loopback(advertised_port), loopback(port)))
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// What every part and the command line tool are told.
fn shared_env(stack: &Stack, name: &str) -> Vec<(String, String)> {
    let mut env: Vec<(String, String)> = stack.env().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    let own = [
        ("TIDINGS__LOG__FORMAT", "pretty".to_owned()),
        ("TIDINGS__KAFKA__TOPIC_PREFIX", name.to_owned()),
        ("TIDINGS__KAFKA__SESSION_TIMEOUT_MS", SESSION_TIMEOUT_MS.to_string()),
        ("TIDINGS__CQL__KEYSPACE", name.to_owned()),
        ("TIDINGS__REDIS__KEY_PREFIX", name.to_owned()),
        ("TIDINGS__INTERNAL__SHARED_TOKEN", INTERNAL_TOKEN.to_owned()),
    ];
    env.extend(own.map(|(name, value)| (name.to_owned(), value)));
    env
}

/// What one part alone is told: a service refuses settings it does not have.
fn own_env(part: Part, ports: &BTreeMap<Part, Ports>) -> Vec<(&'static str, String)> {
    let internal = |wanted: fn(Part) -> bool| {
        let addresses = ports.iter().filter(|(part, _)| wanted(**part));
        let addresses: Vec<String> = addresses
            .map(|(_, ports)| loopback(ports.internal).to_string())
            .collect();
        addresses.join(",")
    };
    match part {
        Part::Gateway(_) => vec![
            ("TIDINGS__GATEWAY__LISTEN", loopback(ports[&part].public).to_string()),
            ("TIDINGS__GATEWAY__HS256_SECRET", SECRET.to_owned()),
            (
                "TIDINGS__GATEWAY__INBOX",
                internal(|part| matches!(part, Part::OfflineInbox(_))),
            ),
            (
                "TIDINGS__GATEWAY__HISTORY",
                internal(|part| matches!(part, Part::StorageConsumer(_))),
            ),
            // After a lost push a device learns of it by the heads: tests do not wait for half a minute.
            ("TIDINGS__GATEWAY__HEADS_INTERVAL_MS", "2000".to_owned()),
            ("TIDINGS__GATEWAY__RECONNECT_SPREAD_MS", "1000".to_owned()),
        ],
        Part::PushFanout(_) => vec![(
            "TIDINGS__PUSH_FANOUT__GATEWAYS",
            internal(|part| matches!(part, Part::Gateway(_))),
        )],
        Part::Router(_)
        | Part::StorageConsumer(_)
        | Part::OfflineInbox(_)
        | Part::DeadLetterCompensator(_)
        | Part::Dev => Vec::new(),
    }
}
