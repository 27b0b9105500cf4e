//! Every service is killed twice under load, and the broker once: nothing acknowledged is missing, nothing is shown twice.
//!
//! The number of messages is `TIDINGS_KILL_MESSAGES` (default 4,000, then 200 users; the rate is 200/s). The full run:
//!
//! ```text
//! TIDINGS_KILL_MESSAGES=20000 cargo test -p tidings-integration-tests --test kill_stack -- --nocapture
//! ```
//!
//! with 1,000 users. One line gives the figures.

use std::time::Duration;

use anyhow::{Context, Result};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use tidings_domain::Topic;
use tidings_integration_tests::cluster::{Cluster, ClusterOptions};
use tidings_integration_tests::load::{Swarm, SwarmOptions};
use tidings_integration_tests::seed;
use tidings_integration_tests::system::{Part, System};
use tokio::time::Instant;

const MESSAGES_VARIABLE: &str = "TIDINGS_KILL_MESSAGES";
const DEFAULT_MESSAGES: usize = 4_000;
const MESSAGES_PER_USER: usize = 20;
const PER_SECOND: f64 = 200.0;
const GATEWAYS: usize = 2;
const KILLS_PER_PART: usize = 2;
/// How long a killed part stays away, at most.
const AWAY_MAX_MS: u64 = 1_500;
/// Between two crashes of clients.
const CRASH_INTERVAL: Duration = Duration::from_millis(200);
const SETTLE_DEADLINE: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill(Part),
    RestartBroker,
}

/// The faults of a run in random order at random times within `span`.
fn plan(parts: &[Part], span: Duration, rng: &mut StdRng) -> Vec<(Duration, Fault)> {
    let killed = parts
        .iter()
        .filter(|part| !matches!(part, Part::DeadLetterCompensator(_)));
    let mut faults: Vec<Fault> = killed.flat_map(|part| [Fault::Kill(*part); KILLS_PER_PART]).collect();
    faults.push(Fault::RestartBroker);
    faults.shuffle(rng);
    let mut times: Vec<Duration> = faults
        .iter()
        .map(|_| span.mul_f64(rng.random_range(0.05..0.95)))
        .collect();
    times.sort();
    times.into_iter().zip(faults).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_every_service_and_the_broker_lose_and_double_nothing() -> Result<()> {
    let messages = match std::env::var(MESSAGES_VARIABLE) {
        Ok(text) => text.parse().with_context(|| format!("{MESSAGES_VARIABLE}={text}"))?,
        Err(_) => DEFAULT_MESSAGES,
    };
    let mut rng = seed::generator("kill_stack");
    let options = ClusterOptions::new("kill_stack").gateways(GATEWAYS);
    let mut cluster = Cluster::start(options).await?;
    let users = (messages / MESSAGES_PER_USER).max(10);
    let swarm = Swarm::start(&cluster, &SwarmOptions::new(cluster.name(), users), &mut rng).await?;
    let span = Duration::from_secs_f64(messages as f64 / PER_SECOND);
    let faults = plan(&cluster.parts(), span, &mut rng);
    let kills = faults.len() - 1;
    let begun = Instant::now();
    let mut press_rng = seed::fork(&mut rng);
    let mut crash_rng = seed::fork(&mut rng);
    let pressing = swarm.press(messages, PER_SECOND, &mut press_rng);
    let failing = async {
        for (at, fault) in faults {
            tokio::time::sleep_until(begun + at).await;
            match fault {
                Fault::Kill(part) => {
                    cluster.kill(part).with_context(|| format!("killing {part}"))?;
                    tokio::time::sleep(Duration::from_millis(rng.random_range(0..AWAY_MAX_MS))).await;
                    cluster.start_again(part)?;
                }
                Fault::RestartBroker => cluster.restart_broker().await?,
            }
        }
        anyhow::Ok(())
    };
    // B33: apps crash, too, before or after the storage ACK.
    let crashing = async {
        let clients: Vec<_> = swarm.clients().collect();
        while begun.elapsed() < span {
            clients[crash_rng.random_range(0..clients.len())].crash();
            tokio::time::sleep(CRASH_INTERVAL).await;
        }
    };
    let (pressed, failed, ()) = tokio::join!(pressing, failing, crashing);
    pressed?;
    failed?;
    cluster.wait_ready().await?;
    let report = swarm.judge(&cluster, SETTLE_DEADLINE).await?;
    let records = cluster.records(Topic::Ingress).await?;
    let resends: u64 = swarm.clients().map(|client| client.resends()).sum();
    println!(
        "kill_stack: users {users}, {}, kills {kills}, broker restarts 1, resends {resends}, ingress records {records}, took {:.0?}",
        report.figures,
        begun.elapsed()
    );
    report.verdict()
}
