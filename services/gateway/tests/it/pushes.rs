//! Events from push-fanout to devices.

use std::time::Duration;

use tidings_gateway::encoding::Encoding;
use tidings_proto::v1::{self, Code, DeliverItem, DeliverOutcome, DeliverTarget, server_frame};

use crate::support::device::{Device, connect};
use crate::support::neighbours::EPOCH;
use crate::support::{World, event, eventually, item};

fn body(event: v1::Event) -> String {
    match event.kind {
        Some(v1::event::Kind::Message(message)) => String::from_utf8(message.body.to_vec()).expect("text"),
        other => panic!("wanted a message, got {other:?}"),
    }
}

#[tokio::test]
async fn an_event_reaches_every_device_and_comes_back_to_its_sender_without_body() {
    let world = World::start().await;
    // A device with a database; one that comes without may be a new installation under an old name.
    let known = v1::Connect {
        fresh: false,
        cursor: Some(v1::Cursor {
            epoch: EPOCH,
            user_seq: 0,
        }),
        ..connect("ann", "phone")
    };
    let mut phone = Device::open_as(&world, Encoding::Proto, known).await;
    let mut reinstalled = Device::open(&world, "ann", "tablet").await;
    let mut web = Device::open_as(&world, Encoding::Json, connect("ann", "web")).await;
    let mut bob = Device::open(&world, "bob", "phone").await;
    let sent = event("ann", "phone", "bob", 1, "hello");
    let outcomes = world
        .deliver(vec![DeliverItem {
            targets: ["ann", "bob"]
                .map(|uid| DeliverTarget {
                    uid: uid.to_owned(),
                    user_seq: 3,
                    ..DeliverTarget::default()
                })
                .into(),
            event: sent,
        }])
        .await;
    assert_eq!(outcomes, [DeliverOutcome::HandedOver; 4]);
    for (device, expected) in [
        (&mut phone, ""),
        (&mut reinstalled, "hello"),
        (&mut web, "hello"),
        (&mut bob, "hello"),
    ] {
        let (user_seq, event) = device.pushed().await;
        assert_eq!((user_seq, body(event).as_str()), (3, expected));
    }
    assert_eq!(phone.ping().await.head_seq, 3);
    assert_eq!(
        world.metric("tidings_delivery_end_to_end_seconds_count{stage=\"HandedOver\"}"),
        4.0
    );
}

/// A device that lost its database under a kept name has nothing to take the body of its own message from.
#[tokio::test]
async fn a_fresh_session_gets_its_own_messages_whole() {
    let world = World::start().await;
    let mut phone = Device::open(&world, "ann", "phone").await;
    world
        .deliver(vec![item("ann", 3, event("ann", "phone", "bob", 1, "hello"))])
        .await;
    let (user_seq, event) = phone.pushed().await;
    assert_eq!((user_seq, body(event).as_str()), (3, "hello"));
}

#[tokio::test]
async fn only_the_named_connection_is_meant() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    let target = |device_id: &str, connection_id| DeliverItem {
        targets: vec![DeliverTarget {
            uid: "ann".into(),
            user_seq: 1,
            device_id: device_id.into(),
            connection_id,
        }],
        event: event("bob", "x", "ann", 1, "hi"),
    };
    let outcomes = world
        .deliver(vec![
            target("phone", 99),
            target("tablet", 1),
            item("nobody", 1, event("bob", "x", "ann", 1, "hi")),
            target("phone", 1),
        ])
        .await;
    assert_eq!(
        outcomes,
        [
            DeliverOutcome::NotHere,
            DeliverOutcome::NotHere,
            DeliverOutcome::NotHere,
            DeliverOutcome::HandedOver
        ]
    );
    device.pushed().await;
    device.ping().await;
}

