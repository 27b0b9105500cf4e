//! The outcome of one action: a pure function of the conversation's state before it (seq:G1).
//!
//! Version 1 of the fold knows SEND in 1:1 conversations. Everything else is rejected as unsupported, in the log and with
//! an intent like any rejection, so that a later version switches at an offset and not at a binary.

use tidings_domain::state::{ConvHead, MemberInterval, Outcome, RejectReason};
use tidings_domain::{Action, Conversation, ConversationKind, Position, Uid};
use tidings_proto::record::{Ingress, SenderRole};

use crate::touched::Stamp;

/// Who is in a conversation.
#[derive(Debug, Clone)]
pub(crate) enum Members {
    /// 1:1: the id says it, no rows, no read.
    Direct(Uid, Uid),
    /// Group: interval rows; `None` until read.
    Group(Option<Vec<MemberInterval>>),
}

/// A conversation's state up to the last record folded by this run.
#[derive(Debug, Clone)]
pub(crate) struct ConvState {
    pub(crate) head: u64,
    pub(crate) countable: u64,
    /// Position of the last accepted record; `None` if there is none.
    pub(crate) applied: Option<Position>,
    pub(crate) members: Members,
    pub(crate) stamp: Stamp,
    /// When it was last needed, for eviction.
    pub(crate) used: u64,
}

impl ConvState {
    /// The state as read at first touch (seq:R2).
    pub(crate) fn read(conversation: &Conversation, head: Option<ConvHead>, used: u64) -> Self {
        Self {
            head: head.map_or(0, |h| h.head),
            countable: head.map_or(0, |h| h.countable),
            applied: head.map(|h| h.applied),
            members: match conversation.kind() {
                ConversationKind::Direct(low, high) => Members::Direct(low, high),
                ConversationKind::Group(_) => Members::Group(None),
            },
            stamp: Stamp::default(),
            used,
        }
    }

    /// Whether the state already contains the record at `off`: then it is ahead of it, and the outcome is the stored one.
    pub(crate) fn is_ahead_of(&self, off: Position) -> bool {
        self.applied.is_some_and(|applied| off <= applied)
    }

    /// Applies an accepted record; a refolded one changes nothing.
    pub(crate) fn accept(&mut self, conv_seq: u64, countable_seq: u64, off: Position) {
        self.head = self.head.max(conv_seq);
        self.countable = self.countable.max(countable_seq);
        self.applied = self.applied.max(Some(off));
    }
}

/// The outcome of a first-of-key record on the exact state before it.
pub(crate) fn fold(state: &ConvState, record: &Ingress) -> Outcome {
    match (record.action, &state.members) {
        (Action::Send, Members::Direct(low, high)) => {
            if record.sender == *low || record.sender == *high {
                Outcome::Accepted {
                    conv_seq: state.head + 1,
                    countable_seq: state.countable + 1,
                }
            } else {
                Outcome::Rejected(RejectReason::NotMember)
            }
        }
        (Action::Send, Members::Group(_))
        | (
            Action::Recall | Action::Edit | Action::Create | Action::Join | Action::Leave | Action::Kick,
            Members::Direct(..) | Members::Group(_),
        ) => Outcome::Rejected(RejectReason::Unsupported),
    }
}

/// Who sees number `conv_seq`: by the interval rows at that number, never "members now" (seq:G1). The sender is among
/// them (the echo), unless it is a service account, which has no stream (req:I2).
pub(crate) fn recipients(members: &Members, conv_seq: u64, record: &Ingress) -> Vec<Uid> {
    let mut uids = match members {
        Members::Direct(low, high) if low == high => vec![low.clone()],
        Members::Direct(low, high) => vec![low.clone(), high.clone()],
        Members::Group(intervals) => {
            let mut uids: Vec<Uid> = intervals
                .iter()
                .flatten()
                .filter(|i| i.join_seq <= conv_seq && i.leave_seq.is_none_or(|leave| conv_seq <= leave))
                .map(|i| i.uid.clone())
                .collect();
            uids.sort_unstable();
            uids.dedup();
            uids
        }
    };
    if !has_stream(record) {
        uids.retain(|uid| *uid != record.sender);
    }
    uids
}

/// Whether the sender has a stream to learn from.
pub(crate) fn has_stream(record: &Ingress) -> bool {
    match record.sender_role {
        SenderRole::User => true,
        SenderRole::Service => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tidings_domain::clock::Millis;
    use tidings_domain::{ContentHash, DeviceId, MsgId};

    fn uid(name: &str) -> Uid {
        Uid::parse(name).expect("valid")
    }

    fn send(conversation: &str, sender: &str, sender_role: SenderRole) -> Ingress {
        Ingress {
            action: Action::Send,
            conversation: Conversation::parse(conversation).expect("valid"),
            sender: uid(sender),
            sender_role,
            device: DeviceId::parse("phone").expect("valid"),
            msg_id: MsgId::mint(Millis(1), [0; 10]),
            op_id: None,
            content_hash: ContentHash([0; 16]),
            target: None,
            content_type: "text".to_owned(),
            body: Bytes::new(),
            client_time: Millis(1),
            first_send_time: Millis(1),
            retry_count: 0,
            member: None,
        }
    }

    fn state(record: &Ingress) -> ConvState {
        ConvState::read(&record.conversation, None, 0)
    }

    #[test]
    fn only_the_two_may_send_and_everything_else_is_not_supported() {
        let own = send("d:a:b", "a", SenderRole::User);
        assert_eq!(
            fold(&state(&own), &own),
            Outcome::Accepted {
                conv_seq: 1,
                countable_seq: 1
            }
        );
        let stranger = send("d:a:b", "c", SenderRole::User);
        assert_eq!(
            fold(&state(&stranger), &stranger),
            Outcome::Rejected(RejectReason::NotMember)
        );
        let group = send("g:01890a5d-ac96-774b-bcce-b302099a8057", "a", SenderRole::User);
        let mut recall = own.clone();
        recall.action = Action::Recall;
        for record in [group, recall] {
            assert_eq!(
                fold(&state(&record), &record),
                Outcome::Rejected(RejectReason::Unsupported)
            );
        }
    }

    #[test]
    fn recipients_are_both_the_one_or_all_but_a_service() {
        let both = send("d:a:b", "a", SenderRole::User);
        assert_eq!(recipients(&state(&both).members, 1, &both), [uid("a"), uid("b")]);
        let oneself = send("d:a:a", "a", SenderRole::User);
        assert_eq!(recipients(&state(&oneself).members, 1, &oneself), [uid("a")]);
        let service = send("d:a:b", "a", SenderRole::Service);
        assert_eq!(recipients(&state(&service).members, 1, &service), [uid("b")]);
    }

    #[test]
    fn group_recipients_are_those_whose_interval_holds_the_number() {
        let record = send("g:01890a5d-ac96-774b-bcce-b302099a8057", "a", SenderRole::User);
        let interval = |name: &str, join_seq, leave_seq| MemberInterval {
            uid: uid(name),
            join_seq,
            leave_seq,
        };
        let members = Members::Group(Some(vec![
            interval("b", 2, Some(4)),
            interval("b", 7, None),
            interval("a", 1, None),
        ]));
        let names = |conv_seq| recipients(&members, conv_seq, &record);
        assert_eq!(names(1), [uid("a")]);
        assert_eq!(names(4), [uid("a"), uid("b")], "the leave itself is seen");
        assert_eq!(names(5), [uid("a")]);
        assert_eq!(names(7), [uid("a"), uid("b")]);
    }
}
