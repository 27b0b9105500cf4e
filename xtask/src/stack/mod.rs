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
mod ports;
mod probe;
mod servers;
mod state;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
pub use nix::sys::signal::Signal;
pub use state::{Node, Selection, State};

use crate::{console, process, workspace};

/// From start to serving. Measured: Kafka 3 s, Cassandra 8 s; a busy two-core machine needs several times that.
const START_DEADLINE: Duration = Duration::from_secs(120);
/// Between two looks at a starting node.
const POLL: Duration = Duration::from_millis(100);
/// From TERM to KILL when the data is needed again: Kafka flushes its logs, Cassandra its memtables.
const STOP_GRACE: Duration = Duration::from_secs(30);
/// From TERM to KILL when the data is thrown away.
const DISCARD_GRACE: Duration = Duration::from_secs(3);
/// Lines of a node's log shown with an error.
const LOG_TAIL: usize = 20;
/// Earlier lines of level ERROR shown with it.
const LOG_ERRORS: usize = 5;
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

/// When a starting broker counts as serving.
#[derive(Debug, Clone, Copy)]
enum Brokers {
    /// It lists itself: others may be down on purpose.
    Itself,
    /// It lists all.
    All,
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
            Some(_) if self.probe(node, Brokers::Itself).is_ok() => Health::Serving,
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

    fn probe(&self, node: Node, wanted: Brokers) -> Result<()> {
        probe_node(&self.state, node, wanted)
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

    /// Starts nodes side by side and waits until each serves. If one fails, those started here are stopped again.
    fn start_nodes(&mut self, nodes: &[Node], wanted: Brokers) -> Result<()> {
        warn_if_memory_is_short(nodes);
        // Maven's local repository stands one user at a time, so jars come before the start of anything.
        for part in parts_with_jars(nodes) {
            jars::ensure(part)?;
        }
        // Cassandra's nodes must join one after the other; all else may start at the same time.
        let (cassandra, others): (Vec<Node>, Vec<Node>) =
            nodes.iter().partition(|node| matches!(node, Node::Cassandra(_)));
        let mut lanes: Vec<Vec<Node>> = others.into_iter().map(|node| vec![node]).collect();
        lanes.push(cassandra);

        let shared = Mutex::new(&mut *self);
        let failures: Vec<anyhow::Error> = in_parallel(&lanes, |lane| {
            lane.iter().try_for_each(|&node| start_one(&shared, node, wanted))
        })
        .into_iter()
        .filter_map(Result::err)
        .collect();
        if failures.is_empty() {
            return Ok(());
        }
        for &node in nodes {
            self.stop_locked(node, Signal::SIGKILL)?;
        }
        let all: Vec<String> = failures.iter().map(|failure| format!("{failure:#}")).collect();
        Err(anyhow!("{}", all.join("\n\n")))
    }

    /// Spawns the process of a node, without waiting for it, and writes its pid down.
    fn spawn(&mut self, node: Node, prepared: &servers::Prepared) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log(node))?;
        let child = process::detached(&prepared.program)
            .args(&prepared.args)
            .current_dir(self.node_directory(node))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {} by `setsid` (util-linux)", prepared.program.display()))?;
        self.state.set_pid(node, Some(child.id()));
        self.write()
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

fn start_one(stack: &Mutex<&mut Stack>, node: Node, wanted: Brokers) -> Result<()> {
    // A thread that panicked between two writes left the state as it wrote it last, which is all that counts.
    let locked = || stack.lock().unwrap_or_else(PoisonError::into_inner);
    let began = Instant::now();
    let (state, directory, marker, log) = {
        let stack = locked();
        (
            stack.state.clone(),
            stack.node_directory(node),
            stack.marker(node),
            stack.log(node),
        )
    };
    // Left by a starter that died before it wrote the pid down.
    for pid in process::find(&marker, PROGRAMS) {
        process::stop(pid, &marker, Signal::SIGTERM, DISCARD_GRACE)?;
    }
    for listener in state.listeners(node)? {
        ensure!(
            ports::becomes_free(listener.ip(), listener.port()),
            "{node}: another process listens on {listener}; stop it, or take a new stack with new ports \
             (`cargo xtask stack down --name {0}`, then `up`)",
            state.name
        );
    }
    let prepared = servers::prepare(&state, node, &directory).with_context(|| node.to_string())?;
    locked().spawn(node, &prepared)?;
    let state = locked().state.clone();
    wait_until_serving(&state, node, wanted, &marker, &log)?;
    let address = state.address(node)?;
    console::say(format!(
        "{node}: serves on {address} after {}",
        console::seconds(began.elapsed())
    ));
    Ok(())
}

fn wait_until_serving(state: &State, node: Node, wanted: Brokers, marker: &str, log: &Path) -> Result<()> {
    let pid = state.pid(node)?.context("a started node has a pid")?;
    let deadline = Instant::now() + START_DEADLINE;
    loop {
        let error = match probe_node(state, node, wanted) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let what = if !process::is_running(pid, marker) {
            "ended while starting".to_owned()
        } else if Instant::now() >= deadline {
            format!("does not serve after {} ({error:#})", console::seconds(START_DEADLINE))
        } else {
            thread::sleep(POLL);
            continue;
        };
        bail!(
            "{node} on {} {what}; {} of memory are available. The last lines of {}:\n{}\n\
             If its data is damaged or of another version, `cargo xtask stack down --name {}` removes it.",
            state.address(node)?,
            process::available_bytes().map_or_else(|| "unknown".to_owned(), console::mebibytes),
            log.display(),
            tail(log),
            state.name
        );
    }
}

fn probe_node(state: &State, node: Node, wanted: Brokers) -> Result<()> {
    let address = state.address(node)?;
    match node {
        Node::Kafka(node_id) => {
            let listed = probe::kafka_brokers(address)?;
            let complete = match wanted {
                Brokers::Itself => listed.contains(&node_id),
                Brokers::All => state
                    .kafka
                    .brokers
                    .iter()
                    .all(|broker| listed.contains(&broker.node_id)),
            };
            ensure!(complete, "it lists the brokers {listed:?} only");
            Ok(())
        }
        Node::Cassandra(_) => probe::cql(address),
        Node::Redis => probe::redis(address),
    }
}

/// The end of a log, and before it the last lines that call themselves errors: what follows an error may be long.
fn tail(log: &Path) -> String {
    // Without a log there is nothing to add to the error that is being reported.
    let text = fs::read(log)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let (before, end) = lines.split_at(lines.len().saturating_sub(LOG_TAIL));
    let errors: Vec<&str> = before
        .iter()
        .rev()
        .copied()
        .filter(|line| line.contains(" ERROR "))
        .take(LOG_ERRORS)
        .collect();
    let shown = errors.iter().rev().chain(end);
    shown.map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
}

fn parts_with_jars(nodes: &[Node]) -> Vec<&'static str> {
    let has_kafka = nodes.iter().any(|node| matches!(node, Node::Kafka(_)));
    let has_cassandra = nodes.iter().any(|node| matches!(node, Node::Cassandra(_)));
    [("kafka", has_kafka), ("cassandra", has_cassandra)]
        .into_iter()
        .filter_map(|(part, wanted)| wanted.then_some(part))
        .collect()
}

