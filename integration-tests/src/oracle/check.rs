//! The comparison.

use std::collections::{BTreeMap, HashMap, HashSet};

use tidings_domain::{Conversation, DeviceId, Uid};

use super::ledger::{DeviceKey, DeviceLog, Entry, EventKind, Ledger, MessageKey, Outcome, Press};
use super::violation::{Figures, Report, Violation};

/// Judges a run.
pub fn check(ledger: &Ledger) -> Report {
    let mut violations = Vec::new();
    let mut sequence = Sequence::default();
    for (device, log) in &ledger.devices {
        check_device(ledger, device, log, &mut violations);
        sequence.take_entries(&format!("device {device}"), &log.entries, &mut violations);
    }
    for (uid, entries) in &ledger.streams {
        check_stream(uid, entries, &mut violations);
        sequence.take_entries(&format!("stream of {uid}"), entries, &mut violations);
    }
    check_histories(ledger, &mut sequence, &mut violations);
    sequence.check_contiguous(&mut violations);
    check_press_order(ledger, &sequence, &mut violations);
    let figures = check_multiset(ledger, &mut violations);
    Report { figures, violations }
}

/// One device by itself, and against its user's stream.
fn check_device(ledger: &Ledger, device: &DeviceKey, log: &DeviceLog, violations: &mut Vec<Violation>) {
    if log.resets > 0 {
        violations.push(Violation::CursorReset {
            device: device.clone(),
            times: log.resets,
        });
    }
    let mut cursor = log.start;
    for entry in &log.entries {
        if entry.user_seq != cursor + 1 {
            violations.push(Violation::DeviceGap {
                device: device.clone(),
                after: cursor,
                found: entry.user_seq,
            });
        }
        cursor = entry.user_seq;
        if let EventKind::Message { key, body, .. } = &entry.event {
            match ledger.index.get(key) {
                None => violations.push(Violation::ShownUnsent {
                    message: key.clone(),
                    device: device.clone(),
                }),
                Some(&index) => {
                    let (press, outcome) = &ledger.presses[index];
                    check_shown(
                        press,
                        *outcome,
                        device,
                        body.is_none_or(|body| body == press.body),
                        violations,
                    );
                    let is_echo = device.uid == key.sender && device.device == press.device;
                    if body.is_none() && !is_echo {
                        violations.push(Violation::ContentDiffers {
                            message: key.clone(),
                            seen_by: device.to_string(),
                        });
                    }
                }
            }
        }
    }
    let Some(stream) = ledger.streams.get(&device.uid) else {
        return;
    };
    let head = stream.last().map_or(0, |entry| entry.user_seq);
    if cursor < head {
        violations.push(Violation::DeviceBehind {
            device: device.clone(),
            at: cursor,
            head,
        });
    }
    let by_number: HashMap<u64, &EventKind> = stream.iter().map(|entry| (entry.user_seq, &entry.event)).collect();
    for entry in &log.entries {
        if by_number
            .get(&entry.user_seq)
            .is_none_or(|event| !same(event, &entry.event))
        {
            violations.push(Violation::UserSeqConflict {
                uid: device.uid.clone(),
                user_seq: entry.user_seq,
                seen_by: device.clone(),
            });
        }
    }
}

fn check_shown(press: &Press, outcome: Outcome, device: &DeviceKey, same_body: bool, violations: &mut Vec<Violation>) {
    let message = press.key.clone();
    if !press.entitled.contains(&device.uid) {
        violations.push(Violation::ShownToStranger {
            message: message.clone(),
            device: device.clone(),
        });
    }
    if !same_body {
        violations.push(Violation::ContentDiffers {
            message: message.clone(),
            seen_by: device.to_string(),
        });
    }
    match outcome {
        Outcome::Refused(_) => violations.push(Violation::RefusedButShown {
            message,
            device: device.clone(),
        }),
        Outcome::Pending | Outcome::Acknowledged | Outcome::Failed => {}
    }
}

