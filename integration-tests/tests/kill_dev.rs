//! `tidings dev` killed five times under load: what was acknowledged is in its journal, and nothing is shown twice.
//!
//! The number of messages is `TIDINGS_KILL_MESSAGES` (default 2,000, then 50 users). The full run, 20,000 messages of
//! 1,000 users at 200/s:
//!
//! ```text
//! TIDINGS_KILL_MESSAGES=20000 cargo test -p tidings-integration-tests --test kill_dev -- --nocapture
//! ```

use std::time::Duration;

use anyhow::{Context, Result};
use rand::RngExt;
use tidings_integration_tests::dev::Dev;
use tidings_integration_tests::load::{Swarm, SwarmOptions};
use tidings_integration_tests::seed;
use tidings_integration_tests::system::{Part, System};

const KILLS: usize = 5;
const MESSAGES_VARIABLE: &str = "TIDINGS_KILL_MESSAGES";
const DEFAULT_MESSAGES: usize = 2_000;
const DEFAULT_USERS: usize = 50;
const MESSAGES_PER_USER: usize = 20;
const PER_SECOND: f64 = 200.0;
const SETTLE_DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn five_kills_lose_and_double_nothing() -> Result<()> {
    let mut rng = seed::generator("kill_dev");
    let (messages, users) = match std::env::var(MESSAGES_VARIABLE) {
        Ok(text) => {
            let messages: usize = text.parse().context(MESSAGES_VARIABLE)?;
            (messages, (messages / MESSAGES_PER_USER).max(DEFAULT_USERS))
        }
        Err(_) => (DEFAULT_MESSAGES, DEFAULT_USERS),
    };
    // Spread over the time of pressing, so that every kill finds sends under way.
    let between = messages as f64 / PER_SECOND / (KILLS + 1) as f64;
    let mut dev = Dev::start("kill_dev").await?;
    let swarm = Swarm::start(&dev, &SwarmOptions::new("kill", users), &mut rng).await?;
    let mut press_rng = seed::fork(&mut rng);
    let pressing = swarm.press(messages, PER_SECOND, &mut press_rng);
    let failing = async {
        for _ in 0..KILLS {
            tokio::time::sleep(Duration::from_secs_f64(between * rng.random_range(0.5..1.0))).await;
            dev.kill(Part::Dev)?;
            dev.start_again(Part::Dev)?;
            dev.wait_ready().await?;
        }
        anyhow::Ok(())
    };
    let (pressed, failed) = tokio::join!(pressing, failing);
    pressed?;
    failed?;
    let report = swarm.judge(&dev, SETTLE_DEADLINE).await?;
    println!("kill_dev: users {users}, {}, kills {KILLS}", report.figures);
    report.verdict()
}
