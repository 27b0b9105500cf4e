//! `tidings`: the product in one process, clients for the terminal, and what operators need.

mod bench;
mod chat;
mod dead_letters;
mod dev;
mod device;
mod send;
#[cfg(feature = "stack")]
mod stack;
mod token;
mod web;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Reliable instant-messaging delivery.
#[derive(Debug, Parser)]
#[command(name = "tidings", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs all six services in this process on an embedded, durable store.
    Dev(dev::DevArgs),
    /// Sends one message and waits for its link ACK.
    Send(send::SendArgs),
    /// Chats in the terminal; messages are kept in a local file.
    Chat(chat::ChatArgs),
    /// Prints a token for a user.
    Token(token::TokenArgs),
    /// Dead letters.
    #[command(subcommand)]
    Dlq(dead_letters::DlqCommand),
    /// Topics of the real stack.
    #[cfg(feature = "stack")]
    #[command(subcommand)]
    Topics(stack::TopicsCommand),
    /// Tables of the real stack.
    #[cfg(feature = "stack")]
    #[command(subcommand)]
    Schema(stack::SchemaCommand),
    /// Measures a running instance.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Dev(args) => return dev::main(args),
        Command::Token(args) => token::run(&args),
        Command::Send(args) => block_on(send::run(args)),
        Command::Chat(args) => block_on(chat::run(args)),
        Command::Dlq(command) => block_on(dead_letters::run(command)),
        #[cfg(feature = "stack")]
        Command::Topics(command) => block_on(stack::topics(command)),
        #[cfg(feature = "stack")]
        Command::Schema(command) => block_on(stack::schema(command)),
        Command::Bench(command) => block_on(bench::run(command)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidings: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn block_on(future: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(future)
}
