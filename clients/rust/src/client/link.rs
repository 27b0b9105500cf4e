//! The link to a gateway over time: down, greeting, up; heartbeats and reconnects.

use std::time::Duration;

use rand::RngExt;
use tidings_proto::v1;
use tokio::time::Instant;

use super::Client;
use crate::config::ClientConfig;
use crate::connection::{Closed, Connection, Incoming};
use crate::error::Error;
use crate::event::ClientEvent;

/// Places in the outgoing channel that sends leave to ACKs, sync and heartbeats.
const RESERVED_FRAMES: usize = 16;
/// Times a heartbeat interval is shortened at random, so that devices do not beat in step.
const HEARTBEAT_JITTER: f64 = 0.1;

/// Where the link is.
pub(super) enum Link {
    Down {
        retry_at: Instant,
    },
    /// The connection is being made, or `Connected` has not come yet.
    Greeting {
        connection: Connection,
        deadline: Instant,
    },
    Up {
        connection: Connection,
        ping_interval: Duration,
        next_ping: Instant,
        heard_at: Instant,
    },
}

impl Link {
    pub(super) fn is_up(&self) -> bool {
        matches!(self, Self::Up { .. })
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        match self {
            Self::Down { .. } => None,
            Self::Greeting { connection, .. } | Self::Up { connection, .. } => Some(connection),
        }
    }

    /// What the connection tells; never, if there is none. Cancel-safe.
    pub(super) async fn next(&mut self) -> Incoming {
        match self.connection() {
            Some(connection) => connection.next().await,
            None => std::future::pending().await,
        }
    }

    /// What the connection has told already.
    pub(super) fn try_next(&mut self) -> Option<Incoming> {
        self.connection()?.try_next()
    }

    /// How many sends the connection takes now.
    pub(super) fn room(&self) -> usize {
        match self {
            Self::Down { .. } | Self::Greeting { .. } => 0,
            Self::Up { connection, .. } => connection.outgoing.capacity().saturating_sub(RESERVED_FRAMES),
        }
    }

    /// Hands a frame to the connection; `false` if it was not taken.
    pub(super) fn send(&mut self, frame: impl Into<v1::ClientFrame>) -> bool {
        match self {
            Self::Down { .. } | Self::Greeting { .. } => false,
            Self::Up { connection, .. } => connection.outgoing.try_send(frame.into()).is_ok(),
        }
    }

    pub(super) fn heard(&mut self, now: Instant) {
        if let Self::Up { heard_at, .. } = self {
            *heard_at = now;
        }
    }

    pub(super) fn next_deadline(&self, config: &ClientConfig) -> Option<Instant> {
        match self {
            Self::Down { retry_at } => Some(*retry_at),
            Self::Greeting { deadline, .. } => Some(*deadline),
            Self::Up {
                next_ping,
                heard_at,
                ping_interval,
                connection,
            } => {
                let dead_at = *heard_at + *ping_interval + config.pong_timeout;
                let deadline = dead_at.min(*next_ping);
                if connection.outgoing.capacity() <= RESERVED_FRAMES {
                    // Nothing tells when there is room again; a full channel is drained in milliseconds or not at all.
                    Some(deadline.min(Instant::now() + Duration::from_millis(20)))
                } else {
                    Some(deadline)
                }
            }
        }
    }

    /// Ends the connection in good order.
    pub(super) async fn finish(&mut self, patience: Duration) {
        let down = Self::Down {
            retry_at: Instant::now(),
        };
        match std::mem::replace(self, down) {
            Self::Down { .. } => {}
            Self::Greeting { connection, .. } | Self::Up { connection, .. } => connection.finish(patience).await,
        }
    }
}

impl Client {
    /// Connects, beats and gives up as it is due.
    pub(super) fn tend_link(&mut self, now: Instant) {
        match &mut self.link {
            Link::Down { retry_at } => {
                if *retry_at <= now {
                    self.connect(now);
                }
            }
            Link::Greeting { deadline, .. } => {
                if *deadline <= now {
                    self.disconnected(&Closed::Timeout(self.config.connect_timeout), Duration::ZERO, now);
                }
            }
            Link::Up {
                connection,
                ping_interval,
                next_ping,
                heard_at,
            } => {
                if now >= *heard_at + *ping_interval + self.config.pong_timeout {
                    self.disconnected(&Closed::Silent, Duration::ZERO, now);
                } else if now >= *next_ping {
                    let share: f64 = self.rng.random();
                    *next_ping = now + ping_interval.mul_f64(1.0 - HEARTBEAT_JITTER * share);
                    let ping = v1::Ping {
                        client_time: self.clock.now().get(),
                    };
                    if connection.outgoing.try_send(ping.into()).is_err() {
                        tracing::debug!("no room for a heartbeat");
                    }
                }
            }
        }
    }

