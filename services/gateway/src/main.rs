//! The binary `tidings-gateway`.

use std::process::ExitCode;

use tidings_chassis::{Context, Running, ServiceMain};
use tidings_gateway::{Config, DEFAULTS, Dependencies, start};

struct Gateway;

impl ServiceMain for Gateway {
    const NAME: &'static str = "gateway";
    const DEFAULTS: &'static str = DEFAULTS;
    type Config = Config;

    async fn start(self, context: Context, config: Config) -> anyhow::Result<Running> {
        let dependencies = open_dependencies(&context, &config).await?;
        Ok(start(&context, config, dependencies).await?.running)
    }
}

/// Opens the real adapters.
#[expect(clippy::unused_async, reason = "opening the adapters waits for them")]
async fn open_dependencies(_context: &Context, _config: &Config) -> anyhow::Result<Dependencies> {
    anyhow::bail!("this build cannot open the adapters of the stack")
}

fn main() -> ExitCode {
    tidings_chassis::main(Gateway)
}
