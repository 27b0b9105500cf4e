//! Single rules of stage 1.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tidings_domain::clock::Millis;
use tidings_domain::state::{ConvHead, Intent, Outcome, RejectReason};
use tidings_domain::{SourcePosition, Topic};
use tidings_proto::record::{Inbox, Ingress, SenderRole};
use tidings_proto::v1;
use tidings_sequencing::router::{Answers, Reads, RouterFold, RouterPlan, Start};
use tidings_sequencing::{LogEntry, Output, Stop};

use crate::records::{conv, entry, one_partition, send};
use crate::store::{Store, Write};
use crate::world::position;

const NOW: Millis = Millis(1_000);

fn fold_at(offset: u64, w: Option<Millis>) -> RouterFold {
    RouterFold::new(one_partition(), 0, Start { offset, w }, NOW)
}

/// Decides `batch` over `store`, writes what it must, and says what was read.
fn drive(fold: &mut RouterFold, store: &mut Store, batch: &[LogEntry]) -> Result<(RouterPlan, Vec<Reads>), Stop> {
    let mut asked = Vec::new();
    while let Some(reads) = fold.next_reads(batch, NOW)? {
        fold.load(store.answer_router(&reads))?;
        asked.push(reads);
    }
    let plan = fold.decide(batch)?;
    for (key, intent) in &plan.intents {
        store.apply(Write::Intent(key.clone(), *intent));
    }
    Ok((plan, asked))
}

fn record(offset: u64, record: &Ingress) -> LogEntry {
    entry(offset, 1_000, record.encode())
}

fn rejections(plan: &RouterPlan) -> Vec<v1::Rejection> {
    plan.outputs
        .iter()
        .filter(|output| output.topic == Topic::Inbox)
        .filter_map(|output| {
            let Ok(Inbox::Append(append)) = Inbox::decode(Some(&output.value)) else {
                panic!("outputs to inbox are appends")
            };
            match v1::Event::decode(append.event).expect("an event").kind {
                Some(v1::event::Kind::Rejection(rejection)) => Some(rejection),
                Some(_) | None => None,
            }
        })
        .collect()
}

#[test]
fn seq_r3_a_duplicate_is_quiet_and_another_content_is_a_conflict_from_the_window_and_from_the_intent() {
    let mut store = Store::default();
    let first = send("d:a:b", "a", 1, 500, "hello");
    let other = send("d:a:b", "a", 1, 500, "other");
    let batch = [record(0, &first), record(1, &first), record(2, &other)];
    let mut from_window = fold_at(0, None);
    let (plan, asked) = drive(&mut from_window, &mut store, &batch).expect("decided");
    assert_eq!(
        asked,
        [Reads::ConvHeads(vec![conv("d:a:b")])],
        "W is -infinity: no intent is read"
    );
    assert_eq!(
        (plan.stats.accepted, plan.stats.duplicates, plan.stats.conflicts),
        (1, 1, 1)
    );
    assert_eq!(plan.intents.len(), 1, "a conflict writes no intent");
    let checkpoint = from_window.checkpoint().expect("records were folded");
    assert_eq!(checkpoint.conv_heads.len(), 1);
    assert_eq!(
        checkpoint.conv_heads[0].1.applied,
        position(0),
        "a conflict does not move applied"
    );

    let mut from_intent = fold_at(3, Some(NOW));
    let late = [record(3, &first), record(4, &other)];
    let (plan, asked) = drive(&mut from_intent, &mut store, &late).expect("decided");
    assert!(matches!(asked.as_slice(), [Reads::ConvHeads(_), Reads::Intents(keys)] if keys.len() == 1));
    assert_eq!((plan.stats.duplicates, plan.stats.conflicts), (1, 1));
    assert!(plan.intents.is_empty());
    let rejections = rejections(&plan);
    assert_eq!(rejections.len(), 1);
    assert_eq!(rejections[0].reason, v1::RejectReason::IdConflict as i32);
    assert_eq!(rejections[0].content_hash, other.content_hash.as_bytes().as_slice());
    assert_eq!(plan.outputs[0].link.src, SourcePosition::first(position(4)));
    assert!(from_intent.checkpoint().expect("folded").conv_heads.is_empty());
}

#[test]
fn seq_r1_without_w_old_ids_are_read_and_new_ones_are_not() {
    let far_ahead = send("d:a:b", "a", 1, 1_031, "x");
    let near = send("d:a:b", "a", 2, 1_030, "y");
    let mut store = Store::default();
    let (_, asked) = drive(&mut fold_at(9, None), &mut store, &[record(9, &far_ahead)]).expect("decided");
    assert!(matches!(asked.as_slice(), [Reads::ConvHeads(_)]));
    let (_, asked) = drive(&mut fold_at(9, None), &mut store, &[record(9, &near)]).expect("decided");
    assert!(matches!(asked.as_slice(), [Reads::ConvHeads(_), Reads::Intents(_)]));
}

