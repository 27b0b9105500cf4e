//! Each kind of violation, made by hand in a run that is otherwise right.

use tidings_domain::clock::Millis;
use tidings_domain::{ContentHash, Conversation, DeviceId, MsgId, Uid};

use super::*;

fn uid(name: &str) -> Uid {
    Uid::parse(name).unwrap()
}

fn device(name: &str) -> DeviceKey {
    let (uid_name, device) = name.split_once('/').unwrap();
    DeviceKey {
        uid: uid(uid_name),
        device: DeviceId::parse(device).unwrap(),
    }
}

fn conversation() -> Conversation {
    Conversation::direct(&uid("alice"), &uid("bob"))
}

fn key(sender: &str, number: u8) -> MessageKey {
    MessageKey {
        conversation: conversation(),
        sender: uid(sender),
        msg_id: MsgId::mint(Millis(1_700_000_000_000), [number; 10]),
    }
}

fn body(number: u8) -> ContentHash {
    Ledger::body_hash(&[number])
}

/// `alice` sends 1, 2, 3 from her phone, `bob` sends 4 from his; bob has a laptop, too.
const SENDERS: [(&str, u8); 4] = [("alice", 1), ("alice", 2), ("alice", 3), ("bob", 4)];
const DEVICES: [&str; 3] = ["alice/phone", "bob/phone", "bob/laptop"];

fn entry(number: u8) -> Entry {
    let (sender, _) = SENDERS[usize::from(number) - 1];
    Entry {
        user_seq: u64::from(number),
        event: EventKind::Message {
            key: key(sender, number),
            conv_seq: u64::from(number),
            body: Some(body(number)),
        },
    }
}

fn press(number: u8) -> Press {
    let (sender, _) = SENDERS[usize::from(number) - 1];
    Press {
        key: key(sender, number),
        device: DeviceId::parse("phone").unwrap(),
        body: body(number),
        entitled: vec![uid("alice"), uid("bob")],
    }
}

fn history_entry(number: u8) -> HistoryEntry {
    let (sender, _) = SENDERS[usize::from(number) - 1];
    HistoryEntry {
        conv_seq: u64::from(number),
        key: key(sender, number),
        body: body(number),
    }
}

fn right() -> Ledger {
    let mut ledger = Ledger::default();
    for name in DEVICES {
        ledger.device_opened(device(name), 0);
    }
    for number in 1..=4 {
        ledger.pressed(press(number));
        ledger.settled(&press(number).key, Outcome::Acknowledged);
        for name in DEVICES {
            let mut entry = entry(number);
            // The sender's own device gets an echo without body.
            let is_echo = name == format!("{}/phone", SENDERS[usize::from(number) - 1].0);
            if let (true, EventKind::Message { body, .. }) = (is_echo, &mut entry.event) {
                *body = None;
            }
            ledger.committed(&device(name), entry, true);
        }
    }
    for name in ["alice", "bob"] {
        ledger.stream(uid(name), (1..=4).map(entry).collect());
    }
    ledger.history(conversation(), (1..=4).map(history_entry).collect());
    ledger
}

fn entries<'a>(ledger: &'a mut Ledger, name: &str) -> &'a mut Vec<Entry> {
    &mut ledger.devices.get_mut(&device(name)).unwrap().entries
}

/// Breaks a right run and gives what the oracle says of it.
fn broken(how: impl FnOnce(&mut Ledger)) -> Report {
    let mut ledger = right();
    how(&mut ledger);
    check(&ledger)
}

fn assert_finds(report: &Report, wanted: &Violation) {
    assert!(
        report.violations.contains(wanted),
        "{wanted:?} is not among {:#?}",
        report.violations
    );
    assert!(report.verdict().is_err());
}

#[test]
fn a_right_run_has_no_violation() {
    let report = check(&right());
    assert_eq!(report.violations, vec![]);
    report.verdict().unwrap();
    let figures = report.figures;
    assert_eq!((figures.sent, figures.acknowledged, figures.devices), (4, 4, 3));
    assert_eq!(
        (figures.expected, figures.delivered, figures.missing, figures.twice),
        (12, 12, 0, 0)
    );
    assert_eq!(right().missing(), 0);
}

