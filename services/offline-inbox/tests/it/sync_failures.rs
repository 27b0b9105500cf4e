//! Rounds that cannot be given as asked for: resets, truncation, stores that fail.

use tidings_domain::state::InboxHead;
use tidings_domain::{LogEpoch, Position};
use tidings_proto::v1::{SyncReset, SyncTruncated, sync_chunk};
use tidings_storage::port::{CheckpointWrites, InboxStore};
use tidings_testing::{Embedded, Fault};
use tonic::Code;

use crate::support::{World, user};
use crate::sync::{rows, window, write};

async fn write_head(embedded: &Embedded, seq: u64) {
    let head = InboxHead {
        seq,
        off: Position::new(LogEpoch::FIRST, seq),
    };
    let writes = CheckpointWrites {
        heads: vec![(user("alice"), head)],
        ..CheckpointWrites::default()
    };
    embedded.store.write_registers(&writes).await.expect("written");
}

#[tokio::test]
async fn a_cursor_ahead_of_the_stream_or_of_another_store_is_reset() {
    let world = World::start().await;
    // The head register lags: the rows above it count.
    write(&world.embedded.store, 1..=5);
    write_head(&world.embedded, 2).await;
    let epoch = world.epoch().await;
    let reset = SyncReset {
        epoch,
        head_seq: 5,
        floor_seq: 0,
    };
    let ahead = world.request("alice", 6).await;
    let mut foreign = world.request("alice", 3).await;
    foreign.epoch = epoch + 1;
    for request in [ahead, foreign] {
        let (chunks, status) = world.sync(request).await;
        assert!(status.is_none());
        assert_eq!(chunks, [sync_chunk::Chunk::Reset(reset)], "and nothing else");
    }
    // At the head it is not ahead, and a device that has nothing has nothing of another store.
    let request = world.request("alice", 5).await;
    assert_eq!(world.pages(request).await, (Vec::new(), (5, 5)));
    let mut empty = world.request("alice", 0).await;
    empty.epoch = 0;
    assert_eq!(world.pages(empty).await.1, (5, 5));
}

#[tokio::test]
async fn what_is_gone_by_retention_is_told_and_the_round_goes_on_from_the_floor() {
    let world = World::start().await;
    let left = rows(41..=45, 10);
    world.embedded.store.write_rows(&left).await.expect("written");
    let request = world.request("alice", 10).await;
    let (chunks, status) = world.sync(request).await;
    assert!(status.is_none(), "{status:?}");
    let truncated = SyncTruncated {
        floor_seq: 40,
        unread: 30,
    };
    assert_eq!(chunks[0], sync_chunk::Chunk::Truncated(truncated));
    let sync_chunk::Chunk::Events(page) = &chunks[1] else {
        panic!("not a page: {chunks:?}");
    };
    let seqs: Vec<u64> = page.events.iter().map(|event| event.user_seq).collect();
    assert_eq!(seqs, [41, 42, 43, 44, 45]);
    let sync_chunk::Chunk::Events(end) = &chunks[2] else {
        panic!("not a page: {chunks:?}");
    };
    assert!(end.end_of_backlog && end.events.is_empty());
}

#[tokio::test]
async fn a_stream_of_which_nothing_is_left_is_truncated_to_its_head() {
    // Idle for longer than rows are kept: the register stays for ever.
    let world = World::start().await;
    write_head(&world.embedded, 50).await;
    let request = world.request("alice", 10).await;
    let (chunks, status) = world.sync(request).await;
    assert!(status.is_none(), "{status:?}");
    let truncated = SyncTruncated {
        floor_seq: 50,
        unread: 40,
    };
    assert_eq!(chunks[0], sync_chunk::Chunk::Truncated(truncated));
    let sync_chunk::Chunk::Events(end) = &chunks[1] else {
        panic!("not a page: {chunks:?}");
    };
    assert!(end.end_of_backlog);
    assert_eq!((end.head_seq, end.next_user_seq, chunks.len()), (50, 50, 2));
}

#[tokio::test]
async fn rows_that_are_missing_below_the_head_are_a_status_and_no_end() {
    // A head without its rows, of which the floor says nothing: it must not be taken for the end, and not go on for ever.
    let world = World::start().await;
    write(&world.embedded.store, 1..=3);
    write_head(&world.embedded, 9).await;
    let request = world.request("alice", 0).await;
    let (chunks, status) = world.sync(request).await;
    let status = status.expect("a status");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(chunks.len(), 1, "the page that there is: {chunks:?}");
}

#[tokio::test]
async fn a_hole_in_the_rows_is_a_status_and_never_passed() {
    let world = World::start().await;
    write(&world.embedded.store, 1..=3);
    write(&world.embedded.store, 6..=8);
    let request = world.request("alice", 0).await;
    let (chunks, status) = world.sync(request).await;
    assert_eq!(status.expect("a status").code(), Code::Unavailable);
    let [sync_chunk::Chunk::Events(page)] = &chunks[..] else {
        panic!("more than the page before the hole: {chunks:?}");
    };
    assert_eq!((page.next_user_seq, page.end_of_backlog), (3, false));
    assert_eq!(world.service.metric("tidings_inbox_stream_holes_total"), 1.0);
}

#[tokio::test]
async fn a_store_that_fails_ends_the_round_with_a_status_and_never_with_an_empty_page() {
    let embedded = Embedded::new();
    write(&embedded.store, 1..=150);
    let world = World::with(embedded, window(&[], 0)).await;
    for call in ["cursor_epoch", "heads", "newest_row", "rows_after"] {
        world.reader.always(call, Fault::Before);
        let request = world.request("alice", 0).await;
        let (chunks, status) = world.sync(request).await;
        assert_eq!(chunks, [], "{call}");
        assert_eq!(status.expect("a status").code(), Code::Unavailable, "{call}");
        world.reader.heal();
    }
    // In the middle of a round, also while it looks for the end.
    let request = world.request("alice", 0).await;
    let reader = world.reader.clone();
    world
        .reader
        .after_next("rows_after", move || reader.next("rows_after", Fault::Before, 1));
    let (chunks, status) = world.sync(request.clone()).await;
    assert_eq!(chunks.len(), 1);
    assert_eq!(status.expect("a status").code(), Code::Unavailable);
    let reader = world.reader.clone();
    world.reader.after_next("rows_after", || ());
    world.reader.after_next("rows_after", || ());
    world
        .reader
        .after_next("rows_after", move || reader.next("newest_row", Fault::Before, 1));
    let (chunks, status) = world.sync(request).await;
    assert_eq!(chunks.len(), 2, "both pages and no end");
    assert_eq!(status.expect("a status").code(), Code::Unavailable);
}

#[tokio::test]
async fn a_malformed_uid_is_refused() {
    let world = World::start().await;
    let request = world.request("no uid", 0).await;
    let (_, status) = world.sync(request).await;
    assert_eq!(status.expect("a status").code(), Code::InvalidArgument);
}
