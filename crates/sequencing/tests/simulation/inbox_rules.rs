//! Single rules of stage 2.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;
use tidings_domain::clock::Millis;
use tidings_domain::state::{Checkpoint, DeviceRegister, InboxHead};
use tidings_domain::{SourcePosition, Topic};
use tidings_proto::header::LinkError;
use tidings_proto::record::Inbox;
use tidings_proto::v1;
use tidings_sequencing::inbox::{InboxFold, InboxPlan, Reads};
use tidings_sequencing::{FOLD_VERSION, LogEntry, Output, Stop};

use crate::records::{appended, device_state, entry, linked, one_partition, state, uid};
use crate::store::{Store, Write};
use crate::world::{EPOCH, position};

const NOW: Millis = Millis(1_000);

fn fold() -> InboxFold {
    InboxFold::new(one_partition(), EPOCH, 0, None).expect("this version")
}

fn fold_at(next_offset: u64) -> InboxFold {
    let checkpoint = Checkpoint {
        fold_version: FOLD_VERSION,
        next_offset,
        folded: BTreeMap::new(),
    };
    InboxFold::new(one_partition(), EPOCH, 0, Some(checkpoint)).expect("this version")
}

fn drive(fold: &mut InboxFold, store: &mut Store, batch: &[LogEntry]) -> Result<(InboxPlan, Vec<Reads>), Stop> {
    let mut asked = Vec::new();
    while let Some(reads) = fold.next_reads(batch, NOW)? {
        fold.load(store.answer_inbox(0, &reads))?;
        asked.push(reads);
    }
    let plan = fold.decide(batch)?;
    for (uid, row) in &plan.rows {
        store.apply(Write::Row(uid.clone(), row.clone()));
    }
    for (id, off) in &plan.dlq_intents {
        store.apply(Write::DlqIntent(0, id.clone(), *off));
    }
    Ok((plan, asked))
}

fn numbers(plan: &InboxPlan) -> Vec<(&str, u64)> {
    plan.rows.iter().map(|(uid, row)| (uid.as_str(), row.seq)).collect()
}

fn kinds(outputs: &[Output]) -> Vec<(String, v1::event::Kind)> {
    outputs
        .iter()
        .map(|output| {
            let Ok(Inbox::Append(append)) = Inbox::decode(Some(&output.value)) else {
                panic!("receipts are appends")
            };
            let event = v1::Event::decode(append.event).expect("an event");
            (append.uids[0].as_str().to_owned(), event.kind.expect("a kind"))
        })
        .collect()
}

#[test]
fn seq_i2_an_undecodable_record_moves_v_unless_it_is_not_fresh() {
    let garbage = |offset, src, prev| linked(entry(offset, 1_000, Bytes::from_static(b"\xff")), src, prev);
    let batch = [
        appended(0, (1, None), &["a"], "d:a:b", 1),
        garbage(1, 2, Some(1)),
        appended(2, (3, Some(2)), &["a"], "d:a:b", 3),
        garbage(3, 2, None),
        garbage(4, 6, Some(5)),
        appended(5, (7, Some(6)), &["a"], "d:a:b", 7),
        appended(6, (5, None), &["a"], "d:a:b", 5),
    ];
    let (plan, _) = drive(&mut fold(), &mut Store::default(), &batch).expect("decided");
    assert_eq!(numbers(&plan), [("a", 1), ("a", 2), ("a", 3)]);
    let offs: Vec<u64> = plan.rows.iter().map(|(_, row)| row.off.offset()).collect();
    assert_eq!(offs, [0, 2, 6], "what lies behind a gap waits for its run's successor");
    assert_eq!(plan.rejects.iter().map(|r| r.offset).collect::<Vec<_>>(), [1]);
    assert_eq!((plan.stats.reemissions, plan.stats.prefix_gaps), (1, 2));
}

#[test]
fn seq_g4_a_damaged_link_stops_but_not_in_a_replay() {
    let mut damaged = appended(0, (1, None), &["a"], "d:a:b", 1);
    damaged.link = Err(LinkError::OnlyOne);
    assert!(matches!(
        fold().next_reads(std::slice::from_ref(&damaged), NOW),
        Err(Stop::DamagedLink { offset: 0, .. })
    ));
    damaged.dlq_id = Some("inbox/0/7".to_owned());
    let (plan, _) = drive(&mut fold(), &mut Store::default(), &[damaged]).expect("decided");
    assert_eq!(numbers(&plan), [("a", 1)]);
    assert_eq!(plan.rows[0].1.src, None);
}

