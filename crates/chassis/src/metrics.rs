//! Metrics of the process itself, refreshed when they are read.

use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::resource::{UsageWho, getrusage};
use tidings_telemetry::metrics::Registry;
use tidings_telemetry::prometheus_client::metrics::counter::Counter;
use tidings_telemetry::prometheus_client::metrics::gauge::Gauge;
use tidings_telemetry::prometheus_client::metrics::info::Info;

use crate::readiness::Readiness;
use crate::tasks::Supervisor;

/// Handles of the metrics every process has.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    resident_memory: Gauge,
    cpu: Counter<f64, AtomicU64>,
    threads: Gauge,
    open_fds: Gauge,
    supervised_tasks: Gauge,
    ready: Gauge,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry, service: &str) -> Self {
        let metrics = Self {
            resident_memory: Gauge::default(),
            cpu: Counter::default(),
            threads: Gauge::default(),
            open_fds: Gauge::default(),
            supervised_tasks: Gauge::default(),
            ready: Gauge::default(),
        };
        let build = [
            ("service", service),
            ("version", crate::VERSION),
            ("revision", crate::REVISION),
        ];
        registry.register("tidings_build", "What runs here", Info::new(build.map(owned).to_vec()));
        registry.register(
            "tidings_ready",
            "1 while all readiness gates are open",
            metrics.ready.clone(),
        );
        registry.register(
            "tidings_supervised_tasks",
            "Named tasks and threads that run",
            metrics.supervised_tasks.clone(),
        );
        registry.register(
            "process_resident_memory_bytes",
            "Resident memory of the process",
            metrics.resident_memory.clone(),
        );
        registry.register(
            "process_cpu_seconds",
            "User and system CPU time of the process",
            metrics.cpu.clone(),
        );
        registry.register("process_threads", "Threads of the process", metrics.threads.clone());
        registry.register(
            "process_open_fds",
            "Open file descriptors of the process",
            metrics.open_fds.clone(),
        );
        metrics
    }

    /// Reads the present values. What the system does not tell keeps its last value.
    pub(crate) fn refresh(&self, tasks: &Supervisor, readiness: &Readiness) {
        self.supervised_tasks.set(saturating(tasks.running_count()));
        self.ready.set(i64::from(readiness.is_ready()));
        if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
            if let Some(kibibytes) = status_field(&status, "VmRSS:") {
                self.resident_memory.set(kibibytes.saturating_mul(1024));
            }
            if let Some(threads) = status_field(&status, "Threads:") {
                self.threads.set(threads);
            }
        }
        if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
            // One of them is the descriptor of this listing.
            self.open_fds.set(saturating(entries.count().saturating_sub(1)));
        }
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            let seconds = [usage.user_time(), usage.system_time()]
                .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
                .iter()
                .sum::<f64>();
            // Set, not added: the system counts, two scrapes at once must not add twice.
            self.cpu.inner().store(seconds.to_bits(), Ordering::Relaxed);
        }
    }
}

fn owned((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

fn saturating(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The number after `name` in `/proc/self/status`.
fn status_field(status: &str, name: &str) -> Option<i64> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_fields_of_the_status_file() {
        let status = "Name:\ttidings\nVmRSS:\t   13248 kB\nThreads:\t9\n";
        assert_eq!(status_field(status, "VmRSS:"), Some(13_248));
        assert_eq!(status_field(status, "Threads:"), Some(9));
        assert_eq!(status_field(status, "VmSwap:"), None);
    }
}
