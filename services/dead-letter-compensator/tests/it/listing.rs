//! The operator's list.

use bytes::Bytes;
use tidings_bus::ConsumerGroup;
use tidings_domain::Topic;
use tidings_proto::v1::ListDeadLettersRequest;
use tidings_storage::port::{DeadLetterState, DeadLetterStore};
use tidings_testing::{Fault, eventually};
use tonic::Code;

use crate::support::{World, dead, origin};

async fn with_letters() -> World {
    let world = World::start();
    for offset in 10..=14 {
        let record = origin(Topic::History, offset, Some(b"secret text"));
        let class = if offset % 2 == 0 { "decode" } else { "store_refused" };
        world
            .append(dead(&world.embedded, &record, ConsumerGroup::StorageConsumer, class))
            .await;
    }
    let record = origin(Topic::Ingress, 10, Some(b"secret text"));
    world
        .append(dead(&world.embedded, &record, ConsumerGroup::Router, "decode"))
        .await;
    eventually("all are there", async || {
        world.listed(&ListDeadLettersRequest::default()).await.len() == 6
    })
    .await;
    world
}

fn offsets(entries: &[tidings_proto::v1::DeadLetter]) -> Vec<u64> {
    entries.iter().map(|entry| entry.offset).collect()
}

#[tokio::test]
async fn filters_by_class_topic_and_state() {
    let world = with_letters().await;
    let of = async |class: &str, topic: &str, state: &str| {
        let request = ListDeadLettersRequest {
            error_class: class.to_owned(),
            topic: topic.to_owned(),
            state: state.to_owned(),
            ..Default::default()
        };
        offsets(&world.listed(&request).await)
    };
    assert_eq!(of("decode", "history", "").await, [10, 12, 14]);
    assert_eq!(of("store_refused", "", "").await, [11, 13]);
    assert_eq!(of("", "ingress", "").await, [10]);
    assert_eq!(of("", "", "parked").await, Vec::<u64>::new());
    let id = "history/3/13/tidings.storage-consumer";
    let parked = world.embedded.store.set_state(id, DeadLetterState::Parked).await;
    assert_eq!(parked, Ok(true));
    assert_eq!(of("", "", "parked").await, [13]);
    assert_eq!(of("store_refused", "", "new").await, [11]);
    for (topic, state) in [("histori", ""), ("", "newer")] {
        let request = ListDeadLettersRequest {
            topic: topic.to_owned(),
            state: state.to_owned(),
            ..Default::default()
        };
        let refused = world.list(request).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("known are"), "{}", refused.message());
    }
}

#[tokio::test]
async fn pages_show_every_entry_once() {
    let world = with_letters().await;
    for limit in 1..=7 {
        let request = ListDeadLettersRequest {
            limit,
            ..Default::default()
        };
        let first = world.list(request.clone()).await.expect("a page");
        assert_eq!(first.entries.len(), (limit as usize).min(6));
        let mut ids: Vec<String> = world
            .listed(&request)
            .await
            .into_iter()
            .map(|entry| entry.dlq_id)
            .collect();
        ids.dedup();
        assert_eq!(ids.len(), 6, "limit {limit}");
        assert!(ids.is_sorted());
    }
}

#[tokio::test]
async fn large_values_are_shown_in_pages_that_fit_into_a_message() {
    let world = World::start();
    for offset in 0..8 {
        let mut record = origin(Topic::History, offset, None);
        record.value = Some(Bytes::from(vec![7; 900_000]));
        world
            .append(dead(&world.embedded, &record, ConsumerGroup::StorageConsumer, "decode"))
            .await;
    }
    eventually("all are there", async || {
        world.listed(&ListDeadLettersRequest::default()).await.len() == 8
    })
    .await;
    let request = ListDeadLettersRequest {
        with_value: true,
        ..Default::default()
    };
    let shown = world.listed(&request).await;
    assert_eq!(offsets(&shown), (0..8).collect::<Vec<u64>>());
    assert!(shown.iter().all(|entry| entry.value.len() == 900_000));
}

#[tokio::test]
async fn key_and_value_are_hidden_unless_asked_for() {
    let world = with_letters().await;
    for entry in world.listed(&ListDeadLettersRequest::default()).await {
        assert_eq!((&entry.key, &entry.value), (&Bytes::new(), &Bytes::new()));
        assert_eq!(
            (entry.value_bytes, entry.value_is_null),
            (11, false),
            "its size is shown"
        );
        assert_eq!((entry.attempts, entry.state.as_str()), (5, "new"));
    }
    let asked = ListDeadLettersRequest {
        with_value: true,
        ..Default::default()
    };
    for entry in world.listed(&asked).await {
        assert_eq!(&entry.key[..], b"d:alice:bob");
        assert_eq!(&entry.value[..], b"secret text");
    }
}

#[tokio::test]
async fn a_store_that_fails_is_a_status_and_no_empty_list() {
    let world = with_letters().await;
    world.script.next("list", Fault::Before, 1);
    let failed = world.list(ListDeadLettersRequest::default()).await.expect_err("fails");
    assert_eq!(failed.code(), Code::Unavailable);
}
