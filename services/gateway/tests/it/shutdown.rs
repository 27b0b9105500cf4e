//! The end of a gateway (scenarios B91, B121).

use std::time::Duration;

use tidings_domain::Topic;
use tidings_proto::v1::Code;
use tokio::time::Instant;

use crate::support::device::Device;
use crate::support::{DEADLINE, World, text};

#[tokio::test]
async fn sessions_get_their_pending_acks_and_are_told_to_come_back() {
    let mut world = World::start().await;
    world.log.hold(Topic::Ingress);
    let mut busy = Device::open(&world, "ann", "phone").await;
    let mut idle = Device::open(&world, "bob", "phone").await;
    busy.send(text(1, "bob", 1, "hi")).await;
    world.log.wait(Topic::Ingress, 1).await;
    let (context, running) = (world.context.clone(), world.running.take().expect("running"));
    let stopping = tokio::spawn(async move { running.stop(&context, Instant::now() + DEADLINE).await });
    let (closing, close_code) = idle.closed().await;
    assert_eq!((closing.code(), close_code), (Code::GoingAway, 1012));
    assert!(closing.reconnect_after_ms <= 10_000);
    drop(idle);
    // Takes nothing new, but the pending send is acknowledged when the log has it.
    busy.send(text(2, "bob", 2, "late")).await;
    let refused = busy.ack().await;
    assert_eq!((refused.code(), refused.retryable), (Code::Unavailable, true));
    world.log.confirm(Topic::Ingress, 0);
    assert_eq!(busy.ack().await.code(), Code::Ok);
    assert_eq!(busy.closed().await.0.code(), Code::GoingAway);
    drop(busy);
    assert_eq!(stopping.await.expect("no panic"), Vec::<String>::new());
    assert_eq!(world.log.records(Topic::Ingress).len(), 1);
    assert_eq!(world.routed("ann").await, Vec::<String>::new());
    assert!(Device::dial(&world, None, &[]).await.is_err(), "no new connections");
}

/// Scenario B91, broker down: it ends in time, nothing unconfirmed is acknowledged, and the count of records left is told.
#[tokio::test]
async fn a_log_that_confirms_nothing_does_not_hold_the_end() {
    let mut world = World::with(|config| config.drain = Duration::from_millis(100)).await;
    world.log.hold(Topic::Ingress);
    let mut device = Device::open(&world, "ann", "phone").await;
    device.send(text(1, "bob", 1, "hi")).await;
    world.log.wait(Topic::Ingress, 1).await;
    let (context, running) = (world.context.clone(), world.running.take().expect("running"));
    let stopping = tokio::spawn(async move { running.stop(&context, Instant::now() + DEADLINE).await });
    let ack = device.ack().await;
    assert_eq!((ack.code(), ack.retryable), (Code::Unconfirmed, true));
    assert_eq!(device.closed().await.0.code(), Code::GoingAway);
    drop(device);
    assert_eq!(stopping.await.expect("no panic"), ["producer"]);
}

#[tokio::test]
async fn a_thousand_sessions_end_in_time() {
    let mut world = World::start().await;
    let mut devices = Vec::new();
    for n in 0..1000 {
        devices.push(Device::open(&world, &format!("user{n}"), "phone").await);
    }
    let (context, running) = (world.context.clone(), world.running.take().expect("running"));
    let stopping = tokio::spawn(async move { running.stop(&context, Instant::now() + DEADLINE).await });
    for device in &mut devices {
        assert_eq!(device.closed().await.0.code(), Code::GoingAway);
    }
    drop(devices);
    assert_eq!(stopping.await.expect("no panic"), Vec::<String>::new());
}
