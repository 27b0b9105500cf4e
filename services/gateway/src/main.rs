//! The binary `tidings-gateway`.

use std::process::ExitCode;

use tidings_chassis::{Context, Running, ServiceMain, grpc, stack};
use tidings_gateway::{Config, DEFAULTS, Dependencies, Internal, start};
use tidings_proto::v1::history_client::HistoryClient;
use tidings_proto::v1::inbox_client::InboxClient;

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

/// Opens the real adapters. Redis is not waited for: without routes push-fanout asks every gateway.
async fn open_dependencies(context: &Context, config: &Config) -> anyhow::Result<Dependencies> {
    let internal = &context.shared.internal;
    Ok(Dependencies {
        bus: stack::bus(context).await?,
        routes: stack::routes(&context.shared)?,
        inbox: InboxClient::new(grpc::connect(&context.tasks, internal, &config.gateway.inbox)?),
        history: HistoryClient::new(grpc::connect(&context.tasks, internal, &config.gateway.history)?),
        clock: stack::clock(),
        seed: stack::random_u64(),
        internal: Internal::Listen,
        web: None,
    })
}

fn main() -> ExitCode {
    tidings_chassis::main(Gateway)
}
