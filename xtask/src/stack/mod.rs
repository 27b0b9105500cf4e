//! The local stack: a real Kafka, Cassandra and Redis as plain processes on loopback, for tests and for trying things.
//!
//! Everything of one stack lies below `target/stack/<name>/`: `stack.json` (ports and pids), `stack.env`, and one
//! directory per node with its configuration, data and log. Several stacks may run side by side; none uses a fixed
//! port. Every change of a stack is made under the lock `target/stack/<name>.lock` on freshly read state, so that a
//! user's command, a test run and fault tests in several processes may all act on one stack.
//!
//! Guarantees: [`Stack::start`], [`Stack::start_node`] and [`Stack::restart`] return only when the node answered a
//! request of its own protocol, or with an error that names the log and the remedy. A node keeps its ports and its
//! data over restarts. A signal goes only to a process that was started for this very stack.
//!
//! All calls block (a start takes seconds): from async code call them by `spawn_blocking`.

mod jars;
pub mod java;
mod node;
mod place;
pub mod ports;
mod probe;
mod servers;
mod start;
mod state;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
pub use nix::sys::signal::Signal;
pub use node::{Node, Selection};
use place::{directory_of, lock, remove_file};
use start::{Brokers, probe_node};
pub use state::{FaultListener, State};

use crate::{console, process};

/// From TERM to KILL when the data is needed again: Kafka flushes its logs, Cassandra its memtables.
const STOP_GRACE: Duration = Duration::from_secs(30);
/// From TERM to KILL when the data is thrown away.
const DISCARD_GRACE: Duration = Duration::from_secs(3);
/// The programs a stack starts (`setsid` for the moment before it becomes the other).
const PROGRAMS: &[&str] = &["java", "redis-server", "setsid"];
/// The stack used when no name is given.
pub const DEFAULT_NAME: &str = "default";

/// Which stack is wanted. A size that is not given means 1 for a new stack, and any for one that is there.
#[derive(Debug, Clone)]
pub struct Options {
    pub name: String,
    /// 1, or 3 for replication factor 3 with two in sync.
    pub brokers: Option<u32>,
    /// 1, or 3 for quorums; about 1 GiB each.
    pub cassandra_nodes: Option<u32>,
}

impl Options {
    /// A stack of the smallest size.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            brokers: None,
            cassandra_nodes: None,
        }
    }
}

/// One stack, running or not.
#[derive(Debug)]
pub struct Stack {
    directory: PathBuf,
    state: State,
}

/// What one node is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It answered.
    Serving,
    /// The process runs and does not answer (starting, frozen, or ill).
    Silent,
    /// No process.
    Down,
}

/// One line of `stack status`.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    pub node: Node,
    pub health: Health,
    pub address: std::net::SocketAddr,
    pub pid: Option<u32>,
    pub resident_bytes: u64,
}

impl Stack {
    /// Brings a stack up: a new one, or what is missing of one that is there. A no-op if all of it serves.
    pub fn start(options: &Options) -> Result<Self> {
        let directory = directory_of(&options.name)?;
        let _lock = lock(&directory)?;
        let mut stack = match State::read(&directory.join("stack.json"))? {
            Some(state) => Self { directory, state },
            None => Self::plan(directory, options)?,
        };
        stack.check_size(options)?;
        stack.forget_dead();
        if stack.state.pids.is_empty() && !stack.ports_are_free()? {
            console::say("a port of the stopped stack is taken by now: all nodes get new ports");
            stack.state.take_free_ports()?;
        }
        let missing = stack.not_serving()?;
        if missing.is_empty() {
            stack.write()?;
            console::say(format!("stack `{}` is up", stack.state.name));
            return Ok(stack);
        }
        if missing.len() < stack.state.nodes().len() {
            console::say(format!("stack `{}` is half up: starting the rest", stack.state.name));
        }
        stack.start_nodes(&missing, Brokers::All)?;
        Ok(stack)
    }

