//! The life of a process: configuration, logging, admin port, start, wait, drain, end.
//!
//! ```text
//! parse arguments → load and check configuration (exit 64 with every problem)
//!   → logging → signal handlers → admin port bound (/readyz answers 503)
//!   → ServiceMain::start(context, config)  ──error──► stop, exit 1
//!   → wait: first signal │ a supervised task went wrong │ admin server ended
//!   → not ready → cancel `intake` → drain steps in order → cancel `shutdown` → join tasks → stop admin → exit
//! ```
//!
//! Everything from the first signal to the end shares one deadline; what is not done by then is named and left. A
//! second signal ends the process at once, also during start. Guarantee: the exit code is 0 only if a signal asked for
//! the end and every task ended by itself.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use tidings_telemetry::logging;
use tidings_telemetry::metrics::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::admin::{self, AdminServer};
use crate::cli::{Args, EXIT_USAGE};
use crate::config::{self, Merged, Shared, Validate};
use crate::readiness::Readiness;
use crate::tasks::{Supervisor, TaskFailure};

/// Name of the chassis's own readiness gate: open once `start` has returned.
const START_GATE: &str = "start";

/// Time kept back from the shutdown deadline to stop the admin server.
const ADMIN_STOP: Duration = Duration::from_millis(200);

/// How long the runtime may take to let go of blocking calls after everything else has ended.
const RUNTIME_STOP: Duration = Duration::from_millis(200);

/// What a service is given to start with.
#[derive(Clone, Debug)]
pub struct Context {
    /// The service's name, such as `router`.
    pub service: &'static str,
    /// The shared sections of the configuration.
    pub shared: Arc<Shared>,
    /// Where to register metrics.
    pub registry: Registry,
    /// Where to get readiness gates.
    pub readiness: Readiness,
    /// Where to spawn tasks; holds the tokens `intake` and `shutdown`.
    pub tasks: Supervisor,
}

impl Context {
    /// A context of its own, for a process or a test.
    pub fn new(service: &'static str, shared: Shared) -> Self {
        Self {
            service,
            shared: Arc::new(shared),
            registry: Registry::new(),
            readiness: Readiness::new(),
            tasks: Supervisor::new(),
        }
    }

    /// The view of one of several services in this process: metrics get a `service` label, gates and tasks a prefix;
    /// tokens and the rest are shared.
    #[must_use]
    pub fn for_service(&self, service: &'static str) -> Self {
        Self {
            service,
            shared: Arc::clone(&self.shared),
            registry: self.registry.labelled("service", service),
            readiness: self.readiness.prefixed(service),
            tasks: self.tasks.prefixed(service),
        }
    }
}

/// A started service: what must happen, in order, between the end of intake and the end of its tasks.
#[derive(Default)]
pub struct Running {
    drains: Vec<(String, BoxFuture<'static, anyhow::Result<()>>)>,
}

impl Running {
    /// Nothing to drain; all ends with the tokens.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a step, such as flushing a producer. Steps run after `intake` is cancelled, one after the other in the
    /// order they were added; what does not finish by the deadline is dropped and named.
    #[must_use]
    pub fn drain<F>(mut self, name: impl Into<String>, step: F) -> Self
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.drains.push((name.into(), Box::pin(step)));
        self
    }

    /// The steps of `self`, then those of `other`.
    #[must_use]
    pub fn then(mut self, other: Running) -> Self {
        self.drains.extend(other.drains);
        self
    }

    /// The shutdown sequence without the admin port, also for services started in a test or by another program.
    /// Gives the names of the drain steps that failed or did not finish and of the tasks that did not.
    pub async fn stop(self, context: &Context, deadline: Instant) -> Vec<String> {
        let mut unfinished = Vec::new();
        context.readiness.begin_shutdown();
        context.tasks.intake.cancel();
        for (name, step) in self.drains {
            match tokio::time::timeout_at(deadline, step).await {
                Ok(Ok(())) => tracing::info!(step = name, "drained"),
                Ok(Err(error)) => {
                    tracing::error!(step = name, error = format!("{error:#}"), "drain step failed");
                    unfinished.push(name);
                }
                Err(_) => unfinished.push(name),
            }
        }
        context.tasks.shutdown.cancel();
        unfinished.extend(context.tasks.join_all(deadline).await);
        unfinished
    }
}

