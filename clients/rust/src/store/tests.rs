use tidings_domain::state::RejectReason;
use tidings_proto::v1::event::Kind;
use tidings_proto::validate;

use super::*;
use crate::stream::Arrived;

const EPOCH: u64 = u64::MAX - 3;
const WALL: Millis = Millis(1_790_000_000_000);

fn uid(name: &str) -> Uid {
    Uid::parse(name).expect("valid")
}

fn phone() -> DeviceId {
    DeviceId::parse("phone").expect("valid")
}

fn conversation() -> Conversation {
    Conversation::direct(&uid("alice"), &uid("bob"))
}

fn store() -> Store {
    Store::open(&Database::Memory, &uid("alice"), &phone()).expect("opens")
}

fn msg_id(n: u8) -> MsgId {
    MsgId::mint(WALL, [n; 10])
}

fn hash(text: &str) -> ContentHash {
    validate::content_hash(Action::Send, "text", text.as_bytes(), None, None)
}

fn new_message(n: u8, text: &str) -> NewMessage {
    NewMessage {
        conversation: conversation(),
        msg_id: msg_id(n),
        content_type: "text".to_owned(),
        body: Bytes::copy_from_slice(text.as_bytes()),
        content_hash: hash(text),
        first_send_time: WALL,
    }
}

fn message(sender: &str, n: u8, conv_seq: u64, text: &str) -> v1::Message {
    v1::Message {
        conversation: conversation().into(),
        conv_seq,
        sender: sender.to_owned(),
        device: "phone".to_owned(),
        msg_id: Bytes::copy_from_slice(msg_id(n).as_bytes()),
        action: v1::Action::Send as i32,
        append_time: WALL.get() + 5,
        content_type: "text".to_owned(),
        body: Bytes::copy_from_slice(text.as_bytes()),
        content_hash: Bytes::copy_from_slice(hash(text).as_bytes()),
        first_send_time: WALL.get(),
        ..v1::Message::default()
    }
}

fn rejection(n: u8, text: &str, reason: v1::RejectReason) -> Kind {
    Kind::Rejection(v1::Rejection {
        conversation: conversation().into(),
        msg_id: Bytes::copy_from_slice(msg_id(n).as_bytes()),
        action: v1::Action::Send as i32,
        content_hash: Bytes::copy_from_slice(hash(text).as_bytes()),
        device: "phone".to_owned(),
        reason: reason as i32,
        ..v1::Rejection::default()
    })
}

fn receipt(delivered: u64, read: u64) -> Kind {
    Kind::Receipt(v1::Receipt {
        conversation: conversation().into(),
        uid: "bob".to_owned(),
        delivered,
        read,
    })
}

/// Applies events as user_seq 1, 2, 3 ...
fn apply(store: &mut Store, epoch: u64, first: u64, events: Vec<Kind>) -> Vec<Change> {
    let arrived = (first..)
        .zip(events)
        .map(|(user_seq, event)| Arrived {
            user_seq,
            event: Some(event),
        })
        .collect();
    store
        .apply(epoch, arrived, &mut || (msg_id(200), WALL))
        .expect("applies")
        .changes
}

fn states(changes: &[Change]) -> Vec<(u8, MessageState)> {
    changes
        .iter()
        .filter_map(|change| match change {
            Change::State { msg_id, state, .. } => Some((msg_id.as_bytes()[15], *state)),
            Change::Shown(_)
            | Change::Renewed { .. }
            | Change::Hole(_)
            | Change::ReadSync { .. }
            | Change::Duplicate
            | Change::Conflict { .. }
            | Change::Unreadable { .. } => None,
        })
        .collect()
}

/// req:A2: what is to be sent survives the process.
#[test]
fn the_outbox_is_on_disk_before_anything_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = Database::File(dir.path().join("client.db"));
    {
        let mut store = Store::open(&file, &uid("alice"), &phone()).expect("opens");
        let added = store
            .add_outgoing(&[new_message(1, "one"), new_message(2, "two")])
            .expect("stores");
        assert!(!added[0].0.tried);
        store.note_resends(&[(added[1].0.local_id, 4)]).expect("notes");
    }
    let store = Store::open(&file, &uid("alice"), &phone()).expect("opens again");
    let outbox = store.outbox().expect("reads");
    let seen: Vec<_> = outbox
        .iter()
        .map(|entry| (entry.msg_id, entry.retry_count, entry.tried))
        .collect();
    assert_eq!(seen, [(msg_id(1), 0, true), (msg_id(2), 4, true)]);
    assert_eq!(outbox[0].body, Bytes::from_static(b"one"));

    assert!(matches!(
        Store::open(&file, &uid("bob"), &phone()),
        Err(Error::OtherAccount { uid: owner, .. }) if owner == uid("alice")
    ));
}

