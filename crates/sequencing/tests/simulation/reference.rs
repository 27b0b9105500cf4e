//! What must come out: a naive fold that sees every record exactly once, at the moment it enters a log. It has no
//! windows, registers, links or recovery; of stage 2's input it accepts the next output expected from each source and
//! nothing else.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use prost::Message as _;
use tidings_domain::state::{ConvMark, Outcome, RejectReason};
use tidings_domain::{
    Action, ContentHash, Conversation, ConversationKind, DedupKey, Position, SourcePartition, SourcePosition, Topic,
    Uid,
};
use tidings_proto::record::{DeviceState, Inbox, Ingress, SenderRole};
use tidings_proto::v1;
use tidings_sequencing::{LogEntry, Output};

use crate::world::{EPOCH, INBOX_PARTITIONS, inbox_partition, position};

/// An output that a source record must cause at one destination.
#[derive(Debug, Clone)]
struct Expected {
    src: SourcePosition,
    uids: Vec<Uid>,
    event: v1::Event,
    /// The bytes of the first emission: all others must equal them.
    bytes: Option<Bytes>,
}

/// Outputs from one source to one destination, in order, and how many of them the destination has accepted.
#[derive(Debug, Default)]
struct Lane {
    expected: Vec<Expected>,
    accepted: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ExpectedRow {
    pub(crate) off: Position,
    pub(crate) src: Option<(SourcePartition, SourcePosition)>,
    pub(crate) event: Bytes,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) appended: ConvMark,
    pub(crate) delivered: u64,
    pub(crate) read: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Reference {
    seen: HashMap<DedupKey, ContentHash>,
    pub(crate) outcomes: HashMap<DedupKey, (Outcome, ContentHash, Position)>,
    pub(crate) conv_heads: BTreeMap<Conversation, u64>,
    /// Messages by place, with the bytes of their first emission to history.
    pub(crate) history: BTreeMap<(Conversation, u64), (v1::Message, Option<Bytes>)>,
    lanes: HashMap<(SourcePartition, u32), Lane>,
    pub(crate) rows: BTreeMap<Uid, Vec<ExpectedRow>>,
    pub(crate) marks: BTreeMap<(Uid, Conversation), Marks>,
    pub(crate) stored: BTreeMap<(Uid, String), (u64, u64)>,
    pub(crate) dead_letters: BTreeSet<String>,
    replays: BTreeSet<(u32, String)>,
    pub(crate) counts: Counts,
}

/// What a schedule met; the tests check that nothing stayed untried.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) accepted: u64,
    pub(crate) duplicates: u64,
    pub(crate) conflicts: u64,
    pub(crate) rejected: u64,
    pub(crate) reemissions: u64,
    pub(crate) gaps: u64,
    pub(crate) undecodable: u64,
    pub(crate) receipts: u64,
    pub(crate) replays: u64,
    pub(crate) repeated_replays: u64,
}

impl Reference {
    fn expect(&mut self, source: SourcePartition, src: SourcePosition, uids: &[Uid], event: &v1::Event) {
        for partition in 0..INBOX_PARTITIONS {
            let here: Vec<Uid> = uids
                .iter()
                .filter(|u| inbox_partition(u) == partition)
                .cloned()
                .collect();
            if !here.is_empty() {
                self.lanes
                    .entry((source, partition))
                    .or_default()
                    .expected
                    .push(Expected {
                        src,
                        uids: here,
                        event: event.clone(),
                        bytes: None,
                    });
            }
        }
    }

    /// A record enters `ingress`.
    pub(crate) fn ingress(&mut self, partition: u32, entry: &LogEntry) {
        let off = position(entry.offset);
        let source = SourcePartition {
            topic: Topic::Ingress,
            partition,
        };
        let src = SourcePosition::first(off);
        let Ok(record) = Ingress::decode(entry.value.as_ref()) else {
            self.dead_letters
                .insert(format!("ingress/{partition}/{}", entry.offset));
            self.counts.undecodable += 1;
            return;
        };
        let reject = |reference: &mut Self, reason: RejectReason| {
            if record.sender_role == SenderRole::User {
                let event = rejection(&record, reason);
                reference.expect(source, src, std::slice::from_ref(&record.sender), &event);
            }
        };
        let key = record.key();
        if let Some(first) = self.seen.get(&key) {
            if *first == record.content_hash {
                self.counts.duplicates += 1;
            } else {
                self.counts.conflicts += 1;
                reject(self, RejectReason::IdConflict);
            }
            return;
        }
        self.seen.insert(key.clone(), record.content_hash);
        let outcome = match record.conversation.kind() {
            ConversationKind::Direct(a, b) if record.action == Action::Send => {
                if record.sender == a || record.sender == b {
                    let head = self.conv_heads.entry(record.conversation.clone()).or_default();
                    *head += 1;
                    let conv_seq = *head;
                    let message = message(&record, conv_seq, entry);
                    let mut uids = vec![a, b];
                    uids.dedup();
                    uids.retain(|u| record.sender_role == SenderRole::User || *u != record.sender);
                    let event = v1::Event {
                        kind: Some(v1::event::Kind::Message(message.clone())),
                    };
                    self.expect(source, src, &uids, &event);
                    self.history
                        .insert((record.conversation.clone(), conv_seq), (message, None));
                    self.counts.accepted += 1;
                    Outcome::Accepted {
                        conv_seq,
                        countable_seq: conv_seq,
                    }
                } else {
                    reject(self, RejectReason::NotMember);
                    Outcome::Rejected(RejectReason::NotMember)
                }
            }
            ConversationKind::Direct(..) | ConversationKind::Group(_) => {
                reject(self, RejectReason::Unsupported);
                Outcome::Rejected(RejectReason::Unsupported)
            }
        };
        if matches!(outcome, Outcome::Rejected(_)) {
            self.counts.rejected += 1;
        }
        self.outcomes.insert(key, (outcome, record.content_hash, off));
    }

