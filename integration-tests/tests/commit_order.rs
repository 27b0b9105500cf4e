//! Architecture decision 2: an offset is never committed past an unsettled record.
//!
//! The store is frozen in the middle of the load, so that records of all partitions are under way and unsettled; then
//! their consumers are killed. Had an offset been committed past one of them, its effect would be missing for good:
//! a hole in the history or in a stream. (That single records of a partition fail while later ones succeed is in the
//! contract suite of the bus, where a handler can be made to fail.)

use std::time::Duration;

use anyhow::Result;
use tidings_integration_tests::cluster::{Cluster, ClusterOptions};
use tidings_integration_tests::load::{Swarm, SwarmOptions};
use tidings_integration_tests::seed;
use tidings_integration_tests::system::{Part, System};
use xtask::stack::Node;

const MESSAGES: usize = 1_200;
const PER_SECOND: f64 = 100.0;

#[tokio::test(flavor = "multi_thread")]
async fn consumers_killed_with_unsettled_records_lose_nothing() -> Result<()> {
    let mut rng = seed::generator("consumers_killed_with_unsettled_records");
    let mut cluster = Cluster::start(ClusterOptions::new("commit_order")).await?;
    let swarm = Swarm::start(&cluster, &SwarmOptions::new(cluster.name(), 30), &mut rng).await?;
    let mut press_rng = seed::fork(&mut rng);
    let pressing = swarm.press(MESSAGES, PER_SECOND, &mut press_rng);
    let faults = async {
        for part in [Part::StorageConsumer(0), Part::OfflineInbox(0)] {
            tokio::time::sleep(Duration::from_secs(2)).await;
            cluster.with_stack(|stack| stack.freeze(Node::Cassandra(1))).await?;
            // Longer than a commit interval: what is committed wrongly, is committed by then.
            tokio::time::sleep(Duration::from_secs(2)).await;
            cluster.kill(part)?;
            cluster.with_stack(|stack| stack.thaw(Node::Cassandra(1))).await?;
            cluster.start_again(part)?;
        }
        anyhow::Ok(())
    };
    let (pressed, faults) = tokio::join!(pressing, faults);
    pressed?;
    faults?;
    cluster.wait_ready().await?;
    let report = swarm.judge(&cluster, Duration::from_secs(60)).await?;
    println!("commit order: {}", report.figures);
    report.verdict()
}