/// A service as its `main.rs` hands it to [`main`].
pub trait ServiceMain: Send + 'static {
    /// Name without the prefix of the suite, such as `router`; the binary is `tidings-router`.
    const NAME: &'static str;
    /// The service's `config.default.toml` (`include_str!`).
    const DEFAULTS: &'static str;
    /// The service's sections; use `#[serde(flatten)]` or name the shared sections it needs.
    type Config: DeserializeOwned + Validate + Send + 'static;

    /// Wires the service: binds its ports, then spawns its tasks through `context.tasks`, and returns. Waits for
    /// dependencies belong in to tasks behind a readiness gate, not here.
    ///
    /// # Errors
    /// Anything that makes the process useless.
    fn start(self, context: Context, config: Self::Config) -> impl Future<Output = anyhow::Result<Running>> + Send;
}

/// Why a process stops.
#[derive(Debug)]
pub enum Stop {
    /// This signal asked for it.
    Signal(&'static str),
    /// The service could not start.
    StartFailed(anyhow::Error),
    /// A supervised task went wrong.
    TaskFailed(TaskFailure),
    /// The admin port could not be bound or its server ended.
    AdminFailed(admin::Error),
}

/// How a process ended.
#[derive(Debug)]
pub struct Outcome {
    /// What began the end.
    pub stop: Stop,
    /// Drain steps and tasks that were left.
    pub unfinished: Vec<String>,
    /// Tasks that went wrong, also during the shutdown.
    pub failures: Vec<TaskFailure>,
    /// A second signal cut the shutdown short.
    pub cut_short: bool,
}

impl Outcome {
    /// 0 after a clean end on a signal; 1 if start or a task failed; 75 (EX_TEMPFAIL) if something was left at the
    /// deadline; 130 after a second signal.
    pub fn exit_code(&self) -> u8 {
        match &self.stop {
            _ if self.cut_short => 130,
            Stop::StartFailed(_) | Stop::TaskFailed(_) | Stop::AdminFailed(_) => 1,
            Stop::Signal(_) if !self.failures.is_empty() => 1,
            Stop::Signal(_) if !self.unfinished.is_empty() => 75,
            Stop::Signal(_) => 0,
        }
    }
}

/// Runs a service from its command line to the end of the process; the whole of a `main.rs`.
pub fn main<S: ServiceMain>(service: S) -> ExitCode {
    let args = match parse_args(S::NAME) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let env = std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value)));
    let loaded = config::load_and_validate::<S::Config>(S::DEFAULTS, args.config.as_deref(), env);
    let (own, shared, merged) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if args.print_config {
        print!("{}", merged.redacted());
    }
    if args.check_config || args.print_config {
        return ExitCode::SUCCESS;
    }
    if let Err(error) = logging::init(shared.log.format, &shared.log.filter) {
        eprintln!("{error}");
        return ExitCode::from(EXIT_USAGE);
    }
    log_panics();
    announce(S::NAME, &merged, &shared);
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name(S::NAME)
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "runtime cannot be started");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async move {
        let signals = os_signals()?;
        let context = Context::new(S::NAME, shared);
        let started = context.clone();
        anyhow::Ok(run(context, signals, async move { service.start(started, own).await }).await)
    });
    // A blocking call that hangs (a name look-up) must not hold the process.
    runtime.shutdown_timeout(RUNTIME_STOP);
    match outcome {
        Ok(outcome) => ExitCode::from(outcome.exit_code()),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "signal handlers cannot be installed");
            ExitCode::FAILURE
        }
    }
}