#[test]
fn seq_i2_a_dead_letter_is_folded_once_and_leaves_v_alone() {
    let mut replay = appended(0, (9, None), &["a"], "d:a:b", 9);
    replay.dlq_id = Some("inbox/0/7".to_owned());
    let copy = LogEntry {
        offset: 2,
        ..replay.clone()
    };
    let undecodable = LogEntry {
        offset: 3,
        value: None,
        dlq_id: Some("inbox/0/8".to_owned()),
        ..replay.clone()
    };
    let batch = [
        replay.clone(),
        appended(1, (1, None), &["a"], "d:a:b", 1),
        copy.clone(),
        undecodable,
    ];
    let mut store = Store::default();
    let mut first = fold();
    let (plan, asked) = drive(&mut first, &mut store, &batch).expect("decided");
    assert!(matches!(&asked[0], Reads::DlqIntents(ids) if ids.len() == 2));
    assert_eq!(numbers(&plan), [("a", 1), ("a", 2)], "V stands at 1, not at 9");
    assert_eq!(plan.dlq_intents, [("inbox/0/7".to_owned(), position(0))]);
    assert_eq!(plan.rejects.len(), 1, "no intent for what cannot be decoded");
    assert_eq!(plan.resolved.iter().map(|r| r.offset).collect::<Vec<_>>(), [0, 2]);
    // Another run, after the first copy: the intent says so.
    let (plan, _) = drive(&mut fold_at(2), &mut store, std::slice::from_ref(&copy)).expect("decided");
    assert_eq!((plan.rows.len(), plan.stats.repeated_replays), (0, 1));
    // A later copy that claims to be the first.
    store.dlq_intents.insert((0, "inbox/0/7".to_owned()), position(2));
    assert!(matches!(
        drive(&mut fold(), &mut store, &[replay]),
        Err(Stop::DlqIntentAhead { offset: 0, .. })
    ));
}

#[test]
fn seq_i3_a_head_ahead_leads_to_the_row_and_a_missing_row_stops() {
    let batch = [
        appended(0, (1, None), &["a"], "d:a:b", 1),
        appended(1, (2, Some(1)), &["a"], "d:a:b", 2),
    ];
    let mut store = Store::default();
    let (first, _) = drive(&mut fold(), &mut store, &batch).expect("decided");
    let head = InboxHead {
        seq: 2,
        off: position(1),
    };
    store.apply(Write::InboxHead(uid("a"), head));
    let mut again = fold();
    let (second, asked) = drive(&mut again, &mut store, &batch).expect("decided");
    assert_eq!(asked[1], Reads::FindRows(vec![(uid("a"), position(0), 2)]));
    assert_eq!(second.rows, first.rows);
    assert_eq!(second.pushes, first.pushes);
    assert_eq!(again.checkpoint().expect("folded").heads, [(uid("a"), head)]);
    store.rows.clear();
    assert!(matches!(
        drive(&mut fold(), &mut store, &batch),
        Err(Stop::RowMissing { offset: 0, head: 2, .. })
    ));
}

