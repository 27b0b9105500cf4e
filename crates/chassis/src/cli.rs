//! Command line of a service binary.

use std::path::PathBuf;

use clap::Parser;

/// Exit code for bad usage or a bad configuration (EX_USAGE of sysexits).
pub const EXIT_USAGE: u8 = 64;

/// What every service binary takes. Everything else is configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Parser)]
#[command(version, about = None, long_about = None)]
pub struct Args {
    /// Configuration file (TOML), laid over the built-in defaults; TIDINGS__SECTION__KEY variables win over it.
    #[arg(long, value_name = "FILE", env = "TIDINGS_CONFIG")]
    pub config: Option<PathBuf>,
    /// Check the configuration, print every problem and exit.
    #[arg(long)]
    pub check_config: bool,
    /// Print the whole configuration as TOML with secrets hidden and exit.
    #[arg(long)]
    pub print_config: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn takes_the_documented_flags() {
        Args::command().debug_assert();
        let args = Args::try_parse_from(["x", "--config", "a.toml", "--check-config", "--print-config"]).unwrap();
        assert_eq!(
            args,
            Args {
                config: Some("a.toml".into()),
                check_config: true,
                print_config: true
            }
        );
        assert!(Args::try_parse_from(["x", "--confg", "a.toml"]).is_err());
    }
}
