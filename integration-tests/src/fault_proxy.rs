//! A TCP proxy whose network fails on demand.
//!
//! It stands between a client and a gateway, or between a part and a dependency, and passes bytes in both directions
//! according to the [`Fault`]s of each direction, which the test may change at any time for living connections too:
//!
//! * *delay*: bytes arrive later by a fixed time, in order;
//! * *hold* (blackhole): bytes are taken and not passed on while it lasts; nobody is told (half-open if both directions);
//! * *drop*: bytes are taken and thrown away: the other side never sees them (lost ACKs). The connection is of no use
//!   afterwards, since the stream has a hole; cut it next;
//! * *cut*: living connections end with FIN or RST; *refuse*: new ones end at once.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Read at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks on the way in one direction; then reading stops, as on a real network with full buffers.
const CHUNKS_ON_THE_WAY: usize = 4_096;
/// Tests that need one certain address follow each other.
const ADDRESS_DEADLINE: Duration = Duration::from_secs(300);
/// For the connection to the target.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the side that connected.
    ToServer,
    /// To the side that connected.
    ToClient,
}

/// What happens to the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// They pass.
    #[default]
    None,
    /// They arrive later by this time.
    Delay(Duration),
    /// They wait until this fault ends.
    Hold,
    /// They are lost.
    Drop,
}

/// How connections end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// In order: what was sent arrives.
    Fin,
    /// At once, with an error on both sides.
    Rst,
}

/// Counts of a proxy, from its start.
#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    bytes_to_server: AtomicU64,
    bytes_to_client: AtomicU64,
}

struct Shared {
    target: SocketAddr,
    to_server: watch::Sender<Fault>,
    to_client: watch::Sender<Fault>,
    refusing: watch::Sender<bool>,
    /// The end of the living connections; replaced by each cut.
    cut: watch::Sender<(u64, Cut)>,
    counters: Counters,
}

/// A proxy; it ends when dropped.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    task: AbortHandle,
}

impl FaultProxy {
    /// A proxy to `target` on a free port.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        Self::listen((Ipv4Addr::LOCALHOST, 0).into(), target).await
    }

    /// A proxy to `target` at a given address, such as the one a broker advertises for it. Another test may just be
    /// about to leave that address, so it is waited for.
    pub async fn listen(address: SocketAddr, target: SocketAddr) -> Result<Self> {
        let listener = crate::wait::until(&format!("{address} to be free"), ADDRESS_DEADLINE, || async move {
            Ok(Some(TcpListener::bind(address).await?))
        })
        .await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target,
            to_server: watch::Sender::new(Fault::None),
            to_client: watch::Sender::new(Fault::None),
            refusing: watch::Sender::new(false),
            cut: watch::Sender::new((0, Cut::Fin)),
            counters: Counters::default(),
        });
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept(listener, Arc::clone(&shared), stop.clone()));
        Ok(Self {
            address,
            shared,
            stop,
            task: task.abort_handle(),
        })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on, for living and new connections.
    pub fn set(&self, direction: Direction, fault: Fault) {
        match direction {
            Direction::ToServer => self.shared.to_server.send_replace(fault),
            Direction::ToClient => self.shared.to_client.send_replace(fault),
        };
    }

    /// The same in both directions: `Hold` is a half-open link.
    pub fn set_both(&self, fault: Fault) {
        self.set(Direction::ToServer, fault);
        self.set(Direction::ToClient, fault);
    }

    /// Ends all living connections. New ones may follow at once.
    pub fn cut(&self, how: Cut) {
        self.shared.cut.send_modify(|cut| *cut = (cut.0 + 1, how));
    }

    /// Whether new connections end at once.
    pub fn refuse(&self, refusing: bool) {
        self.shared.refusing.send_replace(refusing);
    }

    /// Connections taken so far.
    pub fn connections(&self) -> u64 {
        self.shared.counters.connections.load(Ordering::SeqCst)
    }

    /// Bytes taken so far in a direction, passed on or not.
    pub fn bytes(&self, direction: Direction) -> u64 {
        match direction {
            Direction::ToServer => self.shared.counters.bytes_to_server.load(Ordering::SeqCst),
            Direction::ToClient => self.shared.counters.bytes_to_client.load(Ordering::SeqCst),
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, stop: CancellationToken) {
    // Connections end with this task: the set aborts them when it is dropped.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                // Failing to accept is a passing lack of descriptors; the client sees a refused connection.
                let Ok((client, _)) = accepted else { continue };
                shared.counters.connections.fetch_add(1, Ordering::SeqCst);
                if *shared.refusing.borrow() {
                    reset(&client);
                    continue;
                }
                connections.spawn(connection(client, Arc::clone(&shared)));
            }
        }
    }
}

async fn connection(client: TcpStream, shared: Arc<Shared>) {
    let mut cut = shared.cut.subscribe();
    cut.mark_unchanged();
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(shared.target)).await;
    let Ok(Ok(server)) = connected else {
        // What a client of a dead server sees.
        reset(&client);
        return;
    };
    // Small frames must not wait for each other; failing to ask for it only costs time.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut pipes = JoinSet::new();
    let counters = |direction| {
        let shared = Arc::clone(&shared);
        move |bytes: usize| {
            let counter = match direction {
                Direction::ToServer => &shared.counters.bytes_to_server,
                Direction::ToClient => &shared.counters.bytes_to_client,
            };
            counter.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::SeqCst);
        }
    };
    let upward = shared.to_server.subscribe();
    let downward = shared.to_client.subscribe();
    pipes.spawn(pipe(
        from_client,
        to_server,
        upward,
        counters(Direction::ToServer),
        cut.clone(),
    ));
    pipes.spawn(pipe(
        from_server,
        to_client,
        downward,
        counters(Direction::ToClient),
        cut,
    ));
    while pipes.join_next().await.is_some() {}
}