#[test]
fn req_b5_growth_becomes_receipts_and_a_read_sync_each_at_its_own_position() {
    let mut store = Store::default();
    let mut fold = fold();
    let batch = [
        appended(0, (1, None), &["a", "b"], "d:a:b", 1),
        appended(1, (2, Some(1)), &["b", "c"], "d:b:c", 1),
        device_state(
            2,
            state("b", 9, &[("d:a:b", 5), ("d:b:c", 1), ("d:b:x", 3)], &[("d:a:b", 1)]),
        ),
        device_state(3, state("b", 9, &[("d:a:b", 5)], &[("d:a:b", 1)])),
    ];
    let (plan, _) = drive(&mut fold, &mut store, &batch).expect("decided");
    let receipt = |conversation: &str, delivered, read| {
        v1::event::Kind::Receipt(v1::Receipt {
            conversation: conversation.to_owned(),
            uid: "b".to_owned(),
            delivered,
            read,
        })
    };
    let read_sync = v1::event::Kind::ReadSync(v1::ReadSync {
        conversation: "d:a:b".to_owned(),
        read: 1,
    });
    assert_eq!(
        kinds(&plan.receipts),
        [
            ("a".to_owned(), receipt("d:a:b", 1, 1)),
            ("b".to_owned(), read_sync),
            ("c".to_owned(), receipt("d:b:c", 1, 0)),
        ],
        "clamped to what was appended, nothing for what did not grow"
    );
    let at = |idx| SourcePosition { pos: position(2), idx };
    assert_eq!(
        plan.receipts
            .iter()
            .map(|o| (o.link.src, o.link.prev))
            .collect::<Vec<_>>(),
        [(at(0), None), (at(1), Some(at(0))), (at(2), Some(at(1)))]
    );
    let checkpoint = fold.checkpoint().expect("folded");
    let device = checkpoint.devices[0].1;
    assert_eq!(
        (device.stored, device.off),
        (2, position(3)),
        "clamped to the stream's head"
    );
    assert_eq!(checkpoint.user_convs.len(), 4);
}

#[test]
fn a_conversation_with_oneself_has_no_receipts() {
    let batch = [
        appended(0, (1, None), &["a"], "d:a:a", 1),
        device_state(1, state("a", 1, &[("d:a:a", 1)], &[("d:a:a", 1)])),
    ];
    let (plan, _) = drive(&mut fold(), &mut Store::default(), &batch).expect("decided");
    assert!(matches!(
        kinds(&plan.receipts).as_slice(),
        [(to, v1::event::Kind::ReadSync(_))] if to == "a"
    ));
}

#[test]
fn registers_ahead_are_done_and_written_again() {
    let batch = [
        appended(0, (1, None), &["a", "b"], "d:a:b", 1),
        device_state(1, state("b", 1, &[("d:a:b", 1)], &[])),
    ];
    let mut store = Store::default();
    let mut first = fold();
    drive(&mut first, &mut store, &batch).expect("decided");
    let written = first.checkpoint().expect("folded");
    for ((uid, device), register) in written.devices.clone() {
        store.apply(Write::Device(uid, device, register));
    }
    for ((uid, conversation), register) in written.user_convs.clone() {
        store.apply(Write::UserConv(uid, conversation, register));
    }
    // The registers may be phantoms, the cell was never written: another run folds the same records.
    let mut second = fold();
    let (plan, _) = drive(&mut second, &mut store, &batch).expect("decided");
    assert!(plan.receipts.is_empty(), "their effects are durable");
    assert_eq!(plan.stats.device_states_done, 1);
    assert_eq!(plan.rows.len(), 2);
    assert_eq!(second.checkpoint(), Some(written.clone()));
    // A run that meets only the report, and skips it.
    let mut third = fold_at(1);
    drive(&mut third, &mut store, &batch[1..]).expect("decided");
    let checkpoint = third.checkpoint().expect("folded");
    assert_eq!(checkpoint.devices, written.devices);
    assert_eq!(checkpoint.user_convs, written.user_convs[1..]);
}

#[test]
fn seq_i8a_a_head_beyond_a_report_without_its_register_stops() {
    let mut store = Store::default();
    store.apply(Write::InboxHead(
        uid("b"),
        InboxHead {
            seq: 4,
            off: position(9),
        },
    ));
    let batch = [device_state(3, state("b", 1, &[], &[]))];
    let (fresh, stale) = (position(3), position(2));
    for (off, ok) in [(fresh, true), (stale, false)] {
        let register = DeviceRegister {
            delivered: 1,
            stored: 1,
            off,
        };
        store
            .devices
            .insert((uid("b"), state("b", 0, &[], &[]).device), register);
        let result = drive(&mut fold_at(3), &mut store, &batch).map(|(plan, asked)| {
            assert!(matches!(
                asked.as_slice(),
                [Reads::InboxHeads(_), Reads::DeviceRegisters(_)]
            ));
            plan.stats.device_states_done
        });
        if ok {
            assert_eq!(result, Ok(1));
        } else {
            assert!(matches!(result, Err(Stop::RegisterBehindHead { offset: 3, .. })));
        }
    }
}

