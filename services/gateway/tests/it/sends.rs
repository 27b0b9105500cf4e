//! Link ACKs and the log's delivery reports.

use std::time::Duration;

use tidings_bus::producer::ProduceError;
use tidings_domain::Topic;
use tidings_domain::clock::Millis;
use tidings_proto::v1::Code;

use crate::support::device::Device;
use crate::support::log::append_time;
use crate::support::{World, eventually, id_bytes, msg_id, text};

/// req:B1: no ACK before the report, then at once, with the report's time.
#[tokio::test]
async fn the_link_ack_comes_from_the_delivery_report() {
    let world = World::start().await;
    world.log.hold(Topic::Ingress);
    let mut device = Device::open(&world, "ann", "phone").await;
    device.send(text(1, "bob", 1, "hi\0bob")).await;
    let record = world.log.wait(Topic::Ingress, 1).await.remove(0);
    device.ping().await;
    world.log.confirm(Topic::Ingress, 0);
    let ack = device.ack().await;
    assert_eq!((ack.code(), ack.retryable), (Code::Ok, false));
    assert_eq!(Millis(ack.server_time), append_time(0));
    assert_eq!(
        (ack.msg_id, ack.conversation.as_str()),
        (id_bytes(msg_id(1)), "d:ann:bob")
    );

    assert_eq!(record.key.as_deref(), Some(&b"d:ann:bob"[..]));
    assert_eq!(record.partition, tidings_bus::partition_for(b"d:ann:bob", 4));
    assert!(record.headers.is_empty(), "no traceparent was given");
    let action = world.log.actions().remove(0);
    assert_eq!((action.sender.as_str(), action.device.as_str()), ("ann", "phone"));
    assert_eq!(&action.body[..], b"hi\0bob", "scenario B75: NUL round-trips");
    assert_eq!(world.metric("tidings_sends_total{code=\"OK\"}"), 1.0);
}

#[tokio::test]
async fn records_carry_the_trace_that_the_request_named() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let world = World::start().await;
    let mut device = Device::dial(&world, None, &[("traceparent", TRACE)])
        .await
        .expect("a connection");
    device.send(crate::support::device::connect("ann", "phone")).await;
    device.expect_connected().await;
    device.send(text(1, "bob", 1, "hi")).await;
    device.ack().await;
    let record = world.log.wait(Topic::Ingress, 1).await.remove(0);
    assert_eq!(
        record.headers.get("traceparent").map(|value| &value[..]),
        Some(TRACE.as_bytes())
    );
}

/// req:B7, scenario B05: late confirms are told as unconfirmed, resends join, one record, and the late ACK still comes.
#[tokio::test]
async fn a_late_confirm_is_unconfirmed_first_and_a_resend_joins_it() {
    let world = World::with(|config| config.unconfirmed_after = Duration::from_millis(100)).await;
    world.log.hold(Topic::Ingress);
    let mut device = Device::open(&world, "ann", "phone").await;
    for n in 1..=20 {
        device.send(text(n, "bob", n, "hi")).await;
    }
    for round in 0..3 {
        for n in 1..=20 {
            let ack = device.ack().await;
            assert_eq!((ack.code(), ack.retryable), (Code::Unconfirmed, true));
            assert_eq!(ack.msg_id, id_bytes(msg_id(n)), "round {round}");
        }
        for n in 1..=20 {
            let mut resend = text(n, "bob", n, "hi");
            resend.retry_count = round + 1;
            device.send(resend).await;
        }
    }
    device.ping().await;
    assert_eq!(world.log.records(Topic::Ingress).len(), 20, "one record per message");
    assert_eq!(world.metric("tidings_resends_joined_total"), 60.0);
    world.log.release(Topic::Ingress);
    for n in 1..=20 {
        let ack = device.ack().await;
        assert_eq!((ack.code(), ack.msg_id), (Code::Ok, id_bytes(msg_id(n))));
    }
    device.ping().await;
}

/// req:B7 over a reconnect: the first copy is still at the producer, so the resend in the next session joins it.
#[tokio::test]
async fn a_resend_after_a_reconnect_joins_the_copy_of_the_ended_session() {
    let world = World::start().await;
    world.log.hold(Topic::Ingress);
    let mut device = Device::open(&world, "ann", "phone").await;
    for n in 1..=5 {
        device.send(text(n, "bob", n, "hi")).await;
    }
    world.log.wait(Topic::Ingress, 5).await;
    for _ in 0..2 {
        drop(device);
        eventually("the session has ended", async || {
            world.metric("tidings_sessions") == 0.0
        })
        .await;
        device = Device::open(&world, "ann", "phone").await;
        for n in 1..=5 {
            device.send(text(n, "bob", n, "hi")).await;
        }
        device.ping().await;
        assert_eq!(world.log.records(Topic::Ingress).len(), 5, "one record per message");
    }
    world.log.release(Topic::Ingress);
    for n in 1..=5 {
        let ack = device.ack().await;
        assert_eq!((ack.code(), ack.msg_id), (Code::Ok, id_bytes(msg_id(n))));
    }
    device.send(text(6, "bob", 6, "the lane goes on")).await;
    assert_eq!(device.ack().await.code(), Code::Ok);
    assert_eq!(world.metric("tidings_produces_in_flight"), 0.0);
}