    /// A record enters `history`.
    pub(crate) fn history(&mut self, output: &Output) {
        let message = v1::Message::decode(output.value.clone()).expect("history holds messages");
        let conversation = Conversation::parse(&message.conversation).expect("valid");
        let (expected, bytes) = self
            .history
            .get_mut(&(conversation, message.conv_seq))
            .expect("a number that no record has");
        assert_eq!(message, *expected);
        assert_eq!(*bytes.get_or_insert_with(|| output.value.clone()), output.value);
    }

    /// A fold's output enters `inbox` partition `q` at `entry`; `value` is what was sent, `damaged` whether it arrived so
    /// that nobody can decode it.
    pub(crate) fn emitted(&mut self, q: u32, entry: &LogEntry, value: &Bytes, damaged: bool) {
        let link = entry.link.expect("undamaged").expect("a fold's output");
        let lane = self.lanes.entry((link.source, q)).or_default();
        let at = lane
            .expected
            .iter()
            .position(|e| e.src == link.src)
            .unwrap_or_else(|| panic!("{link:?} to {q} is no output of its source"));
        let expected = &mut lane.expected[at];
        let Ok(Inbox::Append(append)) = Inbox::decode(Some(value)) else {
            panic!("a fold emitted what is no append")
        };
        assert_eq!(append.uids, expected.uids);
        assert_eq!(
            v1::Event::decode(append.event.clone()).expect("an event"),
            expected.event
        );
        assert_eq!(
            *expected.bytes.get_or_insert_with(|| value.clone()),
            *value,
            "a re-emission is another record"
        );
        if at != lane.accepted {
            if at < lane.accepted {
                self.counts.reemissions += 1;
            } else {
                self.counts.gaps += 1;
            }
            return;
        }
        lane.accepted += 1;
        if damaged {
            self.dead_letters.insert(format!("inbox/{q}/{}", entry.offset));
            self.counts.undecodable += 1;
        } else {
            self.append(entry, Some((link.source, link.src)), &append.uids, &append.event);
        }
    }

    /// The replay of a dead letter enters `inbox` partition `q`.
    pub(crate) fn replayed(&mut self, q: u32, entry: &LogEntry) {
        let id = entry.dlq_id.clone().expect("a replay");
        if !self.replays.insert((q, id)) {
            self.counts.repeated_replays += 1;
            return;
        }
        self.counts.replays += 1;
        let Ok(Inbox::Append(append)) = Inbox::decode(entry.value.as_ref()) else {
            panic!("replays are mended appends")
        };
        self.append(entry, None, &append.uids, &append.event);
    }

    fn append(
        &mut self,
        entry: &LogEntry,
        src: Option<(SourcePartition, SourcePosition)>,
        uids: &[Uid],
        event: &Bytes,
    ) {
        let message = match v1::Event::decode(event.clone()).expect("an event").kind {
            Some(v1::event::Kind::Message(message)) => Some(message),
            Some(_) | None => None,
        };
        for uid in uids {
            self.rows.entry(uid.clone()).or_default().push(ExpectedRow {
                off: position(entry.offset),
                src,
                event: event.clone(),
            });
            if let Some(message) = &message {
                let conversation = Conversation::parse(&message.conversation).expect("valid");
                let marks = self.marks.entry((uid.clone(), conversation)).or_default();
                marks.appended = marks.appended.max(ConvMark {
                    conv_seq: message.conv_seq,
                    countable_seq: message.countable_seq,
                });
            }
        }
    }

