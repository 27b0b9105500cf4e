//! Who a command is and which server it talks to.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use tidings_client::{ClientConfig, Database};
use tidings_domain::{DeviceId, Uid};

use crate::dev::Instance;
use crate::token;

/// How long a token minted for one command is valid.
const TOKEN_TTL: Duration = Duration::from_secs(24 * 3600);

/// Server and user.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Login {
    /// The user. With a running `tidings dev` a token is made by itself.
    #[arg(long = "as", value_name = "UID")]
    uid: String,
    /// Talk to the `tidings dev` that uses this directory.
    #[arg(long, default_value = ".tidings")]
    data_dir: PathBuf,
    /// Address of a gateway, `ws://host:port/v1/connect`; with --token.
    #[arg(long, requires = "token")]
    url: Option<String>,
    /// Token of the user (see `tidings token`).
    #[arg(long, env = "TIDINGS_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// A server and what to log in with.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    /// `ws://host:port/v1/connect`
    pub(crate) url: String,
    /// Proves who the user is.
    pub(crate) token: String,
    /// The user.
    pub(crate) uid: Uid,
}

impl Login {
    /// Finds the server and gets a token.
    pub(crate) fn access(&self) -> anyhow::Result<Access> {
        let uid = Uid::parse(&self.uid)?;
        if let (Some(url), Some(token)) = (&self.url, &self.token) {
            return Ok(Access {
                url: url.clone(),
                token: token.clone(),
                uid,
            });
        }
        let instance = Instance::load(&self.data_dir)?;
        let token = match &self.token {
            Some(token) => token.clone(),
            None => token::mint(&instance.secret, &uid, TOKEN_TTL, None)?,
        };
        Ok(Access {
            url: instance.url,
            token,
            uid,
        })
    }
}

impl Access {
    /// The configuration of a client on `device` with its messages in `database`.
    pub(crate) fn client(&self, device: &str, database: Database) -> anyhow::Result<ClientConfig> {
        let device = DeviceId::parse(device).context("--device")?;
        Ok(ClientConfig::new(
            &self.url,
            &self.token,
            self.uid.clone(),
            device,
            database,
        ))
    }
}

/// Where the chats of this machine are kept: `$XDG_DATA_HOME/tidings`, else `~/.local/share/tidings`.
pub(crate) fn local_databases() -> anyhow::Result<PathBuf> {
    let base = match std::env::var_os("XDG_DATA_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(std::env::var_os("HOME").context("neither XDG_DATA_HOME nor HOME is set")?)
            .join(".local/share"),
    };
    Ok(base.join("tidings"))
}
