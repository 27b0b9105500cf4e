//! Contract of [`DeadLetterStore`].

use bytes::Bytes;
use tidings_domain::Topic;
use tidings_storage::port::{DeadLetterFilter, DeadLetterRow, DeadLetterState, DeadLetterStore};

use crate::fixtures::now;

pub(crate) async fn run(store: &impl DeadLetterStore) {
    taking_in_again_changes_nothing(store).await;
    a_listing_filters_and_pages(store).await;
}

fn letter(topic: Topic, offset: u64, class: &str) -> DeadLetterRow {
    DeadLetterRow {
        // Of one width, so that the order of ids is that of offsets.
        dlq_id: format!("{topic}/0/{offset:06}/tidings.group"),
        topic,
        partition: 0,
        offset,
        origin_time: now(),
        group: "tidings.group".to_owned(),
        key: Some(Bytes::from_static(b"key\0")),
        value: Some(Bytes::from(vec![7; 64])),
        headers: vec![
            ("src".to_owned(), Bytes::from_static(&[0, 1, 2])),
            ("empty".to_owned(), Bytes::new()),
        ],
        error_class: class.to_owned(),
        error_detail: "what went wrong".to_owned(),
        attempts: 5,
        first_failed_at: now(),
        last_failed_at: now(),
        replay_count: 0,
        state: DeadLetterState::New,
    }
}

async fn taking_in_again_changes_nothing(store: &impl DeadLetterStore) {
    let plain = letter(Topic::Inbox, 1, "undecodable");
    let bare = DeadLetterRow {
        key: None,
        value: None,
        headers: Vec::new(),
        ..letter(Topic::Inbox, 2, "undecodable")
    };
    let empty = DeadLetterRow {
        key: Some(Bytes::new()),
        value: Some(Bytes::new()),
        ..letter(Topic::Inbox, 3, "undecodable")
    };
    let large = DeadLetterRow {
        value: Some(Bytes::from(vec![1; 512 * 1024])),
        ..letter(Topic::Inbox, 4, "undecodable")
    };
    let rows = [plain.clone(), bare, empty, large];
    assert_eq!(store.take_in(&rows).await, vec![Ok(true); 4]);
    for row in &rows {
        assert_eq!(store.get(&row.dlq_id).await, Ok(Some(row.clone())));
    }
    assert_eq!(store.set_state(&plain.dlq_id, DeadLetterState::Parked).await, Ok(true));
    assert_eq!(store.take_in(&rows).await, vec![Ok(false); 4]);
    let parked = DeadLetterRow {
        state: DeadLetterState::Parked,
        ..plain.clone()
    };
    assert_eq!(store.get(&plain.dlq_id).await, Ok(Some(parked)), "the state is kept");
    for state in [DeadLetterState::Replaying, DeadLetterState::Resolved] {
        assert_eq!(store.set_state(&plain.dlq_id, state).await, Ok(true));
        let read = store.get(&plain.dlq_id).await.expect("read").expect("there");
        assert_eq!(read.state, state);
    }
    assert_eq!(
        store.set_state("no/such/letter", DeadLetterState::Dropped).await,
        Ok(false)
    );
    assert_eq!(store.get("no/such/letter").await, Ok(None));
    assert_eq!(store.take_in(&[]).await, Vec::new());
}

async fn a_listing_filters_and_pages(store: &impl DeadLetterStore) {
    let mut rows: Vec<_> = (0..40)
        .map(|n| letter(Topic::Push, n, if n % 2 == 0 { "even" } else { "odd" }))
        .collect();
    rows.push(letter(Topic::Trace, 1, "even"));
    assert!(
        store
            .take_in(&rows)
            .await
            .into_iter()
            .all(|outcome| outcome == Ok(true))
    );
    for n in [4, 7, 8] {
        assert_eq!(
            store.set_state(&rows[n].dlq_id, DeadLetterState::Parked).await,
            Ok(true)
        );
    }
    let list = async |filter: DeadLetterFilter, limit| -> Vec<(Topic, u64)> {
        let found = store.list(&filter, limit).await.expect("read");
        found.iter().map(|row| (row.topic, row.offset)).collect()
    };
    let push = DeadLetterFilter {
        topic: Some(Topic::Push),
        ..DeadLetterFilter::default()
    };
    let all: Vec<_> = (0..40).map(|n| (Topic::Push, n)).collect();
    assert_eq!(list(push.clone(), 100).await, all, "in the order of ids");

    let mut paged = Vec::new();
    let mut page = push.clone();
    loop {
        let found = store.list(&page, 7).await.expect("read");
        let Some(last) = found.last() else {
            break;
        };
        assert!(found.len() <= 7);
        page.after_id = Some(last.dlq_id.clone());
        paged.extend(found.iter().map(|row| (row.topic, row.offset)));
    }
    assert_eq!(paged, all);

    let parked = DeadLetterFilter {
        state: Some(DeadLetterState::Parked),
        ..push.clone()
    };
    assert_eq!(list(parked.clone(), 100).await, [4, 7, 8].map(|n| (Topic::Push, n)));
    let even = DeadLetterFilter {
        error_class: Some("even".to_owned()),
        ..parked
    };
    assert_eq!(list(even, 100).await, [4, 8].map(|n| (Topic::Push, n)));
    let of_any_topic = DeadLetterFilter {
        error_class: Some("even".to_owned()),
        after_id: Some(rows[36].dlq_id.clone()),
        ..DeadLetterFilter::default()
    };
    assert_eq!(list(of_any_topic, 100).await, [(Topic::Push, 38), (Topic::Trace, 1)]);
    assert_eq!(list(push, 0).await, Vec::new());
}
