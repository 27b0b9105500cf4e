//! Giving partitions up: revocations and the end of the process.
//!
//! **Guarantee.** Before the group may give a partition to another member, its worker has ended or is abandoned, and what
//! had settled until then is committed and answered.

use std::time::Instant;

use super::Consumer;
use crate::Error;
use crate::metrics::{group_labels, partition_labels};
use crate::source::{Commit, CommitMode, Source};

/// Partitions being given up together.
pub(super) struct Revocation {
    partitions: Vec<u32>,
    /// When the workers are abandoned.
    deadline: Instant,
}

impl Consumer {
    /// Commits what has settled, without waiting.
    pub(super) fn commit(&mut self, source: &mut dyn Source) {
        let commits: Vec<Commit> = self
            .partitions
            .values_mut()
            .filter_map(|partition| partition.uncommitted.take())
            .collect();
        if commits.is_empty() {
            return;
        }
        if let Err(error) = source.commit(&commits, CommitMode::Async) {
            // The next settled position covers it, and giving the partition up commits the last one in any case.
            self.commit_failed(&error);
        }
    }

    pub(super) fn commit_failed(&self, error: &Error) {
        self.metrics()
            .commit_failures
            .get_or_create(&group_labels(self.group()))
            .inc();
        tracing::warn!(group = self.name(), %error, "commit failed");
    }

    /// Commits the last settled positions of these partitions and waits for the answer. Also what was sent before: its
    /// answer may have been an error.
    pub(super) fn commit_last(&self, source: &mut dyn Source, numbers: &[u32]) {
        let commits: Vec<Commit> = numbers
            .iter()
            .filter_map(|number| self.partitions.get(number)?.settled.clone())
            .collect();
        if commits.is_empty() {
            return;
        }
        if let Err(error) = source.commit(&commits, CommitMode::Sync) {
            self.commit_failed(&error);
        }
    }

    pub(super) fn revoke(&mut self, source: &mut dyn Source, partitions: Vec<u32>, lost: bool) {
        tracing::info!(group = self.name(), ?partitions, lost, "partitions revoked");
        if lost {
            // Another member owns them: a commit would be refused, and the results are worth nothing.
            self.give_up(source, &partitions);
            return;
        }
        for number in &partitions {
            if let Some(partition) = self.partitions.get_mut(number) {
                partition.drain();
            }
        }
        self.revocations.push(Revocation {
            partitions,
            deadline: Instant::now() + self.config().drain_deadline,
        });
    }

    /// Answers revocations whose workers have ended or whose time is up.
    pub(super) fn end_revocations(&mut self, source: &mut dyn Source) {
        let now = Instant::now();
        let mut waiting = Vec::new();
        for revocation in std::mem::take(&mut self.revocations) {
            if self.drained(&revocation.partitions) || revocation.deadline <= now {
                self.commit_last(source, &revocation.partitions);
                self.give_up(source, &revocation.partitions);
            } else {
                waiting.push(revocation);
            }
        }
        self.revocations = waiting;
    }

    pub(super) fn drained(&self, numbers: &[u32]) -> bool {
        numbers.iter().all(|number| {
            self.partitions
                .get(number)
                .is_none_or(|partition| partition.link.is_none())
        })
    }

    pub(super) fn give_up(&mut self, source: &mut dyn Source, numbers: &[u32]) {
        for number in numbers {
            if let Some(partition) = self.partitions.remove(number)
                && partition.link.is_some()
            {
                tracing::warn!(
                    group = self.name(),
                    partition = number,
                    "worker abandoned: what it had begun is done again by the next owner"
                );
            }
            self.metrics().forget(&partition_labels(self.group(), *number));
        }
        if let Err(error) = source.finish_revoke(numbers) {
            tracing::warn!(group = self.name(), %error, partitions = ?numbers, "giving partitions up");
        }
    }

    /// Drains everything; true once that is done or its time is up and the positions are committed.
    pub(super) fn close_if_drained(&mut self, source: &mut dyn Source) -> bool {
        let now = Instant::now();
        let deadline = match self.closing {
            Some(deadline) => deadline,
            None => {
                tracing::info!(group = self.name(), "draining");
                for partition in self.partitions.values_mut() {
                    partition.drain();
                }
                let deadline = now + self.config().drain_deadline;
                self.closing = Some(deadline);
                deadline
            }
        };
        let numbers: Vec<u32> = self.partitions.keys().copied().collect();
        if !self.drained(&numbers) && now < deadline {
            return false;
        }
        self.commit_last(source, &numbers);
        true
    }

    /// Forgets everything without a commit.
    pub(super) fn drop_partitions(&mut self) {
        for number in self.partitions.keys() {
            self.metrics().forget(&partition_labels(self.group(), *number));
        }
        self.partitions.clear();
        self.revocations.clear();
        self.show();
    }
}
