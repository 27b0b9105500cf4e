//! Strict layered configuration.
//!
//! Layers, later ones win: the shared defaults of this crate, the service's embedded `config.default.toml`, one
//! optional file, environment variables `TIDINGS__SECTION__KEY=value`. The keys of the defaults are *all* keys: what
//! stands in neither default is refused with its full path and the nearest valid key, and every value must have the
//! type of its default. A table `[removed]` in a default maps a former key to the text that says what replaced it.
//!
//! Guarantee (req:G1, "unknown config key" in the architecture): a configuration is accepted whole or refused with
//! *all* its problems; nothing is silently ignored. Secrets never appear in an error, in [`Merged::redacted`] or in
//! `Debug`.
//!
//! ```
//! #[derive(serde::Deserialize)]
//! struct Config { limits: tidings_chassis::Limits, demo: Demo }
//! #[derive(serde::Deserialize)]
//! struct Demo { window_records: u32 }
//! let env = [("TIDINGS__DEMO__WINDOW_RECORDS".to_owned(), "64".to_owned())];
//! let config: Config = tidings_chassis::config::load("[demo]\nwindow_records = 32", None, env.into_iter())?;
//! assert_eq!(config.demo.window_records, 64);
//! # Ok::<(), tidings_chassis::config::ConfigError>(())
//! ```

mod error;
mod layers;
mod redact;
mod sections;

pub mod duration;

use std::path::Path;

use serde::de::DeserializeOwned;

pub use error::{ConfigError, Origin, Problem};
pub use layers::{ENV_PREFIX, Merged, SHARED_DEFAULTS, merge, merge_all};
pub use redact::{Secret, redact_url};
pub use sections::{
    AdminConfig, CqlConfig, GroupProtocol, InternalConfig, KafkaConfig, LogConfig, RedisConfig, SecurityProtocol,
    Shared, ShutdownConfig, TopicProfile,
};

/// Relations between values that types cannot express, checked once at start.
pub trait Validate {
    /// One message per broken relation, naming the keys and the values; empty if all hold.
    fn validate(&self) -> Vec<String>;
}

/// Merges the layers and reads them as `T`, which need not name the sections it does not use.
///
/// # Errors
/// All problems of all layers.
pub fn load<T: DeserializeOwned>(
    defaults_toml: &str,
    file: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
) -> Result<T, ConfigError> {
    merge(defaults_toml, file, env)?.parse()
}

/// [`load`], then the relation checks of the shared sections and of `T`. Gives back the merged table too, to print it.
///
/// # Errors
/// All problems of all layers, or all broken relations.
pub fn load_and_validate<T: DeserializeOwned + Validate>(
    defaults_toml: &str,
    file: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
) -> Result<(T, Shared, Merged), ConfigError> {
    let merged = merge(defaults_toml, file, env)?;
    let mut problems = Vec::new();
    let shared = merged
        .parse::<Shared>()
        .map_err(|error| problems.extend(error.problems))
        .ok();
    let own = merged
        .parse::<T>()
        .map_err(|error| problems.extend(error.problems))
        .ok();
    problems.extend(shared.iter().flat_map(Validate::validate).map(Problem::Relation));
    problems.extend(own.iter().flat_map(Validate::validate).map(Problem::Relation));
    // A section that both read reports the same fault twice.
    let mut seen = std::collections::HashSet::new();
    problems.retain(|problem| seen.insert(problem.to_string()));
    match (own, shared) {
        (Some(own), Some(shared)) if problems.is_empty() => Ok((own, shared, merged)),
        _ => Err(ConfigError { problems }),
    }
}

#[cfg(test)]
mod tests;
