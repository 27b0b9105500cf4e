//! Where gateways are and how to call them.

use tidings_proto::rpc::Channel;
use tonic::async_trait;

/// The gateways as push-fanout sees them.
#[async_trait]
pub trait Gateways: Send + Sync + 'static {
    /// A channel to the gateway that advertised itself as `address`.
    fn channel(&self, address: &str) -> anyhow::Result<Channel>;

    /// Every gateway there is, for the time routes cannot be read.
    async fn all(&self) -> Vec<String>;
}

/// The one gateway of the single-process mode.
pub struct InProcess {
    /// What the gateway advertises.
    pub address: String,
    /// Calls it directly.
    pub channel: Channel,
}

#[async_trait]
impl Gateways for InProcess {
    fn channel(&self, address: &str) -> anyhow::Result<Channel> {
        anyhow::ensure!(address == self.address, "there is no gateway {address} in this process");
        Ok(self.channel.clone())
    }

    async fn all(&self) -> Vec<String> {
        vec![self.address.clone()]
    }
}

/// Gateways behind DNS names.
pub struct ByName {
    /// How to connect.
    pub internal: tidings_chassis::config::InternalConfig,
    /// `host:port` names; each address behind them is a gateway.
    pub names: Vec<String>,
}

#[async_trait]
impl Gateways for ByName {
    fn channel(&self, address: &str) -> anyhow::Result<Channel> {
        Ok(tidings_chassis::grpc::connect_one(&self.internal, address)?)
    }

    async fn all(&self) -> Vec<String> {
        let mut addresses = Vec::new();
        for name in &self.names {
            match tokio::net::lookup_host(name.as_str()).await {
                Ok(found) => addresses.extend(found.map(|address| address.to_string())),
                Err(error) => tracing::warn!(name, %error, "gateway name does not resolve"),
            }
        }
        addresses.sort();
        addresses.dedup();
        addresses
    }
}
