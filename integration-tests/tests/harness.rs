//! The harness against the real stack: a proxy before a broker really stands between it and its clients, and records
//! are really counted. What the other tests conclude hangs on it.

use std::time::Duration;

use anyhow::Result;
use tidings_bus::Bus;
use tidings_bus::catalogue::{Catalogue, Durability, PartitionCounts};
use tidings_domain::Topic;
use tidings_integration_tests::fault_proxy::{Direction, Fault, FaultProxy};
use tidings_integration_tests::records::{RecordWriter, bus};
use tidings_integration_tests::{cluster, kafka, seed};
use tokio::time::Instant;
use xtask::stack::Node;

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_before_the_broker_holds_reports_back_after_the_record_is_written() -> Result<()> {
    let stack = cluster::stack()?;
    let broker = stack.state().address(Node::Kafka(1))?;
    let (advertised, target) = cluster::fault_listener(&stack)?;
    let catalogue = Catalogue::with_prefix(&seed::run_name(), Durability::Single, PartitionCounts::DEV);
    bus(&broker.to_string(), catalogue.clone())?.apply_topics().await?;
    let topic = catalogue.spec(Topic::Ingress).name.clone();
    let partitions = catalogue.partitions(Topic::Ingress);
    assert_eq!(kafka::records(broker, &topic, partitions).await?, 0);

    let proxy = FaultProxy::listen(advertised, target).await?;
    let writer = RecordWriter::new(&advertised.to_string(), catalogue)?;
    let first = writer.write(Topic::Ingress, 1, b"key", Some(b"1")).await?;
    assert_eq!(first.offset, Some(0));
    assert!(proxy.bytes(Direction::ToClient) > 0);

    proxy.set(Direction::ToClient, Fault::Delay(Duration::from_secs(2)));
    let begun = Instant::now();
    let report = writer.write(Topic::Ingress, 1, b"key", Some(b"2"));
    tokio::pin!(report);
    // The record is there long before its report.
    let written = tidings_integration_tests::wait::until("the second record", Duration::from_secs(1), || {
        let topic = topic.clone();
        async move { Ok((kafka::records(broker, &topic, partitions).await? == 2).then_some(())) }
    });
    tokio::select! {
        early = &mut report => panic!("reported after {:?}: {early:?}", begun.elapsed()),
        written = written => written?,
    }
    assert_eq!(report.await?.offset, Some(1));
    assert!(begun.elapsed() >= Duration::from_secs(2));
    Ok(())
}
