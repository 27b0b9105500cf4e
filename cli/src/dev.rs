//! `tidings dev`: all six services in one process, on the embedded adapters (architecture.md section 7).
//!
//! The same service code as in the six-process form: the log and the tables are one embedded database, service calls go
//! to the servers directly, routes and hot window live in memory. Durable: a link ACK is sent after the log's fsync.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tidings_bus::catalogue::{Durability, PartitionCounts};
use tidings_bus::embedded::EmbeddedBus;
use tidings_bus::{Bus, Catalogue};
use tidings_chassis::config::{self, Merged, Secret, Shared, Validate};
use tidings_chassis::{Context, Running, grpc, run};
use tidings_domain::clock::{SharedClock, SystemClock};
use tidings_embedded::{Database, Options};
use tidings_proto::rpc;
use tidings_proto::v1::history_client::HistoryClient;
use tidings_proto::v1::inbox_client::InboxClient;
use tidings_storage::embedded::{EmbeddedStore, HotWindowLimits, LocalHotWindow, LocalRoutes};
use tidings_telemetry::logging;

/// Defaults of the development mode, laid over those of the services.
const DEV_DEFAULTS: &str = include_str!("../dev.default.toml");
/// Defaults of each service.
pub(crate) const SERVICE_DEFAULTS: [&str; 6] = [
    include_str!("../../services/gateway/config.default.toml"),
    include_str!("../../services/router/config.default.toml"),
    include_str!("../../services/storage-consumer/config.default.toml"),
    include_str!("../../services/push-fanout/config.default.toml"),
    include_str!("../../services/offline-inbox/config.default.toml"),
    include_str!("../../services/dead-letter-compensator/config.default.toml"),
];

/// Bad configuration (EX_USAGE).
const EXIT_USAGE: u8 = 64;
/// File in the data directory that tells the other commands how to reach the instance.
const INSTANCE_FILE: &str = "instance.json";
/// File in the data directory with the secret of tokens, made at the first start.
const SECRET_FILE: &str = "token.secret";

/// `tidings dev`
#[derive(Debug, clap::Args)]
pub(crate) struct DevArgs {
    /// Where everything is kept.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Address for devices and the web chat.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Address of /livez, /readyz, /metrics.
    #[arg(long)]
    admin: Option<SocketAddr>,
    /// Address for operators' commands such as `tidings dlq`.
    #[arg(long)]
    internal: Option<SocketAddr>,
    /// Configuration file with any key of any service.
    #[arg(long, env = "TIDINGS_CONFIG")]
    config: Option<PathBuf>,
    /// Prints the configuration in force and ends.
    #[arg(long)]
    print_config: bool,
}

/// How to reach a running instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Instance {
    /// `ws://host:port/v1/connect`
    pub(crate) url: String,
    /// `host:port` of the internal listener.
    pub(crate) internal: String,
    /// Token of the internal listener.
    pub(crate) internal_token: String,
    /// Secret of tokens.
    pub(crate) secret: String,
    /// Process id.
    pub(crate) pid: u32,
}

impl Instance {
    /// Reads what the instance in `data_dir` said of itself.
    pub(crate) fn load(data_dir: &Path) -> anyhow::Result<Self> {
        let path = data_dir.join(INSTANCE_FILE);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!(
                "no instance in {}: start one with `tidings dev --data-dir {0}`",
                data_dir.display()
            )
        })?;
        serde_json::from_str(&text).with_context(|| format!("{} is not readable", path.display()))
    }

    fn save(&self, data_dir: &Path) -> anyhow::Result<()> {
        let path = data_dir.join(INSTANCE_FILE);
        write_private(&path, serde_json::to_string_pretty(self)?.as_bytes())
    }
}

/// The mode's own section.
#[derive(Debug, Clone, Deserialize)]
struct DevSection {
    dev: DevConfig,
}

#[derive(Debug, Clone, Deserialize)]
struct DevConfig {
    data_dir: PathBuf,
}

/// What each part reads of the one configuration.
struct Configs {
    dev: DevConfig,
    shared: Shared,
    gateway: tidings_gateway::Config,
    router: tidings_router::Config,
    storage_consumer: tidings_storage_consumer::Config,
    push_fanout: tidings_push_fanout::Config,
    offline_inbox: tidings_offline_inbox::Config,
    compensator: tidings_dead_letter_compensator::Config,
}

/// The defaults of all services and of the development mode, lowest layer first.
pub(crate) fn all_defaults() -> Vec<&'static str> {
    let mut defaults = SERVICE_DEFAULTS.to_vec();
    defaults.push(DEV_DEFAULTS);
    defaults
}

/// A random number for what must differ between instances.
pub(crate) fn random_u64() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

