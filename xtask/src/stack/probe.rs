//! Does a node really serve? A connect is not an answer: each probe speaks the smallest piece of the node's protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// One probe's patience; the caller asks again until its own deadline.
const TIMEOUT: Duration = Duration::from_secs(3);
/// No honest answer to these requests is larger (a Kafka metadata answer without topics, a row of `system.local`).
const LARGEST_ANSWER: usize = 1024 * 1024;

/// The node ids of the brokers that `address` says are there and not fenced.
pub(super) fn kafka_brokers(address: SocketAddr) -> Result<Vec<u32>> {
    let mut stream = connect(address)?;
    let request = kafka_metadata_request();
    stream.write_all(&request).context("asking for metadata")?;
    let length = read_array::<4>(&mut stream)?;
    let answer = read_answer(&mut stream, u32::from_be_bytes(length))?;
    parse_kafka_metadata(&answer)
}

/// Opens a CQL session and reads one row of `system.local`. A node that asks for a password serves, too.
pub(super) fn cql(address: SocketAddr) -> Result<()> {
    const STARTUP: u8 = 0x01;
    const READY: u8 = 0x02;
    const AUTHENTICATE: u8 = 0x03;
    const QUERY: u8 = 0x07;
    const RESULT: u8 = 0x08;

    let mut startup = 1u16.to_be_bytes().to_vec();
    for text in ["CQL_VERSION", "3.0.0"] {
        startup.extend(u16::try_from(text.len())?.to_be_bytes());
        startup.extend(text.as_bytes());
    }
    let mut stream = connect(address)?;
    match cql_exchange(&mut stream, STARTUP, &startup)? {
        READY => {}
        AUTHENTICATE => return Ok(()),
        other => bail!("STARTUP answered with opcode {other:#04x}"),
    }
    let text = b"SELECT release_version FROM system.local";
    let mut query = u32::try_from(text.len())?.to_be_bytes().to_vec();
    query.extend(text);
    // Consistency ONE, no flags.
    query.extend([0x00, 0x01, 0x00]);
    match cql_exchange(&mut stream, QUERY, &query)? {
        RESULT => Ok(()),
        other => bail!("QUERY answered with opcode {other:#04x}"),
    }
}

/// PING and PONG.
pub(super) fn redis(address: SocketAddr) -> Result<()> {
    let mut stream = connect(address)?;
    stream.write_all(b"PING\r\n").context("sending PING")?;
    let answer = read_array::<7>(&mut stream)?;
    ensure!(
        &answer == b"+PONG\r\n",
        "PING answered with {:?}",
        String::from_utf8_lossy(&answer)
    );
    Ok(())
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).with_context(|| format!("connecting to {address}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn read_array<const N: usize>(stream: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).context("reading an answer")?;
    Ok(bytes)
}

fn read_answer(stream: &mut impl Read, length: u32) -> Result<Vec<u8>> {
    let length = usize::try_from(length)?;
    ensure!(length <= LARGEST_ANSWER, "an answer of {length} bytes");
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).context("reading an answer")?;
    Ok(bytes)
}

/// Metadata, version 4, for no topic.
fn kafka_metadata_request() -> Vec<u8> {
    let mut body: Vec<u8> = Vec::new();
    body.extend(3i16.to_be_bytes()); // api key: Metadata
    body.extend(4i16.to_be_bytes()); // version
    body.extend(1i32.to_be_bytes()); // correlation id
    body.extend((-1i16).to_be_bytes()); // no client id
    body.extend(0i32.to_be_bytes()); // no topics
    body.push(0); // no creation of topics
    let mut request = u32::try_from(body.len()).unwrap_or_default().to_be_bytes().to_vec();
    request.extend(body);
    request
}

fn parse_kafka_metadata(answer: &[u8]) -> Result<Vec<u32>> {
    let mut rest = answer;
    let correlation = i32::from_be_bytes(read_array(&mut rest)?);
    ensure!(correlation == 1, "answer to another request");
    let _throttle_ms: [u8; 4] = read_array(&mut rest)?;
    let count = i32::from_be_bytes(read_array(&mut rest)?);
    let mut node_ids = Vec::new();
    for _ in 0..count {
        let node_id = i32::from_be_bytes(read_array(&mut rest)?);
        node_ids.push(u32::try_from(node_id).context("a negative node id")?);
        skip_string(&mut rest)?; // host
        let _port: [u8; 4] = read_array(&mut rest)?;
        skip_string(&mut rest)?; // rack
    }
    node_ids.sort_unstable();
    Ok(node_ids)
}

fn skip_string(rest: &mut &[u8]) -> Result<()> {
    // -1 is null.
    let length = usize::try_from(i16::from_be_bytes(read_array(rest)?)).unwrap_or(0);
    *rest = rest.get(length..).context("a string beyond the end of the answer")?;
    Ok(())
}

/// Sends one frame of CQL protocol version 4 and returns the opcode of the answer.
fn cql_exchange(stream: &mut TcpStream, opcode: u8, body: &[u8]) -> Result<u8> {
    let mut frame = vec![0x04, 0x00, 0x00, 0x00, opcode];
    frame.extend(u32::try_from(body.len())?.to_be_bytes());
    frame.extend(body);
    stream.write_all(&frame).context("sending a CQL frame")?;
    let header = read_array::<9>(stream)?;
    ensure!(header[0] == 0x84, "not a CQL version 4 answer: {header:02x?}");
    read_answer(stream, u32::from_be_bytes([header[5], header[6], header[7], header[8]]))?;
    Ok(header[4])
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server that answers its one connection with `answer` and closes it.
    fn answering(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 256];
            assert!(stream.read(&mut request).unwrap() > 0);
            stream.write_all(answer).unwrap();
        });
        address
    }

    #[test]
    fn metadata_answer_lists_the_brokers() {
        let mut answer = Vec::new();
        answer.extend(1i32.to_be_bytes());
        answer.extend(0i32.to_be_bytes());
        answer.extend(2i32.to_be_bytes());
        for node_id in [2i32, 1] {
            answer.extend(node_id.to_be_bytes());
            answer.extend(9i16.to_be_bytes());
            answer.extend(b"127.0.0.1");
            answer.extend(9092i32.to_be_bytes());
            answer.extend((-1i16).to_be_bytes());
        }
        assert_eq!(parse_kafka_metadata(&answer).unwrap(), vec![1, 2]);
        assert!(parse_kafka_metadata(&answer[..20]).is_err());
    }

    #[test]
    fn metadata_request_carries_its_length() {
        let request = kafka_metadata_request();
        assert_eq!(request[..4], u32::try_from(request.len() - 4).unwrap().to_be_bytes());
    }

    #[test]
    fn redis_serves_only_after_pong() {
        assert!(redis(answering(b"+PONG\r\n")).is_ok());
        assert!(redis(answering(b"-LOADING Redis is loading the dataset in memory\r\n")).is_err());
    }

    #[test]
    fn a_cql_error_is_not_service() {
        assert!(cql(answering(b"\x84\x00\x00\x00\x00\x00\x00\x00\x00")).is_err());
        // AUTHENTICATE.
        assert!(cql(answering(b"\x84\x00\x00\x00\x03\x00\x00\x00\x00")).is_ok());
    }

    #[test]
    fn nobody_there_is_an_error() {
        // A port nothing has listened on for decades, and never given out by the kernel.
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        assert!(redis(address).is_err());
        assert!(cql(address).is_err());
        assert!(kafka_brokers(address).is_err());
    }
}
