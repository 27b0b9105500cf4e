//! Consumers as supervised parts of a service: their readiness, their failure, their drain.

use std::sync::Arc;
use std::time::Duration;

use tidings_bus::Bus;
use tidings_bus::metrics::Metrics;
use tidings_bus::runtime::{ConsumerHandle, Runtime, RuntimeConfig};
use tidings_domain::clock::SharedClock;

use crate::limits::Limits;
use crate::run::{Context, Running};

/// How often a consumer's readiness is looked at.
const READINESS_INTERVAL: Duration = Duration::from_millis(250);

/// What the consumers of a service share: one internal producer (seq:G3), metrics, the intake token.
#[must_use]
pub fn runtime(context: &Context, bus: Arc<dyn Bus>, clock: SharedClock) -> Runtime {
    Runtime::new(
        bus,
        clock,
        Metrics::register(&context.registry),
        tokio::runtime::Handle::current(),
        context.tasks.intake.clone(),
    )
}

/// The runtime's settings with the suite's limits.
#[must_use]
pub fn settings(limits: &Limits) -> RuntimeConfig {
    let mut config = RuntimeConfig::default();
    config.fold.checkpoint_interval = limits.checkpoint_interval;
    config.fold.checkpoint_records = limits.checkpoint_records as usize;
    config.host = host();
    // Jitter must differ between processes.
    config.seed = u64::from(std::process::id());
    config
}

/// The name this process has in dead letters and routes.
#[must_use]
pub fn host() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "unknown".to_owned())
}

/// Ties a consumer to the process: a failure ends it, readiness follows it, shutdown waits until it has drained,
/// committed and left its group.
pub fn supervise(context: &Context, consumer: &ConsumerHandle) -> Running {
    let name = consumer.group().name();
    let gate = context.readiness.gate(name);
    gate.close("no partitions assigned yet");
    let watched = consumer.clone();
    let shutdown = context.tasks.shutdown.clone();
    context.tasks.spawn(format!("consumer {name}"), async move {
        let mut last = Err(String::new());
        loop {
            let readiness = watched.readiness();
            if readiness != last {
                match &readiness {
                    Ok(()) => gate.open(),
                    Err(reason) => gate.close(reason.clone()),
                }
                last = readiness;
            }
            tokio::select! {
                failure = watched.failed() => return Err(failure.into()),
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(READINESS_INTERVAL) => {}
            }
        }
    });
    let drained = consumer.clone();
    Running::new().drain(format!("consumer {name}"), async move {
        drained.stopped().await;
        Ok(())
    })
}
