//! The binary `tidings-storage-consumer`: the service on the real stack.

use std::sync::Arc;

use tidings_chassis::{Context, Running, ServiceMain, grpc, stack};
use tidings_storage_consumer::{Config, Dependencies};
use tonic::service::Routes;

struct StorageConsumer;

impl ServiceMain for StorageConsumer {
    const NAME: &'static str = "storage-consumer";
    const DEFAULTS: &'static str = include_str!("../config.default.toml");
    type Config = Config;

    async fn start(self, context: Context, config: Config) -> anyhow::Result<Running> {
        let bus = stack::bus(&context).await?;
        let store = Arc::new(stack::store(&context).await);
        let dependencies = Dependencies {
            bus,
            store,
            clock: stack::clock(),
        };
        let (server, running) = tidings_storage_consumer::start(&context, &config, dependencies)?;
        grpc::serve_internal(&context.tasks, &context.shared.internal, Routes::new(server)).await?;
        Ok(running)
    }
}

fn main() -> std::process::ExitCode {
    tidings_chassis::main(StorageConsumer)
}
