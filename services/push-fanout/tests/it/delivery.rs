//! Where events go, in which order, and what the answers change.

use bytes::Bytes;
use tidings_bus::Headers;
use tidings_domain::Topic;
use tidings_proto::v1::DeliverOutcome;
use tidings_testing::{Embedded, eventually};

use crate::support::{World, push_record, register};

#[tokio::test]
async fn one_batch_per_gateway_with_every_device_of_every_target() {
    let world = World::start();
    world.connect("alice", "phone", "gateway-1", 11).await;
    world.connect("alice", "tablet", "gateway-2", 22).await;
    world.connect("bob", "phone", "gateway-1", 13).await;
    world.push(&[("alice", 5), ("bob", 9)], "event").await;
    world.until_pushes("HandedOver", 3.0).await;
    let event = Bytes::from_static(b"event");
    let mut first = world.gateways[0].delivered();
    first.sort();
    assert_eq!(
        first,
        [
            ("alice".to_owned(), "phone".to_owned(), 11, 5, event.clone()),
            ("bob".to_owned(), "phone".to_owned(), 13, 9, event.clone()),
        ]
    );
    let batches = world.gateways[0].batches();
    assert_eq!((batches.len(), batches[0].items.len()), (1, 1), "the event stands once");
    assert_eq!(
        world.gateways[1].delivered(),
        [("alice".to_owned(), "tablet".to_owned(), 22, 5, event)]
    );
    world.settled(1).await;
}

#[tokio::test]
async fn events_of_a_user_come_in_their_order() {
    let world = World::start();
    world.connect("alice", "phone", "gateway-1", 11).await;
    world.connect("bob", "phone", "gateway-1", 12).await;
    for user_seq in 1..=200 {
        world.push(&[("alice", user_seq)], "event").await;
        world.push(&[("bob", user_seq)], "event").await;
    }
    world.until_pushes("HandedOver", 400.0).await;
    for uid in ["alice", "bob"] {
        let delivered = world.gateways[0].delivered();
        let seqs: Vec<u64> = delivered.iter().filter(|of| of.0 == uid).map(|of| of.3).collect();
        assert_eq!(seqs, (1..=200).collect::<Vec<u64>>(), "{uid}");
    }
    world.settled(400).await;
}

#[tokio::test]
async fn a_backlog_of_large_events_fits_into_the_messages_of_the_stream() {
    // As it lies there after push-fanout was away: far more than one gRPC message takes.
    let embedded = Embedded::new();
    let large = vec![7; 100_000];
    for user_seq in 1..=100 {
        let value = push_record(&[("alice", user_seq)], &large);
        embedded
            .append_to(Topic::Push, 0, "alice", Some(value), Headers::new())
            .await;
    }
    let world = World::on(embedded);
    world.connect("alice", "phone", "gateway-1", 11).await;
    eventually("all are tried", async || {
        ["HandedOver", "NoRoute", "GatewayUnreachable"]
            .map(|result| world.pushes(result))
            .iter()
            .sum::<f64>()
            >= 100.0
    })
    .await;
    assert_eq!(world.pushes("GatewayUnreachable"), 0.0);
    let seqs: Vec<u64> = world.gateways[0].delivered().iter().map(|of| of.3).collect();
    assert_eq!(seqs, (101 - seqs.len() as u64..=100).collect::<Vec<u64>>(), "in order");
    world.settled(100).await;
}

#[tokio::test]
async fn without_a_route_the_record_is_settled_and_nobody_is_asked() {
    let world = World::start();
    world.push(&[("alice", 1)], "event").await;
    world.until_pushes("NoRoute", 1.0).await;
    assert!(world.gateways.iter().all(|gateway| gateway.streams() == 0));
    world.settled(1).await;
}

#[tokio::test]
async fn a_route_whose_connection_is_gone_is_removed() {
    let world = World::start();
    world.connect("alice", "phone", "gateway-1", 11).await;
    world.connect("bob", "phone", "gateway-1", 12).await;
    world.gateways[0].outcome("alice", DeliverOutcome::NotHere);
    world.push(&[("alice", 1), ("bob", 1)], "event").await;
    eventually("the route is gone", async || world.routed("alice").await.is_empty()).await;
    assert_eq!(world.routed("bob").await, [12]);
    world.settled(1).await;
}

#[tokio::test]
async fn a_newer_route_of_the_device_stays() {
    let world = World::start();
    world.connect("alice", "phone", "gateway-1", 11).await;
    world.gateways[0].outcome("alice", DeliverOutcome::NotHere);
    let routes = world.routes.clone();
    // The device connects again while the batch is on its way.
    world.gateways[0].before_answer(Box::new(move || {
        Box::pin(async move { register(&routes, "alice", "phone", "gateway-2", 21).await })
    }));
    world.push(&[("alice", 1)], "event").await;
    world.until_pushes("NotHere", 1.0).await;
    assert_eq!(world.routed("alice").await, [21]);
    assert_eq!(world.service.metric("tidings_push_stale_routes_removed_total"), 0.0);
    world.settled(1).await;
}

#[tokio::test]
async fn outcomes_are_counted() {
    let world = World::start();
    for (uid, outcome) in [
        ("alice", DeliverOutcome::Notified),
        ("bob", DeliverOutcome::Closed),
        ("carol", DeliverOutcome::HandedOver),
    ] {
        world.connect(uid, "phone", "gateway-1", 1).await;
        world.gateways[0].outcome(uid, outcome);
    }
    world.push(&[("alice", 1), ("bob", 1), ("carol", 1)], "event").await;
    for result in ["Notified", "Closed", "HandedOver"] {
        world.until_pushes(result, 1.0).await;
    }
    assert_eq!(
        world.routed("bob").await,
        [1],
        "a closing session removes its route itself"
    );
    world.settled(1).await;
}

#[tokio::test]
async fn what_cannot_be_decoded_goes_to_dlq_and_the_next_is_pushed() {
    let world = World::start();
    world.connect("alice", "phone", "gateway-1", 11).await;
    let garbage = Bytes::from_static(b"\xff\xfe no protobuf");
    world.raw("alice", Some(garbage.clone())).await;
    world.raw("alice", None).await;
    world.push(&[("alice", 1)], "event").await;
    world.until_pushes("HandedOver", 1.0).await;
    let embedded = world.settled(3).await;
    let values: Vec<_> = embedded.records(Topic::Dlq).into_iter().map(|r| r.value).collect();
    assert_eq!(values, [Some(garbage), None]);
}
