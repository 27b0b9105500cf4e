//! Asks a broker how far its topics reach, to count records.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wait;

const TIMEOUT: Duration = Duration::from_secs(5);
const LEADING_DEADLINE: Duration = Duration::from_secs(20);
/// An answer for a few partitions is a few hundred bytes.
const LARGEST_ANSWER: usize = 1 << 20;

const LIST_OFFSETS: i16 = 2;
const VERSION: i16 = 1;
const LATEST: i64 = -1;
const CORRELATION: i32 = 7;

/// Records ever written to partitions `0 .. partitions` of `topic`: the sum of their end offsets. Asks the one broker
/// of a small stack, which leads all of them, again until it knows so (a topic was just made, the broker just started).
pub async fn records(broker: SocketAddr, topic: &str, partitions: u32) -> Result<u64> {
    wait::until(&format!("{broker} to lead {topic}"), LEADING_DEADLINE, || async {
        records_now(broker, topic, partitions).await.map(Some)
    })
    .await
}

async fn records_now(broker: SocketAddr, topic: &str, partitions: u32) -> Result<u64> {
    let answer = tokio::time::timeout(TIMEOUT, ask(broker, &request(topic, partitions)?))
        .await
        .with_context(|| format!("{broker} does not answer within {TIMEOUT:?}"))?
        .with_context(|| format!("asking {broker} for the end of {topic}"))?;
    let offsets = parse(&answer).with_context(|| format!("the ends of {topic}"))?;
    ensure!(
        offsets.len() == usize::try_from(partitions)?,
        "{} of {partitions} partitions of {topic} were answered",
        offsets.len()
    );
    Ok(offsets.iter().sum())
}

async fn ask(broker: SocketAddr, request: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(broker).await?;
    stream.write_u32(u32::try_from(request.len())?).await?;
    stream.write_all(request).await?;
    let length = usize::try_from(stream.read_u32().await?)?;
    ensure!(length <= LARGEST_ANSWER, "an answer of {length} bytes");
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn request(topic: &str, partitions: u32) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    body.extend(LIST_OFFSETS.to_be_bytes());
    body.extend(VERSION.to_be_bytes());
    body.extend(CORRELATION.to_be_bytes());
    body.extend((-1i16).to_be_bytes()); // no client id
    body.extend((-1i32).to_be_bytes()); // a client, not a replica
    body.extend(1i32.to_be_bytes()); // topics
    body.extend(i16::try_from(topic.len())?.to_be_bytes());
    body.extend(topic.as_bytes());
    body.extend(partitions.to_be_bytes());
    for partition in 0..partitions {
        body.extend(partition.to_be_bytes());
        body.extend(LATEST.to_be_bytes());
    }
    Ok(body)
}

fn parse(answer: &[u8]) -> Result<Vec<u64>> {
    let mut rest = answer;
    ensure!(take_i32(&mut rest)? == CORRELATION, "answer to another request");
    let mut offsets = Vec::new();
    for _ in 0..take_i32(&mut rest)? {
        let name = usize::try_from(i16::from_be_bytes(take(&mut rest)?)).context("a topic without name")?;
        rest = rest.get(name..).context("a name beyond the end")?;
        for _ in 0..take_i32(&mut rest)? {
            let partition = take_i32(&mut rest)?;
            let error = i16::from_be_bytes(take(&mut rest)?);
            ensure!(error == 0, "partition {partition}: error {error}");
            let _timestamp: [u8; 8] = take(&mut rest)?;
            offsets.push(u64::from_be_bytes(take(&mut rest)?));
        }
    }
    Ok(offsets)
}

fn take_i32(rest: &mut &[u8]) -> Result<i32> {
    Ok(i32::from_be_bytes(take(rest)?))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (bytes, after) = rest.split_at_checked(N).context("an answer that ends early")?;
    *rest = after;
    Ok(bytes.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(error: i16) -> Vec<u8> {
        let mut answer = CORRELATION.to_be_bytes().to_vec();
        answer.extend(1i32.to_be_bytes());
        answer.extend(2i16.to_be_bytes());
        answer.extend(b"in");
        answer.extend(2i32.to_be_bytes());
        for (partition, offset) in [(0i32, 40u64), (1, 2)] {
            answer.extend(partition.to_be_bytes());
            answer.extend(error.to_be_bytes());
            answer.extend((-1i64).to_be_bytes());
            answer.extend(offset.to_be_bytes());
        }
        answer
    }

    #[test]
    fn ends_are_read_and_errors_told() {
        assert_eq!(parse(&answer(0)).unwrap(), vec![40, 2]);
        assert!(parse(&answer(3)).is_err());
        assert!(parse(&answer(0)[..20]).is_err());
    }
}
