//! `cargo xtask <command>`: everything one does with this repository besides editing it.

mod stack_command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::console;

/// Tasks of the Tidings repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// A real Kafka, Cassandra and Redis on this machine, without containers.
    #[command(subcommand)]
    Stack(stack_command::StackCommand),
}

fn main() -> ExitCode {
    console::start_clock();
    let outcome = match Arguments::parse().command {
        Task::Stack(command) => stack_command::run(command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::say(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