/// req:B1: an ACK is never given from memory; the log decides about the copy.
#[tokio::test]
async fn a_resend_after_the_ack_is_produced_again() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    for _ in 0..2 {
        device.send(text(1, "bob", 1, "hi")).await;
        assert_eq!(device.ack().await.code(), Code::Ok);
    }
    assert_eq!(world.log.records(Topic::Ingress).len(), 2);
}

/// req:A5: only the log can say ID_CONFLICT, so the other content must reach it.
#[tokio::test]
async fn other_content_under_a_pending_id_reaches_the_log() {
    let world = World::start().await;
    world.log.hold(Topic::Ingress);
    let mut device = Device::open(&world, "ann", "phone").await;
    device.send(text(1, "bob", 1, "hi")).await;
    device.send(text(2, "bob", 1, "something else")).await;
    world.log.wait(Topic::Ingress, 2).await;
    world.log.confirm(Topic::Ingress, 1);
    world.log.confirm(Topic::Ingress, 0);
    assert_eq!(device.ack().await.code(), Code::Ok);
    assert_eq!(device.ack().await.code(), Code::Ok);
    let actions = world.log.actions();
    assert_eq!(actions[0].key(), actions[1].key());
    assert_ne!(actions[0].content_hash, actions[1].content_hash);
}

/// Scenario B81: the record that is too large fails alone, for good; its neighbours and the lane go on.
#[tokio::test]
async fn a_record_too_large_for_the_log_fails_alone() {
    let world = World::start().await;
    world.log.hold(Topic::Ingress);
    let mut device = Device::open(&world, "ann", "phone").await;
    for n in 1..=3 {
        device.send(text(n, "bob", n, "hi")).await;
    }
    world.log.wait(Topic::Ingress, 3).await;
    world.log.confirm(Topic::Ingress, 0);
    world
        .log
        .fail(Topic::Ingress, 1, ProduceError::TooLarge("1048577 bytes".to_owned()));
    world.log.confirm(Topic::Ingress, 2);
    let codes = [device.ack().await, device.ack().await, device.ack().await].map(|ack| (ack.code(), ack.retryable));
    assert_eq!(
        codes,
        [(Code::Ok, false), (Code::PayloadTooLarge, false), (Code::Ok, false)]
    );
    device.send(text(4, "bob", 4, "hi")).await;
    world.log.wait(Topic::Ingress, 4).await;
}

#[tokio::test]
async fn sends_without_ack_are_limited_per_session_and_over_all() {
    let world = World::with(|config| {
        config.max_unacked_sends = 2;
        config.max_produces = 3;
    })
    .await;
    world.log.hold(Topic::Ingress);
    let (mut ann, mut bob) = (
        Device::open(&world, "ann", "phone").await,
        Device::open(&world, "bob", "phone").await,
    );
    assert_eq!(ann.connected.limits.expect("limits").max_unacked_sends, 2);
    for n in 1..=3 {
        ann.send(text(n, "cleo", n, "hi")).await;
    }
    let refused = ann.ack().await;
    assert_eq!((refused.code(), refused.retryable), (Code::Overloaded, true));
    assert_eq!((refused.field.as_str(), refused.limit), ("max_unacked_sends", 2));
    assert!(refused.retry_after_ms > 0);
    bob.send(text(1, "cleo", 11, "hi")).await;
    bob.send(text(2, "cleo", 12, "hi")).await;
    assert_eq!(bob.ack().await.code(), Code::Overloaded);
    world.log.release(Topic::Ingress);
    for _ in 0..2 {
        assert_eq!(ann.ack().await.code(), Code::Ok);
    }
    ann.send(text(3, "cleo", 3, "hi")).await;
    assert_eq!(ann.ack().await.code(), Code::Ok);
    assert_eq!(world.metric("tidings_produces_in_flight"), 0.0);
}

/// A dead producer ends the process: it starts again with a new one, and devices send again.
#[tokio::test]
async fn a_dead_producer_ends_the_process() {
    let world = World::start().await;
    world.log.hold(Topic::Ingress);
    let mut device = Device::open(&world, "ann", "phone").await;
    device.send(text(1, "bob", 1, "hi")).await;
    world.log.wait(Topic::Ingress, 1).await;
    world
        .log
        .fail(Topic::Ingress, 0, ProduceError::Fatal("fenced".to_owned()));
    let ack = device.ack().await;
    assert_eq!((ack.code(), ack.retryable), (Code::Unavailable, true));
    let failure = tokio::time::timeout(crate::support::DEADLINE, world.context.tasks.failed())
        .await
        .expect("a failure");
    assert!(failure.to_string().contains("fenced"), "{failure}");
}
