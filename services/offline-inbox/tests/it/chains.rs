//! Re-emissions, gaps, damaged links, records that cannot be decoded (seq:I2).

use std::time::Duration;

use bytes::Bytes;
use tidings_bus::Headers;
use tidings_bus::dead_letter::{self, text as header};
use tidings_domain::Topic;
use tidings_proto::header::SRC;
use tidings_testing::eventually;

use crate::support::feeder::append_of;
use crate::support::{World, checkpointed, conv_seqs, message, neighbour, pushes, stranger};

#[tokio::test]
async fn what_a_later_run_of_the_router_repeats_is_nothing() {
    let mut world = World::start().await;
    for conv_seq in 1..=3 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.feeder.begin_again_at(1);
    for conv_seq in 2..=4 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.until_rows("alice", 4).await;
    assert_eq!(world.service.metric("tidings_inbox_reemissions_total"), 2.0);
    let (embedded, _) = world.stop().await;
    assert_eq!(conv_seqs(&embedded, "alice").await, [1, 2, 3, 4]);
    assert_eq!(pushes(&embedded, "alice"), [1, 2, 3, 4]);
}

#[tokio::test]
async fn what_lies_behind_a_lost_record_waits_for_the_run_that_repeats_it() {
    let mut world = World::start().await;
    world.message("alice", "bob", 1).await;
    world.feeder.lose("alice");
    world.message("alice", "bob", 3).await;
    world.until_metric("tidings_inbox_prefix_gaps_total", 1.0).await;
    assert_eq!(conv_seqs(&world.embedded, "alice").await, [1], "not past the gap");
    world.feeder.begin_again_at(1);
    for conv_seq in 2..=4 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.until_rows("alice", 4).await;
    let (embedded, _) = world.stop().await;
    assert_eq!(conv_seqs(&embedded, "alice").await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn what_cannot_be_decoded_goes_to_dlq_and_its_chain_goes_on() {
    let mut world = World::start().await;
    world.message("alice", "bob", 1).await;
    let garbage = Bytes::from_static(b"\xff\xfe no protobuf");
    let headers = world.feeder.headers("alice");
    world.raw("alice", Some(garbage.clone()), headers).await;
    let headers = world.feeder.headers("alice");
    world.raw("alice", None, headers).await;
    world.raw("alice", None, Headers::new()).await;
    world.message("alice", "bob", 2).await;
    world.until_rows("alice", 2).await;
    eventually("a checkpoint", async || {
        checkpointed(&world.embedded, "alice").await == 5
    })
    .await;
    let (embedded, _) = world.stop().await;
    assert_eq!(conv_seqs(&embedded, "alice").await, [1, 2]);
    let dead = embedded.records(Topic::Dlq);
    let values: Vec<Option<Bytes>> = dead.iter().map(|record| record.value.clone()).collect();
    assert_eq!(values, [Some(garbage), None, None]);
    for (record, offset) in dead.iter().zip(1..) {
        let of = |name| header(&record.headers, name).unwrap_or_default();
        assert_eq!(of(dead_letter::ERROR_CLASS), "decode");
        assert!(!of(dead_letter::ERROR_DETAIL).is_empty());
        assert_eq!(of(dead_letter::ORIG_OFFSET), offset.to_string());
        assert_eq!(of(dead_letter::ORIG_GROUP), "tidings.offline-inbox");
    }
}

#[tokio::test]
async fn records_that_no_owner_may_fold_go_to_dlq() {
    let mut world = World::start().await;
    // Without a source position nothing could tell its copies apart.
    world
        .raw(
            "alice",
            Some(append_of("alice", message("alice", "bob", 1))),
            Headers::new(),
        )
        .await;
    // Two partitions must not number one stream.
    let elsewhere = stranger(&world.embedded, "alice");
    let headers = world.feeder.headers("alice");
    world
        .raw(
            "alice",
            Some(append_of(&elsewhere, message("alice", "bob", 1))),
            headers,
        )
        .await;
    world.message("alice", "bob", 1).await;
    world.until_rows("alice", 1).await;
    let (embedded, _) = world.stop().await;
    assert_eq!(conv_seqs(&embedded, "alice").await, [1]);
    assert_eq!(conv_seqs(&embedded, &elsewhere).await, Vec::<u64>::new());
    let classes: Vec<_> = embedded
        .records(Topic::Dlq)
        .iter()
        .filter_map(|record| header(&record.headers, dead_letter::ERROR_CLASS))
        .collect();
    assert_eq!(classes, ["append_without_source", "misplaced"]);
}

#[tokio::test]
async fn a_damaged_link_stops_its_partition_and_no_other() {
    let mut world = World::start().await;
    let other = stranger(&world.embedded, "alice");
    let same = neighbour(&world.embedded, "alice");
    world.message("alice", "bob", 1).await;
    let mut headers = Headers::new();
    let link = world.feeder.link("alice");
    headers.push(SRC, Bytes::copy_from_slice(&link.encode_src()));
    let damaged = world
        .raw("alice", Some(append_of("alice", message("alice", "bob", 2))), headers)
        .await;
    world.message(&same, "bob", 1).await;
    let stopped = |partition: u32| {
        format!(
            "tidings_fold_stopped_partitions{{group=\"tidings.offline-inbox\",topic=\"inbox\",partition=\"{partition}\"}}"
        )
    };
    let partition = tidings_bus::partition_for(b"alice", 4);
    eventually("the partition stops", async || {
        world.service.try_metric(&stopped(partition)) == Some(1.0)
    })
    .await;
    world.message(&other, "bob", 1).await;
    world.until_rows(&other, 1).await;
    let (embedded, _) = world.stop().await;
    assert!(checkpointed(&embedded, "alice").await <= damaged, "not past it");
    assert_eq!(
        conv_seqs(&embedded, &same).await,
        Vec::<u64>::new(),
        "what follows is not folded"
    );
    assert_eq!(
        embedded.records(Topic::Dlq),
        [],
        "it may belong to a chain: it is not given up"
    );
    // It stays stopped through a restart.
    let world = World::on(embedded.reopened()).await;
    eventually("the partition stops again", async || {
        world.service.try_metric(&stopped(partition)) == Some(1.0)
    })
    .await;
    assert_eq!(conv_seqs(&world.embedded, &same).await, Vec::<u64>::new());
}

#[tokio::test]
async fn a_record_older_than_the_memory_of_rows_stops_its_partition() {
    let (embedded, mut feeder) = World::start().await.stop().await;
    let event = message("alice", "bob", 1);
    feeder.append(&embedded, "alice", event).await;
    embedded.clock.advance(Duration::from_secs(6 * 86_400 + 1));
    let world = World::on(embedded.reopened()).await;
    let partition = tidings_bus::partition_for(b"alice", 4);
    let stopped = format!(
        "tidings_fold_stopped_partitions{{group=\"tidings.offline-inbox\",topic=\"inbox\",partition=\"{partition}\"}}"
    );
    eventually("the partition stops", async || {
        world.service.try_metric(&stopped) == Some(1.0)
    })
    .await;
    let (embedded, _) = world.stop().await;
    assert_eq!(conv_seqs(&embedded, "alice").await, Vec::<u64>::new());
    assert_eq!(checkpointed(&embedded, "alice").await, 0);
}
