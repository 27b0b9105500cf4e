//! Contract of [`HistoryStore`].

use bytes::Bytes;
use tidings_domain::Conversation;
use tidings_storage::port::{HistoryRow, HistoryStore, LocatorRow};

use crate::fixtures::{conversation, msg_id, now};
use crate::names::uid;

pub(crate) async fn run(store: &impl HistoryStore) {
    rows_cross_bucket_borders(store).await;
    bodies_come_back_as_they_were(store).await;
    an_upsert_repeated_changes_nothing(store).await;
    a_locator_lists_every_match(store).await;
}

fn row(conv: &Conversation, conv_seq: u64, message: &[u8]) -> HistoryRow {
    HistoryRow {
        conversation: conv.clone(),
        conv_seq,
        append_time: now(),
        message: Bytes::copy_from_slice(message),
    }
}

async fn write(store: &impl HistoryStore, rows: &[HistoryRow]) {
    let outcomes = store.write_history(rows).await;
    assert_eq!(outcomes, vec![Ok(()); rows.len()]);
}

async fn numbers(store: &impl HistoryStore, conv: &Conversation, from: u64, to: u64, limit: usize) -> Vec<u64> {
    let rows = store.history_range(conv, from, to, limit).await.expect("read");
    rows.iter().map(|row| row.conv_seq).collect()
}

async fn rows_cross_bucket_borders(store: &impl HistoryStore) {
    let conv = conversation("hist-a", "hist-b");
    assert_eq!(store.newest_conv_seq(&conv).await, Ok(0));
    assert_eq!(numbers(store, &conv, 1, u64::MAX, 10).await, Vec::<u64>::new());
    let rows: Vec<_> = (4090..=4100).map(|seq| row(&conv, seq, &seq.to_be_bytes())).collect();
    write(store, &rows).await;
    assert_eq!(numbers(store, &conv, 4095, 4097, 10).await, [4095, 4096, 4097]);
    assert_eq!(
        numbers(store, &conv, 4094, 4099, 3).await,
        [4094, 4095, 4096],
        "the limit counts over buckets"
    );
    assert_eq!(
        numbers(store, &conv, 4095, 4095, 10).await,
        [4095],
        "both ends belong to the range"
    );
    assert_eq!(numbers(store, &conv, 4096, 4095, 10).await, Vec::<u64>::new());
    assert_eq!(numbers(store, &conv, 4095, 4099, 0).await, Vec::<u64>::new());
    assert_eq!(
        numbers(store, &conv, 4099, u64::MAX, 10).await,
        [4099, 4100],
        "an open end is allowed"
    );
    assert_eq!(store.history_range(&conv, 4090, 4100, 100).await, Ok(rows));
    assert_eq!(store.newest_conv_seq(&conv).await, Ok(4100));
    let neighbour = conversation("hist-a", "hist-c");
    assert_eq!(numbers(store, &neighbour, 1, 5000, 10).await, Vec::<u64>::new());
}

async fn bodies_come_back_as_they_were(store: &impl HistoryStore) {
    let conv = conversation("body-a", "body-b");
    let large: Vec<u8> = (0u8..=255).cycle().take(512 * 1024).collect();
    let rows = [
        row(&conv, 1, b""),
        row(&conv, 2, b"a\0b\0"),
        row(&conv, 3, &large),
        row(&conv, 4, &large),
        row(&conv, 5, &large),
        row(&conv, 6, "\u{1F4E8} caf\u{e9}".as_bytes()),
    ];
    write(store, &rows).await;
    assert_eq!(store.history_range(&conv, 1, 6, 10).await, Ok(rows.to_vec()));
}

async fn an_upsert_repeated_changes_nothing(store: &impl HistoryStore) {
    let conv = conversation("again-a", "again-b");
    let rows = [row(&conv, 2, b"two"), row(&conv, 1, b"one"), row(&conv, 2, b"two")];
    write(store, &rows).await;
    write(store, &rows).await;
    assert_eq!(numbers(store, &conv, 1, 9, 10).await, [1, 2]);
    assert_eq!(store.newest_conv_seq(&conv).await, Ok(2));
    write(store, &[]).await;
}

async fn a_locator_lists_every_match(store: &impl HistoryStore) {
    let id = msg_id(77);
    let located = |sender: &str, other: &str, conv_seq| LocatorRow {
        msg_id: id,
        sender: uid(sender),
        conversation: conversation(sender, other),
        conv_seq,
        append_time: now(),
    };
    let rows = [
        located("loc-a", "loc-b", 3),
        located("loc-a", "loc-c", 1),
        located("loc-b", "loc-a", 4),
    ];
    for _ in 0..2 {
        assert_eq!(store.write_locators(&rows).await, vec![Ok(()); 3]);
        let mut found = store.locate(id).await.expect("read");
        found.sort_by_key(|row| row.conv_seq);
        assert_eq!(found, [rows[1].clone(), rows[0].clone(), rows[2].clone()]);
    }
    assert_eq!(store.locate(msg_id(78)).await, Ok(Vec::new()));
}
