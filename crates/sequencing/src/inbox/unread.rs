//! What the fresh records of a batch need and memory does not have, in the order in which it must be read: heads before
//! the rows behind them (seq:I3) and before registers.

use std::collections::HashMap;

use tidings_domain::{Conversation, DeviceId, Position, Uid};

use crate::first_seen::FirstSeen;

use super::plan::Reads;
use super::prepare::Change;
use super::user::User;

/// The users in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unread<'u> {
    pub(super) users: &'u HashMap<Uid, User>,
}

impl Unread<'_> {
    /// The next reads; `found` are the rows already searched for in this batch.
    pub(super) fn next<'a, I: Iterator<Item = (Position, &'a Change)>>(
        &self,
        changes: impl Fn() -> I,
        found: &HashMap<Uid, Option<u64>>,
    ) -> Option<Reads> {
        self.unread_heads(changes())
            .map(Reads::InboxHeads)
            .or_else(|| self.rows_to_find(changes(), found).map(Reads::FindRows))
            .or_else(|| self.unread_devices(changes()).map(Reads::DeviceRegisters))
            .or_else(|| self.unread_conversations(changes()).map(Reads::UserConvRegisters))
    }

    fn unread_heads<'a>(&self, changes: impl Iterator<Item = (Position, &'a Change)>) -> Option<Vec<Uid>> {
        let mut wanted = FirstSeen::default();
        for (_, change) in changes {
            let uids = match change {
                Change::Append(append) => append.uids.as_slice(),
                Change::Report(report) => std::slice::from_ref(&report.uid),
                Change::OtherCursorEpoch => &[],
            };
            for uid in uids {
                if !self.users.contains_key(uid) {
                    wanted.add(uid.clone());
                }
            }
        }
        wanted.into_list()
    }

    /// I3: only the first append of a user in the batch; after it the head is exact.
    fn rows_to_find<'a>(
        &self,
        changes: impl Iterator<Item = (Position, &'a Change)>,
        found: &HashMap<Uid, Option<u64>>,
    ) -> Option<Vec<(Uid, Position, u64)>> {
        let mut appended = FirstSeen::default();
        let mut wanted = Vec::new();
        for (off, change) in changes {
            let Change::Append(append) = change else { continue };
            for uid in &append.uids {
                let Some(head) = self.users.get(uid).and_then(|user| user.ahead_of(off)) else {
                    continue;
                };
                if !found.contains_key(uid) && appended.add(uid.clone()) {
                    wanted.push((uid.clone(), off, head.seq));
                }
            }
        }
        (!wanted.is_empty()).then_some(wanted)
    }

    fn unread_devices<'a>(
        &self,
        changes: impl Iterator<Item = (Position, &'a Change)>,
    ) -> Option<Vec<(Uid, DeviceId)>> {
        let mut wanted = FirstSeen::default();
        for (_, change) in changes {
            if let Change::Report(report) = change
                && !self
                    .users
                    .get(&report.uid)
                    .is_some_and(|user| user.devices.contains_key(&report.device))
            {
                wanted.add((report.uid.clone(), report.device.clone()));
            }
        }
        wanted.into_list()
    }

    fn unread_conversations<'a>(
        &self,
        changes: impl Iterator<Item = (Position, &'a Change)>,
    ) -> Option<Vec<(Uid, Conversation)>> {
        let mut wanted = FirstSeen::default();
        let mut want = |uid: &Uid, conversation: &Conversation| {
            if !self
                .users
                .get(uid)
                .is_some_and(|user| user.conversations.contains_key(conversation))
            {
                wanted.add((uid.clone(), conversation.clone()));
            }
        };
        for (_, change) in changes {
            match change {
                Change::Append(append) => {
                    if let Some((conversation, _)) = &append.place {
                        append.uids.iter().for_each(|uid| want(uid, conversation));
                    }
                }
                Change::Report(report) => {
                    for conv_report in &report.conversations {
                        want(&report.uid, &conv_report.conversation);
                    }
                }
                Change::OtherCursorEpoch => {}
            }
        }
        wanted.into_list()
    }
}
