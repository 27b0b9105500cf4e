//! From topic `history` to rows: nothing is passed over.

use bytes::Bytes;
use tidings_bus::dead_letter::{self, text as header};
use tidings_bus::{Bus, ConsumerGroup};
use tidings_domain::{Conversation, Topic, Uid};
use tidings_storage::port::{HistoryStore, LocatorRow};
use tidings_testing::{Embedded, Fault, NOW, eventually};

use crate::support::{World, message, msg_id, neighbour, rows};

const CONVERSATION: &str = "d:alice:bob";

fn committed(embedded: &Embedded, conversation: &str) -> u64 {
    let partition = embedded
        .bus
        .catalogue()
        .partition(Topic::History, conversation.as_bytes());
    embedded.committed(ConsumerGroup::StorageConsumer)[partition as usize]
}

#[tokio::test]
async fn a_message_becomes_a_row_and_a_locator() {
    let world = World::start();
    world.sequenced(CONVERSATION, 1).await;
    world.until_rows(CONVERSATION, &[1]).await;
    let embedded = world.stop().await;
    let conversation = Conversation::parse(CONVERSATION).expect("valid");
    let row = embedded
        .store
        .history_range(&conversation, 1, 1, 1)
        .await
        .expect("rows");
    assert_eq!(row[0].message, prost::Message::encode_to_vec(&message(CONVERSATION, 1)));
    assert_eq!(row[0].append_time, NOW);
    let located = embedded.store.locate(msg_id(1)).await.expect("located");
    assert_eq!(
        located,
        [LocatorRow {
            msg_id: msg_id(1),
            sender: Uid::parse("alice").expect("a uid"),
            conversation,
            conv_seq: 1,
            append_time: NOW,
        }]
    );
    assert_eq!(committed(&embedded, CONVERSATION), 1);
}

/// The position must not pass a record whose row is missing, however many later ones of its partition are written.
#[tokio::test]
async fn a_row_that_failed_is_written_after_the_death_of_the_process_although_later_ones_succeeded() {
    for table in ["write_history", "write_locators"] {
        let world = World::start();
        let neighbour = neighbour(&world.embedded, CONVERSATION);
        world.script.rows(table, Fault::Before, &format!("{CONVERSATION}#2"));
        world.sequenced(CONVERSATION, 1).await;
        world.sequenced(CONVERSATION, 2).await;
        for conv_seq in 1..=5 {
            world.sequenced(&neighbour, conv_seq).await;
        }
        world.until_rows(&neighbour, &[1, 2, 3, 4, 5]).await;
        let mut killed = world.embedded.image();
        // The first record is settled, and in time committed.
        eventually("a commit", async || {
            killed = world.embedded.image();
            committed(&killed, CONVERSATION) > 0
        })
        .await;
        assert_eq!(
            committed(&killed, CONVERSATION),
            1,
            "{table}: not past the record that failed"
        );
        assert_eq!(
            rows(&killed, &neighbour).await,
            [1, 2, 3, 4, 5],
            "later ones are written"
        );
        let located = killed.store.locate(msg_id(2)).await.expect("located");
        let missing = match table {
            "write_history" => rows(&killed, CONVERSATION).await == [1],
            _ => !located.iter().any(|row| row.conversation.as_str() == CONVERSATION),
        };
        assert!(missing, "{table}: the row is missing when the process dies");

        let after = World::on(killed);
        after.until_settled(6).await;
        assert_eq!(after.rows(CONVERSATION).await, [1, 2]);
        let embedded = after.stop().await;
        assert_eq!(committed(&embedded, CONVERSATION), 7);
        let located = embedded.store.locate(msg_id(2)).await.expect("located");
        assert!(
            located.iter().any(|row| row.conversation.as_str() == CONVERSATION),
            "{table}"
        );
        assert!(embedded.records(Topic::Dlq).is_empty());
    }
}

