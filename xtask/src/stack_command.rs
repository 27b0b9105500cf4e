//! `cargo xtask stack`: the stack from the command line.

use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use xtask::console;
use xtask::stack::{DEFAULT_NAME, Health, NodeStatus, Options, Selection, Signal, Stack};

#[derive(Debug, Subcommand)]
pub(crate) enum StackCommand {
    /// Start Kafka, Cassandra and Redis, or what is missing of them; a no-op when all of it serves.
    Up {
        #[command(flatten)]
        which: Which,
        /// Kafka brokers: 1, or 3 for replication factor 3 [default: 1]
        #[arg(long, value_parser = one_or_three)]
        brokers: Option<u32>,
        /// Cassandra nodes: 1, or 3 for quorums (about 1 GiB each) [default: 1]
        #[arg(long, value_parser = one_or_three)]
        cassandra_nodes: Option<u32>,
    },
    /// Stop everything and remove the data.
    Down {
        #[command(flatten)]
        which: Which,
        /// Keep data and logs for the next `up`.
        #[arg(long)]
        keep_data: bool,
    },
    /// Show every node with its port, pid and memory; fails when one of them does not serve.
    Status {
        #[command(flatten)]
        which: Which,
    },
    /// Stop a node and start it again with the same ports and data.
    Restart {
        /// kafka, kafka-<id>, cassandra, cassandra-<number> or redis; all nodes of it, one after the other
        node: Selection,
        #[command(flatten)]
        which: Which,
        /// How the node is stopped.
        #[arg(long, value_enum, default_value_t = StopSignal::Term, ignore_case = true)]
        signal: StopSignal,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Name of the stack: several can run side by side.
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum StopSignal {
    Term,
    Kill,
}

fn one_or_three(text: &str) -> Result<u32, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("1 or 3".to_owned()),
    }
}

pub(crate) fn run(command: StackCommand) -> Result<()> {
    match command {
        StackCommand::Up {
            which,
            brokers,
            cassandra_nodes,
        } => {
            let stack = Stack::start(&Options {
                name: which.name,
                brokers,
                cassandra_nodes,
            })?;
            print_status(&stack.status()?);
            console::print(format!(
                "\nfor a service in this shell: set -a; . {}",
                stack.stack_json().with_extension("env").display()
            ));
            Ok(())
        }
        StackCommand::Down { which, keep_data } => {
            Stack::down(&which.name, keep_data)?;
            console::say(format!("stack `{}` is down", which.name));
            Ok(())
        }
        StackCommand::Status { which } => {
            let status = existing(&which.name)?.status()?;
            print_status(&status);
            if status.iter().any(|node| node.health != Health::Serving) {
                bail!(
                    "not all of stack `{0}` serves; `cargo xtask stack up --name {0}` starts the rest",
                    which.name
                );
            }
            Ok(())
        }
        StackCommand::Restart { node, which, signal } => {
            let mut stack = existing(&which.name)?;
            let nodes: Vec<_> = stack
                .state()
                .nodes()
                .into_iter()
                .filter(|&each| node.contains(each))
                .collect();
            if nodes.is_empty() {
                bail!("stack `{}` has no such node", which.name);
            }
            let signal = match signal {
                StopSignal::Term => Signal::SIGTERM,
                StopSignal::Kill => Signal::SIGKILL,
            };
            nodes.into_iter().try_for_each(|node| stack.restart(node, signal))
        }
    }
}

fn existing(name: &str) -> Result<Stack> {
    match Stack::find(name)? {
        Some(stack) => Ok(stack),
        None => bail!("stack `{name}` is not there; `cargo xtask stack up --name {name}` starts it"),
    }
}

fn print_status(status: &[NodeStatus]) {
    console::print(format!(
        "{:<13} {:<8} {:<18} {:>8} {:>10}",
        "node", "state", "address", "pid", "memory"
    ));
    for node in status {
        let state = match node.health {
            Health::Serving => "up",
            Health::Silent => "silent",
            Health::Down => "down",
        };
        let pid = node.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        console::print(format!(
            "{:<13} {state:<8} {:<18} {pid:>8} {:>10}",
            node.node.to_string(),
            node.address.to_string(),
            console::mebibytes(node.resident_bytes)
        ));
    }
    let total: u64 = status.iter().map(|node| node.resident_bytes).sum();
    console::print(format!(
        "{:<13} {:<8} {:<18} {:>8} {:>10}",
        "total",
        "",
        "",
        "",
        console::mebibytes(total)
    ));
}
