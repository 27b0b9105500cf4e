//! The binary `tidings-push-fanout`: the service on the real stack.

use std::sync::Arc;

use tidings_chassis::{Context, Running, ServiceMain, stack};
use tidings_push_fanout::gateways::ByName;
use tidings_push_fanout::{Config, Dependencies};

struct PushFanout;

impl ServiceMain for PushFanout {
    const NAME: &'static str = "push-fanout";
    const DEFAULTS: &'static str = include_str!("../config.default.toml");
    type Config = Config;

    async fn start(self, context: Context, config: Config) -> anyhow::Result<Running> {
        let bus = stack::bus(&context).await?;
        let gateways = Arc::new(ByName {
            internal: context.shared.internal.clone(),
            names: config.push_fanout.gateways.clone(),
        });
        let routes = stack::routes(&context.shared)?;
        let dependencies = Dependencies {
            bus,
            routes,
            gateways,
            clock: stack::clock(),
        };
        tidings_push_fanout::start(&context, &config, dependencies)
    }
}

fn main() -> std::process::ExitCode {
    tidings_chassis::main(PushFanout)
}
