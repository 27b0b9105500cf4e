//! What becomes of each record of a batch before any state is looked at (seq:I2).
//!
//! A record with a source position is tested for freshness first: fresh if its source lies above V and its prev-link
//! does not. A fresh record moves V whether it can be decoded or not; one that is not fresh is nothing at all. V therefore
//! is a function of the log alone. Replays of dead letters are told apart by their identity instead, device states by
//! their registers.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::state::ConvMark;
use tidings_domain::{Conversation, DeviceId, Position, SourcePartition, SourcePosition, Uid};
use tidings_proto::header::SourceLink;
use tidings_proto::record::{DeviceState, Inbox, InboxAppend};

use crate::first_seen::FirstSeen;
use crate::params::Params;
use crate::record::{LogEntry, RejectCause};
use crate::stop::Stop;

use super::event;

/// V: last source position folded, per source partition.
pub(super) type Folded = BTreeMap<SourcePartition, SourcePosition>;

#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) offset: u64,
    pub(super) append_time: Millis,
    pub(super) dlq_id: Option<String>,
    pub(super) verdict: Verdict,
}

#[derive(Debug)]
pub(super) enum Verdict {
    /// Folded.
    Apply {
        /// Where it was derived from.
        source: Option<(SourcePartition, SourcePosition)>,
        change: Change,
    },
    /// A replay, until the copies of its dead letter are known.
    Replay(Result<Change, RejectCause>),
    /// To `dlq`.
    Reject(RejectCause),
    /// Nothing at all.
    Ignore(Ignored),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ignored {
    /// Folded before.
    Reemission,
    /// An output before it is missing; the run that takes over emits both again.
    PrefixGap,
    /// A copy of this dead letter at a lower offset was folded.
    RepeatedReplay,
}

/// What a record does.
#[derive(Debug)]
pub(super) enum Change {
    Append(Append),
    Report(Report),
    /// A device state whose numbers belong to another store.
    OtherCursorEpoch,
}

#[derive(Debug)]
pub(super) struct Append {
    pub(super) uids: Vec<Uid>,
    pub(super) event: Bytes,
    /// Where the message belongs, if it is one.
    pub(super) place: Option<(Conversation, ConvMark)>,
}

/// A device state with at most one entry per conversation.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) uid: Uid,
    pub(super) device: DeviceId,
    pub(super) delivered: u64,
    pub(super) stored: u64,
    pub(super) conversations: Vec<ConvReport>,
}

/// What a device state says of one conversation; 0: nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConvReport {
    pub(super) conversation: Conversation,
    pub(super) delivered: u64,
    pub(super) read: u64,
}

/// Constants of the partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preparer<'a> {
    pub(super) params: &'a Params,
    pub(super) cursor_epoch: u64,
    pub(super) partition: u32,
}

impl Preparer<'_> {
    /// Judges the batch and moves `folded` over it.
    pub(super) fn prepare(&self, batch: &[LogEntry], folded: &mut Folded) -> Result<Vec<Prepared>, Stop> {
        batch
            .iter()
            .map(|entry| {
                Ok(Prepared {
                    offset: entry.offset,
                    append_time: entry.append_time,
                    dlq_id: entry.dlq_id.clone(),
                    verdict: self.judge(entry, folded)?,
                })
            })
            .collect()
    }

    fn judge(&self, entry: &LogEntry, folded: &mut Folded) -> Result<Verdict, Stop> {
        if entry.dlq_id.is_some() {
            // Before src and prev are looked at: a replay carries those of the dead letter, for information.
            return Ok(Verdict::Replay(self.decode(entry, Origin::Replay)));
        }
        let link = entry.link.map_err(|source| Stop::DamagedLink {
            offset: entry.offset,
            source,
        })?;
        let origin = match &link {
            None => Origin::Gateway,
            Some(link) => match freshness(folded, link) {
                Some(ignored) => return Ok(Verdict::Ignore(ignored)),
                None => {
                    folded.insert(link.source, link.src);
                    Origin::Fold
                }
            },
        };
        Ok(match self.decode(entry, origin) {
            Ok(change) => Verdict::Apply {
                source: link.map(|link| (link.source, link.src)),
                change,
            },
            Err(cause) => Verdict::Reject(cause),
        })
    }

    fn decode(&self, entry: &LogEntry, origin: Origin) -> Result<Change, RejectCause> {
        match (Inbox::decode(entry.value.as_ref())?, origin) {
            (Inbox::Append(_), Origin::Gateway) => Err(RejectCause::AppendWithoutSource),
            (Inbox::DeviceState(_), Origin::Fold) => Err(RejectCause::DeviceStateWithSource),
            (Inbox::Append(append), Origin::Fold | Origin::Replay) => self.append(append),
            (Inbox::DeviceState(state), Origin::Gateway | Origin::Replay) => self.report(state),
        }
    }

    fn append(&self, append: InboxAppend) -> Result<Change, RejectCause> {
        let mut seen = FirstSeen::default();
        for uid in &append.uids {
            self.belongs_here(uid)?;
            if !seen.add(uid) {
                return Err(RejectCause::RepeatedUid(uid.clone()));
            }
        }
        Ok(Change::Append(Append {
            place: event::place(&append.event)?,
            uids: append.uids,
            event: append.event,
        }))
    }

    fn report(&self, state: DeviceState) -> Result<Change, RejectCause> {
        self.belongs_here(&state.uid)?;
        if state.epoch != self.cursor_epoch {
            return Ok(Change::OtherCursorEpoch);
        }
        let mut conversations: Vec<ConvReport> = Vec::new();
        let mut at: HashMap<Conversation, usize> = HashMap::new();
        let delivered = state
            .convs
            .into_iter()
            .map(|(conversation, seq)| (conversation, seq, 0));
        let read = state
            .reads
            .into_iter()
            .map(|(conversation, seq)| (conversation, 0, seq));
        for (conversation, delivered, read) in delivered.chain(read) {
            let i = *at.entry(conversation.clone()).or_insert_with(|| {
                conversations.push(ConvReport {
                    conversation,
                    delivered: 0,
                    read: 0,
                });
                conversations.len() - 1
            });
            let report = &mut conversations[i];
            report.delivered = report.delivered.max(delivered);
            report.read = report.read.max(read);
        }
        Ok(Change::Report(Report {
            uid: state.uid,
            device: state.device,
            delivered: state.delivered,
            stored: state.stored,
            conversations,
        }))
    }

    /// Two partitions that number one stream would break it, so a misplaced record is not folded.
    fn belongs_here(&self, uid: &Uid) -> Result<(), RejectCause> {
        let expected = (self.params.partition_of)(uid.as_str().as_bytes(), self.params.partitions.inbox);
        if expected == self.partition {
            Ok(())
        } else {
            Err(RejectCause::Misplaced { expected })
        }
    }
}