#[test]
fn what_would_break_a_stream_is_refused() {
    let mut without_source = appended(0, (1, None), &["a"], "d:a:b", 1);
    without_source.link = Ok(None);
    let with_source = linked(device_state(1, state("a", 1, &[], &[])), 1, None);
    let twice = appended(2, (2, Some(1)), &["a", "a"], "d:a:b", 1);
    let mut elsewhere = one_partition();
    elsewhere.partitions.inbox = 2;
    elsewhere.partition_of = |_, _| 1;
    let misplaced = appended(3, (3, Some(2)), &["a"], "d:a:b", 1);
    let names = |params, batch: &[LogEntry]| {
        let mut fold = InboxFold::new(params, EPOCH, 0, None).expect("this version");
        let (plan, _) = drive(&mut fold, &mut Store::default(), batch).expect("decided");
        assert!(plan.rows.is_empty());
        plan.rejects.iter().map(|r| r.cause.name()).collect::<Vec<_>>()
    };
    assert_eq!(
        names(one_partition(), &[without_source, with_source, twice]),
        ["append_without_source", "device_state_with_source", "repeated_uid"]
    );
    assert_eq!(
        names(
            elsewhere,
            &[LogEntry {
                offset: 0,
                ..linked(misplaced, 1, None)
            }]
        ),
        ["misplaced"]
    );
}

#[test]
fn another_cursor_epoch_is_ignored_and_another_fold_version_refused() {
    let mut of_another = state("a", 1, &[("d:a:b", 1)], &[]);
    of_another.epoch = EPOCH + 1;
    let (plan, asked) = drive(&mut fold(), &mut Store::default(), &[device_state(0, of_another)]).expect("decided");
    assert!(asked.is_empty());
    assert_eq!(plan.stats.other_cursor_epoch, 1);
    let checkpoint = Checkpoint {
        fold_version: FOLD_VERSION + 1,
        ..Checkpoint::default()
    };
    assert!(matches!(
        InboxFold::new(one_partition(), EPOCH, 0, Some(checkpoint)),
        Err(Stop::FoldVersion { .. })
    ));
}

#[test]
fn seq_i6_a_push_names_every_row_of_its_record() {
    let (plan, _) = drive(
        &mut fold(),
        &mut Store::default(),
        &[appended(0, (1, None), &["a", "b"], "d:a:b", 1)],
    )
    .expect("decided");
    let push = tidings_proto::record::Push::decode(Some(&plan.pushes[0].value)).expect("a push");
    assert_eq!(push.targets, [(uid("a"), 1), (uid("b"), 1)]);
    assert_eq!(push.event, plan.rows[0].1.event);
    assert_eq!((plan.pushes[0].topic, plan.pushes[0].partition), (Topic::Push, 0));
}

#[test]
fn seq_i9_a_user_leaves_memory_only_after_a_checkpoint_issued_after_its_last_record() {
    let mut params = one_partition();
    params.kept_states = 0;
    let mut fold = InboxFold::new(params, EPOCH, 0, None).expect("this version");
    let mut store = Store::default();
    let batch = [
        appended(0, (1, None), &["a"], "d:a:b", 1),
        appended(1, (2, Some(1)), &["b"], "d:a:b", 1),
        appended(2, (3, Some(2)), &["c"], "d:a:c", 1),
    ];
    drive(&mut fold, &mut store, &batch).expect("decided");
    fold.checkpoint().expect("folded");
    // While it is in flight: a new row for one user, only a report for another.
    let later = [
        appended(3, (4, Some(3)), &["a"], "d:a:b", 2),
        device_state(4, state("b", 1, &[], &[])),
    ];
    drive(&mut fold, &mut store, &later).expect("decided");
    fold.checkpoint_committed();
    assert_eq!(fold.users_len(), 2, "only c is covered");
    let next = fold.checkpoint().expect("folded");
    assert_eq!(
        next.heads
            .iter()
            .map(|(uid, head)| (uid.as_str(), head.seq))
            .collect::<Vec<_>>(),
        [("a", 2)]
    );
    assert_eq!((next.user_convs.len(), next.devices.len()), (1, 1));
    fold.checkpoint_committed();
    assert_eq!(fold.users_len(), 0);
}