fn merged(args: &DevArgs) -> Result<Merged, config::ConfigError> {
    let flag = |key: &str, value: Option<String>| value.map(|value| (format!("TIDINGS__{key}"), value));
    let flags = [
        flag(
            "DEV__DATA_DIR",
            args.data_dir.as_ref().map(|dir| dir.display().to_string()),
        ),
        flag("GATEWAY__LISTEN", args.listen.map(|addr| addr.to_string())),
        flag("ADMIN__LISTEN", args.admin.map(|addr| addr.to_string())),
        flag("INTERNAL__LISTEN", args.internal.map(|addr| addr.to_string())),
    ];
    // Flags come after the environment and win.
    let env = std::env::vars().chain(flags.into_iter().flatten());
    config::merge_all(&all_defaults(), args.config.as_deref(), env)
}

fn configs(merged: &Merged) -> Result<Configs, String> {
    fn part<T: serde::de::DeserializeOwned>(merged: &Merged) -> Result<T, String> {
        merged.parse().map_err(|error| error.to_string())
    }
    let configs = Configs {
        dev: part::<DevSection>(merged)?.dev,
        shared: part(merged)?,
        gateway: part(merged)?,
        router: part(merged)?,
        storage_consumer: part(merged)?,
        push_fanout: part(merged)?,
        offline_inbox: part(merged)?,
        compensator: part(merged)?,
    };
    let checks: [&dyn Validate; 6] = [
        &configs.shared,
        &configs.router,
        &configs.storage_consumer,
        &configs.push_fanout,
        &configs.offline_inbox,
        &configs.compensator,
    ];
    let mut problems: Vec<String> = checks.iter().flat_map(|check| check.validate()).collect();
    // The secret is the instance's own unless one is configured: it cannot be missing here.
    problems.extend(with_secret(configs.gateway.clone(), "of the instance").validate());
    if problems.is_empty() {
        Ok(configs)
    } else {
        Err(problems.join("\n"))
    }
}

