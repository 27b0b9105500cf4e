//! Reads of history: pages, and who may see what.

use bytes::Bytes;
use tidings_testing::Fault;
use tonic::Code;

use crate::support::{World, message, numbers};

const CONVERSATION: &str = "d:alice:bob";

async fn with_messages(count: u64) -> World {
    let world = World::start();
    for conv_seq in 1..=count {
        world.sequenced(CONVERSATION, conv_seq).await;
    }
    let all: Vec<u64> = (1..=count).collect();
    world.until_rows(CONVERSATION, &all).await;
    world
}

#[tokio::test]
async fn pages_go_back_from_the_newest_and_forward_from_a_number() {
    let world = with_messages(12).await;
    let newest = world.range("alice", CONVERSATION, (0, 0), 5).await.expect("a page");
    assert_eq!(numbers(&newest), [8, 9, 10, 11, 12]);
    assert_eq!(
        (newest.from_conv_seq, newest.to_conv_seq, newest.has_more),
        (8, 12, true)
    );
    let before = world.range("bob", CONVERSATION, (0, 7), 10).await.expect("a page");
    assert_eq!(numbers(&before), [1, 2, 3, 4, 5, 6, 7]);
    assert!(!before.has_more);
    let forward = world.range("bob", CONVERSATION, (3, 9), 4).await.expect("a page");
    assert_eq!(numbers(&forward), [3, 4, 5, 6]);
    assert_eq!(
        (forward.from_conv_seq, forward.to_conv_seq, forward.has_more),
        (3, 6, true)
    );
    let rest = world.range("bob", CONVERSATION, (7, 9), 4).await.expect("a page");
    assert_eq!(numbers(&rest), [7, 8, 9]);
    assert!(!rest.has_more);
    let beyond = world.range("bob", CONVERSATION, (13, 20), 4).await.expect("a page");
    assert_eq!(numbers(&beyond), Vec::<u64>::new());
    assert_eq!(
        (beyond.to_conv_seq, beyond.has_more),
        (12, false),
        "it says how far it looked"
    );
}

#[tokio::test]
async fn a_page_is_cut_by_bytes_at_its_far_end_and_has_at_least_one_message() {
    let world = World::start();
    for conv_seq in 1..=3 {
        let mut large = message(CONVERSATION, conv_seq);
        large.body = Bytes::from(vec![7; 200_000]);
        world.message(&large).await;
    }
    world.until_rows(CONVERSATION, &[1, 2, 3]).await;
    let back = world.range("alice", CONVERSATION, (0, 0), 0).await.expect("a page");
    assert_eq!(numbers(&back), [3]);
    assert_eq!((back.from_conv_seq, back.to_conv_seq, back.has_more), (3, 3, true));
    let forward = world.range("alice", CONVERSATION, (1, 3), 0).await.expect("a page");
    assert_eq!(numbers(&forward), [1]);
    assert_eq!(
        (forward.from_conv_seq, forward.to_conv_seq, forward.has_more),
        (1, 1, true)
    );
}

#[tokio::test]
async fn nobody_else_sees_a_conversation() {
    let world = with_messages(1).await;
    for viewer in ["alice", "bob"] {
        let page = world.range(viewer, CONVERSATION, (0, 0), 0).await.expect("a page");
        assert_eq!(numbers(&page), [1]);
    }
    for (viewer, conversation) in [("carol", CONVERSATION), ("alice", "d:bob:carol"), ("ali", CONVERSATION)] {
        let refused = world.range(viewer, conversation, (0, 0), 0).await.expect_err("refused");
        assert_eq!(refused.code(), Code::PermissionDenied, "{viewer} of {conversation}");
    }
    let malformed = world.range("alice", "d:alice", (0, 0), 0).await.expect_err("refused");
    assert_eq!(malformed.code(), Code::InvalidArgument);
    let group = "g:01890a5d-ac96-774b-bcce-b302099a8057";
    let unserved = world.range("alice", group, (0, 0), 0).await.expect_err("refused");
    assert_eq!(unserved.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_store_that_fails_is_a_status_and_no_empty_page() {
    let world = with_messages(1).await;
    for call in ["newest_conv_seq", "history_range"] {
        world.script.next(call, Fault::Before, 1);
        let failed = world.range("alice", CONVERSATION, (0, 0), 0).await.expect_err("fails");
        assert_eq!(failed.code(), Code::Unavailable, "{call}");
    }
}
