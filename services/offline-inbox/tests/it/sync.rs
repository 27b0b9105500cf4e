//! Sync rounds: pages, the end marker, the hot window.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use tidings_domain::clock::Millis;
use tidings_domain::state::InboxRow;
use tidings_domain::{LogEpoch, Position, Uid};
use tidings_proto::v1::sync_chunk;
use tidings_storage::embedded::EmbeddedStore;
use tidings_storage::port::{HotRead, HotWindow, InboxStore};
use tidings_testing::{Embedded, NOW};

use crate::support::{World, message, sized, user};

/// Rows of alice's stream, as the fold writes them.
pub(crate) fn rows(seqs: std::ops::RangeInclusive<u64>, body: usize) -> Vec<(Uid, InboxRow)> {
    seqs.map(|seq| {
        (
            user("alice"),
            InboxRow {
                seq,
                off: Position::new(LogEpoch::FIRST, seq),
                src: None,
                append_time: NOW,
                event: sized("alice", "bob", seq, body),
            },
        )
    })
    .collect()
}

pub(crate) fn write(store: &EmbeddedStore, seqs: std::ops::RangeInclusive<u64>) {
    let rows = rows(seqs, 10);
    let written = store.write_rows(&rows).now_or_never();
    assert_eq!(written, Some(Ok(())), "the embedded store answers at once");
}

/// A hot window that answers what the test says.
pub(crate) struct Answers(pub(crate) HotRead);

#[async_trait::async_trait]
impl HotWindow for Answers {
    async fn append(&self, _events: &[(Uid, u64, Bytes)]) -> Result<(), tidings_storage::Error> {
        Ok(())
    }

    async fn read(&self, _uid: &Uid, after: u64, limit: usize) -> Result<HotRead, tidings_storage::Error> {
        let above = self.0.events.iter().filter(|(seq, _)| *seq > after).take(limit);
        Ok(HotRead {
            events: above.cloned().collect(),
            hi: self.0.hi,
        })
    }
}

/// A window of these numbers.
pub(crate) fn window(seqs: &[u64], hi: u64) -> Arc<Answers> {
    let events = seqs.iter().map(|seq| (*seq, message("alice", "bob", *seq)));
    Arc::new(Answers(HotRead {
        events: events.collect(),
        hi,
    }))
}

fn sizes(pages: &[Vec<u64>]) -> Vec<usize> {
    pages.iter().map(Vec::len).collect()
}

#[tokio::test]
async fn a_round_gives_everything_above_the_cursor_in_pages_of_100() {
    let world = World::start().await;
    write(&world.embedded.store, 1..=250);
    let request = world.request("alice", 0).await;
    let (pages, end) = world.pages(request).await;
    assert_eq!(sizes(&pages), [100, 100, 50]);
    assert_eq!(pages.concat(), (1..=250).collect::<Vec<u64>>());
    assert_eq!(end, (250, 250));
    let request = world.request("alice", 249).await;
    assert_eq!(world.pages(request).await, (vec![vec![250]], (250, 250)));
    let request = world.request("alice", 250).await;
    assert_eq!(world.pages(request).await, (Vec::new(), (250, 250)));
    let request = world.request("nobody", 0).await;
    assert_eq!(world.pages(request).await, (Vec::new(), (0, 0)));
}

#[tokio::test]
async fn events_are_the_bytes_of_the_rows() {
    let world = World::start().await;
    write(&world.embedded.store, 1..=1);
    let request = world.request("alice", 0).await;
    let (chunks, status) = world.sync(request).await;
    assert!(status.is_none());
    let sync_chunk::Chunk::Events(page) = &chunks[0] else {
        panic!("not a page: {chunks:?}");
    };
    assert_eq!(page.events[0].event, sized("alice", "bob", 1, 10));
}

#[tokio::test]
async fn the_caller_may_ask_for_smaller_pages_but_not_for_larger_ones() {
    let world = World::start().await;
    write(&world.embedded.store, 1..=250);
    let mut request = world.request("alice", 0).await;
    request.page_events = 120;
    assert_eq!(sizes(&world.pages(request.clone()).await.0), [100, 100, 50]);
    request.page_events = 90;
    assert_eq!(sizes(&world.pages(request).await.0), [90, 90, 70]);
}

