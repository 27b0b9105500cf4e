//! The one thread that writes the log.
//!
//! ```text
//! take what is queued → assign offsets and times → one batch, journal synced → new ends visible → completions in order
//! ```
//! A commit that fails poisons the database: its records and everything behind them are answered with the error, and
//! nothing is written any more. Should the engine hang instead of failing (it waits for its own writers before some
//! commits), the persist tick answers for the committer, see [`Shared::fail_waiting`].

use std::collections::BTreeMap;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use fjall::PersistMode;

use super::keys;
use super::queue::{Appended, Completion, Pending};
use super::shared::Shared;
use crate::health::Health;
use crate::upkeep::Registration;

/// Where a partition goes on; known to the committer alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    /// Next offset.
    pub(super) next: u64,
    /// Append time of the last record.
    pub(super) last_time: i64,
}

/// The heads of all partitions, by topic index and partition.
pub(super) type Heads = Vec<Vec<Head>>;

/// The running committer. Dropping it closes the queue and waits until it is worked off.
pub(super) struct Committer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// The registration is held until the thread has ended: only then may another committer write.
    pub(super) fn start(shared: Arc<Shared>, heads: Heads, registration: Registration) -> io::Result<Self> {
        let working = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("embedded-commit".to_owned())
            .spawn(move || {
                let _registration = registration;
                run(&working, heads);
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.shared.queue.close();
        let Some(thread) = self.thread.take() else { return };
        // The last handle may be dropped by a completion, on the committer thread itself: it ends by itself then.
        if thread.thread().id() != thread::current().id() && thread.join().is_err() {
            tracing::error!("committer thread panicked");
        }
    }
}

/// Poisons the database and answers everybody if the committer panics, so that nobody waits for a thread that is gone.
struct PoisonOnPanic<'a>(&'a Shared);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.core.health.poison("commit to the log", "the committer panicked");
            self.0.fail_waiting();
        }
    }
}

fn run(shared: &Shared, mut heads: Heads) {
    let _guard = PoisonOnPanic(shared);
    while let Some(batch) = shared.queue.take() {
        if shared.core.health.check().is_ok() {
            commit(shared, &mut heads, batch);
        } else {
            fail(batch.into_iter().map(|pending| pending.completion), &shared.core.health);
        }
    }
}

fn commit(shared: &Shared, heads: &mut Heads, batch: Vec<Pending>) {
    let now = (shared.clock)();
    let mut writes = fjall::OwnedWriteBatch::with_capacity(shared.core.engine.clone(), batch.len())
        .durability(Some(PersistMode::SyncData));
    let mut ends = BTreeMap::new();
    let mut waiting = Vec::with_capacity(batch.len());
    for Pending {
        place,
        record,
        completion,
    } in batch
    {
        let head = &mut heads[place.topic_index()][place.partition() as usize];
        let appended = Appended {
            offset: head.next,
            append_time: now.max(head.last_time),
        };
        *head = Head {
            next: appended.offset + 1,
            last_time: appended.append_time,
        };
        ends.insert(place, head.next);
        let key = keys::record(shared.topics.topic(place).config.id, place.partition(), appended.offset);
        writes.insert(&shared.keyspaces.records, key, record.stamped(appended.append_time));
        waiting.push((completion, appended));
    }
    let records = waiting.len();
    *shared.committing.lock() = waiting;

    let result = shared.core.commit_durably("commit to the log", writes);

    // Empty if the tick found the database poisoned meanwhile and answered for this thread.
    let waiting = std::mem::take(&mut *shared.committing.lock());
    if result.is_err() {
        fail(
            waiting.into_iter().map(|(completion, _)| completion),
            &shared.core.health,
        );
        return;
    }
    shared.count_commit(records);
    let mut grown = BTreeMap::new();
    for (place, end) in ends {
        shared.topics.partition(place).set_end(end);
        grown.insert(place.topic_index(), place);
    }
    for place in grown.into_values() {
        shared.topics.topic(place).announce();
    }
    let mut waiting = waiting.into_iter();
    let answered = panic::catch_unwind(AssertUnwindSafe(|| {
        for (completion, appended) in waiting.by_ref() {
            completion(Ok(appended));
        }
    }));
    if let Err(panic) = answered {
        // The records behind the one whose completion panicked are written, but who waits for them must not wait on.
        shared.core.health.poison("commit to the log", "a completion panicked");
        fail(waiting.map(|(completion, _)| completion), &shared.core.health);
        panic::resume_unwind(panic);
    }
}

/// Answers records that were not, or perhaps not, written.
pub(super) fn fail(completions: impl IntoIterator<Item = Completion>, health: &Health) {
    for completion in completions {
        completion(Err(
            health.poison("commit to the log", "an earlier record was not written")
        ));
    }
}
