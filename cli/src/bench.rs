//! `tidings bench`: first figures of a running instance.
//!
//! Pairs of users, each pair one sender and one receiver that are connected all the time. Sends are paced on a fixed
//! schedule (open loop) and latency counts from the *intended* time, so that a server that falls behind shows it.
//! Receivers acknowledge each push at once. Counted, not sampled: a run with a message that was acknowledged and not shown, or
//! shown twice, says so and fails.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use rand::{RngExt as _, SeedableRng as _};
use tidings_domain::clock::{Clock, SystemClock};
use tidings_domain::{MsgId, Uid};
use tidings_proto::v1::server_frame::Frame as Told;
use tidings_proto::{v1, wire};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::dev::Instance;
use crate::token;

/// `tidings bench ...`
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    /// Sends at a fixed rate between pairs of connected users and measures.
    Send(SendArgs),
}

/// `tidings bench send`
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SendArgs {
    /// Measure the `tidings dev` that uses this directory.
    #[arg(long, default_value = ".tidings")]
    data_dir: PathBuf,
    /// Address of a gateway instead; with --secret.
    #[arg(long, requires = "secret")]
    url: Option<String>,
    /// Secret of tokens.
    #[arg(long, env = "TIDINGS__GATEWAY__HS256_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// Processes whose CPU time is counted; by default that of the `tidings dev`.
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
    /// Pairs of users.
    #[arg(long, default_value_t = 100)]
    pairs: u32,
    /// Messages per second, all pairs together.
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// How long to send.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Size of a body; at least 16.
    #[arg(long, default_value_t = 256)]
    body_bytes: usize,
    /// How long after the last send to wait for what is missing.
    #[arg(long, default_value_t = 30)]
    settle_s: u64,
}

/// Runs a benchmark.
pub(crate) async fn run(command: BenchCommand) -> anyhow::Result<()> {
    let BenchCommand::Send(args) = command;
    ensure!(
        args.pairs > 0 && args.rate > 0 && args.seconds > 0,
        "--pairs, --rate and --seconds must be above 0"
    );
    ensure!(args.body_bytes >= 16, "--body-bytes must be at least 16");
    let (url, secret, pids) = match (&args.url, &args.secret) {
        (Some(url), Some(secret)) => (url.clone(), secret.clone(), args.pids.clone()),
        _ => {
            let instance = Instance::load(&args.data_dir)?;
            let pids = if args.pids.is_empty() {
                vec![instance.pid]
            } else {
                args.pids.clone()
            };
            (instance.url, instance.secret, pids)
        }
    };
    bench(&args, &url, &secret, &pids).await
}

/// What all pairs share.
struct Shared {
    start: Instant,
    acked: AtomicU64,
    shown: AtomicU64,
    repeated: AtomicU64,
    refused: AtomicU64,
    /// Microseconds.
    ack_latency: Mutex<Histogram<u64>>,
    /// Microseconds.
    shown_latency: Mutex<Histogram<u64>>,
}