/// [`main`] after the configuration: admin port, start, wait, shutdown. `signals` gives the names of the signals as
/// they arrive; `start` is the service's start, or that of several in one process.
pub async fn run<F>(context: Context, mut signals: mpsc::Receiver<&'static str>, start: F) -> Outcome
where
    F: Future<Output = anyhow::Result<Running>> + Send,
{
    let gate = context.readiness.gate(START_GATE);
    let admin = AdminServer::start(
        context.shared.admin.listen,
        context.service,
        context.registry.clone(),
        context.readiness.clone(),
        context.tasks.clone(),
    );
    let mut admin = match admin.await {
        Ok(admin) => admin,
        Err(error) => {
            tracing::error!(%error, "admin port cannot be bound");
            return Outcome {
                stop: Stop::AdminFailed(error),
                unfinished: vec![],
                failures: vec![],
                cut_short: false,
            };
        }
    };
    tracing::info!(addr = %admin.addr(), "admin port listens");

    let mut running = Running::new();
    let mut start = Box::pin(start);
    let mut starting = true;
    let stop = loop {
        tokio::select! {
            biased;
            name = next(&mut signals) => break Stop::Signal(name),
            failure = context.tasks.failed() => break Stop::TaskFailed(failure),
            error = admin.ended() => break Stop::AdminFailed(error),
            started = &mut start, if starting => match started {
                Ok(started) => {
                    starting = false;
                    running = started;
                    gate.open();
                    tracing::info!(service = context.service, "started");
                }
                Err(error) => break Stop::StartFailed(error),
            },
        }
    };
    // A start that is still under way is abandoned before its tasks are stopped.
    drop(start);
    log_stop(&stop);

    let deadline = Instant::now() + context.shared.shutdown.deadline;
    let admin_lives = !matches!(stop, Stop::AdminFailed(_));
    let sequence = async {
        let unfinished = running
            .stop(&context, deadline.checked_sub(ADMIN_STOP).unwrap_or(deadline))
            .await;
        if admin_lives {
            admin.stop(deadline).await;
        }
        unfinished
    };
    let (unfinished, cut_short) = tokio::select! {
        biased;
        name = next(&mut signals) => {
            tracing::warn!(signal = name, "second signal, exiting at once");
            (context.tasks.running(), true)
        }
        unfinished = sequence => (unfinished, false),
    };
    if !unfinished.is_empty() {
        tracing::error!(left = unfinished.join(", "), "not finished");
    }
    let outcome = Outcome {
        stop,
        unfinished,
        failures: context.tasks.failures(),
        cut_short,
    };
    tracing::info!(exit_code = outcome.exit_code(), "stopped");
    outcome
}

async fn next(signals: &mut mpsc::Receiver<&'static str>) -> &'static str {
    match signals.recv().await {
        Some(name) => name,
        // Nobody can send any more.
        None => std::future::pending().await,
    }
}

/// SIGTERM and SIGINT as a stream of their names.
///
/// # Errors
/// The handlers cannot be installed.
pub fn os_signals() -> anyhow::Result<mpsc::Receiver<&'static str>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Two signals mean something, more do not.
    let (sender, receiver) = mpsc::channel(2);
    // Ends with the receiver, at the end of the run.
    tokio::spawn(async move {
        loop {
            let name = tokio::select! {
                received = terminate.recv() => received.map(|()| "SIGTERM"),
                received = interrupt.recv() => received.map(|()| "SIGINT"),
                () = sender.closed() => None,
            };
            let Some(name) = name else { return };
            if sender.send(name).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

fn parse_args(service: &str) -> Result<Args, ExitCode> {
    let binary = format!("tidings-{service}");
    let command = Args::command()
        .display_name(&binary)
        .bin_name(&binary)
        .version(crate::VERSION);
    let parsed = command
        .try_get_matches()
        .and_then(|matches| Args::from_arg_matches(&matches));
    parsed.map_err(|error| {
        // Nothing is left to tell if the terminal is gone.
        drop(error.print());
        if error.use_stderr() {
            ExitCode::from(EXIT_USAGE)
        } else {
            ExitCode::SUCCESS
        }
    })
}

fn lossy(text: std::ffi::OsString) -> String {
    text.to_string_lossy().into_owned()
}

/// Panics go in to the log, where the other lines are, in the same format.
fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        tracing::error!(thread, panic = %info, "panic");
    }));
}

fn announce(service: &str, merged: &Merged, shared: &Shared) {
    tracing::info!(
        service,
        version = crate::VERSION,
        revision = crate::REVISION,
        config = merged.redacted(),
        "starting"
    );
    if shared.internal.shared_token.expose().is_none() {
        tracing::warn!("internal.shared_token is not set, internal calls are not authenticated");
    }
}

fn log_stop(stop: &Stop) {
    match stop {
        Stop::Signal(name) => tracing::info!(signal = name, "shutting down"),
        Stop::StartFailed(error) => tracing::error!(error = format!("{error:#}"), "start failed, shutting down"),
        Stop::TaskFailed(failure) => tracing::error!(%failure, "task went wrong, shutting down"),
        Stop::AdminFailed(error) => tracing::error!(%error, "admin port lost, shutting down"),
    }
}

#[cfg(test)]
mod tests;
