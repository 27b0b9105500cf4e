//! Setting up the real stack: topics and schema.

use std::path::PathBuf;

use anyhow::Context as _;
use tidings_bus::Bus as _;
use tidings_chassis::config::{self, Shared, Validate};
use tidings_chassis::stack;

/// Where the configuration is.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Configuration file; settings from the environment (`TIDINGS__SECTION__KEY`) are laid over it.
    #[arg(long, env = "TIDINGS_CONFIG")]
    config: Option<PathBuf>,
}

/// `tidings topics ...`
#[derive(Debug, clap::Subcommand)]
pub(crate) enum TopicsCommand {
    /// Creates the topics that are missing and names each difference of the others.
    Apply(ConfigArgs),
    /// Names each difference between the broker's topics and the catalogue.
    Check(ConfigArgs),
}

/// `tidings schema ...`
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SchemaCommand {
    /// Creates keyspace and tables that are missing. May be run again at any time.
    Apply(ConfigArgs),
}

/// The settings of broker and stores; those of services may stand beside them and are checked by the services.
fn shared(args: &ConfigArgs) -> anyhow::Result<Shared> {
    let env = std::env::vars().filter(|(name, _)| name != "TIDINGS_CONFIG");
    // Not those of the development mode: topics made here are the services' own.
    let defaults = crate::dev::SERVICE_DEFAULTS;
    let merged = config::merge_all(&defaults, args.config.as_deref(), env)?;
    let shared: Shared = merged.parse()?;
    let problems = shared.validate();
    anyhow::ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(shared)
}

/// Runs a `topics` command.
pub(crate) async fn topics(command: TopicsCommand) -> anyhow::Result<()> {
    let (args, apply) = match &command {
        TopicsCommand::Apply(args) => (args, true),
        TopicsCommand::Check(args) => (args, false),
    };
    let shared = shared(args)?;
    let bus = stack::open_bus(&shared)?;
    if apply {
        for line in bus.apply_topics().await.context("topics could not be applied")? {
            println!("{line}");
        }
    }
    let differences = bus
        .check_topics(&tidings_domain::Topic::ALL)
        .await
        .context("topics could not be checked")?;
    if differences.is_empty() {
        println!(
            "all {} topics are as the catalogue says",
            tidings_domain::Topic::ALL.len()
        );
        return Ok(());
    }
    for line in &differences {
        eprintln!("{line}");
    }
    anyhow::bail!("{} differences", differences.len())
}

/// Runs a `schema` command.
pub(crate) async fn schema(command: SchemaCommand) -> anyhow::Result<()> {
    let SchemaCommand::Apply(args) = command;
    let shared = shared(&args)?;
    stack::apply_schema(&shared, crate::dev::random_u64()).await?;
    println!("keyspace {} has all tables", shared.cql.keyspace);
    Ok(())
}
