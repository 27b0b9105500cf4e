//! Owners change under load: by scaling (B87), and by an owner that is frozen, loses its partitions and goes on as if
//! nothing had happened (sequencing.md section 7.3).

use std::time::Duration;

use anyhow::Result;
use tidings_integration_tests::cluster::{Cluster, ClusterOptions};
use tidings_integration_tests::load::{Swarm, SwarmOptions};
use tidings_integration_tests::seed;
use tidings_integration_tests::system::{Part, System};

const PER_SECOND: f64 = 50.0;
const USERS: usize = 30;
const SETTLE_DEADLINE: Duration = Duration::from_secs(60);
/// Longer than the session time-out of a group: another member owns the partitions by then.
const FROZEN: Duration = Duration::from_secs(10);

/// B87: a record still in hand after a revocation must not move anything.
#[tokio::test(flavor = "multi_thread")]
async fn scaling_three_one_three_loses_and_doubles_nothing() -> Result<()> {
    let mut rng = seed::generator("scaling_three_one_three");
    let mut cluster = Cluster::start(ClusterOptions::new("rebalance_scale").replicas(3)).await?;
    let swarm = Swarm::start(&cluster, &SwarmOptions::new(cluster.name(), USERS), &mut rng).await?;
    let kinds = [
        Part::Router,
        Part::StorageConsumer,
        Part::OfflineInbox,
        Part::PushFanout,
    ];
    let mut press_rng = seed::fork(&mut rng);
    let pressing = swarm.press(1_000, PER_SECOND, &mut press_rng);
    let scaling = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        for number in [1, 2] {
            for kind in kinds {
                cluster.process(kind(number))?.terminate().await?;
            }
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        for number in [1, 2] {
            for kind in kinds {
                cluster.start_again(kind(number))?;
            }
        }
        cluster.wait_ready().await
    };
    let (pressed, scaled) = tokio::join!(pressing, scaling);
    pressed?;
    scaled?;
    let report = swarm.judge(&cluster, SETTLE_DEADLINE).await?;
    println!("scaling 3-1-3: {}", report.figures);
    report.verdict()
}

/// A zombie can only write what the true owner writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_owner_that_goes_on_loses_and_doubles_nothing() -> Result<()> {
    let mut rng = seed::generator("a_frozen_owner_that_goes_on");
    let mut cluster = Cluster::start(ClusterOptions::new("rebalance_zombie").replicas(2)).await?;
    let swarm = Swarm::start(&cluster, &SwarmOptions::new(cluster.name(), USERS), &mut rng).await?;
    let mut press_rng = seed::fork(&mut rng);
    let pressing = swarm.press(1_000, PER_SECOND, &mut press_rng);
    let zombies = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        for part in [Part::Router(0), Part::OfflineInbox(0), Part::StorageConsumer(0)] {
            cluster.process(part)?.freeze()?;
        }
        tokio::time::sleep(FROZEN).await;
        for part in [Part::Router(0), Part::OfflineInbox(0), Part::StorageConsumer(0)] {
            cluster.process(part)?.thaw()?;
        }
        anyhow::Ok(())
    };
    let (pressed, thawed) = tokio::join!(pressing, zombies);
    pressed?;
    thawed?;
    let report = swarm.judge(&cluster, SETTLE_DEADLINE).await?;
    println!("a frozen owner: {}", report.figures);
    report.verdict()
}