/// Runs the instance until a signal.
pub(crate) fn main(args: DevArgs) -> ExitCode {
    let merged = match merged(&args) {
        Ok(merged) => merged,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if args.print_config {
        print!("{}", merged.redacted());
        return ExitCode::SUCCESS;
    }
    let configs = match configs(&merged) {
        Ok(configs) => configs,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if let Err(error) = logging::init(configs.shared.log.format, &configs.shared.log.filter) {
        eprintln!("{error}");
        return ExitCode::from(EXIT_USAGE);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("tidings")
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tidings: the runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async move {
        let signals = run::os_signals()?;
        let context = Context::new("dev", configs.shared.clone());
        let started = context.clone();
        // Boxed: the whole wiring is in this future.
        let start = Box::pin(start(started, configs));
        anyhow::Ok(Box::pin(run::run(context, signals, start)).await)
    });
    match outcome {
        Ok(outcome) => {
            if let run::Stop::StartFailed(error) = &outcome.stop {
                eprintln!("tidings: {error:#}");
            }
            ExitCode::from(outcome.exit_code())
        }
        Err(error) => {
            eprintln!("tidings: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The wiring: database, adapters, then the services against the flow, each with what it calls.
async fn start(context: Context, configs: Configs) -> anyhow::Result<Running> {
    let data_dir = configs.dev.data_dir.clone();
    std::fs::create_dir_all(&data_dir)
        .with_context(|| format!("the data directory {} cannot be made", data_dir.display()))?;
    let clock: SharedClock = Arc::new(SystemClock);
    let database = Database::open(&data_dir.join("data"), Options::default())?;
    let catalogue = Catalogue::new(Durability::Single, PartitionCounts::DEV);
    let bus: Arc<dyn Bus> = Arc::new(EmbeddedBus::open(&database, catalogue, Arc::clone(&clock))?);
    let store = Arc::new(EmbeddedStore::open(&database, random_u64())?);
    let hot = Arc::new(LocalHotWindow::new(HotWindowLimits::default()));
    let routes = Arc::new(LocalRoutes::new(Arc::clone(&clock)));
    let secret = secret(&data_dir, &configs.gateway)?;

    let (history, storage_consumer) = tidings_storage_consumer::start(
        &context.for_service("storage-consumer"),
        &configs.storage_consumer,
        tidings_storage_consumer::Dependencies {
            bus: Arc::clone(&bus),
            store: Arc::clone(&store) as _,
            clock: Arc::clone(&clock),
        },
    )?;
    let (inbox, offline_inbox) = tidings_offline_inbox::start(
        &context.for_service("offline-inbox"),
        &configs.offline_inbox,
        tidings_offline_inbox::Dependencies {
            bus: Arc::clone(&bus),
            store: Arc::clone(&store) as _,
            reader: Arc::clone(&store) as _,
            hot,
            clock: Arc::clone(&clock),
            guarded: false,
        },
    )
    .await?;
    let router = tidings_router::start(
        &context.for_service("router"),
        &configs.router,
        tidings_router::Dependencies {
            bus: Arc::clone(&bus),
            store: Arc::clone(&store) as _,
            clock: Arc::clone(&clock),
            guarded: false,
        },
    )?;
    let (dead_letters, compensator) = tidings_dead_letter_compensator::start(
        &context.for_service("dead-letter-compensator"),
        &configs.compensator,
        tidings_dead_letter_compensator::Dependencies {
            bus: Arc::clone(&bus),
            store: Arc::clone(&store) as _,
            clock: Arc::clone(&clock),
        },
    )?;
    let internal = grpc::serve_internal(
        &context.tasks,
        &context.shared.internal,
        tonic::service::Routes::new(dead_letters),
    )
    .await?;
    let gateway = tidings_gateway::start(
        &context.for_service("gateway"),
        with_secret(configs.gateway, &secret),
        tidings_gateway::Dependencies {
            bus: Arc::clone(&bus),
            routes: Arc::clone(&routes) as _,
            inbox: InboxClient::new(rpc::in_process(inbox)),
            history: HistoryClient::new(rpc::in_process(history)),
            clock: Arc::clone(&clock),
            seed: random_u64(),
            internal: tidings_gateway::Internal::InProcess {
                address: internal.to_string(),
            },
            web: Some(crate::web::pages(secret.clone())),
        },
    )
    .await?;
    let push_fanout = tidings_push_fanout::start(
        &context.for_service("push-fanout"),
        &configs.push_fanout,
        tidings_push_fanout::Dependencies {
            bus,
            routes,
            gateways: Arc::new(tidings_push_fanout::gateways::InProcess {
                address: internal.to_string(),
                channel: rpc::in_process(gateway.delivery),
            }),
            clock,
        },
    )?;

    let instance = Instance {
        url: format!("ws://{}/v1/connect", gateway.public_addr),
        internal: internal.to_string(),
        internal_token: context
            .shared
            .internal
            .shared_token
            .expose()
            .unwrap_or_default()
            .to_owned(),
        secret,
        pid: std::process::id(),
    };
    instance.save(&data_dir)?;
    print_next_steps(&context, &data_dir, gateway.public_addr);

    // Against the flow: nothing new comes in, then what is under way goes on to its end.
    Ok(gateway
        .running
        .then(router)
        .then(offline_inbox)
        .then(push_fanout)
        .then(storage_consumer)
        .then(compensator)
        .drain("database", async move {
            tokio::task::spawn_blocking(move || database.persist()).await??;
            Ok(())
        }))
}

/// The configured secret, or the one of the data directory, made at the first start.
fn secret(data_dir: &Path, gateway: &tidings_gateway::Config) -> anyhow::Result<String> {
    if let Some(secret) = gateway.gateway.hs256_secret.expose() {
        return Ok(secret.to_owned());
    }
    let path = data_dir.join(SECRET_FILE);
    match std::fs::read_to_string(&path) {
        Ok(secret) if !secret.trim().is_empty() => Ok(secret.trim().to_owned()),
        Ok(_) => anyhow::bail!("{} is empty; remove it to get a new secret", path.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let secret = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
            write_private(&path, secret.as_bytes())?;
            Ok(secret)
        }
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
    }
}

/// The gateway verifies tokens with the instance's secret.
fn with_secret(mut config: tidings_gateway::Config, secret: &str) -> tidings_gateway::Config {
    config.gateway.hs256_secret = Secret::new(secret);
    config
}

/// Writes a file that only its owner may read, whole or not at all.
fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let staged = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&staged)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&staged, path)
    };
    write().with_context(|| format!("{} cannot be written", path.display()))
}

fn print_next_steps(context: &Context, data_dir: &Path, public: SocketAddr) {
    let program = std::env::args().next().unwrap_or_else(|| "tidings".to_owned());
    let data_dir_flag = if data_dir == Path::new(".tidings") {
        String::new()
    } else {
        format!(" --data-dir {}", data_dir.display())
    };
    println!(
        "
Tidings runs: six services in one process, data in {data}

  web chat     http://{public}/
  a device     {program} chat --as bob{data_dir_flag}
  send         {program} send --as alice --to bob \"hello\"{data_dir_flag}
  a token      {program} token alice --data-dir {data}
  dead letters {program} dlq ls --data-dir {data}
  metrics      http://{admin}/metrics

Kill it (Ctrl-C, or kill -9 {pid}) and start it again: everything acknowledged is still there.
",
        data = data_dir.display(),
        admin = context.shared.admin.listen,
        pid = std::process::id(),
    );
}
