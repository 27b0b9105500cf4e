//! The store: cells as the design writes them. Registers keep the largest timestamp, rows and intents never change; a
//! write that would change one is a violation at once.

use std::collections::HashMap;

use tidings_domain::state::{Checkpoint, ConvHead, DeviceRegister, InboxHead, InboxRow, Intent, UserConvRegister};
use tidings_domain::{Conversation, DedupKey, DeviceId, Position, Uid};
use tidings_sequencing::{inbox, router};

#[derive(Debug, Clone)]
pub(crate) enum Write {
    Intent(DedupKey, Intent),
    ConvHead(Conversation, ConvHead),
    Row(Uid, InboxRow),
    InboxHead(Uid, InboxHead),
    Device(Uid, DeviceId, DeviceRegister),
    UserConv(Uid, Conversation, UserConvRegister),
    DlqIntent(u32, String, Position),
    Checkpoint(u32, Checkpoint, Position),
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) intents: HashMap<DedupKey, Intent>,
    pub(crate) conv_heads: HashMap<Conversation, ConvHead>,
    pub(crate) rows: HashMap<(Uid, u64), InboxRow>,
    pub(crate) inbox_heads: HashMap<Uid, InboxHead>,
    pub(crate) devices: HashMap<(Uid, DeviceId), DeviceRegister>,
    pub(crate) user_convs: HashMap<(Uid, Conversation), UserConvRegister>,
    pub(crate) dlq_intents: HashMap<(u32, String), Position>,
    pub(crate) checkpoints: HashMap<u32, (Checkpoint, Position)>,
}

/// A max-register: the larger timestamp wins, and one timestamp has one value.
fn register<K: std::hash::Hash + Eq, V: Copy + PartialEq + std::fmt::Debug, T: Ord>(
    cells: &mut HashMap<K, V>,
    key: K,
    value: V,
    timestamp: impl Fn(&V) -> T,
) {
    let cell = cells.entry(key).or_insert(value);
    if timestamp(&value) > timestamp(cell) {
        *cell = value;
    } else if timestamp(&value) == timestamp(cell) {
        assert_eq!(*cell, value, "one timestamp, two values");
    }
}

fn immutable<K: std::hash::Hash + Eq, V: PartialEq + std::fmt::Debug>(cells: &mut HashMap<K, V>, key: K, value: V) {
    if let Some(old) = cells.get(&key) {
        assert_eq!(*old, value, "a cell that never changes was changed");
    } else {
        cells.insert(key, value);
    }
}

impl Store {
    pub(crate) fn apply(&mut self, write: Write) {
        match write {
            Write::Intent(key, intent) => immutable(&mut self.intents, key, intent),
            Write::ConvHead(conversation, head) => register(&mut self.conv_heads, conversation, head, |h| h.head),
            Write::Row(uid, row) => immutable(&mut self.rows, (uid, row.seq), row),
            Write::InboxHead(uid, head) => register(&mut self.inbox_heads, uid, head, |h| h.seq),
            Write::Device(uid, device, value) => register(&mut self.devices, (uid, device), value, |r| r.off),
            Write::UserConv(uid, conversation, value) => {
                register(&mut self.user_convs, (uid, conversation), value, |r| r.off);
            }
            Write::DlqIntent(partition, id, off) => {
                let cell = self.dlq_intents.entry((partition, id)).or_insert(off);
                *cell = (*cell).min(off);
            }
            Write::Checkpoint(partition, checkpoint, pos) => {
                let newer = self.checkpoints.get(&partition).is_none_or(|(_, old)| pos > *old);
                if newer {
                    self.checkpoints.insert(partition, (checkpoint, pos));
                }
            }
        }
    }

    pub(crate) fn answer_router(&self, reads: &router::Reads) -> router::Answers {
        match reads {
            router::Reads::ConvHeads(keys) => {
                router::Answers::ConvHeads(keys.iter().map(|k| self.conv_heads.get(k).copied()).collect())
            }
            router::Reads::Members(keys) => router::Answers::Members(vec![Vec::new(); keys.len()]),
            router::Reads::Intents(keys) => {
                router::Answers::Intents(keys.iter().map(|k| self.intents.get(k).copied()).collect())
            }
        }
    }

    pub(crate) fn answer_inbox(&self, partition: u32, reads: &inbox::Reads) -> inbox::Answers {
        match reads {
            inbox::Reads::DlqIntents(ids) => inbox::Answers::DlqIntents(
                ids.iter()
                    .map(|id| self.dlq_intents.get(&(partition, id.clone())).copied())
                    .collect(),
            ),
            inbox::Reads::InboxHeads(uids) => {
                inbox::Answers::InboxHeads(uids.iter().map(|uid| self.inbox_heads.get(uid).copied()).collect())
            }
            inbox::Reads::FindRows(wanted) => inbox::Answers::FindRows(
                wanted
                    .iter()
                    .map(|(uid, off, bound)| {
                        (1..=*bound).find(|seq| self.rows.get(&(uid.clone(), *seq)).is_some_and(|r| r.off == *off))
                    })
                    .collect(),
            ),
            inbox::Reads::DeviceRegisters(keys) => {
                inbox::Answers::DeviceRegisters(keys.iter().map(|k| self.devices.get(k).copied()).collect())
            }
            inbox::Reads::UserConvRegisters(keys) => {
                inbox::Answers::UserConvRegisters(keys.iter().map(|k| self.user_convs.get(k).copied()).collect())
            }
        }
    }
}
