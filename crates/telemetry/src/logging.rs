//! The log subscriber of a process.
//!
//! Levels have a written meaning: `error` = somebody must act; `warn` = degraded, and it heals or is counted; `info` =
//! life cycle (start, stop, assignment, a setting that matters), a few lines a minute at most; `debug` = per batch;
//! `trace` = per record. Messages are lowercase without a trailing stop; data goes in to fields.

use std::fmt;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line, fields flattened: for machines.
    Json,
    /// For people at a terminal.
    Pretty,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogFormat::Json => "json",
            LogFormat::Pretty => "pretty",
        })
    }
}

impl FromStr for LogFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "json" => Ok(LogFormat::Json),
            "pretty" => Ok(LogFormat::Pretty),
            _ => Err(Error::UnknownFormat(text.to_owned())),
        }
    }
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a directive list such as `info,tidings_bus=debug`.
    #[error("log filter `{filter}` is not valid: {source}")]
    BadFilter {
        /// The text that was given.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// A format name other than `json` and `pretty`.
    #[error("unknown log format `{0}`, use `json` or `pretty`")]
    UnknownFormat(String),
}

/// Checks a filter such as `info,tidings_bus=debug` without installing anything.
///
/// # Errors
/// [`Error::BadFilter`].
pub fn parse_filter(filter: &str) -> Result<EnvFilter, Error> {
    EnvFilter::builder().parse(filter).map_err(|source| Error::BadFilter {
        filter: filter.to_owned(),
        source,
    })
}

/// Installs the process-wide subscriber, writing to stderr. If one is installed already (a test, or a service started
/// inside another process) that one stays and this call changes nothing.
///
/// # Errors
/// [`Error::BadFilter`], also when a subscriber is installed already.
pub fn init(format: LogFormat, filter: &str) -> Result<(), Error> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parse_filter(filter)?)
        .with_writer(std::io::stderr);
    let installed = match format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .finish()
            .try_init(),
        LogFormat::Pretty => builder
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .finish()
            .try_init(),
    };
    // The only error is "already installed", which the contract allows.
    drop(installed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_init_is_harmless() {
        init(LogFormat::Pretty, "warn").unwrap();
        init(LogFormat::Json, "info,tidings_bus=debug").unwrap();
    }

    #[test]
    fn a_bad_filter_is_named() {
        let message = init(LogFormat::Json, "tidings=loudly").unwrap_err().to_string();
        assert!(message.contains("tidings=loudly"), "{message}");
    }

    #[test]
    fn formats_round_trip_and_others_are_refused() {
        for format in [LogFormat::Json, LogFormat::Pretty] {
            assert_eq!(format.to_string().parse::<LogFormat>().unwrap(), format);
        }
        assert!("xml".parse::<LogFormat>().unwrap_err().to_string().contains("xml"));
    }
}
