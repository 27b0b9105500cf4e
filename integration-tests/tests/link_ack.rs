//! req:B1, req:B7, B05: the link ACK stands for the broker's word and nothing less.
//!
//! The gateway reaches the broker through a proxy, everything else directly: so confirms can be late or lost while the
//! record is written.

use std::time::Duration;

use anyhow::Result;
use rand::RngExt;
use tidings_domain::clock::{Clock, SystemClock};
use tidings_domain::{Conversation, Topic};
use tidings_integration_tests::cluster::{self, Cluster, ClusterOptions};
use tidings_integration_tests::fault_proxy::{Cut, Direction, Fault, FaultProxy};
use tidings_integration_tests::load::user::{FRAME_DEADLINE, hello, mint, text, uid};
use tidings_integration_tests::load::{Session, Swarm, SwarmOptions};
use tidings_integration_tests::oracle::Outcome;
use tidings_integration_tests::system::{Part, System};
use tidings_integration_tests::{seed, wait};
use tidings_proto::v1;
use tokio::time::Instant;
use xtask::stack::{Node, Signal};

/// A cluster whose gateway reaches the broker through the proxy.
async fn behind_a_proxy(test: &str) -> Result<(Cluster, FaultProxy)> {
    let (advertised, target) = cluster::fault_listener(&cluster::stack()?)?;
    let proxy = FaultProxy::listen(advertised, target).await?;
    let options = ClusterOptions::new(test).set(
        Part::Gateway(0),
        "TIDINGS__KAFKA__BOOTSTRAP_SERVERS",
        advertised.to_string(),
    );
    Ok((Cluster::start(options).await?, proxy))
}