/// req:C9: beyond the window the device is told the head, once, until it has acknowledged.
#[tokio::test]
async fn beyond_the_window_the_device_is_notified_and_pulls() {
    let world = World::with(|config| config.push_window = 2).await;
    let mut device = Device::open(&world, "ann", "phone").await;
    let push = async |n: u64| world.push("ann", n, event("bob", "x", "ann", n, "hi")).await[0];
    assert_eq!(push(1).await, DeliverOutcome::HandedOver);
    assert_eq!(push(2).await, DeliverOutcome::HandedOver);
    assert_eq!(push(3).await, DeliverOutcome::Notified);
    device.pushed().await;
    device.pushed().await;
    match device.next().await {
        server_frame::Frame::Head(head) => assert_eq!(head.head_seq, 3),
        other => panic!("wanted the head, got {other:?}"),
    }
    device
        .send(v1::Ack {
            epoch: EPOCH,
            delivered: 2,
            stored: 2,
            convs: Vec::new(),
        })
        .await;
    device.ping().await;
    assert_eq!(push(4).await, DeliverOutcome::HandedOver);
    assert_eq!(device.pushed().await.0, 4);
    assert_eq!(
        world.metric("tidings_delivery_end_to_end_seconds_count{stage=\"Stored\"}"),
        2.0
    );
}

/// A device that reads nothing costs a bounded queue, then it is closed; its events are in the inbox.
#[tokio::test]
async fn a_slow_consumer_is_bounded_and_closed() {
    let world = World::with(|config| {
        config.push_window = 1_000_000;
        config.queue_events = 8;
        config.write_stall = Duration::from_secs(2);
    })
    .await;
    let mut device = Device::open(&world, "ann", "phone").await;
    let big = "x".repeat(60_000);
    let (mut n, mut notified) = (1, 0);
    eventually("the session is closed", async || {
        let items = (n..n + 16).map(|n| item("ann", n, event("bob", "x", "ann", n, &big)));
        n += 16;
        let outcomes = world.deliver(items.collect()).await;
        notified += outcomes
            .iter()
            .filter(|outcome| **outcome == DeliverOutcome::Notified)
            .count();
        assert!(world.metric("tidings_push_queue_events") <= 8.0);
        world.metric("tidings_sessions_closed_total{code=\"SLOW_CONSUMER\"}") == 1.0
    })
    .await;
    assert!(notified > 0, "the queue was not full");
    assert_eq!(world.metric("tidings_push_queue_events"), 0.0);
    assert_eq!(
        world.push("ann", 3000, event("bob", "x", "ann", 3000, "hi")).await,
        [DeliverOutcome::NotHere]
    );
    // What was handed over before is there, in order.
    for n in 1..=8 {
        assert_eq!(device.pushed().await.0, n);
    }
}

#[tokio::test]
async fn many_pushes_arrive_in_order() {
    let world = World::with(|config| {
        config.push_window = 10_000;
        config.queue_events = 10_000;
    })
    .await;
    let mut device = Device::open(&world, "ann", "phone").await;
    let items = (1..=1000)
        .map(|n| item("ann", n, event("bob", "x", "ann", n, "hi")))
        .collect();
    assert_eq!(world.deliver(items).await, [DeliverOutcome::HandedOver; 1000]);
    for n in 1..=1000 {
        assert_eq!(device.pushed().await.0, n);
    }
}

/// A device whose pushes were lost learns of it by the head in PONG (req:C5).
#[tokio::test]
async fn the_head_in_pong_comes_from_the_inbox_too() {
    let world = World::with(|config| config.heads_interval = Duration::from_millis(20)).await;
    let mut device = Device::open(&world, "ann", "phone").await;
    assert_eq!(device.ping().await.head_seq, 0);
    world.inbox.set_head("ann", 77);
    let deadline = tokio::time::Instant::now() + crate::support::DEADLINE;
    while device.ping().await.head_seq != 77 {
        assert!(tokio::time::Instant::now() < deadline, "the head did not come");
    }
}

#[tokio::test]
async fn a_closing_session_takes_no_pushes() {
    let world = World::start().await;
    let mut first = Device::open(&world, "ann", "phone").await;
    let _second = Device::open(&world, "ann", "phone").await;
    assert_eq!(first.closed().await.0.code(), Code::Replaced);
    let outcomes = world.push("ann", 1, event("bob", "x", "ann", 1, "hi")).await;
    assert_eq!(outcomes, [DeliverOutcome::HandedOver], "only the later session");
}
