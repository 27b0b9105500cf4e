//! From topic `dlq` to entries: each once, none dropped.

use bytes::Bytes;
use tidings_bus::dead_letter::{self, resolved};
use tidings_bus::{Bus, ConsumerGroup, Headers};
use tidings_domain::Topic;
use tidings_domain::clock::Millis;
use tidings_storage::port::{DeadLetterState, DeadLetterStore};
use tidings_testing::{Fault, NOW, eventually};

use crate::support::{World, dead, origin};

const GROUP: ConsumerGroup = ConsumerGroup::StorageConsumer;
const ID: &str = "history/3/17/tidings.storage-consumer";

#[tokio::test]
async fn a_dead_letter_becomes_an_entry_with_everything_it_carries() {
    let world = World::start();
    let record = origin(Topic::History, 17, Some(b"\x00raw\xff"));
    let letter = dead(&world.embedded, &record, GROUP, "decode");
    let headers = dead_letter::header_list(&letter.headers);
    world.append(letter).await;
    let row = world.until_entry(ID).await;
    assert_eq!((row.topic, row.partition, row.offset), (Topic::History, 3, 17));
    assert_eq!(row.origin_time, record.append_time);
    assert_eq!(row.group, "tidings.storage-consumer");
    assert_eq!((row.key, row.value), (record.key, record.value));
    assert_eq!(row.headers, headers);
    assert!(
        row.headers.iter().any(|(name, _)| name == "traceparent"),
        "the origin's too"
    );
    assert_eq!((row.error_class.as_str(), row.attempts), ("decode", 5));
    assert_eq!(row.error_detail, "field msg_id is missing");
    assert_eq!(row.first_failed_at, Millis(NOW.get() - 4_000));
    assert_eq!(row.last_failed_at, Millis(NOW.get() - 1_000));
    assert_eq!((row.replay_count, row.state), (0, DeadLetterState::New));
    let embedded = world.stop().await;
    assert_eq!(World::committed(&embedded), 1);
}

#[tokio::test]
async fn taken_in_twice_it_is_one_entry_that_keeps_its_state() {
    let world = World::start();
    let record = origin(Topic::History, 17, Some(b"raw"));
    world.append(dead(&world.embedded, &record, GROUP, "decode")).await;
    world.until_entry(ID).await;
    let parked = world.embedded.store.set_state(ID, DeadLetterState::Parked).await;
    assert_eq!(parked, Ok(true));
    world.append(dead(&world.embedded, &record, GROUP, "decode")).await;
    eventually("the repetition", async || {
        world.service.metric("tidings_dead_letters_repeated_total") >= 1.0
    })
    .await;
    let entry = world.entry(ID).await.expect("an entry");
    assert_eq!(entry.state, DeadLetterState::Parked);
    assert_eq!(world.listed(&Default::default()).await.len(), 1);
}

#[tokio::test]
async fn a_null_value_is_kept_as_null() {
    let world = World::start();
    let record = origin(Topic::History, 17, None);
    world.append(dead(&world.embedded, &record, GROUP, "decode")).await;
    assert_eq!(world.until_entry(ID).await.value, None);
    let listed = world.listed(&Default::default()).await;
    assert!(listed[0].value_is_null);
}

#[tokio::test]
async fn a_foreign_record_is_kept_under_its_own_position() {
    let world = World::start();
    let mut headers = Headers::new();
    headers.push("who", Bytes::from_static(b"somebody else"));
    let value = Some(Bytes::from_static(b"hello"));
    let at = world.embedded.append(Topic::Dlq, "key", value.clone(), headers).await;
    let id = format!("dlq/{}/{}/tidings.dead-letter-compensator", at.partition, at.offset);
    let row = world.until_entry(&id).await;
    assert_eq!((row.topic, row.error_class.as_str()), (Topic::Dlq, "foreign"));
    assert_eq!(row.value, value);
    assert_eq!(row.headers, [("who".to_owned(), Bytes::from_static(b"somebody else"))]);
    assert_eq!(world.service.metric("tidings_dead_letters_foreign_total"), 1.0);
    // Another one is another entry.
    world.embedded.append(Topic::Dlq, "key", value, Headers::new()).await;
    eventually("both are listed", async || {
        world.listed(&Default::default()).await.len() == 2
    })
    .await;
}

#[tokio::test]
async fn resolved_moves_the_entry() {
    let world = World::start();
    let record = origin(Topic::History, 17, Some(b"raw"));
    let letter = dead(&world.embedded, &record, GROUP, "decode");
    world.append(letter).await;
    world.until_entry(ID).await;
    let done = resolved(world.embedded.bus.catalogue(), &record, GROUP);
    world.append(done).await;
    eventually("it is resolved", async || {
        world
            .entry(ID)
            .await
            .is_some_and(|row| row.state == DeadLetterState::Resolved)
    })
    .await;
    assert_eq!(
        world.listed(&Default::default()).await.len(),
        1,
        "it is no entry itself"
    );
    let embedded = world.stop().await;
    assert_eq!(World::committed(&embedded), 2);
}

#[tokio::test]
async fn a_resolved_without_entry_or_content_does_not_hold_the_others_up() {
    let world = World::start();
    let catalogue = world.embedded.bus.catalogue();
    let unknown = resolved(catalogue, &origin(Topic::Ingress, 99, None), ConsumerGroup::Router);
    let mut damaged = unknown.clone();
    damaged.value = Some(Bytes::from_static(b"\xff"));
    damaged.key = Some(Bytes::from_static(b"other"));
    world.append(damaged).await;
    let mut letter = dead(
        &world.embedded,
        &origin(Topic::History, 17, Some(b"raw")),
        GROUP,
        "decode",
    );
    letter.key = Some(Bytes::from_static(b"third"));
    world.append(letter).await;
    world.until_entry(ID).await;
    let embedded = world.stop().await;
    assert_eq!(
        World::committed(&embedded),
        2,
        "a record of dlq is never written to dlq again"
    );
    assert_eq!(embedded.records(Topic::Dlq).len(), 2);
}

#[tokio::test]
async fn a_store_that_is_down_is_waited_for() {
    for fault in [Fault::Before, Fault::After] {
        let world = World::start();
        world.script.always("take_in", fault);
        world
            .append(dead(
                &world.embedded,
                &origin(Topic::History, 17, Some(b"raw")),
                GROUP,
                "decode",
            ))
            .await;
        eventually("two attempts", async || world.script.struck() >= 2).await;
        let killed = world.embedded.image();
        assert_eq!(World::committed(&killed), 0, "not settled");
        let after = World::on(killed);
        after
            .service
            .until_settled(ConsumerGroup::DeadLetterCompensator, 1)
            .await;
        assert!(after.entry(ID).await.is_some());
        assert_eq!(after.listed(&Default::default()).await.len(), 1);
        assert_eq!(World::committed(&after.stop().await), 1);
    }
}