fn warn_if_memory_is_short(nodes: &[Node]) {
    const MEBIBYTE: u64 = 1024 * 1024;
    // Measured resident sizes with some room.
    let needed: u64 = nodes
        .iter()
        .map(|node| match node {
            Node::Kafka(_) => 600 * MEBIBYTE,
            Node::Cassandra(_) => 1_200 * MEBIBYTE,
            Node::Redis => 50 * MEBIBYTE,
        })
        .sum();
    if let Some(available) = process::available_bytes().filter(|&available| available < needed) {
        console::say(format!(
            "warning: {} of memory are available, {} are needed; if a node is killed, end other programs",
            console::mebibytes(available),
            console::mebibytes(needed)
        ));
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

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("removing {}", path.display())),
    }
}

fn directory_of(name: &str) -> Result<PathBuf> {
    let well_formed = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && name != "lib";
    ensure!(
        well_formed,
        "a stack's name is made of a-z, 0-9 and `-`, and is not `lib`: `{name}`"
    );
    Ok(workspace::target().join("stack").join(name))
}

/// Takes the lock of a stack; it is held until the file is dropped. Beside the directory, which may be removed.
fn lock(directory: &Path) -> Result<File> {
    let path = directory.with_extension("lock");
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    }
    let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
    if file.try_lock().is_err() {
        console::say(format!(
            "waiting for another command on this stack ({})",
            path.display()
        ));
        file.lock().with_context(|| format!("locking {}", path.display()))?;
    }
    Ok(file)
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
    fn names_cannot_leave_the_directory_of_stacks() {
        for wrong in ["", "..", "a/b", "lib", "Upper", "a b"] {
            assert!(directory_of(wrong).is_err(), "{wrong}");
        }
        assert!(directory_of("test-3").unwrap().ends_with("target/stack/test-3"));
    }

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

    #[test]
    fn a_log_is_shown_by_its_errors_and_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let mut lines: Vec<String> = (0..100).map(|number| format!("line {number}")).collect();
        lines[7] = "12:00 ERROR the cause".to_owned();
        fs::write(&log, lines.join("\n")).unwrap();
        let tail = tail(&log);
        assert!(tail.starts_with("  | 12:00 ERROR the cause\n  | line 80\n"), "{tail}");
        assert!(tail.ends_with("  | line 99"), "{tail}");
    }
}