async fn bench(args: &SendArgs, url: &str, secret: &str, pids: &[u32]) -> anyhow::Result<()> {
    // Of one run alone: leftovers of an earlier run in these users' streams would be counted.
    let run_id = uuid::Uuid::new_v4().simple().to_string()[..8].to_owned();
    let mut devices = Vec::new();
    for pair in 0..args.pairs {
        let login = |role: &str| -> anyhow::Result<(Uid, String)> {
            let uid = Uid::parse(&format!("bench-{run_id}-{role}{pair}"))?;
            let token = token::mint(secret, &uid, Duration::from_secs(24 * 3600), None)?;
            Ok((uid, token))
        };
        let (receiver, receiver_token) = login("r")?;
        let (_, sender_token) = login("s")?;
        let receiving = Device::connect(url, &receiver_token).await?;
        let sending = Device::connect(url, &sender_token).await?;
        devices.push((receiver, receiving, sending));
    }

    let histogram = || Histogram::new_with_bounds(1, 600_000_000, 3).map(Mutex::new);
    let shared = Arc::new(Shared {
        start: Instant::now() + Duration::from_millis(200),
        acked: AtomicU64::new(0),
        shown: AtomicU64::new(0),
        repeated: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        ack_latency: histogram()?,
        shown_latency: histogram()?,
    });
    let total = u64::from(args.rate) * u64::from(args.seconds);
    let cpu_before = cpu_seconds(pids);
    let mut tasks = tokio::task::JoinSet::new();
    for (index, (receiver, receiving, sending)) in devices.into_iter().enumerate() {
        tasks.spawn(receiving.receive(Arc::clone(&shared)));
        tasks.spawn(sending.send(Arc::clone(&shared), args.clone(), receiver, index as u64));
    }

    let bar = ProgressBar::new(total).with_style(ProgressStyle::with_template("{bar:30} {pos}/{len} shown {elapsed}")?);
    let deadline = shared.start + Duration::from_secs(u64::from(args.seconds) + args.settle_s);
    let mut last_shown = shared.start;
    let mut seen = 0;
    while Instant::now() < deadline {
        let shown = shared.shown.load(Ordering::Relaxed);
        if shown > seen {
            seen = shown;
            last_shown = Instant::now();
        }
        bar.set_position(shown);
        let refused = shared.refused.load(Ordering::Relaxed);
        if shown + refused >= total && shared.acked.load(Ordering::Relaxed) + refused >= total {
            break;
        }
        if let Some(ended) = tasks.try_join_next() {
            ended??;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bar.finish_and_clear();
    let cpu = cpu_seconds(pids).zip(cpu_before).map(|(after, before)| after - before);
    report(args, &shared, total, last_shown, cpu).await
}

async fn report(
    args: &SendArgs,
    shared: &Shared,
    total: u64,
    last_shown: Instant,
    cpu: Option<f64>,
) -> anyhow::Result<()> {
    let acked = shared.acked.load(Ordering::Relaxed);
    let shown = shared.shown.load(Ordering::Relaxed);
    let repeated = shared.repeated.load(Ordering::Relaxed);
    let refused = shared.refused.load(Ordering::Relaxed);
    let wall = last_shown
        .saturating_duration_since(shared.start)
        .as_secs_f64()
        .max(0.001);
    let ack = shared.ack_latency.lock().await;
    let show = shared.shown_latency.lock().await;
    let ms = |histogram: &Histogram<u64>, quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    println!(
        "offered {}/s for {} s over {} pairs, body {} B: acked {acked}/{total}, refused {refused}, shown {shown}, shown twice {repeated}",
        args.rate, args.seconds, args.pairs, args.body_bytes
    );
    println!("sustained {:.0} msg/s shown", shown as f64 / wall);
    println!(
        "send to ack   p50 {:.1} ms  p99 {:.1} ms  max {:.1} ms",
        ms(&ack, 0.5),
        ms(&ack, 0.99),
        ms(&ack, 1.0)
    );
    println!(
        "send to shown p50 {:.1} ms  p99 {:.1} ms  max {:.1} ms",
        ms(&show, 0.5),
        ms(&show, 0.99),
        ms(&show, 1.0)
    );
    match cpu {
        Some(cpu) if shown > 0 => println!("server CPU {:.0} us per message", cpu * 1e6 / shown as f64),
        Some(_) | None => println!("server CPU not measured (give --pids)"),
    }
    ensure!(repeated == 0, "{repeated} messages were shown twice");
    ensure!(
        shown >= acked,
        "{} messages were acknowledged and not shown within the time",
        acked - shown
    );
    Ok(())
}

/// User and system time of the processes so far; `None` if none can be read.
fn cpu_seconds(pids: &[u32]) -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0; // USER_HZ of every Linux architecture in use
    let ticks = |pid: &u32| -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Fields after the command name, which may hold blanks and ends with the last parenthesis.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
    };
    let read: Vec<u64> = pids.iter().filter_map(ticks).collect();
    (!read.is_empty()).then(|| read.iter().sum::<u64>() as f64 / TICKS_PER_SECOND)
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A connected device without a database: it lives for one run.
struct Device {
    socket: Socket,
    epoch: u64,
    cursor: u64,
}

impl Device {
    async fn connect(url: &str, token: &str) -> anyhow::Result<Self> {
        let mut request = url.into_client_request()?;
        request
            .headers_mut()
            .insert("sec-websocket-protocol", wire::SUBPROTOCOL.parse()?);
        let (mut socket, _) = tokio_tungstenite::connect_async(request)
            .await
            .with_context(|| format!("{url} does not answer"))?;
        let connect = v1::Connect {
            token: token.to_owned(),
            device_id: "bench".to_owned(),
            fresh: true,
            cursor: None,
            client: "tidings bench".to_owned(),
        };
        socket.send(binary(v1::client_frame::Frame::Connect(connect))).await?;
        loop {
            match next_frame(&mut socket).await? {
                Told::Connected(connected) => {
                    return Ok(Self {
                        socket,
                        epoch: connected.epoch,
                        cursor: connected.cursor,
                    });
                }
                Told::Error(error) => anyhow::bail!("refused: {}", error.reason),
                Told::Closing(closing) => anyhow::bail!("closed: {}", closing.reason),
                Told::MsgAck(_)
                | Told::Push(_)
                | Told::SyncPage(_)
                | Told::Head(_)
                | Told::CursorReset(_)
                | Told::Truncated(_)
                | Told::Pong(_)
                | Told::HistoryPage(_) => {}
            }
        }
    }

    /// Takes pushes, acknowledges them, pulls what it is only told of.
    async fn receive(mut self, shared: Arc<Shared>) -> anyhow::Result<()> {
        let mut seen: HashSet<Bytes> = HashSet::new();
        let mut waiting: HashMap<u64, v1::Event> = HashMap::new();
        let mut syncing = false;
        let mut latencies = Vec::new();
        loop {
            let mut head = 0;
            match next_frame(&mut self.socket).await? {
                Told::Push(push) => {
                    waiting.extend(push.event.map(|event| (push.user_seq, event)));
                }
                Told::SyncPage(page) => {
                    waiting.extend(
                        page.events
                            .into_iter()
                            .filter_map(|push| Some((push.user_seq, push.event?))),
                    );
                    syncing &= !page.end_of_backlog;
                    head = page.head_seq;
                }
                Told::Head(told) => head = told.head_seq,
                Told::Pong(pong) => head = pong.head_seq,
                Told::Closing(closing) => anyhow::bail!("receiver closed: {}", closing.reason),
                Told::Connected(_)
                | Told::MsgAck(_)
                | Told::CursorReset(_)
                | Told::Truncated(_)
                | Told::HistoryPage(_)
                | Told::Error(_) => {}
            }
            let before = self.cursor;
            while let Some(event) = waiting.remove(&(self.cursor + 1)) {
                self.cursor += 1;
                if let Some(v1::event::Kind::Message(message)) = event.kind {
                    if !seen.insert(message.msg_id) {
                        shared.repeated.fetch_add(1, Ordering::Relaxed);
                    }
                    latencies.push(since_intended(&shared, &message.body));
                }
            }
            waiting.retain(|seq, _| *seq > self.cursor);
            if self.cursor > before {
                shared.shown.fetch_add(latencies.len() as u64, Ordering::Relaxed);
                record(&shared.shown_latency, &mut latencies).await;
                let ack = v1::Ack {
                    epoch: self.epoch,
                    delivered: self.cursor,
                    stored: self.cursor,
                    convs: Vec::new(),
                };
                self.socket.send(binary(v1::client_frame::Frame::Ack(ack))).await?;
            }
            if !syncing && (head > self.cursor || !waiting.is_empty()) {
                syncing = true;
                let cursor = Some(v1::Cursor {
                    epoch: self.epoch,
                    user_seq: self.cursor,
                });
                self.socket
                    .send(binary(v1::client_frame::Frame::Sync(v1::Sync { cursor })))
                    .await?;
            }
        }
    }

    /// Sends its share of the schedule and takes the link ACKs; a retryable refusal is sent again.
    async fn send(self, shared: Arc<Shared>, args: SendArgs, to: Uid, index: u64) -> anyhow::Result<()> {
        let (mut sink, mut stream) = self.socket.split();
        let (frames, mut told) = mpsc::channel::<Told>(4096);
        let (epoch, mut cursor) = (self.epoch, self.cursor);
        let reader = async move {
            while let Some(message) = stream.next().await {
                if let Message::Binary(bytes) = message?
                    && let Some(frame) = wire::decode_server(bytes)?.frame
                    && frames.send(frame).await.is_err()
                {
                    break;
                }
            }
            anyhow::Ok(())
        };
        let writer = async move {
            let mut rng = rand::rngs::SmallRng::seed_from_u64(index);
            let share = u64::from(args.rate) * u64::from(args.seconds);
            let mut planned = (index..share).step_by(args.pairs as usize);
            let mut next = planned.next();
            let mut lane_seq = 0;
            let mut open: HashMap<Bytes, v1::UserAction> = HashMap::new();
            let mut latencies = Vec::new();
            // Echoes of its own messages are acknowledged, or the server would stop pushing them.
            let mut acknowledge = tokio::time::interval(Duration::from_millis(100));
            let mut acknowledged = cursor;
            let filler: Vec<u8> = (0..args.body_bytes).map(|_| rng.random()).collect();
            loop {
                let due = next.map(|n| Duration::from_nanos(n * 1_000_000_000 / u64::from(args.rate)));
                let at = shared.start + due.unwrap_or(Duration::from_secs(86_400));
                tokio::select! {
                    () = tokio::time::sleep_until(at), if due.is_some() => {
                        lane_seq += 1;
                        let intended = due.unwrap_or_default();
                        let mut body = filler.clone();
                        body[..8].copy_from_slice(&u64::try_from(intended.as_micros())?.to_be_bytes());
                        let now = SystemClock.now();
                        let action = v1::UserAction {
                            action: v1::Action::Send as i32,
                            lane_seq,
                            to_uid: to.as_str().to_owned(),
                            msg_id: Bytes::copy_from_slice(MsgId::mint(now, rng.random()).as_bytes()),
                            content_type: "application/octet-stream".to_owned(),
                            body: body.into(),
                            client_time: now.get(),
                            first_send_time: now.get(),
                            ..v1::UserAction::default()
                        };
                        open.insert(action.msg_id.clone(), action.clone());
                        sink.send(binary(v1::client_frame::Frame::Action(action))).await?;
                        next = planned.next();
                    }
                    _ = acknowledge.tick(), if cursor > acknowledged => {
                        acknowledged = cursor;
                        let ack = v1::Ack { epoch, delivered: cursor, stored: cursor, convs: Vec::new() };
                        sink.send(binary(v1::client_frame::Frame::Ack(ack))).await?;
                    }
                    frame = told.recv() => {
                        let ack = match frame {
                            Some(Told::MsgAck(ack)) => ack,
                            Some(Told::Push(push)) => {
                                cursor = cursor.max(push.user_seq);
                                continue;
                            }
                            Some(Told::Head(head)) => {
                                cursor = cursor.max(head.head_seq);
                                continue;
                            }
                            Some(Told::Closing(closing)) => anyhow::bail!("sender closed: {}", closing.reason),
                            Some(
                                Told::Connected(_)
                                | Told::SyncPage(_)
                                | Told::CursorReset(_)
                                | Told::Truncated(_)
                                | Told::Pong(_)
                                | Told::HistoryPage(_)
                                | Told::Error(_),
                            ) => continue,
                            None => anyhow::bail!("sender closed"),
                        };
                        if ack.retryable {
                            if let Some(action) = open.get_mut(&ack.msg_id) {
                                action.retry_count += 1;
                                sink.send(binary(v1::client_frame::Frame::Action(action.clone()))).await?;
                            }
                        } else if let Some(action) = open.remove(&ack.msg_id) {
                            if ack.code() == v1::Code::Ok {
                                latencies.push(since_intended(&shared, &action.body));
                                shared.acked.fetch_add(1, Ordering::Relaxed);
                                record(&shared.ack_latency, &mut latencies).await;
                            } else {
                                shared.refused.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                }
            }
        };
        tokio::try_join!(reader, async move { writer.await as anyhow::Result<()> })?;
        Ok(())
    }
}

fn binary(frame: v1::client_frame::Frame) -> Message {
    Message::Binary(wire::encode_client(&v1::ClientFrame { frame: Some(frame) }))
}

async fn next_frame(socket: &mut Socket) -> anyhow::Result<Told> {
    loop {
        match socket.next().await.context("the connection ended")?? {
            Message::Binary(bytes) => {
                if let Some(frame) = wire::decode_server(bytes)?.frame {
                    return Ok(frame);
                }
            }
            Message::Close(close) => anyhow::bail!("closed: {close:?}"),
            Message::Text(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
}

/// Microseconds since the time in a body's first eight bytes, counted from the run's start.
fn since_intended(shared: &Shared, body: &Bytes) -> u64 {
    let intended = body
        .get(..8)
        .and_then(|head| head.try_into().ok())
        .map_or(0, u64::from_be_bytes);
    let now = u64::try_from(shared.start.elapsed().as_micros()).unwrap_or(u64::MAX);
    now.saturating_sub(intended).max(1)
}

async fn record(histogram: &Mutex<Histogram<u64>>, latencies: &mut Vec<u64>) {
    let mut histogram = histogram.lock().await;
    for latency in latencies.drain(..) {
        histogram.saturating_record(latency);
    }
}