async fn wait_for_records(cluster: &Cluster, records: u64) -> Result<()> {
    wait::until(
        &format!("{records} records in ingress"),
        Duration::from_secs(10),
        || async { Ok((cluster.records(Topic::Ingress).await? == records).then_some(())) },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_ack_comes_before_the_report_of_the_broker() -> Result<()> {
    let mut rng = seed::generator("no_ack_comes_before_the_report_of_the_broker");
    let (cluster, proxy) = behind_a_proxy("link_ack_report").await?;
    let (alice, bob) = (uid(cluster.name(), "alice")?, uid(cluster.name(), "bob")?);
    let conversation = Conversation::direct(&alice, &bob);
    let (mut a1, _) = Session::open(&hello(&cluster, 0, &alice, "phone")?).await?;
    let ack = a1
        .act_and_wait(text(&conversation, 1, mint(&mut rng), "on time"))
        .await?;
    assert_eq!(ack.code, v1::Code::Ok as i32, "{ack:?}");

    let delay = Duration::from_secs(3);
    proxy.set(Direction::ToClient, Fault::Delay(delay));
    let (begun, sent_at) = (Instant::now(), SystemClock.now());
    let msg_id = mint(&mut rng);
    a1.act(text(&conversation, 2, msg_id, "late")).await?;
    wait_for_records(&cluster, 2).await?;
    let ack = a1.ack_of(msg_id.as_bytes(), FRAME_DEADLINE).await?;
    assert!(begun.elapsed() >= delay, "acknowledged after {:?}", begun.elapsed());
    assert_eq!(ack.code, v1::Code::Ok as i32, "{ack:?}");
    // server_time is when the broker wrote it, not when the report came.
    let written_after = ack.server_time - sent_at.get();
    assert!(
        (0..2_000).contains(&written_after),
        "written {written_after} ms after the send"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_killed_between_write_and_report_loses_and_doubles_nothing() -> Result<()> {
    let mut rng = seed::generator("a_broker_killed_between_write_and_report");
    let (cluster, proxy) = behind_a_proxy("link_ack_broker").await?;
    let (alice, bob) = (uid(cluster.name(), "alice")?, uid(cluster.name(), "bob")?);
    let conversation = Conversation::direct(&alice, &bob);
    let (mut a1, _) = Session::open(&hello(&cluster, 0, &alice, "phone")?).await?;
    let (mut b1, _) = Session::open(&hello(&cluster, 0, &bob, "phone")?).await?;

    // The producer's first record needs answers of the broker.
    let first = mint(&mut rng);
    let ack = a1.act_and_wait(text(&conversation, 1, first, "first")).await?;
    assert_eq!(ack.code, v1::Code::Ok as i32, "{ack:?}");
    b1.message(first).await?;

    proxy.set(Direction::ToClient, Fault::Hold);
    let msg_id = mint(&mut rng);
    let action = text(&conversation, 2, msg_id, "between");
    a1.act(action.clone()).await?;
    wait_for_records(&cluster, 2).await?;
    cluster
        .with_stack(|stack| stack.stop_node(Node::Kafka(1), Signal::SIGKILL))
        .await?;
    // The report is lost with the connection that should have brought it.
    proxy.cut(Cut::Rst);
    proxy.set(Direction::ToClient, Fault::None);
    cluster.with_stack(|stack| stack.start_node(Node::Kafka(1))).await?;

    let deadline = Instant::now() + Duration::from_secs(60);
    let mut ack = a1.ack_of(msg_id.as_bytes(), Duration::from_secs(60)).await?;
    while ack.code != v1::Code::Ok as i32 {
        assert!(ack.retryable && Instant::now() < deadline, "{ack:?}");
        ack = a1.act_and_wait(action.clone()).await?;
    }
    let (_, message) = b1.message(msg_id).await?;
    assert_eq!(message.conv_seq, 2);
    // Whatever copies there are in the log, the next message is the third one.
    let next = mint(&mut rng);
    let ack = a1.act_and_wait(text(&conversation, 3, next, "after")).await?;
    assert_eq!(ack.code, v1::Code::Ok as i32, "{ack:?}");
    let (_, message) = b1.message(next).await?;
    assert_eq!(message.conv_seq, 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_confirms_of_one_to_ten_seconds_nothing_is_lost_or_failed() -> Result<()> {
    let mut rng = seed::generator("with_confirms_of_one_to_ten_seconds");
    let (cluster, proxy) = behind_a_proxy("link_ack_slow").await?;
    let swarm = Swarm::start(&cluster, &SwarmOptions::new(cluster.name(), 20), &mut rng).await?;
    let mut press_rng = seed::fork(&mut rng);
    let pressing = swarm.press(300, 12.0, &mut press_rng);
    tokio::pin!(pressing);
    loop {
        proxy.set(
            Direction::ToClient,
            Fault::Delay(Duration::from_millis(rng.random_range(1_000..10_000))),
        );
        tokio::select! {
            pressed = &mut pressing => {
                pressed?;
                break;
            }
            () = tokio::time::sleep(Duration::from_secs(2)) => {}
        }
    }
    let report = swarm.judge(&cluster, Duration::from_secs(60)).await?;
    let records = cluster.records(Topic::Ingress).await?;
    println!("confirms of 1 to 10 s: {}, records {records}", report.figures);
    report.verdict()?;
    assert_eq!(swarm.ledger().lock().count(Outcome::Failed), 0);
    let sent = u64::try_from(report.figures.sent)?;
    assert!(records * 100 <= sent * 105, "{records} records for {sent} messages");
    Ok(())
}

/// B91: the broker is silent, sends are queued, and the gateway is told to end.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_ends_with_records_under_way_loses_nothing_acknowledged() -> Result<()> {
    let mut rng = seed::generator("a_gateway_that_ends_with_records_under_way");
    let (mut cluster, proxy) = behind_a_proxy("link_ack_term").await?;
    let swarm = Swarm::start(&cluster, &SwarmOptions::new(cluster.name(), 20), &mut rng).await?;
    swarm.press(50, 50.0, &mut rng).await?;
    proxy.set_both(Fault::Hold);
    swarm.press(200, 100.0, &mut rng).await?;
    let begun = Instant::now();
    let status = cluster.process(Part::Gateway(0))?.terminate().await?;
    println!("ended after {:?} with {status}", begun.elapsed());
    proxy.cut(Cut::Rst);
    proxy.set_both(Fault::None);
    cluster.start_again(Part::Gateway(0))?;
    cluster.wait_ready().await?;
    let report = swarm.judge(&cluster, Duration::from_secs(60)).await?;
    println!("a gateway told to end: {}", report.figures);
    report.verdict()
}
