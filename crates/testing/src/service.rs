//! A service under test with its context.

use tidings_bus::ConsumerGroup;
use tidings_chassis::{Context, Running, Shared};
use tokio::time::Instant;

use crate::{DEADLINE, eventually};

/// What a started service is held by.
pub struct Service {
    /// Its context.
    pub context: Context,
    running: Option<Running>,
}

impl Service {
    /// A context with the default configuration.
    #[must_use]
    pub fn context(name: &'static str) -> Context {
        Context::new(name, Shared::defaults())
    }

    /// Holds what `start` gave.
    #[must_use]
    pub fn new(context: Context, running: Running) -> Self {
        Self {
            context,
            running: Some(running),
        }
    }

    /// Stops it in order.
    ///
    /// # Panics
    /// If a step or a task is left.
    pub async fn stop(mut self) {
        if let Some(running) = self.running.take() {
            let unfinished = running.stop(&self.context, Instant::now() + DEADLINE).await;
            assert_eq!(unfinished, Vec::<String>::new());
        }
        assert_eq!(self.context.tasks.failures(), []);
    }

    /// The value of a series as scraped.
    ///
    /// # Panics
    /// If there is no such series.
    #[must_use]
    pub fn metric(&self, series: &str) -> f64 {
        self.try_metric(series)
            .unwrap_or_else(|| panic!("no series {series} in\n{}", self.context.registry.encode()))
    }

    /// The value of a series as scraped; `None` if there is none yet.
    #[must_use]
    pub fn try_metric(&self, series: &str) -> Option<f64> {
        let text = self.context.registry.encode();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value?.parse().ok()
    }
}

impl Service {
    /// Waits until its consumer has settled so many records since it started.
    pub async fn until_settled(&self, group: ConsumerGroup, records: u64) {
        let series = format!("tidings_consumer_settled_total{{group=\"{}\"}}", group.name());
        eventually(&format!("{records} records settled"), async || {
            self.try_metric(&series)
                .is_some_and(|settled| settled >= records as f64)
        })
        .await;
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // A test that ends early, or that leaves the service behind as a crash would, must not keep its threads alive.
        self.context.tasks.shutdown.cancel();
    }
}