/// Who wrote a record.
#[derive(Debug, Clone, Copy)]
enum Origin {
    Fold,
    Gateway,
    Replay,
}

/// I2: `None` if fresh.
fn freshness(folded: &Folded, link: &SourceLink) -> Option<Ignored> {
    let v = folded.get(&link.source);
    if v.is_some_and(|v| link.src <= *v) {
        Some(Ignored::Reemission)
    } else if link.prev.as_ref() > v {
        // None sorts before every position: no prev is never a gap, a prev without V always is.
        Some(Ignored::PrefixGap)
    } else {
        None
    }
}

/// Settles the replays of a batch: fresh if no copy of the dead letter lies at a lower offset. `first` holds the first
/// copies known so far, read or folded by this run, and learns those of the batch. Returns the intents to write.
pub(super) fn settle_replays(
    records: &mut [Prepared],
    first: &mut HashMap<String, Position>,
    position: impl Fn(u64) -> Position,
) -> Result<Vec<(String, Position)>, Stop> {
    let mut intents = Vec::new();
    for prepared in records {
        let Some(dlq_id) = &prepared.dlq_id else { continue };
        let verdict = std::mem::replace(&mut prepared.verdict, Verdict::Ignore(Ignored::RepeatedReplay));
        let off = position(prepared.offset);
        let known = first.get(dlq_id).copied();
        prepared.verdict = match verdict {
            Verdict::Replay(_) if known.is_some_and(|known| known < off) => Verdict::Ignore(Ignored::RepeatedReplay),
            // No intent for what cannot be decoded: a later copy may be, under a later version.
            Verdict::Replay(Err(cause)) => Verdict::Reject(cause),
            Verdict::Replay(Ok(change)) => {
                if let Some(known) = known.filter(|known| *known > off) {
                    return Err(Stop::DlqIntentAhead {
                        offset: prepared.offset,
                        dlq_id: dlq_id.clone(),
                        first: known,
                    });
                }
                first.insert(dlq_id.clone(), off);
                intents.push((dlq_id.clone(), off));
                Verdict::Apply { source: None, change }
            }
            settled @ (Verdict::Apply { .. } | Verdict::Reject(_) | Verdict::Ignore(_)) => settled,
        };
    }
    Ok(intents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_domain::{LogEpoch, Topic};

    const SOURCE: SourcePartition = SourcePartition {
        topic: Topic::Ingress,
        partition: 0,
    };

    fn at(offset: u64, idx: u32) -> SourcePosition {
        SourcePosition {
            pos: Position::new(LogEpoch::FIRST, offset),
            idx,
        }
    }

    fn link(src: SourcePosition, prev: Option<SourcePosition>) -> SourceLink {
        SourceLink {
            source: SOURCE,
            src,
            prev,
        }
    }

    #[test]
    fn only_links_that_hang_together_are_fresh() {
        let mut folded = Folded::new();
        assert_eq!(freshness(&folded, &link(at(3, 0), None)), None);
        assert_eq!(
            freshness(&folded, &link(at(3, 0), Some(at(1, 0)))),
            Some(Ignored::PrefixGap)
        );
        folded.insert(SOURCE, at(3, 1));
        assert_eq!(freshness(&folded, &link(at(3, 1), None)), Some(Ignored::Reemission));
        assert_eq!(freshness(&folded, &link(at(3, 2), Some(at(3, 1)))), None);
        assert_eq!(freshness(&folded, &link(at(9, 0), Some(at(2, 0)))), None);
        assert_eq!(
            freshness(&folded, &link(at(9, 0), Some(at(4, 0)))),
            Some(Ignored::PrefixGap)
        );
    }
}