#[test]
fn seq_r2_heads_then_members_then_intents() {
    let group = send("g:01890a5d-ac96-774b-bcce-b302099a8057", "a", 1, 10, "x");
    let direct = send("d:a:b", "a", 2, 10, "y");
    let (plan, asked) = drive(
        &mut fold_at(9, Some(NOW)),
        &mut Store::default(),
        &[record(9, &group), record(10, &direct)],
    )
    .expect("decided");
    assert_eq!(
        asked[0],
        Reads::ConvHeads(vec![group.conversation.clone(), direct.conversation])
    );
    assert_eq!(asked[1], Reads::Members(vec![group.conversation]));
    assert!(matches!(&asked[2], Reads::Intents(keys) if keys.len() == 2));
    assert_eq!((plan.stats.accepted, plan.stats.rejected), (1, 1));
    assert_eq!(plan.intents[0].1.outcome, Outcome::Rejected(RejectReason::Unsupported));
}

#[test]
fn seq_r3_a_state_ahead_takes_the_stored_outcome_and_emits_the_same_bytes() {
    let mut store = Store::default();
    let messages = [send("d:a:b", "a", 1, 500, "one"), send("d:a:b", "b", 2, 500, "two")];
    let batch = [record(0, &messages[0]), record(1, &messages[1])];
    let mut first = fold_at(0, None);
    let (plan, _) = drive(&mut first, &mut store, &batch).expect("decided");
    for (conversation, head) in first.checkpoint().expect("folded").conv_heads {
        store.apply(Write::ConvHead(conversation, head));
    }
    // The heads are durable, the position was never committed.
    let mut second = fold_at(0, None);
    let (again, asked) = drive(&mut second, &mut store, &batch).expect("decided");
    assert!(matches!(asked.as_slice(), [Reads::ConvHeads(_), Reads::Intents(keys)] if keys.len() == 2));
    assert_eq!(again.outputs, plan.outputs);
    assert_eq!(again.intents, plan.intents, "refolded ones are written again");
    assert_eq!(again.stats.refolded, 2);
    assert_eq!(
        second.checkpoint(),
        first.checkpoint(),
        "written again, advanced or not"
    );
}

#[test]
fn seq_r3_broken_invariants_stop() {
    let message = send("d:a:b", "a", 1, 500, "x");
    let run = |intent: Option<Intent>, head: Option<ConvHead>| {
        let mut store = Store::default();
        if let Some(intent) = intent {
            store.apply(Write::Intent(message.key(), intent));
        }
        if let Some(head) = head {
            store.apply(Write::ConvHead(message.conversation.clone(), head));
        }
        drive(&mut fold_at(5, Some(NOW)), &mut store, &[record(5, &message)]).map(|(plan, _)| plan.stats.accepted)
    };
    let intent = |off, conv_seq| Intent {
        outcome: Outcome::Accepted {
            conv_seq,
            countable_seq: conv_seq,
        },
        content_hash: message.content_hash,
        off: position(off),
        append_time: NOW,
    };
    let head = |head, applied| ConvHead {
        head,
        countable: head,
        applied: position(applied),
    };
    assert_eq!(run(Some(intent(5, 1)), None), Ok(1));
    assert_eq!(run(Some(intent(5, 4)), Some(head(7, 9))), Ok(1));
    assert!(matches!(
        run(Some(intent(6, 1)), None),
        Err(Stop::IntentAhead { offset: 5, .. })
    ));
    let other_hash = Intent {
        content_hash: send("d:a:b", "a", 1, 500, "y").content_hash,
        ..intent(5, 1)
    };
    assert_eq!(
        run(Some(other_hash), None),
        Err(Stop::SameOffsetOtherHash { offset: 5 })
    );
    assert!(matches!(run(None, Some(head(7, 9))), Err(Stop::IntentMissing { .. })));
    assert!(matches!(
        run(Some(intent(5, 3)), None),
        Err(Stop::OutcomeDiffers { .. })
    ));
}

#[test]
fn seq_g7_the_guard_comes_after_the_reads_and_before_any_decision() {
    let mut params = one_partition();
    params.guard_limit = Some(Duration::from_secs(1));
    let mut fold = RouterFold::new(params, 0, Start::at_log_start(0), NOW);
    let batch = [record(0, &send("d:a:b", "a", 1, 500, "x"))];
    let late = Millis(2_001);
    assert!(matches!(fold.next_reads(&batch, late), Ok(Some(Reads::ConvHeads(_)))));
    fold.load(Answers::ConvHeads(vec![None])).expect("as asked");
    assert!(matches!(
        fold.next_reads(&batch, late),
        Err(Stop::GuardLimit { offset: 0, .. })
    ));
    assert!(matches!(fold.decide(&batch), Err(Stop::NotRead { .. })));
}

