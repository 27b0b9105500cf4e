//! Gateways that fail and routes that cannot be read: everything is settled, and it goes on afterwards.

use tidings_testing::Fault;

use crate::support::{IN_FLIGHT, Manner, PARTITIONS, World};

/// A gateway that fails in one manner while more batches than may be on the way wait for it, and then is well again.
async fn recovers_from(manner: Manner) {
    const { assert!(PARTITIONS as usize > IN_FLIGHT) };
    let world = World::start();
    world.connect("alice", "phone", "gateway-1", 11).await;
    world.connect("bob", "phone", "gateway-2", 21).await;
    world.gateways[0].behave(manner);
    let failing = 2 * u64::from(PARTITIONS);
    world.push_everywhere(&[("alice", 1), ("bob", 1)], "event").await;
    world.push_everywhere(&[("alice", 2), ("bob", 2)], "event").await;
    // Settled in bounded time, the other gateway not held up for longer.
    world.until_pushes("GatewayUnreachable", failing as f64).await;
    world.until_pushes("HandedOver", failing as f64).await;
    assert_eq!(
        world.routed("alice").await,
        [11],
        "no answer is no word about the route"
    );
    let streams = world.gateways[0].streams();
    world.gateways[0].behave(Manner::Answers);
    world.push(&[("alice", 3)], "again").await;
    world.until_pushes("HandedOver", failing as f64 + 1.0).await;
    let (.., event) = world.gateways[0].delivered().pop().expect("deliveries");
    assert_eq!(event, "again");
    assert!(world.gateways[0].streams() > streams, "over a new stream");
    assert_eq!(world.pushes("GatewayUnreachable"), failing as f64);
    world.settled(failing + 1).await;
}

#[tokio::test]
async fn a_silent_gateway_is_given_up_in_time_and_used_again() {
    recovers_from(Manner::Silent).await;
}

#[tokio::test]
async fn a_gateway_that_ends_its_streams_is_used_again() {
    recovers_from(Manner::Ends).await;
}

#[tokio::test]
async fn a_gateway_that_refuses_streams_is_used_again() {
    recovers_from(Manner::Refuses).await;
}

#[tokio::test]
async fn a_gateway_that_does_not_answer_the_opening_is_given_up_in_time_and_used_again() {
    recovers_from(Manner::HangsOnOpen).await;
}

#[tokio::test]
async fn a_gateway_that_is_not_known_is_counted_and_the_others_are_served() {
    let world = World::start();
    world.connect("alice", "phone", "gateway-9", 91).await;
    world.connect("bob", "phone", "gateway-1", 11).await;
    world.push(&[("alice", 1), ("bob", 1)], "event").await;
    world.until_pushes("HandedOver", 1.0).await;
    world.until_pushes("GatewayUnreachable", 1.0).await;
    world.settled(1).await;
}

#[tokio::test]
async fn while_routes_cannot_be_read_every_gateway_is_asked_for_all_sessions() {
    let world = World::start();
    world.connect("alice", "phone", "gateway-1", 11).await;
    world.script.always("lookup", Fault::Before);
    world.push(&[("alice", 4), ("bob", 2)], "event").await;
    world.until_pushes("HandedOver", 4.0).await;
    for gateway in &world.gateways {
        let targets: Vec<_> = gateway
            .delivered()
            .into_iter()
            .map(|(uid, device, connection, seq, _)| (uid, device, connection, seq))
            .collect();
        assert_eq!(
            targets,
            [
                ("alice".to_owned(), String::new(), 0, 4),
                ("bob".to_owned(), String::new(), 0, 2)
            ]
        );
    }
    assert_eq!(world.service.metric("tidings_push_broadcasts_total"), 1.0);
    assert_eq!(world.routed("alice").await, [11]);
    world.settled(1).await;
}
