//! What the group wants, and the answers to it: see the module above for the scheme.

use std::collections::BTreeSet;
use std::time::Instant;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::Consumer;

use super::{KafkaSource, LOOKUP_PAUSE, Partition, Revoking};
use crate::Error;
use crate::kafka::error::bus_error;
use crate::kafka::lookup::look_up;
use crate::kafka::rebalance::Rebalance;
use crate::source::{Source, SourceEvent};

const REVOKING: &str = "giving up partitions";

impl KafkaSource {
    /// The next event of the group, once the one before is answered.
    pub(super) fn group_event(&mut self) -> Option<SourceEvent> {
        while self.revoking.is_none() {
            let Some(rebalance) = self.shared.next_rebalance() else {
                break;
            };
            let event = self.take(rebalance);
            if event.is_some() {
                return event;
            }
        }
        if !self.pending.is_empty() && self.revoking.is_none() && Instant::now() >= self.next_lookup {
            return self.learn_positions();
        }
        None
    }

    fn take(&mut self, rebalance: Rebalance) -> Option<SourceEvent> {
        match rebalance {
            Rebalance::Assign(partitions) => self.assign(partitions),
            Rebalance::Revoke { partitions, lost } => self.revoke(partitions, lost),
        }
    }

    fn assign(&mut self, partitions: Vec<u32>) -> Option<SourceEvent> {
        self.pending.extend(partitions);
        self.next_lookup = Instant::now();
        self.consumer()
            .incremental_assign(&TopicPartitionList::new())
            .err()
            .map(|error| SourceEvent::Fault(bus_error("acknowledging an assignment", &error)))
    }

    fn revoke(&mut self, partitions: Vec<u32>, lost: bool) -> Option<SourceEvent> {
        let mut revoking = Revoking::default();
        for partition in partitions {
            self.pending.remove(&partition);
            if let Some(state) = self.assigned.get(&partition) {
                revoking.awaited.insert(partition);
                if state.next.is_some() {
                    revoking.started.insert(partition);
                }
            }
        }
        let told: Vec<u32> = revoking.awaited.iter().copied().collect();
        self.revoking = Some(revoking);
        if told.is_empty() {
            // The runtime has never heard of them.
            return self.end_revoke().err().map(SourceEvent::Fault);
        }
        Some(SourceEvent::Revoked { partitions: told, lost })
    }

    /// This member polled later than the group allows, so the group has thrown it out. The client says so only if no
    /// rebalance was under way; others may have had the partitions since. So all are given up as lost; those that the
    /// group still counts as this member's come again as new assignments.
    pub(super) fn lose_all(&mut self) -> Option<SourceEvent> {
        if self.revoking.is_some() || self.assigned.is_empty() {
            return None;
        }
        tracing::warn!(topic = %self.name, "polled too late: the group has thrown this member out");
        let all: BTreeSet<u32> = self.assigned.keys().copied().collect();
        let started = self.assigned.iter().filter(|(_, state)| state.next.is_some());
        self.revoking = Some(Revoking {
            started: started.map(|(partition, _)| *partition).collect(),
            again: all.clone(),
            awaited: all.clone(),
        });
        Some(SourceEvent::Revoked {
            partitions: all.into_iter().collect(),
            lost: true,
        })
    }

    /// Acknowledges the revocation once all of it is answered.
    pub(super) fn end_revoke(&mut self) -> Result<(), Error> {
        let Some(revoking) = self.revoking.take_if(|revoking| revoking.awaited.is_empty()) else {
            return Ok(());
        };
        self.shared.revoked();
        self.pending.extend(revoking.again);
        // What the client has queued comes first, so that nothing is taken up again that is gone.
        self.next_lookup = Instant::now() + LOOKUP_PAUSE;
        let started = self.list(revoking.started);
        // Draining pauses, and the client keeps an application's pause beyond the assignment: a partition that came
        // back to this member would never be read.
        if let Err(error) = self.consumer().resume(&started) {
            tracing::warn!(%error, topic = %self.name, "resuming partitions that are given up");
        }
        let answer = self.consumer().incremental_unassign(&started);
        let Err(error) = answer else {
            return Ok(());
        };
        // The client had dropped some by itself (a fatal error does that). The group must get its answer all the same.
        if let Err(second) = self.consumer().incremental_unassign(&TopicPartitionList::new()) {
            tracing::warn!(error = %second, topic = %self.name, "acknowledging a revocation");
        }
        Err(bus_error(REVOKING, &error))
    }

    fn learn_positions(&mut self) -> Option<SourceEvent> {
        let partitions: Vec<u32> = self.pending.iter().copied().collect();
        let lookup = look_up(self.consumer(), &self.name, &partitions);
        self.next_lookup = Instant::now() + LOOKUP_PAUSE;
        for known in &lookup.known {
            self.pending.remove(&known.partition);
            self.assigned.insert(known.partition, Partition::new(known));
        }
        let fault = lookup.fault.map(SourceEvent::Fault);
        if lookup.known.is_empty() {
            return fault;
        }
        self.deferred.extend(fault);
        Some(SourceEvent::Assigned(lookup.known))
    }

    /// Answers what the group still waits for, and has the callback answer from then on, so that the close does not
    /// hang.
    pub(super) fn leave(&mut self) {
        if let Some(revoking) = self.revoking.as_mut() {
            revoking.awaited.clear();
        }
        let mut faults: Vec<Error> = self.end_revoke().err().into_iter().collect();
        while let Some(rebalance) = self.shared.next_rebalance() {
            match self.take(rebalance) {
                Some(SourceEvent::Revoked { partitions, .. }) => faults.extend(self.finish_revoke(&partitions).err()),
                Some(SourceEvent::Fault(error) | SourceEvent::Fatal(error)) => faults.push(error),
                Some(SourceEvent::Records(_) | SourceEvent::Assigned(_) | SourceEvent::Idle) | None => {}
            }
        }
        for error in faults {
            tracing::warn!(%error, topic = %self.name, "closing a consumer");
        }
        self.shared.close();
    }
}
