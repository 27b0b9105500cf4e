//! Device ACKs become few records (req:B4).

use std::time::Duration;

use tidings_domain::Topic;
use tidings_gateway::encoding::Encoding;
use tidings_proto::v1::{self, Code};

use crate::support::device::{Device, connect};
use crate::support::neighbours::EPOCH;
use crate::support::{World, event, eventually, id_bytes, msg_id};

fn ack(n: u64) -> v1::Ack {
    v1::Ack {
        epoch: EPOCH,
        delivered: n,
        stored: n,
        convs: vec![v1::AckConv {
            conversation: "d:ann:bob".to_owned(),
            conv_seq: n,
        }],
    }
}

#[tokio::test]
async fn ten_thousand_acks_make_at_most_160_records() {
    // Only the count of 64 makes records here; by time there would be fewer.
    let world = World::with(|config| config.ack_interval = Duration::from_secs(60)).await;
    let mut device = Device::open(&world, "ann", "phone").await;
    for n in 1..=10_000 {
        device.send(ack(n)).await;
    }
    device.ping().await;
    drop(device);
    let last = async || world.log.device_states().last().map_or(0, |state| state.stored);
    eventually("the last ACK is written", async || last().await == 10_000).await;
    let states = world.log.device_states();
    assert!(states.len() <= 160, "{} records", states.len());
    assert!(states.is_sorted_by_key(|state| state.stored));
    let state = &states[states.len() - 1];
    assert_eq!(
        (state.uid.as_str(), state.device.as_str(), state.epoch),
        ("ann", "phone", EPOCH)
    );
    assert_eq!((state.delivered, state.convs[0].1), (10_000, 10_000));
    let record = world.log.records(Topic::Inbox).remove(0);
    assert_eq!(record.key.as_deref(), Some(&b"ann"[..]));
    assert_eq!(record.partition, tidings_bus::partition_for(b"ann", 4));
    assert_eq!(world.metric("tidings_device_acks_total"), 10_000.0);
}

#[tokio::test]
async fn acks_are_written_after_the_interval_and_merged_while_one_is_under_way() {
    let world = World::with(|config| config.ack_interval = Duration::from_millis(20)).await;
    world.log.hold(Topic::Inbox);
    let mut device = Device::open(&world, "ann", "phone").await;
    device.send(ack(1)).await;
    world.log.wait(Topic::Inbox, 1).await;
    for n in 2..=500 {
        device.send(ack(n)).await;
    }
    device.ping().await;
    assert_eq!(world.log.device_states().len(), 1, "one record at a time");
    world.log.confirm(Topic::Inbox, 0);
    world.log.wait(Topic::Inbox, 2).await;
    world.log.release(Topic::Inbox);
    assert_eq!(world.log.device_states()[1].stored, 500);
    // Repeating what is written writes nothing.
    device.send(ack(500)).await;
    device
        .send(v1::Ack {
            epoch: EPOCH,
            delivered: 499,
            ..v1::Ack::default()
        })
        .await;
    device.ping().await;
    device
        .send(v1::Ack {
            epoch: EPOCH,
            delivered: 501,
            ..v1::Ack::default()
        })
        .await;
    world.log.wait(Topic::Inbox, 3).await;
    let last = world.log.device_states().pop().expect("a state");
    assert_eq!((last.delivered, last.stored), (501, 500));
}

#[tokio::test]
async fn a_lost_record_is_merged_into_the_next() {
    let world = World::with(|config| config.ack_interval = Duration::from_millis(20)).await;
    world.log.hold(Topic::Inbox);
    let mut device = Device::open(&world, "ann", "phone").await;
    device.send(ack(5)).await;
    world.log.wait(Topic::Inbox, 1).await;
    world.log.fail(
        Topic::Inbox,
        0,
        tidings_bus::producer::ProduceError::Unknown("timed out".to_owned()),
    );
    world.log.wait(Topic::Inbox, 2).await;
    let states = world.log.device_states();
    assert_eq!(states[0], states[1]);
    device.ping().await;
}

