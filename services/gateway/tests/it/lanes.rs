//! The order of one device's sends in one conversation (req:C2).

use tidings_bus::producer::ProduceError;
use tidings_domain::Topic;
use tidings_proto::v1::Code;

use crate::support::device::Device;
use crate::support::{World, msg_id, text};

#[tokio::test]
async fn a_frame_beyond_the_next_is_refused_with_the_number_that_is_due() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    device.send(text(2, "bob", 2, "second")).await;
    let ack = device.ack().await;
    assert_eq!(
        (ack.code(), ack.retryable, ack.expected_lane_seq),
        (Code::LaneOutOfOrder, true, 1)
    );
    // Another conversation is another lane.
    device.send(text(1, "cleo", 3, "hi")).await;
    assert_eq!(device.ack().await.code(), Code::Ok);
    for n in 1..=2 {
        device.send(text(n, "bob", n, "in order")).await;
        assert_eq!(device.ack().await.code(), Code::Ok);
    }
    assert_eq!(world.log.records(Topic::Ingress).len(), 3);
}

#[tokio::test]
async fn a_full_queue_holds_the_lane_until_the_refused_one_comes_again() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    world.log.refuse_next(ProduceError::QueueFull);
    for n in 1..=3 {
        device.send(text(n, "bob", n, "hi")).await;
    }
    let refused = device.ack().await;
    assert_eq!((refused.code(), refused.retryable), (Code::Overloaded, true));
    for _ in 2..=3 {
        let ack = device.ack().await;
        assert_eq!((ack.code(), ack.expected_lane_seq), (Code::LaneOutOfOrder, 1));
    }
    for n in 1..=3 {
        device.send(text(n, "bob", n, "hi")).await;
        assert_eq!(device.ack().await.code(), Code::Ok);
    }
    let ids: Vec<_> = world.log.actions().iter().map(|action| action.msg_id).collect();
    assert_eq!(ids, [msg_id(1), msg_id(2), msg_id(3)]);
}

#[tokio::test]
async fn a_failed_produce_is_due_again_before_anything_new() {
    let world = World::start().await;
    world.log.hold(Topic::Ingress);
    let mut device = Device::open(&world, "ann", "phone").await;
    device.send(text(1, "bob", 1, "hi")).await;
    device.send(text(2, "bob", 2, "hi")).await;
    world.log.wait(Topic::Ingress, 2).await;
    world.log.fail(
        Topic::Ingress,
        0,
        ProduceError::Unknown("timed out in flight".to_owned()),
    );
    let ack = device.ack().await;
    assert_eq!((ack.code(), ack.retryable), (Code::Unconfirmed, true));
    device.send(text(3, "bob", 3, "hi")).await;
    let ack = device.ack().await;
    assert_eq!((ack.code(), ack.expected_lane_seq), (Code::LaneOutOfOrder, 1));
    device.send(text(1, "bob", 1, "hi")).await;
    world.log.wait(Topic::Ingress, 3).await;
    device.send(text(3, "bob", 3, "hi")).await;
    world.log.wait(Topic::Ingress, 4).await;
}

/// A refusal for good takes its number with it; out of turn it is out of order first, or the lane would wait for ever.
#[tokio::test]
async fn a_refusal_for_good_does_not_stop_the_lane() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    device.send(text(2, "bob", 2, "")).await;
    let ack = device.ack().await;
    assert_eq!((ack.code(), ack.expected_lane_seq), (Code::LaneOutOfOrder, 1));
    device.send(text(1, "bob", 1, "")).await;
    let ack = device.ack().await;
    assert_eq!((ack.code(), ack.field.as_str()), (Code::InvalidArgument, "body"));
    device.send(text(2, "bob", 2, "")).await;
    assert_eq!(device.ack().await.code(), Code::InvalidArgument);
    device.send(text(3, "bob", 3, "hi")).await;
    assert_eq!(device.ack().await.code(), Code::Ok);
}

#[tokio::test]
async fn the_lanes_of_a_session_are_limited() {
    let world = World::with(|config| config.max_lanes = 2).await;
    let mut device = Device::open(&world, "ann", "phone").await;
    for (n, to) in ["bob", "cleo"].into_iter().enumerate() {
        device.send(text(1, to, n as u64, "hi")).await;
        assert_eq!(device.ack().await.code(), Code::Ok);
    }
    device.send(text(1, "dora", 9, "hi")).await;
    let ack = device.ack().await;
    assert_eq!(
        (ack.code(), ack.field.as_str(), ack.limit),
        (Code::Overloaded, "conversation", 2)
    );
}
