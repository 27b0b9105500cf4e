//! Rows, pushes, checkpoints: contiguous numbers through failures, restarts and kills.

use tidings_bus::producer::ProduceError;
use tidings_domain::Topic;
use tidings_proto::record::Push;
use tidings_testing::{Embedded, Fault, eventually};

use crate::support::{World, checkpointed, committed, conv_seqs, message, neighbour, pushes};

#[tokio::test]
async fn rows_are_contiguous_per_user_and_pushed_once_they_can_be_read() {
    let mut world = World::start().await;
    let other = neighbour(&world.embedded, "alice");
    for conv_seq in 1..=20 {
        world.message("alice", "bob", conv_seq).await;
        world.message(&other, "bob", conv_seq).await;
    }
    world.until_rows("alice", 20).await;
    world.until_rows(&other, 20).await;
    let (embedded, _) = world.stop().await;
    let all: Vec<u64> = (1..=20).collect();
    for uid in ["alice", &other] {
        assert_eq!(conv_seqs(&embedded, uid).await, all);
        assert_eq!(pushes(&embedded, uid), all);
    }
    assert_eq!(checkpointed(&embedded, "alice").await, 40);
    assert_eq!(committed(&embedded, "alice"), 40);
    let push = embedded.records(Topic::Push).remove(0);
    let event = Push::decode(push.value.as_ref()).expect("a push").event;
    assert_eq!(event, message("alice", "bob", 1), "the bytes as they came");
}

#[tokio::test]
async fn the_checkpoint_is_gone_on_from_after_a_restart() {
    let mut world = World::start().await;
    for conv_seq in 1..=3 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.until_rows("alice", 3).await;
    let mut world = world.restarted().await;
    assert_eq!(checkpointed(&world.embedded, "alice").await, 3);
    // What was read could be a phantom: it is written back before anything is folded (seq:I1).
    eventually("it is asserted again", async || {
        world.fold.calls("write_checkpoint") >= 1
    })
    .await;
    assert_eq!(world.fold.calls("write_rows"), 0);
    for conv_seq in 4..=5 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.until_rows("alice", 5).await;
    assert_eq!(
        world.service.metric("tidings_inbox_events_appended_total"),
        2.0,
        "the rest is not folded again"
    );
    let (embedded, _) = world.stop().await;
    assert_eq!(conv_seqs(&embedded, "alice").await, [1, 2, 3, 4, 5]);
}

/// Lets a call of the fold's store fail for longer than one run tries it.
async fn survives(call: &'static str, fault: Fault) {
    let world = World::start().await;
    let (embedded, mut feeder) = world.stop().await;
    for conv_seq in 1..=5 {
        feeder
            .append(&embedded, "alice", message("alice", "bob", conv_seq))
            .await;
    }
    let embedded = embedded.reopened();
    let world = World::on(embedded).await;
    world.fold.always(call, fault);
    eventually("two runs have failed", async || world.fold.struck() >= 6).await;
    assert_eq!(
        checkpointed_unless_done(&world.embedded, call, fault).await,
        0,
        "{call}"
    );
    world.fold.heal();
    eventually("a checkpoint", async || {
        checkpointed(&world.embedded, "alice").await == 5
    })
    .await;
    let (embedded, _) = world.stop().await;
    assert_eq!(conv_seqs(&embedded, "alice").await, [1, 2, 3, 4, 5], "{call} {fault:?}");
    assert!(pushes(&embedded, "alice").ends_with(&[1, 2, 3, 4, 5]));
}

async fn checkpointed_unless_done(embedded: &Embedded, call: &str, fault: Fault) -> u64 {
    if call == "write_checkpoint" && fault == Fault::After {
        return 0;
    }
    checkpointed(embedded, "alice").await
}