#[test]
fn seq_g4_outputs_form_one_chain_per_destination() {
    let mut params = one_partition();
    params.partitions.inbox = 2;
    let mut fold = RouterFold::new(params, 0, Start::at_log_start(0), NOW);
    let batch: Vec<LogEntry> = (0..6u8)
        .map(|n| {
            let conversation = ["d:a:b", "d:a:c", "d:b:c"][usize::from(n) % 3];
            let sender = if n % 3 == 2 { "b" } else { "a" };
            record(u64::from(n), &send(conversation, sender, n, 500, "x"))
        })
        .collect();
    let (plan, _) = drive(&mut fold, &mut Store::default(), &batch).expect("decided");
    for (topic, partition) in [(Topic::History, 0), (Topic::Inbox, 0), (Topic::Inbox, 1)] {
        let lane: Vec<&Output> = plan
            .outputs
            .iter()
            .filter(|o| (o.topic, o.partition) == (topic, partition))
            .collect();
        assert!(lane.len() > 1);
        assert_eq!(lane[0].link.prev, None);
        for pair in lane.windows(2) {
            assert_eq!(pair[1].link.prev, Some(pair[0].link.src));
            assert!(
                pair[0].link.src < pair[1].link.src,
                "one output per source and destination"
            );
        }
    }
}

#[test]
fn a_service_has_no_stream_and_the_undecodable_goes_to_dlq_only() {
    let mut service = send("d:a:b", "a", 1, 500, "x");
    service.sender_role = SenderRole::Service;
    let mut stranger = send("d:a:b", "c", 2, 500, "x");
    stranger.sender_role = SenderRole::Service;
    let batch = [
        record(0, &service),
        entry(1, 1_000, Bytes::from_static(b"\xff")),
        record(2, &stranger),
    ];
    let mut fold = fold_at(0, None);
    let (plan, _) = drive(&mut fold, &mut Store::default(), &batch).expect("decided");
    let topics: Vec<Topic> = plan.outputs.iter().map(|o| o.topic).collect();
    assert_eq!(topics, [Topic::History, Topic::Inbox], "no echo and no rejection");
    let Ok(Inbox::Append(append)) = Inbox::decode(Some(&plan.outputs[1].value)) else {
        panic!("an append")
    };
    assert_eq!(append.uids, [crate::records::uid("b")]);
    assert_eq!(plan.rejects.len(), 1);
    assert_eq!((plan.rejects[0].offset, plan.rejects[0].cause.name()), (1, "decode"));
    assert_eq!(plan.intents.len(), 2, "the rejected one has an intent too");
    assert_eq!(fold.next_offset(), 3);
}

#[test]
fn a_batch_below_the_position_or_out_of_order_stops() {
    let message = send("d:a:b", "a", 1, 500, "x");
    let below = [record(4, &message)];
    assert!(matches!(
        fold_at(5, None).next_reads(&below, NOW),
        Err(Stop::OffsetOrder { offset: 4, expected: 5 })
    ));
    let back = [record(6, &message), record(6, &message)];
    assert!(matches!(
        fold_at(5, None).next_reads(&back, NOW),
        Err(Stop::OffsetOrder { offset: 6, expected: 7 })
    ));
    let mut unread = fold_at(5, None);
    assert!(matches!(
        unread.decide(&[record(5, &message)]),
        Err(Stop::NotRead { offset: 5, .. })
    ));
}

#[test]
fn seq_r10_a_conversation_leaves_memory_only_after_a_checkpoint_issued_after_its_last_record() {
    let mut params = one_partition();
    params.kept_states = 0;
    let mut fold = RouterFold::new(params, 0, Start::at_log_start(0), NOW);
    let mut store = Store::default();
    let messages = [
        send("d:a:b", "a", 1, 500, "x"),
        send("d:a:c", "a", 2, 500, "x"),
        send("d:a:b", "a", 3, 500, "x"),
    ];
    drive(
        &mut fold,
        &mut store,
        &[record(0, &messages[0]), record(1, &messages[1])],
    )
    .expect("decided");
    let in_flight = fold.checkpoint().expect("folded");
    drive(&mut fold, &mut store, &[record(2, &messages[2])]).expect("decided");
    for (conversation, head) in in_flight.conv_heads {
        store.apply(Write::ConvHead(conversation, head));
    }
    fold.checkpoint_committed();
    assert_eq!(
        fold.conversations_len(),
        1,
        "d:a:b has a record that no checkpoint covers"
    );
    let next = fold.checkpoint().expect("folded");
    assert_eq!(next.conv_heads.len(), 1);
    assert_eq!((next.conv_heads[0].1.head, next.next_offset), (2, 3));
    fold.checkpoint_committed();
    assert_eq!(fold.conversations_len(), 0);
}