/// Passes bytes of one direction until its source ends or the connection is cut.
async fn pipe(
    source: OwnedReadHalf,
    mut sink: OwnedWriteHalf,
    mut fault: watch::Receiver<Fault>,
    count: impl Fn(usize) + Send + 'static,
    mut cut: watch::Receiver<(u64, Cut)>,
) {
    let (queue, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_ON_THE_WAY);
    // A set, because it aborts its task when this one is aborted.
    let mut reading = JoinSet::new();
    reading.spawn(read(source, fault.clone(), count, queue));
    let passing = async {
        while let Some((read_at, bytes)) = arriving.recv().await {
            loop {
                let now = *fault.borrow_and_update();
                match now {
                    Fault::None => break,
                    // Decided when they were read: these came before.
                    Fault::Drop => break,
                    Fault::Delay(by) => {
                        tokio::select! {
                            () = tokio::time::sleep_until(read_at + by) => break,
                            Ok(()) = fault.changed() => {}
                        }
                    }
                    Fault::Hold => {
                        if fault.changed().await.is_err() {
                            return;
                        }
                    }
                }
            }
            if sink.write_all(&bytes).await.is_err() {
                return;
            }
        }
        // The other direction may still be of use. An error means that the sink is closed already.
        let _ = sink.shutdown().await;
    };
    let is_cut = tokio::select! {
        () = passing => false,
        changed = cut.changed() => changed.is_ok(),
    };
    if is_cut && cut.borrow().1 == Cut::Rst {
        reset(sink.as_ref());
        // Dropping it would send a FIN first.
        sink.forget();
    }
}

async fn read(
    mut source: OwnedReadHalf,
    fault: watch::Receiver<Fault>,
    count: impl Fn(usize) + Send + 'static,
    queue: mpsc::Sender<(Instant, Vec<u8>)>,
) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let bytes = match source.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(bytes) => bytes,
        };
        count(bytes);
        if *fault.borrow() == Fault::Drop {
            continue;
        }
        if queue.send((Instant::now(), chunk[..bytes].to_vec())).await.is_err() {
            return;
        }
    }
}

/// Makes the coming close an RST.
fn reset(stream: &TcpStream) {
    // Without it the close is a FIN, which ends the connection all the same.
    let _ = stream.set_zero_linger();
}

/// The address of `host:port` without a look-up.
pub fn address_of(host_port: &str) -> Result<SocketAddr> {
    host_port
        .parse()
        .with_context(|| format!("`{host_port}` is not ip:port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// A server that sends back what it gets.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    async fn proxied() -> (FaultProxy, TcpStream) {
        let proxy = FaultProxy::start(echo().await).await.unwrap();
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(exchange(&mut client, b"up").await.unwrap(), b"up");
        (proxy, client)
    }

    async fn exchange(client: &mut TcpStream, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        client.write_all(bytes).await?;
        let mut answer = vec![0; bytes.len()];
        tokio::time::timeout(SOON, client.read_exact(&mut answer))
            .await
            .expect("an answer")?;
        Ok(answer)
    }

    #[tokio::test]
    async fn delay_is_per_direction_and_keeps_the_order() {
        let (proxy, mut client) = proxied().await;
        proxy.set(Direction::ToClient, Fault::Delay(Duration::from_millis(300)));
        let begun = Instant::now();
        client.write_all(b"1").await.unwrap();
        client.write_all(b"2").await.unwrap();
        let mut answer = [0; 2];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"12");
        assert!(begun.elapsed() >= Duration::from_millis(300));
    }

    #[tokio::test]
    async fn held_bytes_arrive_when_the_hold_ends_and_dropped_ones_never() {
        let (proxy, mut client) = proxied().await;
        proxy.set(Direction::ToServer, Fault::Hold);
        client.write_all(b"held").await.unwrap();
        let mut answer = [0; 4];
        let early = tokio::time::timeout(Duration::from_millis(200), client.read(&mut answer)).await;
        assert!(early.is_err(), "nothing passes");
        proxy.set(Direction::ToServer, Fault::None);
        tokio::time::timeout(SOON, client.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&answer, b"held");

        proxy.set(Direction::ToClient, Fault::Drop);
        let before = proxy.bytes(Direction::ToClient);
        client.write_all(b"lost").await.unwrap();
        crate::wait::until_true("the answer to reach the proxy", SOON, || {
            proxy.bytes(Direction::ToClient) == before + 4
        })
        .await
        .unwrap();
        proxy.set(Direction::ToClient, Fault::None);
        assert_eq!(exchange(&mut client, b"next").await.unwrap(), b"next");
    }

    #[tokio::test]
    async fn cuts_end_living_connections_only() {
        for how in [Cut::Fin, Cut::Rst] {
            let (proxy, mut client) = proxied().await;
            proxy.cut(how);
            let mut answer = [0; 1];
            let ended = tokio::time::timeout(SOON, client.read(&mut answer))
                .await
                .expect("an end");
            match how {
                Cut::Fin => assert_eq!(ended.unwrap(), 0),
                Cut::Rst => assert!(ended.is_err()),
            }
            let mut next = TcpStream::connect(proxy.address()).await.unwrap();
            assert_eq!(exchange(&mut next, b"again").await.unwrap(), b"again");
            assert_eq!(proxy.connections(), 2);

            proxy.refuse(true);
            let mut refused = TcpStream::connect(proxy.address()).await.unwrap();
            let ended = tokio::time::timeout(SOON, refused.read(&mut answer))
                .await
                .expect("an end");
            assert!(ended.is_err() || ended.is_ok_and(|bytes| bytes == 0));
        }
    }
}