    fn connect(&mut self, now: Instant) {
        let hello = v1::Connect {
            token: self.config.token.clone(),
            device_id: self.config.device_id.clone().into(),
            fresh: self.fresh,
            cursor: (!self.fresh).then(|| self.stream.cursor()),
            client: self.config.client.clone(),
        };
        let timeout = self.config.connect_timeout;
        let (url, token) = (self.config.url.clone(), self.config.token.clone());
        self.link = Link::Greeting {
            connection: Connection::start(url, token, hello, timeout),
            deadline: now + timeout,
        };
    }

    /// The gateway's answer to the first frame: the session begins.
    pub(super) async fn greeted(&mut self, connected: v1::Connected, now: Instant) -> Result<(), Error> {
        if connected.uid != self.config.uid.as_str() {
            return Err(Error::OtherSubject {
                configured: self.config.uid.clone(),
                actual: connected.uid,
            });
        }
        let down = Link::Down { retry_at: now };
        self.link = match std::mem::replace(&mut self.link, down) {
            Link::Greeting { connection, .. } => {
                let ping_interval = self.apply_limits(connected.limits.as_ref());
                Link::Up {
                    connection,
                    ping_interval,
                    next_ping: now + ping_interval,
                    heard_at: now,
                }
            }
            // A second greeting says nothing new.
            other @ (Link::Down { .. } | Link::Up { .. }) => {
                self.link = other;
                return Ok(());
            }
        };
        self.clock_offset_ms = connected.server_time.saturating_sub(self.clock.now().get());
        let epoch = connected.epoch;
        if self.fresh {
            let user_seq = connected.cursor;
            self.start_at(v1::Cursor { epoch, user_seq }).await?;
        } else if self.stream.cursor().epoch != epoch {
            // Another store: nothing of the old stream is there, so its positions mean nothing.
            self.start_at(v1::Cursor { epoch, user_seq: 0 }).await?;
            self.tell(ClientEvent::CursorReset);
        }
        self.counts.sessions += 1;
        self.stream.connected(connected.head_seq, now, &mut self.rng);
        self.outbox.connected();
        self.tell(ClientEvent::Connected {
            head_seq: connected.head_seq,
        });
        Ok(())
    }

    /// Sets the cursor, durably, and forgets what belonged to another.
    pub(super) async fn start_at(&mut self, cursor: v1::Cursor) -> Result<(), Error> {
        self.db.run(move |store| store.set_cursor(cursor)).await?;
        self.fresh = false;
        self.stream.reset(cursor);
        self.acks.reset();
        self.holes.reset();
        Ok(())
    }

    /// Takes over what the server allows; gives the heartbeat interval.
    fn apply_limits(&mut self, limits: Option<&v1::Limits>) -> Duration {
        let Some(limits) = limits else {
            return self.config.ping_interval;
        };
        if limits.max_body_bytes > 0 {
            self.limits.max_body_bytes = limits.max_body_bytes as usize;
        }
        if limits.max_unacked_sends > 0 {
            self.outbox
                .limit_window(self.config.max_unacked.min(limits.max_unacked_sends as usize));
        }
        if limits.ping_interval_ms > 0 {
            Duration::from_millis(u64::from(limits.ping_interval_ms))
        } else {
            self.config.ping_interval
        }
    }

    /// The connection is over; the next one after a jittered delay, not before `at_least`.
    pub(super) fn disconnected(&mut self, reason: &Closed, at_least: Duration, now: Instant) {
        let delay = self.backoff.next_delay();
        let share: f64 = self.rng.random();
        // Those who were told the same time must not come back at the same time.
        let at_least = at_least.mul_f64(1.0 + 0.5 * share);
        self.link = Link::Down {
            retry_at: now + delay.max(at_least),
        };
        self.outbox.disconnected();
        self.stream.disconnected();
        self.holes.disconnected();
        self.reads.disconnected();
        self.tell(ClientEvent::Disconnected {
            reason: reason.to_string(),
        });
    }
}
