//! What all binaries of the suite share, so that a service is its `start` and nothing else.
//!
//! [`run::main`] takes a process from its command line to its exit code: [`cli`] → [`config`] → logging → [`admin`]
//! port → the service's start → [`tasks`] supervised → signal → drain. [`readiness`] gates say when traffic makes
//! sense; [`grpc`] finds and authenticates the other services; [`limits`] are the constants of sequencing that every
//! service must agree on.
//!
//! A service's `main.rs`:
//!
//! ```no_run
//! use tidings_chassis::{Context, Running, ServiceMain, config::Validate};
//!
//! #[derive(serde::Deserialize)]
//! struct Config {}
//! impl Validate for Config {
//!     fn validate(&self) -> Vec<String> {
//!         Vec::new()
//!     }
//! }
//!
//! struct Router;
//! impl ServiceMain for Router {
//!     const NAME: &'static str = "router";
//!     const DEFAULTS: &'static str = "";
//!     type Config = Config;
//!     async fn start(self, context: Context, _config: Config) -> anyhow::Result<Running> {
//!         let shutdown = context.tasks.shutdown.clone();
//!         context.tasks.spawn("fold", async move {
//!             shutdown.cancelled().await;
//!             Ok(())
//!         });
//!         Ok(Running::new())
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     tidings_chassis::main(Router)
//! }
//! ```

pub mod admin;
pub mod cli;
pub mod config;
pub mod consume;
pub mod folding;
pub mod grpc;
pub mod limits;
mod metrics;
pub mod readiness;
pub mod run;
#[cfg(feature = "stack")]
pub mod stack;
pub mod tasks;

pub use config::{Secret, Shared, Validate};
pub use limits::Limits;
pub use readiness::{Gate, Readiness};
pub use run::{Context, Running, ServiceMain, main};
pub use tasks::Supervisor;

/// Version of the suite.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Source revision the binary was built from, if the build passed `TIDINGS_REVISION`.
pub const REVISION: &str = match option_env!("TIDINGS_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};