/// The same event, seen by an echo (without body) or whole.
fn same(left: &EventKind, right: &EventKind) -> bool {
    match (left, right) {
        (
            EventKind::Message {
                key: left_key,
                conv_seq: left_seq,
                body: left_body,
            },
            EventKind::Message {
                key: right_key,
                conv_seq: right_seq,
                body: right_body,
            },
        ) => {
            let bodies_agree = left_body.is_none() || right_body.is_none() || left_body == right_body;
            left_key == right_key && left_seq == right_seq && bodies_agree
        }
        (EventKind::Other(left), EventKind::Other(right)) => left == right,
        (EventKind::Message { .. }, EventKind::Other(_)) | (EventKind::Other(_), EventKind::Message { .. }) => false,
    }
}

/// One stream by itself: contiguous from 1, no message twice.
fn check_stream(uid: &Uid, entries: &[Entry], violations: &mut Vec<Violation>) {
    let mut last = 0;
    let mut seen = HashSet::new();
    for entry in entries {
        if entry.user_seq != last + 1 {
            violations.push(Violation::StreamHole {
                uid: uid.clone(),
                after: last,
                found: entry.user_seq,
            });
        }
        last = entry.user_seq;
        if let EventKind::Message { key, .. } = &entry.event
            && !seen.insert(key)
        {
            violations.push(Violation::StreamRepeats {
                uid: uid.clone(),
                message: key.clone(),
            });
        }
    }
}

fn check_histories(ledger: &Ledger, sequence: &mut Sequence, violations: &mut Vec<Violation>) {
    let mut recorded: HashMap<&MessageKey, usize> = HashMap::new();
    for (conversation, entries) in &ledger.histories {
        let mut last = 0;
        for entry in entries {
            sequence.take(&entry.key, entry.conv_seq, violations);
            if entry.conv_seq <= last {
                violations.push(Violation::SeenOutOfOrder {
                    conversation: conversation.clone(),
                    seen_by: "history".to_owned(),
                    conv_seq: entry.conv_seq,
                    after: last,
                });
            }
            last = entry.conv_seq;
            let times = recorded.entry(&entry.key).or_default();
            *times += 1;
            if *times == 2 {
                violations.push(Violation::HistoryRepeats {
                    message: entry.key.clone(),
                });
            }
            match ledger.index.get(&entry.key).map(|&index| &ledger.presses[index].0) {
                None => violations.push(Violation::HistoryUnsent {
                    message: entry.key.clone(),
                }),
                Some(press) if press.body != entry.body => violations.push(Violation::ContentDiffers {
                    message: entry.key.clone(),
                    seen_by: "history".to_owned(),
                }),
                Some(_) => {}
            }
        }
    }
    for (press, outcome) in &ledger.presses {
        let has_history = ledger.histories.contains_key(&press.key.conversation);
        if has_history && *outcome == Outcome::Acknowledged && !recorded.contains_key(&press.key) {
            violations.push(Violation::HistoryMissing {
                message: press.key.clone(),
            });
        }
    }
}

/// Which message has which number, from all evidence together.
#[derive(Default)]
struct Sequence {
    by_number: BTreeMap<Conversation, BTreeMap<u64, MessageKey>>,
    by_message: HashMap<MessageKey, u64>,
}

impl Sequence {
    fn take_entries(&mut self, seen_by: &str, entries: &[Entry], violations: &mut Vec<Violation>) {
        let mut last: HashMap<&Conversation, u64> = HashMap::new();
        for entry in entries {
            let EventKind::Message { key, conv_seq, .. } = &entry.event else {
                continue;
            };
            self.take(key, *conv_seq, violations);
            let after = last.entry(&key.conversation).or_default();
            if *conv_seq <= *after {
                violations.push(Violation::SeenOutOfOrder {
                    conversation: key.conversation.clone(),
                    seen_by: seen_by.to_owned(),
                    conv_seq: *conv_seq,
                    after: *after,
                });
            }
            *after = *conv_seq;
        }
    }