#[test]
fn acknowledged_but_missing() {
    let report = broken(|ledger| {
        entries(ledger, "bob/laptop").pop();
    });
    let (message, laptop) = (key("bob", 4), device("bob/laptop"));
    assert_finds(
        &report,
        &Violation::AcknowledgedMissing {
            message,
            device: laptop.clone(),
        },
    );
    assert_finds(
        &report,
        &Violation::DeviceBehind {
            device: laptop,
            at: 3,
            head: 4,
        },
    );
    assert_eq!(report.figures.missing, 1);
    // Missing everywhere, also in the stream: nothing but the ACK tells of it.
    let report = broken(|ledger| {
        for name in DEVICES {
            entries(ledger, name).pop();
        }
        for stream in ledger.streams.values_mut() {
            stream.pop();
        }
        ledger.histories.get_mut(&conversation()).unwrap().pop();
    });
    assert_eq!(report.figures.missing, 3);
    assert_finds(&report, &Violation::HistoryMissing { message: key("bob", 4) });
}

#[test]
fn a_message_without_ack_may_be_missing_but_not_at_the_end() {
    let report = broken(|ledger| {
        ledger.presses[3].1 = Outcome::Pending;
        entries(ledger, "bob/laptop").pop();
    });
    assert_eq!(report.figures.missing, 0);
    assert_finds(&report, &Violation::NeverSettled { message: key("bob", 4) });
    let report = broken(|ledger| ledger.presses[3].1 = Outcome::Failed);
    assert_finds(&report, &Violation::Failed { message: key("bob", 4) });
}

#[test]
fn shown_twice_and_absorbed() {
    let repeated = |ledger: &mut Ledger, shown| {
        let mut again = entry(2);
        again.user_seq = 5;
        ledger.committed(&device("bob/laptop"), again.clone(), shown);
        ledger.committed(&device("bob/phone"), again.clone(), false);
        ledger.streams.get_mut(&uid("bob")).unwrap().push(again);
    };
    let report = broken(|ledger| repeated(ledger, true));
    assert_finds(
        &report,
        &Violation::ShownTwice {
            message: key("alice", 2),
            device: device("bob/laptop"),
            times: 2,
        },
    );
    let repeats = Violation::StreamRepeats {
        uid: uid("bob"),
        message: key("alice", 2),
    };
    assert_finds(&report, &repeats);
    assert_eq!(report.figures.twice, 1);
    // The device's keys caught it: not shown twice, but the server was wrong.
    let report = broken(|ledger| repeated(ledger, false));
    assert_eq!((report.figures.twice, report.figures.absorbed), (0, 2));
    assert_finds(&report, &repeats);
}

#[test]
fn a_message_nobody_sent_or_with_another_body() {
    let report = broken(|ledger| {
        ledger.index.remove(&key("alice", 2));
    });
    assert_finds(
        &report,
        &Violation::ShownUnsent {
            message: key("alice", 2),
            device: device("bob/phone"),
        },
    );
    assert_finds(
        &report,
        &Violation::HistoryUnsent {
            message: key("alice", 2),
        },
    );
    let report = broken(|ledger| ledger.presses[1].0.body = body(9));
    for seen_by in ["bob/phone", "history"] {
        assert_finds(
            &report,
            &Violation::ContentDiffers {
                message: key("alice", 2),
                seen_by: seen_by.to_owned(),
            },
        );
    }
    // Only the sending device may get it without body.
    let report = broken(|ledger| {
        if let EventKind::Message { body, .. } = &mut entries(ledger, "bob/laptop")[1].event {
            *body = None;
        }
    });
    assert_finds(
        &report,
        &Violation::ContentDiffers {
            message: key("alice", 2),
            seen_by: "bob/laptop".to_owned(),
        },
    );
}

#[test]
fn shown_to_a_stranger_or_although_refused() {
    let report = broken(|ledger| ledger.presses[1].0.entitled = vec![uid("alice")]);
    assert_finds(
        &report,
        &Violation::ShownToStranger {
            message: key("alice", 2),
            device: device("bob/phone"),
        },
    );
    let report = broken(|ledger| ledger.presses[1].1 = Outcome::Refused(1));
    assert_finds(
        &report,
        &Violation::RefusedButShown {
            message: key("alice", 2),
            device: device("bob/phone"),
        },
    );
}

#[test]
fn the_order_of_pressing() {
    let report = broken(|ledger| ledger.presses.swap(0, 1));
    assert_finds(
        &report,
        &Violation::PressOrderBroken {
            earlier: key("alice", 2),
            later: key("alice", 1),
        },
    );
    // Another device of hers is another order.
    let report = broken(|ledger| {
        ledger.presses.swap(0, 1);
        ledger.presses[0].0.device = DeviceId::parse("laptop").unwrap();
    });
    let is_order = |violation: &Violation| matches!(violation, Violation::PressOrderBroken { .. });
    assert!(!report.violations.iter().any(is_order));
}

