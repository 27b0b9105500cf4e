//! One device: connects, stays connected, sends and receives, and tells the oracle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tidings_domain::clock::{Clock, SystemClock};
use tidings_domain::{Conversation, MsgId, Uid};
use tidings_proto::v1;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::outbox::{Outbox, Outgoing, Settled};
use super::session::{Hello, Session};
use super::stream::{Committed, Stream};
use crate::oracle::{DeviceKey, Ledger, MessageKey, Outcome, Press, SharedLedger};

/// Presses on their way to the device's task.
const PRESSES_ON_THE_WAY: usize = 1_024;
/// Between attempts to connect; doubled up to the maximum, half of it random.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
const RECONNECT_MAX: Duration = Duration::from_secs(3);
/// When nothing else is due.
const NEVER: Duration = Duration::from_secs(3_600);

/// What a client needs.
#[derive(Clone)]
pub struct ClientOptions {
    /// The device.
    pub device: DeviceKey,
    /// The user's token.
    pub token: String,
    /// Gateways, tried in turn from `first_gateway` on.
    pub gateways: Vec<String>,
    /// Where it connects first.
    pub first_gateway: usize,
    /// For ids and jitter.
    pub seed: u64,
    /// Time between heartbeats; their answers tell the head of the stream.
    pub ping_interval: Duration,
    /// Where everything is told.
    pub ledger: SharedLedger,
}

/// Counts that tests look at.
#[derive(Debug, Default)]
pub struct Counters {
    sessions: AtomicU64,
    cursor: AtomicU64,
    unsettled: AtomicU64,
    resends: AtomicU64,
    repeats: AtomicU64,
    replaced: AtomicBool,
}

/// A handle on a device. Its task ends when this is dropped.
pub struct Client {
    device: DeviceKey,
    ledger: SharedLedger,
    rng: Mutex<StdRng>,
    presses: mpsc::Sender<Outgoing>,
    online: watch::Sender<bool>,
    /// Changed to end the present session without a farewell.
    crashes: watch::Sender<u64>,
    counters: Arc<Counters>,
    stop: CancellationToken,
    task: AbortHandle,
}

impl Client {
    /// A device that connects at once and whenever it is not connected.
    pub fn start(options: ClientOptions) -> Self {
        let (presses, pressed) = mpsc::channel(PRESSES_ON_THE_WAY);
        let online = watch::Sender::new(true);
        let crashes = watch::Sender::new(0);
        let counters = Arc::new(Counters::default());
        let stop = CancellationToken::new();
        let mut rng = StdRng::seed_from_u64(options.seed);
        let task = Task {
            pressed,
            online: online.subscribe(),
            crashes: crashes.subscribe(),
            counters: Arc::clone(&counters),
            rng: StdRng::seed_from_u64(rng.next_u64()),
            outbox: Outbox::default(),
            stream: Stream::of(options.device.uid.clone()),
            gateway: options.first_gateway,
            options: options.clone(),
        };
        let running = stop.clone();
        let handle = tokio::spawn(async move {
            running.run_until_cancelled(task.run()).await;
        });
        Self {
            device: options.device,
            ledger: options.ledger,
            rng: Mutex::new(rng),
            presses,
            online,
            crashes,
            counters,
            stop,
            task: handle.abort_handle(),
        }
    }

    /// Which device this is.
    pub fn device(&self) -> &DeviceKey {
        &self.device
    }

    /// Presses the send button of a 1:1 conversation. Waits while the device is full of presses.
    pub async fn press(&self, peer: &Uid, text: &str) -> anyhow::Result<MessageKey> {
        let conversation = Conversation::direct(&self.device.uid, peer);
        // The order of entering the ledger is the order of pressing: one press at a time.
        let permit = self.presses.reserve().await?;
        let mut rng = self.rng.lock();
        let mut random = [0; 10];
        rng.fill_bytes(&mut random);
        let now = SystemClock.now();
        let message = Outgoing {
            conversation: conversation.clone(),
            msg_id: MsgId::mint(now, random),
            body: Bytes::copy_from_slice(text.as_bytes()),
            pressed_at: now,
        };
        let key = MessageKey {
            conversation,
            sender: self.device.uid.clone(),
            msg_id: message.msg_id,
        };
        let mut entitled = vec![self.device.uid.clone(), peer.clone()];
        entitled.dedup();
        self.ledger.lock().pressed(Press {
            key: key.clone(),
            device: self.device.device.clone(),
            body: Ledger::body_hash(&message.body),
            entitled,
        });
        permit.send(message);
        Ok(key)
    }

