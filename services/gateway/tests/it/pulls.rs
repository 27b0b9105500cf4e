//! Sync rounds and history.

use bytes::Bytes;
use prost::Message as _;
use tidings_gateway::encoding::Encoding;
use tidings_proto::v1::{
    self, Code, HistoryRangeResponse, StoredEvent, SyncChunk, SyncEvents, SyncReset, SyncTruncated, server_frame,
    sync_chunk,
};

use crate::support::device::{Device, connect};
use crate::support::neighbours::{EPOCH, events};
use crate::support::{World, event, eventually};

fn sync(user_seq: u64) -> v1::Sync {
    v1::Sync {
        cursor: Some(v1::Cursor { epoch: EPOCH, user_seq }),
    }
}

fn page(seqs: std::ops::RangeInclusive<u64>, end: bool, head: u64) -> SyncChunk {
    events(SyncEvents {
        next_user_seq: *seqs.end(),
        events: seqs
            .map(|user_seq| StoredEvent {
                user_seq,
                event: event("bob", "x", "ann", user_seq, "hi"),
            })
            .collect(),
        end_of_backlog: end,
        head_seq: head,
    })
}

fn seqs(page: &v1::SyncPage) -> Vec<u64> {
    page.events.iter().map(|push| push.user_seq).collect()
}

#[tokio::test]
async fn a_round_relays_pages_to_the_end_marker_in_both_encodings() {
    let world = World::start().await;
    world.inbox.set_head("ann", 5);
    for encoding in [Encoding::Proto, Encoding::Json] {
        let mut device = Device::open_as(&world, encoding, connect("ann", "phone")).await;
        let round = world.inbox.script_round();
        device.send(sync(0)).await;
        round.send(Ok(page(1..=3, false, 5))).await.expect("the round runs");
        let first = device.page().await;
        assert_eq!(
            (seqs(&first), first.has_more, first.end_of_backlog),
            (vec![1, 2, 3], true, false)
        );
        assert!(first.events[0].event.is_some());
        // Pushes go on during a round.
        world.push("ann", 6, event("bob", "x", "ann", 6, "live")).await;
        assert_eq!(device.pushed().await.0, 6);
        round.send(Ok(page(4..=5, false, 5))).await.expect("the round runs");
        assert_eq!(seqs(&device.page().await), [4, 5]);
        round
            .send(Ok(events(SyncEvents {
                end_of_backlog: true,
                head_seq: 5,
                next_user_seq: 5,
                ..SyncEvents::default()
            })))
            .await
            .expect("the round runs");
        let last = device.page().await;
        assert_eq!(
            (seqs(&last), last.end_of_backlog, last.next_user_seq),
            (vec![], true, 5)
        );
    }
    let asked = world.inbox.syncs().remove(0);
    assert_eq!((asked.viewer_uid.as_str(), asked.device_id.as_str()), ("ann", "phone"));
    assert_eq!((asked.after_user_seq, asked.epoch, asked.page_events), (0, EPOCH, 100));
}

/// req:C3: an error is never an empty page.
#[tokio::test]
async fn a_round_that_fails_is_a_typed_error() {
    let world = World::with(|config| config.sync_burst = 10).await;
    let mut device = Device::open(&world, "ann", "phone").await;
    let round = world.inbox.script_round();
    device.send(sync(0)).await;
    round
        .send(Err(tonic::Status::unavailable("no quorum")))
        .await
        .expect("the round runs");
    let error = device.error().await;
    assert_eq!((error.code(), error.field.as_str()), (Code::Unavailable, "sync"));
    assert!(error.retry_after_ms > 0);
    // Cut without an end marker.
    let round = world.inbox.script_round();
    device.send(sync(0)).await;
    round.send(Ok(page(1..=2, false, 9))).await.expect("the round runs");
    drop(round);
    assert_eq!(seqs(&device.page().await), [1, 2]);
    assert_eq!(device.error().await.code(), Code::Unavailable);
    world.inbox.set_down(true);
    device.send(sync(2)).await;
    assert_eq!(device.error().await.code(), Code::Unavailable);
    world.inbox.set_down(false);
    device.send(sync(2)).await;
    assert!(device.page().await.end_of_backlog);
    assert_eq!(world.metric("tidings_sync_rounds_failed_total"), 3.0);
}

/// A second Sync during a round extends it: no end marker before the inbox was asked again.
#[tokio::test]
async fn a_second_sync_extends_the_round() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    let round = world.inbox.script_round();
    let extension = world.inbox.script_round();
    device.send(sync(0)).await;
    eventually("the round begins", async || world.inbox.syncs().len() == 1).await;
    device.send(sync(0)).await;
    device.ping().await;
    round.send(Ok(page(1..=2, true, 2))).await.expect("the round runs");
    let first = device.page().await;
    assert_eq!((seqs(&first), first.end_of_backlog), (vec![1, 2], false));
    extension
        .send(Ok(page(3..=3, true, 3)))
        .await
        .expect("the round goes on");
    let second = device.page().await;
    assert_eq!((seqs(&second), second.end_of_backlog), (vec![3], true));
    let asked: Vec<u64> = world.inbox.syncs().iter().map(|sync| sync.after_user_seq).collect();
    assert_eq!(asked, [0, 2]);
    assert_eq!(world.metric("tidings_sync_rounds_total"), 1.0);
}

