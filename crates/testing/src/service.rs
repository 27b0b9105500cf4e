//! A service under test with its context.

use tidings_chassis::{Context, Running, Shared};
use tokio::time::Instant;

use crate::DEADLINE;

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
        let text = self.context.registry.encode();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no series {series} in\n{text}"))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // A test that ends early, or that leaves the service behind as a crash would, must not keep its threads alive.
        self.context.tasks.shutdown.cancel();
    }
}
