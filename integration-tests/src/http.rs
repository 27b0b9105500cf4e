//! A GET over plain HTTP/1.1, as the admin ports need it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(3);

/// Status code and body of `GET http://<address><path>`.
pub async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let answer = tokio::time::timeout(TIMEOUT, exchange(address, path))
        .await
        .with_context(|| format!("GET {address}{path}: no answer within {TIMEOUT:?}"))?
        .with_context(|| format!("GET {address}{path}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without end of head")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((status.context("an answer without status")?, body.to_owned()))
}

/// The sum of all series of a metric on `/metrics`; 0 if there is none yet.
pub async fn metric(address: SocketAddr, name: &str) -> Result<f64> {
    let (_, body) = get(address, "/metrics").await?;
    let is_series = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    Ok(body
        .lines()
        .filter(is_series)
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum())
}

async fn exchange(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