    fn take(&mut self, key: &MessageKey, conv_seq: u64, violations: &mut Vec<Violation>) {
        match self.by_message.get(key) {
            Some(&known) if known != conv_seq => violations.push(Violation::SequencedTwice {
                message: key.clone(),
                conv_seqs: (known, conv_seq),
            }),
            Some(_) => return,
            None => {
                self.by_message.insert(key.clone(), conv_seq);
            }
        }
        let numbers = self.by_number.entry(key.conversation.clone()).or_default();
        match numbers.get(&conv_seq) {
            Some(known) if known != key => violations.push(Violation::ConvSeqReused {
                conversation: key.conversation.clone(),
                conv_seq,
                first: known.clone(),
                second: key.clone(),
            }),
            Some(_) => {}
            None => {
                numbers.insert(conv_seq, key.clone());
            }
        }
    }

    fn check_contiguous(&self, violations: &mut Vec<Violation>) {
        for (conversation, numbers) in &self.by_number {
            let mut expected = 1;
            for &conv_seq in numbers.keys() {
                if conv_seq != expected {
                    violations.push(Violation::ConvSeqHole {
                        conversation: conversation.clone(),
                        missing: expected,
                    });
                }
                expected = conv_seq + 1;
            }
        }
    }
}

/// Ascending numbers in the order of pressing, per device and conversation.
fn check_press_order(ledger: &Ledger, sequence: &Sequence, violations: &mut Vec<Violation>) {
    let mut last: HashMap<(&Uid, &DeviceId, &Conversation), (u64, &MessageKey)> = HashMap::new();
    for (press, _) in &ledger.presses {
        let Some(&conv_seq) = sequence.by_message.get(&press.key) else {
            continue;
        };
        let lane = (&press.key.sender, &press.device, &press.key.conversation);
        if let Some(&(earlier, key)) = last.get(&lane)
            && earlier >= conv_seq
        {
            violations.push(Violation::PressOrderBroken {
                earlier: key.clone(),
                later: press.key.clone(),
            });
        }
        last.insert(lane, (conv_seq, &press.key));
    }
}

/// Sent × entitled × device, as a multiset.
fn check_multiset(ledger: &Ledger, violations: &mut Vec<Violation>) -> Figures {
    let mut shown: HashMap<(&DeviceKey, &MessageKey), usize> = HashMap::new();
    let mut number_of: HashMap<(&Uid, &MessageKey), u64> = HashMap::new();
    let mut absorbed = 0;
    for (device, log) in &ledger.devices {
        let hidden: HashSet<u64> = log.absorbed.iter().copied().collect();
        absorbed += hidden.len();
        for entry in &log.entries {
            if let EventKind::Message { key, .. } = &entry.event {
                number_of.entry((&device.uid, key)).or_insert(entry.user_seq);
                if !hidden.contains(&entry.user_seq) {
                    *shown.entry((device, key)).or_default() += 1;
                }
            }
        }
    }
    let mut figures = Figures {
        sent: ledger.presses.len(),
        acknowledged: ledger.count(Outcome::Acknowledged),
        devices: ledger.devices.len(),
        conversations: ledger.histories.len(),
        absorbed,
        ..Figures::default()
    };
    for (press, outcome) in &ledger.presses {
        let message = &press.key;
        match outcome {
            Outcome::Pending => violations.push(Violation::NeverSettled {
                message: message.clone(),
            }),
            Outcome::Failed => violations.push(Violation::Failed {
                message: message.clone(),
            }),
            Outcome::Acknowledged | Outcome::Refused(_) => {}
        }
        for uid in &press.entitled {
            for device in ledger.devices_of(uid) {
                let times = shown.get(&(device, message)).copied().unwrap_or(0);
                if times > 1 {
                    figures.twice += 1;
                    violations.push(Violation::ShownTwice {
                        message: message.clone(),
                        device: device.clone(),
                        times,
                    });
                }
                // What lies before a device's start was never promised to it.
                let start = ledger.devices[device].start;
                let is_before = number_of.get(&(uid, message)).is_some_and(|&number| number <= start);
                if *outcome != Outcome::Acknowledged || is_before {
                    continue;
                }
                figures.expected += 1;
                if times == 0 {
                    figures.missing += 1;
                    violations.push(Violation::AcknowledgedMissing {
                        message: message.clone(),
                        device: device.clone(),
                    });
                } else {
                    figures.delivered += 1;
                }
            }
        }
    }
    figures
}