#[test]
fn a_message_is_shown_once_and_the_cursor_moves_with_it() {
    let mut store = store();
    assert_eq!(store.cursor().expect("reads"), None);
    let changes = apply(&mut store, EPOCH, 1, vec![Kind::Message(message("bob", 1, 1, "hi"))]);
    assert!(matches!(&changes[..], [Change::Shown(shown)] if shown.body == "hi" && shown.state.is_none()));
    assert_eq!(
        store.cursor().expect("reads"),
        Some(v1::Cursor {
            epoch: EPOCH,
            user_seq: 1
        })
    );
    let again = apply(&mut store, EPOCH, 2, vec![Kind::Message(message("bob", 1, 1, "hi"))]);
    assert_eq!(again, [Change::Duplicate]);
    assert_eq!(store.messages(&conversation(), 10).expect("reads").len(), 1);
}

/// req:A6: even a faulty server shows a message once, and never hides the first of two under one number.
#[test]
fn both_unique_keys_hold() {
    let mut store = store();
    let changes = apply(
        &mut store,
        EPOCH,
        1,
        vec![
            Kind::Message(message("bob", 1, 1, "hi")),
            // The same message under another number.
            Kind::Message(message("bob", 1, 2, "hi")),
            // Another message under the same number.
            Kind::Message(message("bob", 2, 1, "other")),
        ],
    );
    assert!(matches!(
        &changes[..],
        [
            Change::Shown(_),
            Change::Conflict { user_seq: 2 },
            Change::Conflict { user_seq: 3 }
        ]
    ));
    assert_eq!(store.messages(&conversation(), 10).expect("reads").len(), 1);
}

/// Rows, states and cursor commit together or not at all.
#[test]
fn a_failing_batch_leaves_nothing_behind() {
    let mut store = store();
    apply(&mut store, EPOCH, 1, vec![Kind::Message(message("bob", 1, 1, "hi"))]);
    store.db.execute_batch("DROP TABLE read_positions").expect("drops");
    let batch = vec![
        Arrived {
            user_seq: 2,
            event: Some(Kind::Message(message("bob", 2, 2, "more"))),
        },
        Arrived {
            user_seq: 3,
            event: Some(Kind::ReadSync(v1::ReadSync {
                conversation: conversation().into(),
                read: 1,
            })),
        },
    ];
    let error = store
        .apply(EPOCH, batch, &mut || (msg_id(200), WALL))
        .expect_err("a table is missing");
    assert!(matches!(error, Error::Database { .. }));
    assert_eq!(store.messages(&conversation(), 10).expect("reads").len(), 1);
    assert_eq!(store.cursor().expect("reads").map(|cursor| cursor.user_seq), Some(1));
}

#[test]
fn an_own_message_walks_through_its_states_and_leaves_the_outbox() {
    let mut store = store();
    let added = store
        .add_outgoing(&[new_message(1, "one"), new_message(2, "two")])
        .expect("stores");
    let moved = store
        .move_states(&[(added[0].0.local_id, Cause::LinkAck)])
        .expect("moves");
    assert_eq!(moved, [(added[0].0.local_id, MessageState::Sent)]);
    assert_eq!(store.outbox().expect("reads").len(), 1);

    // The echo to the sending device has no body (architecture.md section 3); the second one overtakes its link ACK.
    let echo = |n, conv_seq, text| {
        Kind::Message(v1::Message {
            body: Bytes::new(),
            ..message("alice", n, conv_seq, text)
        })
    };
    let changes = apply(&mut store, EPOCH, 1, vec![echo(1, 1, "one"), echo(2, 2, "two")]);
    assert_eq!(states(&changes), [(1, MessageState::Stored), (2, MessageState::Stored)]);
    assert!(store.outbox().expect("reads").is_empty());
    let stored = store.messages(&conversation(), 10).expect("reads");
    assert_eq!(
        stored[0].body,
        Bytes::from_static(b"one"),
        "the own copy keeps its body"
    );
    assert_eq!(stored[1].conv_seq, Some(2));

    assert_eq!(
        states(&apply(&mut store, EPOCH, 3, vec![receipt(1, 0)])),
        [(1, MessageState::Delivered)]
    );
    assert_eq!(
        states(&apply(&mut store, EPOCH, 4, vec![receipt(2, 2)])),
        [
            (2, MessageState::Delivered),
            (1, MessageState::Read),
            (2, MessageState::Read)
        ]
    );
    assert_eq!(states(&apply(&mut store, EPOCH, 5, vec![receipt(1, 1)])), []);
}

#[test]
fn an_own_message_of_another_device_is_shown() {
    let mut store = store();
    let changes = apply(
        &mut store,
        EPOCH,
        1,
        vec![Kind::Message(message("alice", 9, 1, "tablet"))],
    );
    assert!(matches!(&changes[..], [Change::Shown(shown)] if shown.state == Some(MessageState::Stored)));
}

#[test]
fn a_rejection_counts_only_for_what_it_names() {
    let mut store = store();
    store.add_outgoing(&[new_message(1, "mine")]).expect("stores");
    let other = apply(
        &mut store,
        EPOCH,
        1,
        vec![rejection(1, "not mine", v1::RejectReason::NotMember)],
    );
    assert_eq!(other, []);
    let changes = apply(
        &mut store,
        EPOCH,
        2,
        vec![rejection(1, "mine", v1::RejectReason::NotMember)],
    );
    assert!(matches!(
        &changes[..],
        [Change::State {
            state: MessageState::Rejected,
            reason: Some(RejectReason::NotMember),
            ..
        }]
    ));
    assert!(store.outbox().expect("reads").is_empty());
}