#[tokio::test]
async fn a_store_that_is_down_for_a_while_is_waited_for() {
    for fault in [Fault::Before, Fault::After] {
        for table in ["write_history", "write_locators"] {
            let world = World::start();
            world.script.always(table, fault);
            for conv_seq in 1..=3 {
                world.sequenced(CONVERSATION, conv_seq).await;
            }
            eventually("a second attempt", async || world.script.calls(table) >= 2).await;
            world.script.heal();
            world.until_rows(CONVERSATION, &[1, 2, 3]).await;
            world.until_settled(3).await;
            let embedded = world.stop().await;
            assert_eq!(committed(&embedded, CONVERSATION), 3);
            assert_eq!(
                embedded.records(Topic::Dlq),
                [],
                "an unavailable store is nobody's fault"
            );
        }
    }
}

#[tokio::test]
async fn what_the_store_refuses_for_good_goes_to_dlq_and_the_next_is_handled() {
    let world = World::start();
    world.script.rows("write_history", Fault::Refuse, "#2");
    for conv_seq in 1..=3 {
        world.sequenced(CONVERSATION, conv_seq).await;
    }
    world.until_rows(CONVERSATION, &[1, 3]).await;
    assert_eq!(world.persisted("History", "Rejected"), 1.0);
    let embedded = world.stop().await;
    assert_eq!(committed(&embedded, CONVERSATION), 3);
    let dead = embedded.records(Topic::Dlq);
    assert_eq!(dead.len(), 1);
    assert_eq!(
        dead[0].value.as_deref(),
        Some(&prost::Message::encode_to_vec(&message(CONVERSATION, 2))[..])
    );
    let of = |name| header(&dead[0].headers, name).unwrap_or_default();
    assert_eq!(of(dead_letter::ERROR_CLASS), "store_refused");
    assert_eq!(
        (of(dead_letter::ORIG_TOPIC), of(dead_letter::ORIG_OFFSET)),
        ("history".to_owned(), "1".to_owned())
    );
}

#[tokio::test]
async fn what_cannot_be_decoded_goes_to_dlq_as_it_is_and_the_next_is_handled() {
    let world = World::start();
    let garbage = Bytes::from_static(b"\xff\xfe no protobuf");
    world.raw(CONVERSATION, Some(garbage.clone())).await;
    world.raw(CONVERSATION, None).await;
    let mut unsequenced = message(CONVERSATION, 1);
    unsequenced.conv_seq = 0;
    world.message(&unsequenced).await;
    world.sequenced(CONVERSATION, 1).await;
    world.until_rows(CONVERSATION, &[1]).await;
    let embedded = world.stop().await;
    assert_eq!(committed(&embedded, CONVERSATION), 4);
    let dead = embedded.records(Topic::Dlq);
    let values: Vec<Option<Bytes>> = dead.iter().map(|record| record.value.clone()).collect();
    assert_eq!(
        values,
        [
            Some(garbage),
            None,
            Some(prost::Message::encode_to_vec(&unsequenced).into())
        ]
    );
    for record in &dead {
        assert_eq!(
            header(&record.headers, dead_letter::ERROR_CLASS).as_deref(),
            Some("decode")
        );
        assert!(header(&record.headers, dead_letter::ERROR_DETAIL).is_some_and(|detail| !detail.is_empty()));
    }
}

#[tokio::test]
async fn a_repeated_record_writes_the_same_row() {
    let world = World::start();
    world.sequenced(CONVERSATION, 1).await;
    world.sequenced(CONVERSATION, 1).await;
    world.sequenced(CONVERSATION, 2).await;
    world.until_rows(CONVERSATION, &[1, 2]).await;
    let embedded = world.stop().await;
    let located = embedded.store.locate(msg_id(1)).await.expect("located");
    assert_eq!(located.len(), 1);
}

impl World {
    async fn until_settled(&self, records: u64) {
        let group = ConsumerGroup::StorageConsumer;
        self.service.until_settled(group, records).await;
    }

    fn persisted(&self, table: &str, result: &str) -> f64 {
        self.service.metric(&format!(
            "tidings_persist_results_total{{table=\"{table}\",result=\"{result}\"}}"
        ))
    }
}