#[test]
fn conv_seq_reused_doubled_or_with_a_hole() {
    let renumber = |ledger: &mut Ledger, to: u64| {
        if let EventKind::Message { conv_seq, .. } = &mut entries(ledger, "bob/laptop")[1].event {
            *conv_seq = to;
        }
    };
    let report = broken(|ledger| renumber(ledger, 3));
    let is_reused = |v: &Violation| matches!(v, Violation::ConvSeqReused { conv_seq: 3, .. });
    assert!(report.violations.iter().any(is_reused), "{report:?}");
    let is_double =
        |v: &Violation| matches!(v, Violation::SequencedTwice { message, .. } if *message == key("alice", 2));
    assert!(report.violations.iter().any(is_double), "{report:?}");
    let report = broken(|ledger| renumber(ledger, 1));
    let is_disorder = |v: &Violation| {
        matches!(
            v,
            Violation::SeenOutOfOrder {
                conv_seq: 1,
                after: 1,
                ..
            }
        )
    };
    assert!(report.violations.iter().any(is_disorder), "{report:?}");
    let report = broken(|ledger| {
        let all = ledger.devices.values_mut().map(|log| &mut log.entries);
        for entry in all.chain(ledger.streams.values_mut()).flatten() {
            if let EventKind::Message { conv_seq, .. } = &mut entry.event {
                *conv_seq += u64::from(*conv_seq >= 3);
            }
        }
        for entry in ledger.histories.get_mut(&conversation()).unwrap() {
            entry.conv_seq += u64::from(entry.conv_seq >= 3);
        }
    });
    let hole = Violation::ConvSeqHole {
        conversation: conversation(),
        missing: 3,
    };
    assert_eq!(report.violations, vec![hole]);
}

#[test]
fn user_seq_with_a_hole_or_two_meanings() {
    let report = broken(|ledger| {
        ledger.streams.get_mut(&uid("bob")).unwrap().remove(1);
    });
    assert_finds(
        &report,
        &Violation::StreamHole {
            uid: uid("bob"),
            after: 1,
            found: 3,
        },
    );
    let report = broken(|ledger| {
        entries(ledger, "bob/phone").remove(1);
    });
    assert_finds(
        &report,
        &Violation::DeviceGap {
            device: device("bob/phone"),
            after: 1,
            found: 3,
        },
    );
    let report = broken(|ledger| entries(ledger, "bob/phone")[1].event = EventKind::Other(body(7)));
    assert_finds(
        &report,
        &Violation::UserSeqConflict {
            uid: uid("bob"),
            user_seq: 2,
            seen_by: device("bob/phone"),
        },
    );
}

#[test]
fn history_missing_repeated_or_out_of_order() {
    let report = broken(|ledger| {
        ledger.histories.get_mut(&conversation()).unwrap().remove(1);
    });
    assert_finds(
        &report,
        &Violation::HistoryMissing {
            message: key("alice", 2),
        },
    );
    let report = broken(|ledger| {
        let mut again = history_entry(2);
        again.conv_seq = 5;
        ledger.histories.get_mut(&conversation()).unwrap().push(again);
    });
    assert_finds(
        &report,
        &Violation::HistoryRepeats {
            message: key("alice", 2),
        },
    );
    let report = broken(|ledger| ledger.histories.get_mut(&conversation()).unwrap().swap(0, 1));
    let is_disorder = |v: &Violation| matches!(v, Violation::SeenOutOfOrder { seen_by, .. } if seen_by == "history");
    assert!(report.violations.iter().any(is_disorder), "{report:?}");
}

#[test]
fn a_reset_cursor() {
    let report = broken(|ledger| ledger.reset(&device("bob/phone")));
    assert_finds(
        &report,
        &Violation::CursorReset {
            device: device("bob/phone"),
            times: 1,
        },
    );
}

#[test]
fn a_device_is_entitled_to_what_comes_after_its_start() {
    let mut ledger = right();
    ledger.device_opened(device("bob/tablet"), 2);
    ledger.committed(&device("bob/tablet"), entry(3), true);
    assert_eq!(ledger.missing(), 3);
    ledger.committed(&device("bob/tablet"), entry(4), true);
    let report = check(&ledger);
    assert_eq!(report.violations, vec![]);
    assert_eq!(report.figures.expected, 14);
}
