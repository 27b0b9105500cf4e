//! Negative controls: clients and oracle together against a server that is wrong in one way. What passes here although
//! the server is wrong would pass in the other tests, too.

mod fake;

use std::time::Duration;

use anyhow::Result;
use fake::{FakeServer, Fault};
use tidings_integration_tests::load::{Swarm, SwarmOptions, gather_evidence};
use tidings_integration_tests::oracle::{Report, Violation, check};
use tidings_integration_tests::seed;

const USERS: usize = 20;
const MESSAGES: usize = 400;

async fn run(fault: Fault) -> Result<Report> {
    let mut rng = seed::generator(&format!("{fault:?}"));
    let server = FakeServer::start(fault).await?;
    let mut options = SwarmOptions::new("fake", USERS);
    options.ping_interval = Duration::from_secs(1);
    let swarm = Swarm::start(&server, &options, &mut rng).await?;
    swarm.press(MESSAGES, 200.0, &mut rng).await?;
    // A wrong server may never let the run come to rest.
    let settled = swarm.settle(Duration::from_secs(10)).await;
    gather_evidence(&server, swarm.ledger()).await?;
    let report = check(&swarm.ledger().lock());
    println!("{fault:?}: {}, settled: {}", report.figures, settled.is_ok());
    Ok(report)
}

fn has(report: &Report, wanted: fn(&Violation) -> bool) -> bool {
    report.violations.iter().any(wanted)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_server_that_loses_acks_passes() -> Result<()> {
    let report = run(Fault::LoseAckEvery(20)).await?;
    report.verdict()?;
    assert_eq!(report.figures.acknowledged, MESSAGES);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_is_caught() -> Result<()> {
    let report = run(Fault::ForgetEvery(50)).await?;
    assert!(
        has(&report, |v| matches!(v, Violation::AcknowledgedMissing { .. })),
        "{report:?}"
    );
    assert!(
        has(&report, |v| matches!(v, Violation::HistoryMissing { .. })),
        "{report:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_dedup_is_caught_although_devices_show_once() -> Result<()> {
    let report = run(Fault::NoDedup(20)).await?;
    assert!(
        has(&report, |v| matches!(v, Violation::SequencedTwice { .. })),
        "{report:?}"
    );
    assert!(
        has(&report, |v| matches!(v, Violation::StreamRepeats { .. })),
        "{report:?}"
    );
    assert_eq!(report.figures.twice, 0);
    assert!(report.figures.absorbed > 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_neither_pushes_nor_tells_the_head_is_caught() -> Result<()> {
    let report = run(Fault::Mute(1)).await?;
    assert!(
        has(&report, |v| matches!(v, Violation::DeviceBehind { .. })),
        "{report:?}"
    );
    assert!(report.figures.missing > 0);
    Ok(())
}
