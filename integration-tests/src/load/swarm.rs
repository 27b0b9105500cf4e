//! Many users who write to each other.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use tidings_domain::{DeviceId, Uid};
use tokio::time::Instant;

use super::client::{Client, ClientOptions};
use super::reader::gather_evidence;
use crate::oracle::{DeviceKey, Ledger, Outcome, Report, SharedLedger, Violation, check};
use crate::system::System;
use crate::wait;

/// How many users, and how they write.
#[derive(Debug, Clone)]
pub struct SwarmOptions {
    /// First part of every uid: no other run may have used it.
    pub name: String,
    /// Users; every second has two devices.
    pub users: usize,
    /// People each user writes to.
    pub peers: usize,
    /// Time between heartbeats.
    pub ping_interval: Duration,
}

impl SwarmOptions {
    /// `users` users with names beginning with `name`.
    pub fn new(name: &str, users: usize) -> Self {
        Self {
            name: name.to_owned(),
            users,
            peers: 4,
            ping_interval: Duration::from_secs(5),
        }
    }
}

/// All clients of a run, with the ledger they feed.
pub struct Swarm {
    ledger: SharedLedger,
    uids: Vec<Uid>,
    /// Clients by user.
    clients: Vec<Vec<Client>>,
    peers: usize,
}

/// From the first client's start until all are connected, per client.
const CONNECT_DEADLINE_PER_CLIENT: Duration = Duration::from_millis(200);
const CONNECT_DEADLINE: Duration = Duration::from_secs(60);
/// Nothing new for this long is rest; a lost push is found by the heads, which come more often.
const QUIET: Duration = Duration::from_secs(8);
const REST_DEADLINE: Duration = Duration::from_secs(60);
/// Between two readings of all histories.
const HISTORY_PAUSE: Duration = Duration::from_secs(2);

impl Swarm {
    /// Starts all clients and waits until each has had a session: from then on each is entitled to what is sent.
    pub async fn start(system: &dyn System, options: &SwarmOptions, rng: &mut StdRng) -> Result<Self> {
        let ledger = Ledger::shared();
        let gateways = system.gateway_urls();
        let mut swarm = Self {
            ledger: SharedLedger::clone(&ledger),
            uids: Vec::new(),
            clients: Vec::new(),
            peers: options.peers,
        };
        for number in 0..options.users {
            let uid = Uid::parse(&format!("{}-{number:04}", options.name))?;
            let token = system.token(&uid)?;
            let devices = if number % 2 == 0 {
                &["phone", "laptop"][..]
            } else {
                &["phone"]
            };
            let mut clients = Vec::new();
            for device in devices {
                clients.push(Client::start(ClientOptions {
                    device: DeviceKey {
                        uid: uid.clone(),
                        device: DeviceId::parse(device)?,
                    },
                    token: token.clone(),
                    gateways: gateways.clone(),
                    first_gateway: rng.random_range(0..gateways.len()),
                    seed: rng.next_u64(),
                    ping_interval: options.ping_interval,
                    ledger: SharedLedger::clone(&ledger),
                }));
            }
            swarm.uids.push(uid);
            swarm.clients.push(clients);
        }
        let count = swarm.clients().count();
        let deadline = CONNECT_DEADLINE + CONNECT_DEADLINE_PER_CLIENT * u32::try_from(count)?;
        wait::until_true(&format!("{count} clients to have a session"), deadline, || {
            swarm.clients().all(|client| client.sessions() > 0)
        })
        .await?;
        Ok(swarm)
    }

    /// What is known so far.
    pub fn ledger(&self) -> &SharedLedger {
        &self.ledger
    }

    /// All clients.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.clients.iter().flatten()
    }

    /// The users.
    pub fn uids(&self) -> &[Uid] {
        &self.uids
    }

    /// Presses `messages` send buttons at `per_second`, each of a random device and to one of its user's peers.
    pub async fn press(&self, messages: usize, per_second: f64, rng: &mut StdRng) -> Result<()> {
        ensure!(self.uids.len() > self.peers, "more users than peers are needed");
        let begun = Instant::now();
        for number in 0..messages {
            tokio::time::sleep_until(begun + Duration::from_secs_f64(number as f64 / per_second)).await;
            let sender = rng.random_range(0..self.uids.len());
            let distance = rng.random_range(1..=self.peers);
            let receiver = &self.uids[(sender + distance) % self.uids.len()];
            let clients = &self.clients[sender];
            let client = &clients[rng.random_range(0..clients.len())];
            client.press(receiver, &format!("message {number}")).await?;
        }
        Ok(())
    }

    /// Waits until every press is settled and every acknowledged message is where it belongs.
    pub async fn settle(&self, deadline: Duration) -> Result<()> {
        // Looking goes over the whole ledger and stops the clients meanwhile.
        let looks = Duration::from_secs(1);
        let settled = wait::until_every(looks, "all to be acknowledged and delivered", deadline, || {
            let ledger = self.ledger.lock();
            let is_done = ledger.count(Outcome::Pending) == 0 && ledger.missing() == 0;
            async move { Ok(is_done.then_some(())) }
        })
        .await;
        settled.with_context(|| {
            let ledger = self.ledger.lock();
            format!(
                "{} of {} are not acknowledged, {} deliveries are missing",
                ledger.count(Outcome::Pending),
                ledger.sent(),
                ledger.missing()
            )
        })
    }

    /// Waits until no device learns anything any more (receipts come after the messages) and all devices of a user
    /// stand at the same number.
    pub async fn rest(&self) -> Result<()> {
        let mut last = 0;
        let mut quiet_since = Instant::now();
        wait::until("the devices to come to rest", REST_DEADLINE, || {
            let sum: u64 = self.clients().map(Client::cursor).sum();
            if sum != last {
                last = sum;
                quiet_since = Instant::now();
            }
            let is_level = self.clients.iter().all(|devices| {
                let mut cursors = devices.iter().map(Client::cursor);
                let first = cursors.next();
                cursors.all(|cursor| Some(cursor) == first)
            });
            let is_quiet = quiet_since.elapsed() >= QUIET;
            async move { Ok((is_quiet && is_level).then_some(())) }
        })
        .await
    }

    /// Lets the run come to rest, reads what the servers hold and judges all of it. A run that does not come to rest
    /// is judged, too: then the report says what is missing where.
    pub async fn judge(&self, system: &dyn System, deadline: Duration) -> Result<Report> {
        let settled = self.settle(deadline).await;
        let rest = match settled {
            Ok(()) => self.rest().await,
            Err(error) => Err(error),
        };
        let end = Instant::now() + deadline;
        let report = loop {
            gather_evidence(system, &self.ledger).await?;
            let report = check(&self.ledger.lock());
            let is_history_late = |violation: &Violation| matches!(violation, Violation::HistoryMissing { .. });
            // Nothing tells a client that the history is complete, so it is read again.
            let is_late = !report.violations.is_empty() && report.violations.iter().all(is_history_late);
            if rest.is_err() || !is_late || Instant::now() >= end {
                break report;
            }
            tokio::time::sleep(HISTORY_PAUSE).await;
        };
        if rest.is_err() || !report.violations.is_empty() {
            system.keep_state().await?;
        }
        match rest {
            Ok(()) => Ok(report),
            Err(error) if report.violations.is_empty() => Err(error),
            Err(error) => {
                report.verdict().context(format!("{error:#}"))?;
                Ok(report)
            }
        }
    }
}