/// req:C7: too many rounds are refused with the time to come back.
#[tokio::test]
async fn rounds_are_limited() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    for _ in 0..3 {
        device.send(sync(0)).await;
        assert!(device.page().await.end_of_backlog);
    }
    device.send(sync(0)).await;
    let error = device.error().await;
    assert_eq!(
        (error.code(), error.field.as_str(), error.limit),
        (Code::RateLimited, "sync", 3)
    );
    assert!((1..=2000).contains(&error.retry_after_ms), "{error:?}");
    assert_eq!(world.inbox.syncs().len(), 3);
}

#[tokio::test]
async fn resets_and_truncations_are_told() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    let round = world.inbox.script_round();
    device.send(sync(0)).await;
    let chunk = |chunk| Ok(SyncChunk { chunk: Some(chunk) });
    round
        .send(chunk(sync_chunk::Chunk::Truncated(SyncTruncated {
            floor_seq: 8,
            unread: 8,
        })))
        .await
        .expect("the round runs");
    match device.next().await {
        server_frame::Frame::Truncated(truncated) => assert_eq!((truncated.floor_seq, truncated.unread), (8, 8)),
        other => panic!("wanted truncated, got {other:?}"),
    }
    round.send(Ok(page(9..=9, true, 9))).await.expect("the round goes on");
    assert_eq!(seqs(&device.page().await), [9]);
    let round = world.inbox.script_round();
    device.send(sync(500)).await;
    let reset = SyncReset {
        epoch: EPOCH,
        head_seq: 9,
        floor_seq: 8,
    };
    round
        .send(chunk(sync_chunk::Chunk::Reset(reset)))
        .await
        .expect("the round runs");
    match device.next().await {
        server_frame::Frame::CursorReset(reset) => assert_eq!((reset.head_seq, reset.floor_seq), (9, 8)),
        other => panic!("wanted a reset, got {other:?}"),
    }
    device.send(sync(9)).await;
    assert!(device.page().await.end_of_backlog);
}

#[tokio::test]
async fn a_cursor_behind_what_was_pushed_is_counted_as_a_gap() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    for n in 1..=3 {
        world.push("ann", n, event("bob", "x", "ann", n, "hi")).await;
        device.pushed().await;
    }
    device.send(sync(3)).await;
    device.page().await;
    assert_eq!(world.metric("tidings_client_gaps_total"), 0.0);
    device.send(sync(1)).await;
    device.page().await;
    assert_eq!(world.metric("tidings_client_gaps_total"), 1.0);
}

#[tokio::test]
async fn history_is_relayed_for_the_viewer() {
    let world = World::start().await;
    for encoding in [Encoding::Proto, Encoding::Json] {
        let mut device = Device::open_as(&world, encoding, connect("ann", "phone")).await;
        let message = v1::Message {
            conversation: "d:ann:bob".to_owned(),
            conv_seq: 4,
            sender: "bob".to_owned(),
            content_type: "text".to_owned(),
            body: Bytes::from_static(b"old"),
            ..v1::Message::default()
        };
        world.history.answer_with(HistoryRangeResponse {
            messages: vec![message.encode_to_vec().into()],
            has_more: true,
            from_conv_seq: 3,
            to_conv_seq: 5,
        });
        let request = v1::HistoryRequest {
            request_id: 9_007_199_254_740_993,
            conversation: "d:ann:bob".to_owned(),
            from_conv_seq: 3,
            to_conv_seq: 5,
            limit: 10,
        };
        device.send(request.clone()).await;
        match device.next().await {
            server_frame::Frame::HistoryPage(page) => {
                assert_eq!(page.request_id, 9_007_199_254_740_993, "scenario B85");
                assert_eq!(
                    (page.messages[0].conv_seq, &page.messages[0].body[..]),
                    (4, &b"old"[..])
                );
                assert_eq!((page.has_more, page.from_conv_seq, page.to_conv_seq), (true, 3, 5));
            }
            other => panic!("wanted a page, got {other:?}"),
        }
        device
            .send(v1::HistoryRequest {
                conversation: "d:bob:cleo".to_owned(),
                ..request
            })
            .await;
        let error = device.error().await;
        assert_eq!(
            (error.code(), error.request_id),
            (Code::Forbidden, 9_007_199_254_740_993)
        );
    }
    assert_eq!(world.history.asked()[0].viewer_uid, "ann");
}

#[tokio::test]
async fn history_that_is_away_is_a_typed_error() {
    let world = World::start().await;
    let mut device = Device::open(&world, "ann", "phone").await;
    device
        .send(v1::HistoryRequest {
            request_id: 3,
            conversation: "d:ann:bob".to_owned(),
            ..v1::HistoryRequest::default()
        })
        .await;
    let error = device.error().await;
    assert_eq!((error.code(), error.request_id), (Code::Unavailable, 3));
    assert!(error.retry_after_ms > 0);
}