    /// A device state enters `inbox` partition `q`.
    pub(crate) fn device_state(&mut self, q: u32, entry: &LogEntry, state: &DeviceState) {
        if state.epoch != EPOCH {
            return;
        }
        let head = self.rows.get(&state.uid).map_or(0, Vec::len) as u64;
        let device = self
            .stored
            .entry((state.uid.clone(), state.device.as_str().to_owned()))
            .or_default();
        device.1 = device.1.max(state.stored.min(head));
        device.0 = device.0.max(state.delivered.min(head)).max(device.1);
        let mut conversations: Vec<&Conversation> = Vec::new();
        for (conversation, _) in state.convs.iter().chain(&state.reads) {
            if !conversations.contains(&conversation) {
                conversations.push(conversation);
            }
        }
        for (place, conversation) in (0u32..).zip(conversations) {
            let largest = |list: &[(Conversation, u64)]| {
                let of = list.iter().filter(|(c, _)| c == conversation).map(|(_, seq)| *seq);
                of.max().unwrap_or(0)
            };
            let Some(marks) = self.marks.get_mut(&(state.uid.clone(), conversation.clone())) else {
                continue;
            };
            let before = *marks;
            let limit = marks.appended.conv_seq;
            marks.delivered = marks.delivered.max(largest(&state.convs).min(limit));
            marks.read = marks.read.max(largest(&state.reads).min(limit));
            let grown = |new: u64, old: u64| if new > old { new } else { 0 };
            let (delivered, read) = (grown(marks.delivered, before.delivered), grown(marks.read, before.read));
            self.grown(q, entry, place, &state.uid, conversation, delivered, read);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one call, all of it one fact")]
    fn grown(
        &mut self,
        q: u32,
        entry: &LogEntry,
        place: u32,
        uid: &Uid,
        conversation: &Conversation,
        delivered: u64,
        read: u64,
    ) {
        let source = SourcePartition {
            topic: Topic::Inbox,
            partition: q,
        };
        let src = |of| SourcePosition {
            pos: position(entry.offset),
            idx: 2 * place + of,
        };
        if let ConversationKind::Direct(a, b) = conversation.kind()
            && a != b
            && (delivered > 0 || read > 0)
        {
            let peer = if a == *uid { b } else { a };
            let event = v1::event::Kind::Receipt(v1::Receipt {
                conversation: conversation.as_str().to_owned(),
                uid: uid.as_str().to_owned(),
                delivered,
                read,
            });
            self.counts.receipts += 1;
            self.expect(source, src(0), &[peer], &v1::Event { kind: Some(event) });
        }
        if read > 0 {
            let event = v1::event::Kind::ReadSync(v1::ReadSync {
                conversation: conversation.as_str().to_owned(),
                read,
            });
            self.expect(
                source,
                src(1),
                std::slice::from_ref(uid),
                &v1::Event { kind: Some(event) },
            );
        }
    }

    /// An undecodable record without a source enters `inbox` partition `q`.
    pub(crate) fn garbage(&mut self, q: u32, entry: &LogEntry) {
        self.dead_letters.insert(format!("inbox/{q}/{}", entry.offset));
        self.counts.undecodable += 1;
    }

    /// Every output expected was accepted.
    pub(crate) fn assert_all_accepted(&self) {
        for ((source, q), lane) in &self.lanes {
            assert_eq!(
                lane.accepted,
                lane.expected.len(),
                "outputs of {source:?} to inbox {q} were lost"
            );
        }
        for (place, (_, bytes)) in &self.history {
            assert!(bytes.is_some(), "{place:?} never reached history");
        }
    }
}

fn message(record: &Ingress, conv_seq: u64, entry: &LogEntry) -> v1::Message {
    v1::Message {
        conversation: record.conversation.as_str().to_owned(),
        conv_seq,
        countable_seq: conv_seq,
        sender: record.sender.as_str().to_owned(),
        device: record.device.as_str().to_owned(),
        msg_id: Bytes::copy_from_slice(record.msg_id.as_bytes()),
        op_id: Bytes::new(),
        action: v1::Action::Send as i32,
        target: None,
        append_time: entry.append_time.get(),
        content_type: record.content_type.clone(),
        body: record.body.clone(),
        content_hash: Bytes::copy_from_slice(record.content_hash.as_bytes()),
        member: String::new(),
        first_send_time: record.first_send_time.get(),
    }
}

fn rejection(record: &Ingress, reason: RejectReason) -> v1::Event {
    v1::Event {
        kind: Some(v1::event::Kind::Rejection(v1::Rejection {
            conversation: record.conversation.as_str().to_owned(),
            msg_id: Bytes::copy_from_slice(record.msg_id.as_bytes()),
            op_id: Bytes::new(),
            action: i32::from(record.action.number()),
            content_hash: Bytes::copy_from_slice(record.content_hash.as_bytes()),
            device: record.device.as_str().to_owned(),
            reason: i32::from(reason as u8),
        })),
    }
}