    /// The stack of a `stack.json`, as it was left; see [`Stack::status`] for what of it runs.
    pub fn load(stack_json: &Path) -> Result<Self> {
        let directory = stack_json
            .parent()
            .context("a stack.json lies in a directory")?
            .to_owned();
        let state = State::read(stack_json)?.with_context(|| format!("there is no {}", stack_json.display()))?;
        Ok(Self { directory, state })
    }

    /// The stack of that name; `None` if there is none.
    pub fn find(name: &str) -> Result<Option<Self>> {
        let directory = directory_of(name)?;
        Ok(State::read(&directory.join("stack.json"))?.map(|state| Self { directory, state }))
    }

    /// Ports, pids and addresses.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The path of this stack's `stack.json`.
    pub fn stack_json(&self) -> PathBuf {
        self.directory.join("stack.json")
    }

    /// The environment of a service that should use this stack.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        self.state.env()
    }

    /// The pids of the nodes that were started and not stopped.
    pub fn pids(&self) -> &[u32] {
        &self.state.pids
    }

    /// The log of a node.
    pub fn log(&self, node: Node) -> PathBuf {
        self.node_directory(node).join(format!("{node}.log"))
    }

    /// Sends KILL to a broker and waits until it is gone.
    pub fn kill_broker(&mut self, node_id: u32) -> Result<()> {
        self.stop_node(Node::Kafka(node_id), Signal::SIGKILL)
    }

    /// Stops a broker by `signal` and starts it again with its ports and data; returns when it serves.
    pub fn restart_broker(&mut self, node_id: u32, signal: Signal) -> Result<()> {
        self.restart(Node::Kafka(node_id), signal)
    }

    /// Stops a node by `signal` (KILL follows if it does not go) and waits until it is gone.
    pub fn stop_node(&mut self, node: Node, signal: Signal) -> Result<()> {
        let _lock = self.lock_and_reload()?;
        self.stop_locked(node, signal)
    }

    /// Starts a stopped node with the ports and data it had; returns when it serves.
    pub fn start_node(&mut self, node: Node) -> Result<()> {
        let _lock = self.lock_and_reload()?;
        ensure!(!self.runs(node)?, "{node} runs");
        self.start_nodes(&[node], Brokers::Itself)
    }

    /// Stops a node by `signal` and starts it again with its ports and data; returns when it serves.
    pub fn restart(&mut self, node: Node, signal: Signal) -> Result<()> {
        let _lock = self.lock_and_reload()?;
        self.stop_locked(node, signal)?;
        self.start_nodes(&[node], Brokers::Itself)
    }

    /// Freezes a node (STOP): it keeps its connections and answers nothing.
    pub fn freeze(&mut self, node: Node) -> Result<()> {
        self.signal(node, Signal::SIGSTOP)
    }

    /// Lets a frozen node go on (CONT).
    pub fn thaw(&mut self, node: Node) -> Result<()> {
        self.signal(node, Signal::SIGCONT)
    }

    /// What every node is doing now.
    pub fn status(&self) -> Result<Vec<NodeStatus>> {
        let nodes = self.state.nodes();
        // One frozen node must not make the others wait for its time-out.
        in_parallel(&nodes, |&node| self.node_status(node))
            .into_iter()
            .collect()
    }

    /// Stops all nodes and removes everything, or with `keep_data` everything but data and logs.
    pub fn down(name: &str, keep_data: bool) -> Result<()> {
        let directory = directory_of(name)?;
        let _lock = lock(&directory)?;
        // An unreadable state must not keep a stack from being removed: its processes are found by their directory.
        let state = State::read(&directory.join("stack.json")).unwrap_or_else(|error| {
            console::say(format!("{error:#}; looking for the processes of the stack instead"));
            None
        });
        if let Some(state) = state {
            let grace = if keep_data { STOP_GRACE } else { DISCARD_GRACE };
            let mut stack = Self {
                directory: directory.clone(),
                state,
            };
            let nodes = stack.state.nodes();
            let stopped = in_parallel(&nodes, |&node| stack.terminate(node, Signal::SIGTERM, grace));
            stopped.into_iter().collect::<Result<Vec<()>>>()?;
            for node in nodes {
                stack.state.set_pid(node, None);
            }
            stack.write()?;
        } else if !directory.exists() {
            console::say(format!("stack `{name}` is not there"));
        }
        stop_strays(&directory)?;
        if keep_data {
            remove_file(&directory.join("stack.env"))?;
        } else {
            jars::remove_directory(&directory)?;
        }
        Ok(())
    }

    /// A new stack in an empty directory.
    fn plan(directory: PathBuf, options: &Options) -> Result<Self> {
        stop_strays(&directory)?;
        if directory.exists() {
            console::say(format!(
                "{} has no stack.json: removing what is left there",
                directory.display()
            ));
            jars::remove_directory(&directory)?;
        }
        fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
        let stack = Self {
            directory,
            state: State::plan(options)?,
        };
        stack.write()?;
        Ok(stack)
    }

    fn check_size(&self, options: &Options) -> Result<()> {
        let name = &self.state.name;
        let (brokers, nodes) = (self.state.kafka.brokers.len(), self.state.cql.nodes.len());
        let differs = |wanted: Option<u32>, is: usize| wanted.is_some_and(|wanted| usize::try_from(wanted) != Ok(is));
        if differs(options.brokers, brokers) || differs(options.cassandra_nodes, nodes) {
            bail!(
                "stack `{name}` is there with {brokers} broker(s) and {nodes} Cassandra node(s); \
                 `cargo xtask stack down --name {name}` removes it, or take another --name"
            );
        }
        Ok(())
    }

    fn node_directory(&self, node: Node) -> PathBuf {
        self.directory.join(node.to_string())
    }

    /// What the command line of a node's process contains, and that of no other.
    fn marker(&self, node: Node) -> String {
        format!("{}/", self.node_directory(node).display())
    }

    fn runs(&self, node: Node) -> Result<bool> {
        Ok(self
            .state
            .pid(node)?
            .is_some_and(|pid| process::is_running(pid, &self.marker(node))))
    }

    fn forget_dead(&mut self) {
        for node in self.state.nodes() {
            if !self.runs(node).unwrap_or(false) {
                self.state.set_pid(node, None);
            }
        }
    }

    fn ports_are_free(&self) -> Result<bool> {
        for node in self.state.nodes() {
            for listener in self.state.listeners(node)? {
                if !ports::is_free(listener.ip(), listener.port()) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The nodes to start: those without a process, and those whose process does not answer, which are stopped here.
    fn not_serving(&mut self) -> Result<Vec<Node>> {
        let mut missing = Vec::new();
        for status in self.status()? {
            match status.health {
                Health::Serving => {}
                Health::Silent => {
                    console::say(format!(
                        "{}: process {:?} does not answer, stopping it",
                        status.node, status.pid
                    ));
                    self.stop_locked(status.node, Signal::SIGKILL)?;
                    missing.push(status.node);
                }
                Health::Down => missing.push(status.node),
            }
        }
        Ok(missing)
    }

    fn node_status(&self, node: Node) -> Result<NodeStatus> {
        let running = self
            .state
            .pid(node)?
            .filter(|&pid| process::is_running(pid, &self.marker(node)));
        let health = match running {
            None => Health::Down,
            Some(_) if probe_node(&self.state, node, Brokers::Itself).is_ok() => Health::Serving,
            Some(_) => Health::Silent,
        };
        Ok(NodeStatus {
            node,
            health,
            address: self.state.address(node)?,
            pid: running,
            resident_bytes: running.and_then(process::resident_bytes).unwrap_or(0),
        })
    }

    fn signal(&mut self, node: Node, signal: Signal) -> Result<()> {
        let _lock = self.lock_and_reload()?;
        let pid = self.state.pid(node)?.with_context(|| format!("{node} does not run"))?;
        ensure!(process::signal(pid, &self.marker(node), signal)?, "{node} does not run");
        Ok(())
    }

    fn stop_locked(&mut self, node: Node, signal: Signal) -> Result<()> {
        self.terminate(node, signal, STOP_GRACE)?;
        self.state.set_pid(node, None);
        self.write()
    }

    fn terminate(&self, node: Node, signal: Signal, grace: Duration) -> Result<()> {
        let Some(pid) = self.state.pid(node)? else {
            return Ok(());
        };
        let began = Instant::now();
        process::stop(pid, &self.marker(node), signal, grace)?;
        console::say(format!(
            "{node}: stopped ({signal}, pid {pid}) after {}",
            console::seconds(began.elapsed())
        ));
        Ok(())
    }

    fn write(&self) -> Result<()> {
        self.state.write(&self.stack_json())
    }

    fn lock_and_reload(&mut self) -> Result<File> {
        let lock = lock(&self.directory)?;
        self.state = State::read(&self.stack_json())?
            .with_context(|| format!("stack `{}` was removed meanwhile", self.state.name))?;
        Ok(lock)
    }
}

/// Stops every process of a stack's directory, written down or not.
fn stop_strays(directory: &Path) -> Result<()> {
    let marker = format!("{}/", directory.display());
    for pid in process::find(&marker, PROGRAMS) {
        console::say(format!("stopping process {pid}, left over in {}", directory.display()));
        process::stop(pid, &marker, Signal::SIGTERM, DISCARD_GRACE)?;
    }
    Ok(())
}

/// Runs `work` on every item at the same time; the results are in the order of the items.
fn in_parallel<Item: Sync, Outcome: Send>(items: &[Item], work: impl Fn(&Item) -> Outcome + Sync) -> Vec<Outcome> {
    thread::scope(|scope| {
        let running: Vec<_> = items.iter().map(|item| scope.spawn(|| work(item))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_of_nodes_differ() {
        let directory = PathBuf::from("/tree/target/stack/unit");
        let options = Options {
            name: "unit".into(),
            brokers: Some(3),
            cassandra_nodes: None,
        };
        let stack = Stack {
            directory,
            state: State::plan(&options).unwrap(),
        };
        assert_eq!(stack.marker(Node::Kafka(1)), "/tree/target/stack/unit/kafka-1/");
        assert_ne!(stack.marker(Node::Kafka(1)), stack.marker(Node::Kafka(2)));
    }

    #[test]
    fn another_size_than_the_running_one_is_refused() {
        let options = Options {
            name: "unit".into(),
            brokers: Some(3),
            cassandra_nodes: None,
        };
        let stack = Stack {
            directory: PathBuf::new(),
            state: State::plan(&options).unwrap(),
        };
        assert!(stack.check_size(&options).is_ok());
        assert!(stack.check_size(&Options::named("unit")).is_ok());
        let smaller = Options {
            name: "unit".into(),
            brokers: Some(1),
            cassandra_nodes: None,
        };
        assert!(
            stack
                .check_size(&smaller)
                .unwrap_err()
                .to_string()
                .contains("stack down")
        );
    }

    #[test]
    fn a_pid_that_belongs_to_somebody_else_counts_as_down() {
        let mut stack = Stack {
            directory: PathBuf::from("/tree/target/stack/unit"),
            state: State::plan(&Options::named("unit")).unwrap(),
        };
        // This very test process: alive, and no Redis of that stack.
        stack.state.set_pid(Node::Redis, Some(std::process::id()));
        assert_eq!(stack.node_status(Node::Redis).unwrap().health, Health::Down);
        stack.forget_dead();
        assert!(stack.pids().is_empty());
    }
}
