//! The binary `tidings-router`: the service on the real stack.

use tidings_chassis::{Context, Running, ServiceMain, stack};
use tidings_router::{Config, Dependencies};

struct Router;

impl ServiceMain for Router {
    const NAME: &'static str = "router";
    const DEFAULTS: &'static str = include_str!("../config.default.toml");
    type Config = Config;

    async fn start(self, context: Context, config: Config) -> anyhow::Result<Running> {
        let bus = stack::bus(&context).await?;
        let store = std::sync::Arc::new(stack::store(&context).await);
        tidings_router::start(
            &context,
            &config,
            Dependencies {
                bus,
                store,
                clock: stack::clock(),
                guarded: true,
            },
        )
    }
}

fn main() -> std::process::ExitCode {
    tidings_chassis::main(Router)
}
