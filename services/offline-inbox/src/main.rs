//! The binary `tidings-offline-inbox`: the service on the real stack.

use std::sync::Arc;

use tidings_chassis::{Context, Running, ServiceMain, grpc, stack};
use tidings_offline_inbox::{Config, Dependencies};
use tidings_storage::port::InboxReader as _;
use tonic::service::Routes;

struct OfflineInbox;

impl ServiceMain for OfflineInbox {
    const NAME: &'static str = "offline-inbox";
    const DEFAULTS: &'static str = include_str!("../config.default.toml");
    type Config = Config;

    async fn start(self, context: Context, config: Config) -> anyhow::Result<Running> {
        let bus = stack::bus(&context).await?;
        let store = Arc::new(stack::store(&context).await);
        let hot = stack::hot_window(&context.shared, store.cursor_epoch().await?)?;
        let dependencies = Dependencies {
            bus,
            reader: Arc::clone(&store) as _,
            store,
            hot,
            clock: stack::clock(),
            guarded: true,
        };
        let (server, running) = tidings_offline_inbox::start(&context, &config, dependencies).await?;
        grpc::serve_internal(&context.tasks, &context.shared.internal, Routes::new(server)).await?;
        Ok(running)
    }
}

fn main() -> std::process::ExitCode {
    tidings_chassis::main(OfflineInbox)
}
