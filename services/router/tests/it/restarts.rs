//! Duplicates, failing stores, restarts and kills: the numbers stay.

use std::time::Duration;

use bytes::Bytes;
use tidings_bus::ConsumerGroup;
use tidings_bus::producer::ProduceError;
use tidings_domain::Topic;
use tidings_testing::{Embedded, Fault, eventually};

use crate::support::{World, history, messages, send, streams, text};

/// What the two of a conversation must have: each text once, in order, contiguous.
fn assert_streams(embedded: &Embedded, texts: u8) {
    let expected: Vec<(u64, Bytes)> = (1..=texts)
        .map(|n| (u64::from(n), Bytes::from(format!("text {n}"))))
        .collect();
    let streams = streams(embedded);
    for uid in ["alice", "bob"] {
        assert_eq!(messages(&streams[uid]), expected, "stream of {uid}");
        assert_eq!(streams[uid].len(), expected.len());
    }
    // One content per number, whatever was emitted twice.
    for message in history(embedded) {
        let (_, body) = &expected[usize::try_from(message.conv_seq).expect("small") - 1];
        assert_eq!(message.body, body, "number {}", message.conv_seq);
    }
}

fn committed(embedded: &Embedded) -> u64 {
    embedded.committed(ConsumerGroup::Router).iter().sum()
}

#[tokio::test]
async fn duplicates_are_absorbed_within_a_run_and_after_a_restart() {
    let world = World::start();
    let first = text("alice", "bob", 1);
    let mut again = first.clone();
    again.retry_count = 1;
    world.send(&first).await;
    world.send(&again).await;
    world.until_decided("Duplicate", 1).await;
    let world = world.restarted().await;
    world.send(&again).await;
    world.send(&text("alice", "bob", 2)).await;
    world.until_history(2).await;
    assert_eq!(world.decided("Duplicate"), 1, "of this run");
    assert_eq!(world.history().len(), 2, "nothing of a duplicate is emitted");
    let embedded = world.stop().await;
    assert_streams(&embedded, 2);
    assert_eq!(committed(&embedded), 4, "duplicates are settled too");
}

#[tokio::test]
async fn a_conflict_with_a_record_of_an_earlier_run_is_found() {
    let world = World::start();
    let first = text("alice", "bob", 1);
    world.send(&first).await;
    world.until_history(1).await;
    let world = world.restarted().await;
    let mut other = first.clone();
    other.content_hash = tidings_domain::ContentHash([7; 16]);
    world.send(&other).await;
    world.until_decided("Conflict", 1).await;
    let streams = streams(&world.stop().await);
    assert_eq!(messages(&streams["alice"]).len(), 1);
    assert_eq!(crate::support::rejections(&streams["alice"]).len(), 1);
}

/// Lets one call of the store fail for longer than one run tries it, so that runs end and begin again.
async fn survives(call: &'static str, fault: Fault) {
    let world = World::start();
    world.send(&text("alice", "bob", 1)).await;
    world.until_history(1).await;
    world.script.always(call, fault);
    for n in 2..=10 {
        world.send(&text("alice", "bob", n)).await;
    }
    if call == "conv_heads" || call == "intents" {
        // The state is in memory of the run: let it be read again.
        let embedded = world.stop().await.reopened();
        let world = World::on(embedded);
        world.script.always(call, fault);
        world.send(&text("alice", "bob", 1)).await;
        finish(world, call).await;
    } else {
        finish(world, call).await;
    }
}

async fn finish(world: World, call: &'static str) {
    // More than the tries of one run.
    eventually("two runs have failed", async || world.script.struck() >= 6).await;
    world.script.heal();
    eventually("everything is folded", async || {
        world.history().iter().any(|message| message.conv_seq == 10)
    })
    .await;
    let embedded = world.stop().await;
    assert_streams(&embedded, 10);
    let appended = if matches!(call, "conv_heads" | "intents") {
        11
    } else {
        10
    };
    assert_eq!(committed(&embedded), appended);
}

#[tokio::test]
async fn heads_that_cannot_be_read_skip_nothing() {
    survives("conv_heads", Fault::Before).await;
}

#[tokio::test]
async fn intents_that_cannot_be_read_skip_nothing() {
    survives("intents", Fault::Before).await;
}

#[tokio::test]
async fn intents_that_cannot_be_written_skip_nothing() {
    survives("write_intents", Fault::Before).await;
}

#[tokio::test]
async fn intents_written_without_an_answer_repeat_nothing() {
    survives("write_intents", Fault::After).await;
}

#[tokio::test]
async fn heads_that_cannot_be_written_skip_nothing() {
    survives("write_conv_heads", Fault::Before).await;
}

#[tokio::test]
async fn heads_written_without_an_answer_repeat_nothing() {
    survives("write_conv_heads", Fault::After).await;
}

#[tokio::test]
async fn no_position_is_committed_while_intents_or_heads_are_not_written() {
    for call in ["write_intents", "write_conv_heads"] {
        let world = World::start();
        world.script.always(call, Fault::Before);
        world.send(&text("alice", "bob", 1)).await;
        eventually("two runs have failed", async || world.script.struck() >= 6).await;
        let killed = world.embedded.image();
        assert_eq!(committed(&killed), 0, "{call}");
    }
}