/// Scenario B07: the server has another message under this id; ours goes on under a new one.
#[test]
fn an_id_conflict_renews_the_id() {
    let mut store = store();
    store.add_outgoing(&[new_message(1, "new")]).expect("stores");
    let changes = apply(
        &mut store,
        EPOCH,
        1,
        vec![
            // The echo of what the server has under the id is not ours.
            Kind::Message(message("alice", 1, 1, "old")),
            rejection(1, "new", v1::RejectReason::IdConflict),
        ],
    );
    let [Change::Conflict { .. }, Change::Renewed { old, entry }] = &changes[..] else {
        panic!("{changes:?}");
    };
    assert_eq!((*old, entry.msg_id, entry.tried), (msg_id(1), msg_id(200), false));
    let outbox = store.outbox().expect("reads");
    assert_eq!(outbox.len(), 1);
    assert_eq!((outbox[0].msg_id, outbox[0].body.as_ref()), (msg_id(200), &b"new"[..]));
}

/// After the server lost its data, old numbers hide nothing, and known messages are not shown again.
#[test]
fn numbers_belong_to_an_epoch_and_ids_do_not() {
    let mut store = store();
    apply(
        &mut store,
        EPOCH,
        1,
        vec![Kind::Message(message("bob", 1, 1, "before"))],
    );
    let changes = apply(
        &mut store,
        7,
        1,
        vec![
            Kind::Message(message("bob", 2, 1, "after")),
            Kind::Message(message("bob", 1, 2, "before")),
        ],
    );
    assert!(matches!(&changes[..], [Change::Shown(shown), Change::Duplicate] if shown.body == "after"));
    let all = store.messages(&conversation(), 10).expect("reads");
    assert_eq!(
        all.iter().map(|m| m.body.as_ref()).collect::<Vec<_>>(),
        [&b"after"[..], b"before"]
    );
}

#[test]
fn a_failed_message_is_sent_again_by_hand_under_its_id() {
    let mut store = store();
    let added = store.add_outgoing(&[new_message(1, "one")]).expect("stores");
    assert_eq!(
        store.resend_by_hand(msg_id(1), WALL).expect("asks"),
        None,
        "it is being sent"
    );
    store
        .move_states(&[(added[0].0.local_id, Cause::LadderSpent)])
        .expect("moves");
    assert!(store.outbox().expect("reads").is_empty());
    let entry = store
        .resend_by_hand(msg_id(1), Millis(WALL.get() + 9))
        .expect("asks")
        .expect("failed before");
    assert_eq!((entry.msg_id, entry.first_send_time), (msg_id(1), WALL));
    assert_eq!(entry.since, Millis(WALL.get() + 9), "its horizon starts anew");
    assert_eq!(store.outbox().expect("reads"), [entry]);
}

#[test]
fn read_positions_never_go_back_and_the_unreadable_keeps_its_place() {
    let mut store = store();
    let read = |read| {
        Kind::ReadSync(v1::ReadSync {
            conversation: conversation().into(),
            read,
        })
    };
    let malformed = Kind::Message(v1::Message {
        conversation: "nowhere".to_owned(),
        ..message("bob", 1, 1, "hi")
    });
    let changes = apply(&mut store, EPOCH, 1, vec![read(50), read(40), malformed]);
    assert!(matches!(
        &changes[..],
        [
            Change::ReadSync {
                read: 50,
                moved: true,
                ..
            },
            Change::ReadSync {
                read: 40,
                moved: false,
                ..
            },
            Change::Unreadable { user_seq: 3 }
        ]
    ));
    assert_eq!(store.cursor().expect("reads").map(|cursor| cursor.user_seq), Some(3));
    assert!(store.unconfirmed_reads(10).expect("reads").is_empty());
    store.read(&conversation(), 70).expect("stores");
    store.read(&conversation(), 60).expect("stores");
    assert_eq!(store.unconfirmed_reads(10).expect("reads"), [(conversation(), 70)]);
    apply(&mut store, EPOCH, 4, vec![read(70)]);
    assert!(store.unconfirmed_reads(10).expect("reads").is_empty());
}

/// The unique keys are the database's own, not only the code's: it refuses a second row under either.
#[test]
fn the_database_itself_refuses_a_second_row() {
    let mut store = store();
    apply(&mut store, EPOCH, 1, vec![Kind::Message(message("bob", 1, 1, "hi"))]);
    for (changed, value) in [("conv_seq", "conv_seq + 1"), ("msg_id", "randomblob(16)")] {
        let columns = "epoch, conversation, conv_seq, sender, device, msg_id, action, op_id, content_type, body, \
                       content_hash, first_send_time";
        let sql = format!(
            "INSERT INTO messages ({columns}) SELECT {} FROM messages",
            columns.replace(changed, value)
        );
        let error = store.db.execute(&sql, []).expect_err("a second row");
        assert_eq!(
            error.sqlite_error_code(),
            Some(rusqlite::ErrorCode::ConstraintViolation),
            "{changed}"
        );
    }
}