#[tokio::test]
async fn a_page_ends_at_the_byte_limit_and_has_at_least_one_event() {
    let world = World::start().await;
    let large = rows(1..=5, 100_000);
    world.embedded.store.write_rows(&large).await.expect("written");
    let mut request = world.request("alice", 0).await;
    assert_eq!(
        sizes(&world.pages(request.clone()).await.0),
        [2, 2, 1],
        "256 KiB by default"
    );
    request.page_bytes = 1000;
    let (pages, end) = world.pages(request).await;
    assert_eq!((sizes(&pages), end), (vec![1, 1, 1, 1, 1], (5, 5)));
}

#[tokio::test]
async fn what_comes_between_the_last_read_and_the_end_is_still_given() {
    let world = World::start().await;
    write(&world.embedded.store, 1..=3);
    let store = world.embedded.store.clone();
    // The first read gives the page, the second finds nothing; then two more rows come.
    world.reader.after_next("rows_after", || ());
    world.reader.after_next("rows_after", move || write(&store, 4..=5));
    let request = world.request("alice", 0).await;
    let (pages, end) = world.pages(request).await;
    assert_eq!((pages, end), (vec![vec![1, 2, 3], vec![4, 5]], (5, 5)));
}

#[tokio::test]
async fn the_hot_window_saves_reads_of_rows() {
    let mut world = World::start().await;
    for conv_seq in 1..=5 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.until_rows("alice", 5).await;
    world.until_metric("tidings_inbox_events_appended_total", 5.0).await;
    let request = world.request("alice", 2).await;
    let (pages, end) = world.pages(request).await;
    assert_eq!((pages, end), (vec![vec![3, 4, 5]], (5, 5)));
    assert_eq!(world.service.metric("tidings_sync_hot_pages_total"), 1.0);
}

#[tokio::test]
async fn a_hole_in_the_hot_window_is_filled_from_the_rows() {
    let embedded = Embedded::new();
    write(&embedded.store, 1..=8);
    // In its middle: the page stops there. Right above the cursor: the rows are read.
    let world = World::with(embedded, window(&[1, 2, 5, 6], 6)).await;
    let request = world.request("alice", 0).await;
    let (pages, end) = world.pages(request).await;
    assert_eq!(pages.concat(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(pages[0], [1, 2]);
    assert_eq!(end, (8, 8));
}

#[tokio::test]
async fn a_hot_window_that_ends_below_or_begins_above_the_cursor_is_passed_over() {
    for (seqs, hi) in [(&[][..], 3), (&[7, 8][..], 8), (&[][..], 0)] {
        let embedded = Embedded::new();
        write(&embedded.store, 1..=8);
        let world = World::with(embedded, window(seqs, hi)).await;
        let request = world.request("alice", 4).await;
        let (pages, end) = world.pages(request).await;
        assert_eq!((pages.concat(), end), (vec![5, 6, 7, 8], (8, 8)), "{seqs:?} {hi}");
    }
}

#[tokio::test]
async fn a_hot_window_ahead_of_the_rows_does_not_keep_a_round_from_its_end() {
    // Left behind by a store that was set back: the rows say what there is.
    let embedded = Embedded::new();
    write(&embedded.store, 1..=4);
    let world = World::with(embedded, window(&[], 50)).await;
    let request = world.request("alice", 2).await;
    let (pages, end) = world.pages(request).await;
    assert_eq!((pages, end), (vec![vec![3, 4]], (4, 4)));
}

#[tokio::test]
async fn a_hot_window_that_cannot_be_read_costs_speed_only() {
    let world = World::start().await;
    write(&world.embedded.store, 1..=150);
    world.hot.always("read_hot", tidings_testing::Fault::Before);
    let request = world.request("alice", 0).await;
    let (pages, end) = world.pages(request).await;
    assert_eq!((sizes(&pages), end), (vec![100, 50], (150, 150)));
    assert!(world.service.metric("tidings_hot_window_errors_total") >= 1.0);
}

#[tokio::test]
async fn times_of_rows_do_not_matter_to_a_round() {
    let world = World::start().await;
    let mut late = rows(1..=3, 10);
    late[1].1.append_time = Millis(0);
    world.embedded.store.write_rows(&late).await.expect("written");
    let request = world.request("alice", 0).await;
    assert_eq!(world.pages(request).await.0, [vec![1, 2, 3]]);
}
