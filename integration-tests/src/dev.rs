//! All services in one process: `tidings dev` with a data directory of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use tempfile::TempDir;
use tidings_domain::Uid;
use xtask::stack::ports;

use crate::cluster::json_lines;
use crate::process::{self, Process, Spec, binary, log_directory};
use crate::system::{Part, System};
use crate::token;

const SECRET: &str = "the secret of the end-to-end tests in one process";

/// The running process.
pub struct Dev {
    process: Process,
    gateway: SocketAddr,
    /// Removed with this value, after the process is killed (fields drop in their order).
    data: TempDir,
}

impl Dev {
    /// Starts it on free ports and an empty data directory, and waits until it is ready.
    pub async fn start(test: &str) -> Result<Self> {
        let data = tempfile::tempdir().context("making a data directory")?;
        let mut free = ports::free(3, &[IpAddr::V4(Ipv4Addr::LOCALHOST)])?.into_iter();
        let mut next = || -> Result<SocketAddr> {
            let port = free.next().context("one port per use was taken")?;
            Ok((Ipv4Addr::LOCALHOST, port).into())
        };
        let (gateway, internal, admin) = (next()?, next()?, next()?);
        let directory = data.path().to_str().context("a data directory in UTF-8")?.to_owned();
        let env = [
            ("TIDINGS__GATEWAY__LISTEN", gateway.to_string()),
            ("TIDINGS__GATEWAY__HS256_SECRET", SECRET.to_owned()),
            // After a lost push a device learns of it by the heads: tests do not wait for half a minute.
            ("TIDINGS__GATEWAY__HEADS_INTERVAL_MS", "2000".to_owned()),
            ("TIDINGS__GATEWAY__RECONNECT_SPREAD_MS", "1000".to_owned()),
            ("TIDINGS__INTERNAL__LISTEN", internal.to_string()),
            ("TIDINGS__ADMIN__LISTEN", admin.to_string()),
        ];
        let process = Process::start(Spec {
            name: Part::Dev.to_string(),
            program: binary(Part::Dev.binary())?,
            args: vec!["dev".to_owned(), "--data-dir".to_owned(), directory],
            env: env.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            log_directory: log_directory(test)?,
            admin,
        })?;
        let mut dev = Self { process, gateway, data };
        dev.wait_ready().await?;
        Ok(dev)
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn only(part: Part) -> Result<()> {
        if part != Part::Dev {
            bail!("`tidings dev` has no {part} of its own");
        }
        Ok(())
    }
}

#[async_trait]
impl System for Dev {
    fn gateway_urls(&self) -> Vec<String> {
        vec![format!("ws://{}", self.gateway)]
    }

    fn token(&self, uid: &Uid) -> Result<String> {
        token::mint(SECRET, uid)
    }

    fn parts(&self) -> Vec<Part> {
        vec![Part::Dev]
    }

    fn kill(&mut self, part: Part) -> Result<()> {
        Self::only(part)?;
        self.process.kill()
    }

    fn start_again(&mut self, part: Part) -> Result<()> {
        Self::only(part)?;
        self.process.start_again()
    }

    async fn wait_ready(&mut self) -> Result<()> {
        self.process.wait_ready().await
    }

    async fn keep_state(&self) -> Result<()> {
        self.process.keep_state().await
    }

    async fn dead_letters(&self) -> Result<Vec<serde_json::Value>> {
        let directory = self.data.path().to_str().context("a data directory in UTF-8")?;
        let args = ["dlq", "ls", "--data-dir", directory, "--with-value", "--json"];
        json_lines(&process::run_tidings(&args, &[]).await?)
    }
}