    /// Ends the session without a farewell, as a crash of the app does; it connects again at once.
    pub fn crash(&self) {
        self.crashes.send_modify(|crashes| *crashes += 1);
    }

    /// Goes offline, or online again.
    pub fn set_online(&self, online: bool) {
        self.online.send_replace(online);
    }

    /// Sessions so far.
    pub fn sessions(&self) -> u64 {
        self.counters.sessions.load(Ordering::SeqCst)
    }

    /// Up to where it has committed.
    pub fn cursor(&self) -> u64 {
        self.counters.cursor.load(Ordering::SeqCst)
    }

    /// Presses without an end.
    pub fn unsettled(&self) -> u64 {
        self.counters.unsettled.load(Ordering::SeqCst)
    }

    /// Frames sent again.
    pub fn resends(&self) -> u64 {
        self.counters.resends.load(Ordering::SeqCst)
    }

    /// Deliveries of what it had.
    pub fn repeats(&self) -> u64 {
        self.counters.repeats.load(Ordering::SeqCst)
    }

    /// Whether another login took its place.
    pub fn is_replaced(&self) -> bool {
        self.counters.replaced.load(Ordering::SeqCst)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

/// Waits until the device is to be offline. The client, which holds the other end, outlives its task.
async fn offline(online: &mut watch::Receiver<bool>) {
    if online.wait_for(|online| !*online).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until the app is to crash.
async fn crashed(crashes: &mut watch::Receiver<u64>) {
    if crashes.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Why a session ended.
enum End {
    /// Connect again.
    Again,
    /// Connect again, not before this time.
    After(Duration),
    /// Another login took its place: stay away.
    Replaced,
}

struct Task {
    options: ClientOptions,
    pressed: mpsc::Receiver<Outgoing>,
    online: watch::Receiver<bool>,
    crashes: watch::Receiver<u64>,
    counters: Arc<Counters>,
    rng: StdRng,
    outbox: Outbox,
    stream: Stream,
    gateway: usize,
}

impl Task {
    async fn run(mut self) {
        let mut delay = RECONNECT_MIN;
        loop {
            if self.online.wait_for(|online| *online).await.is_err() {
                return;
            }
            let hello = Hello {
                gateway: self.options.gateways[self.gateway % self.options.gateways.len()].clone(),
                token: self.options.token.clone(),
                device: self.options.device.device.as_str().to_owned(),
                cursor: self.stream.position(),
            };
            let pause = match Session::open(&hello).await {
                Ok((session, connected)) => {
                    delay = RECONNECT_MIN;
                    let end = self.session(session, &connected).await;
                    self.outbox.disconnected();
                    match end {
                        End::Again => Duration::ZERO,
                        End::After(pause) => pause,
                        End::Replaced => {
                            self.counters.replaced.store(true, Ordering::SeqCst);
                            return;
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(device = %self.options.device, error = format!("{error:#}"), "no session");
                    // Perhaps another gateway is there.
                    self.gateway += 1;
                    delay = (delay * 2).min(RECONNECT_MAX);
                    delay
                }
            };
            let jitter = 0.5 + self.rng.random::<f64>() / 2.0;
            tokio::time::sleep(pause.max(RECONNECT_MIN).mul_f64(jitter)).await;
        }
    }

    async fn session(&mut self, mut session: Session, connected: &v1::Connected) -> End {
        let now = Instant::now();
        self.counters.sessions.fetch_add(1, Ordering::SeqCst);
        if self.stream.connected(now, connected) {
            let mut ledger = self.options.ledger.lock();
            ledger.device_opened(self.options.device.clone(), connected.cursor);
        }
        self.outbox.connected(now);
        self.crashes.mark_unchanged();
        let mut heard = now;
        let mut ping_at = now + self.options.ping_interval;
        loop {
            let now = Instant::now();
            if now > heard + self.options.ping_interval * 3 {
                tracing::debug!(device = %self.options.device, "a silent session");
                return End::Again;
            }
            if let Err(end) = self.send_due(&mut session, now, &mut ping_at).await {
                return end;
            }
            self.publish();
            let due = [Some(ping_at), self.outbox.next_deadline(), self.stream.next_deadline()];
            let due = due.into_iter().flatten().min().unwrap_or(now + NEVER);
            tokio::select! {
                biased;
                () = offline(&mut self.online) => return End::Again,
                () = crashed(&mut self.crashes) => return End::Again,
                frame = session.next() => match frame {
                    Ok(frame) => {
                        heard = Instant::now();
                        if let Some(end) = self.received(frame) {
                            return end;
                        }
                    }
                    Err(error) => {
                        tracing::debug!(device = %self.options.device, error = format!("{error:#}"), "session ended");
                        return End::Again;
                    }
                },
                Some(message) = self.pressed.recv() => self.outbox.press(message),
                () = tokio::time::sleep_until(due) => {}
            }
        }
    }

    async fn send_due(&mut self, session: &mut Session, now: Instant, ping_at: &mut Instant) -> Result<(), End> {
        let mut actions = Vec::new();
        let jitter = self.rng.random::<f64>();
        let settled = self.outbox.poll(now, jitter, &mut actions);
        let mut frames: Vec<v1::client_frame::Frame> =
            actions.into_iter().map(v1::client_frame::Frame::Action).collect();
        frames.extend(self.stream.poll(now));
        if *ping_at <= now {
            *ping_at = now + self.options.ping_interval;
            frames.push(v1::client_frame::Frame::Ping(v1::Ping {
                client_time: SystemClock.now().get(),
            }));
        }
        for frame in frames {
            if session.send(frame).await.is_err() {
                return Err(End::Again);
            }
        }
        for settled in settled {
            if let Some(end) = self.settle(settled) {
                return Err(end);
            }
        }
        Ok(())
    }

    fn received(&mut self, frame: v1::server_frame::Frame) -> Option<End> {
        use v1::server_frame::Frame;
        let now = Instant::now();
        match frame {
            Frame::MsgAck(ack) => {
                let settled = self.outbox.answered(now, &ack)?;
                return self.settle(settled);
            }
            Frame::Push(push) => {
                let committed = self.stream.pushed(now, push);
                self.commit(committed);
            }
            Frame::SyncPage(page) => {
                let committed = self.stream.page(now, page);
                self.commit(committed);
            }
            Frame::Head(head) => self.stream.head(now, head.head_seq),
            Frame::Pong(pong) => self.stream.head(now, pong.head_seq),
            Frame::CursorReset(reset) => {
                self.options.ledger.lock().reset(&self.options.device);
                self.stream.reset(now, &reset);
            }
            Frame::Truncated(truncated) => self.stream.truncated(&truncated),
            // It has no other requests than rounds.
            Frame::Error(error) => {
                let pause = Duration::from_millis(u64::from(error.retry_after_ms));
                self.stream.round_refused(now, pause);
            }
            Frame::Closing(closing) if closing.code == v1::Code::Replaced as i32 => return Some(End::Replaced),
            Frame::Closing(closing) => {
                return Some(End::After(Duration::from_millis(u64::from(closing.reconnect_after_ms))));
            }
            Frame::Connected(_) | Frame::HistoryPage(_) => {}
        }
        None
    }

    fn commit(&self, committed: Vec<Committed>) {
        let mut ledger = self.options.ledger.lock();
        for Committed { entry, shown } in committed {
            ledger.committed(&self.options.device, entry, shown);
        }
    }

    fn settle(&self, settled: Settled) -> Option<End> {
        let (conversation, msg_id, outcome) = match settled {
            Settled::Acknowledged(conversation, msg_id) => (conversation, msg_id, Outcome::Acknowledged),
            Settled::Refused(conversation, msg_id, code) => (conversation, msg_id, Outcome::Refused(code)),
            Settled::Failed(conversation, msg_id) => (conversation, msg_id, Outcome::Failed),
            Settled::LaneLost => return Some(End::Again),
        };
        let key = MessageKey {
            conversation,
            sender: self.options.device.uid.clone(),
            msg_id,
        };
        self.options.ledger.lock().settled(&key, outcome);
        // The lane has a hole now.
        (outcome == Outcome::Failed).then_some(End::Again)
    }

    fn publish(&self) {
        let unsettled = u64::try_from(self.outbox.unsettled()).unwrap_or(u64::MAX);
        self.counters.unsettled.store(unsettled, Ordering::SeqCst);
        self.counters.resends.store(self.outbox.resends(), Ordering::SeqCst);
        self.counters.cursor.store(self.stream.cursor(), Ordering::SeqCst);
        self.counters.repeats.store(self.stream.repeats(), Ordering::SeqCst);
    }
}