#[tokio::test]
async fn a_store_that_cannot_be_read_skips_nothing() {
    for call in ["checkpoint", "inbox_heads", "user_conv_registers"] {
        survives(call, Fault::Before).await;
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_written_skips_nothing() {
    for call in ["write_rows", "write_registers", "write_checkpoint"] {
        survives(call, Fault::Before).await;
    }
}

#[tokio::test]
async fn writes_without_an_answer_repeat_nothing() {
    for call in ["write_rows", "write_registers", "write_checkpoint"] {
        survives(call, Fault::After).await;
    }
}

/// Kills the process in a call: the next one gives the same numbers to the same events.
async fn killed_in(call: &'static str) {
    let mut world = World::start().await;
    for conv_seq in 1..=3 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.until_rows("alice", 3).await;
    let mut world = world.restarted().await;
    world.fold.always(call, Fault::Hang);
    for conv_seq in 4..=6 {
        world.message("alice", "bob", conv_seq).await;
    }
    eventually("it hangs", async || world.fold.struck() >= 1).await;
    let image = world.embedded.image();
    assert_eq!(checkpointed(&image, "alice").await, 3, "{call}");
    let mut after = World::on(image).await;
    // The router dies too, and its next run repeats a part.
    after.feeder.begin_again_at(4);
    for conv_seq in 5..=7 {
        after.message("alice", "bob", conv_seq).await;
    }
    after.until_rows("alice", 7).await;
    eventually("a checkpoint", async || {
        checkpointed(&after.embedded, "alice").await == 9
    })
    .await;
    let (embedded, _) = after.stop().await;
    assert_eq!(conv_seqs(&embedded, "alice").await, [1, 2, 3, 4, 5, 6, 7], "{call}");
    assert!(pushes(&embedded, "alice").ends_with(&[4, 5, 6, 7]), "{call}");
}

#[tokio::test]
async fn a_kill_before_the_rows_are_written_changes_no_number() {
    killed_in("write_rows").await;
}

#[tokio::test]
async fn a_kill_between_rows_and_registers_changes_no_number() {
    killed_in("write_registers").await;
}

#[tokio::test]
async fn a_kill_between_heads_and_checkpoint_changes_no_number() {
    // The heads are ahead of the checkpoint: each record must find its own row again (seq:I3).
    killed_in("write_checkpoint").await;
}

#[tokio::test]
async fn a_hot_window_that_is_down_holds_nothing_up() {
    let mut world = World::start().await;
    world.hot.always("append_hot", Fault::Before);
    for conv_seq in 1..=5 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.until_rows("alice", 5).await;
    assert!(world.service.metric("tidings_hot_window_errors_total") >= 1.0);
    let request = world.request("alice", 0).await;
    let (pages, end) = world.pages(request).await;
    assert_eq!((pages, end), (vec![vec![1, 2, 3, 4, 5]], (5, 5)));
    let (embedded, _) = world.stop().await;
    assert_eq!(pushes(&embedded, "alice"), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn no_checkpoint_is_written_while_pushes_are_not_confirmed() {
    let (embedded, mut feeder) = World::start().await.stop().await;
    feeder.append(&embedded, "alice", message("alice", "bob", 1)).await;
    let embedded = embedded.reopened();
    embedded.faults.hold_confirmations();
    let world = World::on(embedded).await;
    eventually("the push is written", async || {
        !pushes(&world.embedded, "alice").is_empty()
    })
    .await;
    // Even at the end of the process, whose drain has a bound.
    let (embedded, _) = world.stop().await;
    assert_eq!(checkpointed(&embedded, "alice").await, 0);
    assert_eq!(committed(&embedded, "alice"), 0);
    let world = World::on(embedded.image()).await;
    eventually("a checkpoint", async || {
        checkpointed(&world.embedded, "alice").await == 1
    })
    .await;
    assert_eq!(conv_seqs(&world.embedded, "alice").await, [1]);
}

#[tokio::test]
async fn a_push_that_the_log_loses_is_emitted_again() {
    let mut world = World::start().await;
    world.message("alice", "bob", 1).await;
    world.until_rows("alice", 1).await;
    let unknown = ProduceError::Unknown("a test wants it so".to_owned());
    world.embedded.faults.lose_next(Topic::Push, unknown);
    for conv_seq in 2..=4 {
        world.message("alice", "bob", conv_seq).await;
    }
    eventually("a checkpoint", async || {
        checkpointed(&world.embedded, "alice").await == 4
    })
    .await;
    let (embedded, _) = world.stop().await;
    assert_eq!(conv_seqs(&embedded, "alice").await, [1, 2, 3, 4]);
    assert!(pushes(&embedded, "alice").ends_with(&[2, 3, 4]));
}
