//! Starting nodes: side by side, each waited for until it answers, or stopped again with the reason told.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::{DISCARD_GRACE, Node, PROGRAMS, Signal, Stack, State, in_parallel, jars, ports, probe, servers};
use crate::{console, process};

/// From start to serving. Measured: Kafka 3 s, Cassandra 8 s; a busy two-core machine needs several times that.
const START_DEADLINE: Duration = Duration::from_secs(120);
/// Between two looks at a starting node.
const POLL: Duration = Duration::from_millis(100);
/// Lines of a node's log shown with an error.
const LOG_TAIL: usize = 20;
/// Earlier lines of level ERROR shown with it.
const LOG_ERRORS: usize = 5;

/// When a starting broker counts as serving.
#[derive(Debug, Clone, Copy)]
pub(super) enum Brokers {
    /// It lists itself: others may be down on purpose.
    Itself,
    /// It lists all.
    All,
}

impl Stack {
    /// Starts nodes side by side and waits until each serves. If one fails, those started here are stopped again.
    pub(super) fn start_nodes(&mut self, nodes: &[Node], wanted: Brokers) -> Result<()> {
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

/// Asks a node a request of its own protocol.
pub(super) fn probe_node(state: &State, node: Node, wanted: Brokers) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
