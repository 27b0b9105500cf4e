//! `cargo xtask <command>`: everything one does with this repository besides editing it.

mod dependency_rules;
mod dev;
mod setup;
mod stack_command;
mod test;

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
    /// Check that this machine has what is needed; install it as root on Debian, name it elsewhere.
    Setup {
        /// What the machine shall be able to do.
        #[arg(long = "for", value_enum, default_value_t = setup::Purpose::Dev)]
        purpose: setup::Purpose,
    },
    /// Build and run all services in one process (`tidings dev`).
    Dev {
        /// Build with optimisations.
        #[arg(long)]
        release: bool,
        /// Arguments for `tidings dev`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Everything CI checks: lints, build, and all tests on the real stack.
    Test {
        /// One part of it.
        #[arg(long, value_enum)]
        only: Option<test::Only>,
        /// Run only tests whose name contains one of these.
        filters: Vec<String>,
    },
    /// A real Kafka, Cassandra and Redis on this machine, without containers.
    #[command(subcommand)]
    Stack(stack_command::StackCommand),
    /// Started by `test`: removes its stack when it has ended.
    #[command(hide = true)]
    StackGuard,
}

fn main() -> ExitCode {
    console::start_clock();
    let outcome = match Arguments::parse().command {
        Task::Setup { purpose } => setup::run(purpose),
        Task::Dev { release, arguments } => dev::run(release, &arguments),
        Task::Test { only, filters } => match test::run(only, &filters) {
            Ok(true) => Ok(()),
            // The summary has said it all.
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        Task::StackGuard => test::guard(),
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