/// Kills the process in a call: the next one folds on from what is on disk, and gives the same numbers.
async fn killed_in(call: &'static str) {
    let world = World::start();
    for n in 1..=3 {
        world.send(&text("alice", "bob", n)).await;
    }
    world.until_history(3).await;
    let before = World::on(world.stop().await.reopened());
    before.script.always(call, Fault::Hang);
    for n in 4..=8 {
        before.send(&text("alice", "bob", n)).await;
    }
    eventually("it hangs", async || before.script.struck() >= 1).await;
    let image = before.embedded.image();
    assert_eq!(committed(&image), 3, "nothing of the cut run is committed");
    let after = World::on(image);
    // A client that got no answer sends again, and goes on.
    after.send(&text("alice", "bob", 8)).await;
    after.send(&text("alice", "bob", 9)).await;
    eventually("everything is folded", async || {
        after.history().iter().any(|message| message.conv_seq == 9)
    })
    .await;
    let embedded = after.stop().await;
    assert_streams(&embedded, 9);
    assert_eq!(committed(&embedded), 10);
    drop(before);
}

#[tokio::test]
async fn a_kill_before_the_intents_are_written_changes_no_number() {
    killed_in("write_intents").await;
}

#[tokio::test]
async fn a_kill_between_the_writes_and_the_commit_changes_no_number() {
    killed_in("write_conv_heads").await;
}

#[tokio::test]
async fn a_head_ahead_of_the_commit_is_not_counted_on_from() {
    // The heads are written, the commit is not: the run that begins at 0 finds every head ahead of it.
    let world = World::start();
    world.script.always("write_conv_heads", Fault::After);
    for n in 1..=5 {
        world.send(&text("alice", "bob", n)).await;
    }
    eventually("heads are written", async || world.script.struck() >= 1).await;
    eventually("all five are emitted", async || world.history().len() >= 5).await;
    world.script.always("conv_heads", Fault::Hang);
    eventually("the next run hangs", async || {
        world.script.calls("write_conv_heads") >= 4
    })
    .await;
    let image = world.embedded.image();
    assert_eq!(committed(&image), 0);
    let after = World::on(image);
    send(&after.embedded, &text("alice", "bob", 6)).await;
    eventually("everything is folded", async || {
        after.history().iter().any(|message| message.conv_seq == 6)
    })
    .await;
    assert_streams(&after.stop().await, 6);
}

#[tokio::test]
async fn a_record_that_the_log_loses_or_does_not_confirm_is_emitted_again() {
    for topic in [Topic::History, Topic::Inbox] {
        for lost in [true, false] {
            let world = World::start();
            world.send(&text("alice", "bob", 1)).await;
            world.until_history(1).await;
            let unknown = ProduceError::Unknown("a test wants it so".to_owned());
            if lost {
                world.embedded.faults.lose_next(topic, unknown);
            } else {
                world.embedded.faults.fail_next_confirmation(topic, unknown);
            }
            for n in 2..=6 {
                world.send(&text("alice", "bob", n)).await;
            }
            eventually("the run that lost it ends", async || {
                let restarts = "tidings_fold_restarts_total{group=\"tidings.router\",cause=\"producer\"}";
                world.service.try_metric(restarts).is_some_and(|count| count >= 1.0)
            })
            .await;
            world.send(&text("alice", "bob", 7)).await;
            eventually("everything is folded", async || {
                world.history().iter().any(|message| message.conv_seq == 7)
            })
            .await;
            let embedded = world.stop().await;
            assert_streams(&embedded, 7);
            assert_eq!(committed(&embedded), 7, "{topic} lost: {lost}");
        }
    }
}

#[tokio::test]
async fn no_position_is_committed_while_outputs_are_not_confirmed() {
    let embedded = Embedded::new();
    send(&embedded, &text("alice", "bob", 1)).await;
    embedded.faults.hold_confirmations();
    let world = World::on(embedded);
    world.until_history(1).await;
    eventually("a checkpoint has begun", async || {
        world.script.calls("write_conv_heads") >= 1
    })
    .await;
    // Even at the end of the process, whose drain has a bound.
    let embedded = world.stop().await;
    assert_eq!(committed(&embedded), 0);
    let world = World::on(embedded.image());
    world.until_decided("Refolded", 1).await;
    let embedded = world.stop().await;
    assert_eq!(committed(&embedded), 1);
    assert_streams(&embedded, 1);
}

#[tokio::test]
async fn a_record_older_than_the_memory_of_ids_stops_its_partition() {
    let embedded = Embedded::new();
    send(&embedded, &text("alice", "bob", 1)).await;
    embedded.clock.advance(Duration::from_secs(6 * 86_400 + 1));
    let world = World::on(embedded);
    let partition = tidings_bus::partition_for(b"d:alice:bob", 4);
    let stopped = format!(
        "tidings_fold_stopped_partitions{{group=\"tidings.router\",topic=\"ingress\",partition=\"{partition}\"}}"
    );
    eventually("the partition stops", async || {
        world.service.try_metric(&stopped) == Some(1.0)
    })
    .await;
    let embedded = world.stop().await;
    assert_eq!(history(&embedded), []);
    assert_eq!(committed(&embedded), 0);
}
