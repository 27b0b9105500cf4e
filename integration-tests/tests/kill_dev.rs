//! `tidings dev` killed five times under load: what was acknowledged is in its journal, and nothing is shown twice.

use std::time::Duration;

use anyhow::Result;
use rand::RngExt;
use tidings_integration_tests::dev::Dev;
use tidings_integration_tests::load::{Swarm, SwarmOptions};
use tidings_integration_tests::seed;
use tidings_integration_tests::system::{Part, System};

const KILLS: usize = 5;
const MESSAGES: usize = 2_000;
const USERS: usize = 50;
const PER_SECOND: f64 = 100.0;
const SETTLE_DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn five_kills_lose_and_double_nothing() -> Result<()> {
    let mut rng = seed::generator("kill_dev");
    let mut dev = Dev::start("kill_dev").await?;
    let swarm = Swarm::start(&dev, &SwarmOptions::new("kill", USERS), &mut rng).await?;
    let mut press_rng = seed::fork(&mut rng);
    let pressing = swarm.press(MESSAGES, PER_SECOND, &mut press_rng);
    let failing = async {
        for _ in 0..KILLS {
            tokio::time::sleep(Duration::from_millis(rng.random_range(1_000..4_000))).await;
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
    println!("kill_dev: users {USERS}, {}, kills {KILLS}", report.figures);
    report.verdict()
}