/// The cursors of Connect and Sync are storage ACKs (architecture.md section 3).
#[tokio::test]
async fn cursors_are_storage_acks() {
    let world = World::with(|config| config.ack_interval = Duration::from_millis(20)).await;
    world.inbox.set_head("ann", 20);
    let cursor = |epoch, user_seq| Some(v1::Cursor { epoch, user_seq });
    let hello = v1::Connect {
        fresh: false,
        cursor: cursor(EPOCH, 7),
        ..connect("ann", "phone")
    };
    let mut device = Device::open_as(&world, Encoding::Proto, hello.clone()).await;
    world.log.wait(Topic::Inbox, 1).await;
    assert_eq!(world.log.device_states()[0].stored, 7);
    device
        .send(v1::Sync {
            cursor: cursor(EPOCH, 9),
        })
        .await;
    device.page().await;
    world.log.wait(Topic::Inbox, 2).await;
    assert_eq!(world.log.device_states()[1].stored, 9);
    // Cursors that do not fit acknowledge nothing.
    for wrong in [cursor(EPOCH + 1, 15), cursor(EPOCH, 21)] {
        let hello = v1::Connect {
            cursor: wrong,
            ..hello.clone()
        };
        let mut device = Device::open_as(&world, Encoding::Proto, hello).await;
        device.send(v1::Sync { cursor: wrong }).await;
        device.page().await;
        device.ping().await;
    }
    assert_eq!(world.log.device_states().len(), 2);
}

#[tokio::test]
async fn an_ack_of_another_epoch_or_of_others_is_refused() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    device
        .send(v1::Ack {
            epoch: EPOCH + 1,
            ..ack(3)
        })
        .await;
    let error = device.error().await;
    assert_eq!((error.code(), error.field.as_str()), (Code::InvalidArgument, "epoch"));
    let mut others = ack(3);
    others.convs[0].conversation = "d:bob:cleo".to_owned();
    device.send(others).await;
    assert_eq!(device.error().await.code(), Code::Forbidden);
    let mut many = ack(3);
    many.convs = vec![many.convs[0].clone(); 101];
    device.send(many).await;
    let error = device.error().await;
    assert_eq!((error.field.as_str(), error.limit), ("convs", 100));
    device.ping().await;
    drop(device);
    assert_eq!(world.log.device_states().len(), 0);
}

/// req:B6: the per-message forms, by what was pushed.
#[tokio::test]
async fn single_acks_become_cumulative_ones() {
    let world = World::with(|config| config.ack_interval = Duration::from_millis(20)).await;
    let mut device = Device::open_as(&world, Encoding::Json, connect("ann", "web")).await;
    for n in 1..=3 {
        world.push("ann", n, event("bob", "x", "ann", n, "hi")).await;
        device.pushed().await;
    }
    let delivered = |n| v1::DeliveredAck {
        msg_id: id_bytes(msg_id(n)),
        client_time: 1,
    };
    device.send(delivered(2)).await;
    device.ping().await;
    device.send(delivered(1)).await;
    world.log.wait(Topic::Inbox, 1).await;
    let state = world.log.device_states().remove(0);
    assert_eq!((state.delivered, state.stored), (2, 0));
    device
        .send(v1::ReadAck {
            msg_id: id_bytes(msg_id(3)),
            read_time: 1,
        })
        .await;
    world.log.wait(Topic::Inbox, 2).await;
    let state = world.log.device_states().remove(1);
    assert_eq!((state.reads[0].0.as_str(), state.reads[0].1), ("d:ann:bob", 3));
    device
        .send(v1::Read {
            conversation: "d:ann:bob".to_owned(),
            conv_seq: 9,
        })
        .await;
    world.log.wait(Topic::Inbox, 3).await;
    assert_eq!(world.log.device_states()[2].reads[0].1, 9);
    // Of a message that was not pushed here: lost, at no cost.
    device.send(delivered(50)).await;
    device.ping().await;
}
