//! Named, supervised tasks.
//!
//! Every task and thread of a process that is to live as long as the process is spawned here under a name. Guarantee:
//! none ends unnoticed. A panic, an error, or an end while nobody asked for it becomes a [`TaskFailure`]; the run loop
//! waits for the first and ends the process, since a process that lost a part of itself is worse than one that
//! restarts. On shutdown [`Supervisor::join_all`] names what did not finish in time.
//!
//! Two tokens tell tasks to stop: `intake` first (take no new work, finish what runs), `shutdown` later (end now).
//! Cancelling `shutdown` cancels `intake`. From the first of them on, an end without an error is expected.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Failures kept for reports; the first decides, more of them add little.
const FAILURES_KEPT: usize = 32;

/// How a supervised task went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Returned although nobody asked it to stop.
    EndedEarly,
    /// Returned this error.
    Failed(String),
    /// Panicked with this message.
    Panicked(String),
}

/// A supervised task that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFailure {
    /// Its name.
    pub task: String,
    /// What happened.
    pub cause: Cause,
}

impl fmt::Display for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::EndedEarly => write!(f, "task {} ended although it should live", self.task),
            Cause::Failed(error) => write!(f, "task {} failed: {error}", self.task),
            Cause::Panicked(message) => write!(f, "task {} panicked: {message}", self.task),
        }
    }
}

impl std::error::Error for TaskFailure {}

/// Whether a task may end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifetime {
    Process,
    Finite,
}

#[derive(Debug)]
struct Task {
    name: String,
    /// `None` for threads, which cannot be aborted.
    abort: Option<AbortHandle>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    running: BTreeMap<u64, Task>,
    failures: Vec<TaskFailure>,
}

/// Spawns and watches the tasks of a process; clones share them.
#[derive(Clone, Debug)]
pub struct Supervisor {
    /// Cancelled first: take no new work.
    pub intake: CancellationToken,
    /// Cancelled last: end now. Cancels `intake` too.
    pub shutdown: CancellationToken,
    state: Arc<watch::Sender<State>>,
    prefix: Arc<str>,
}

impl Default for Supervisor {
    fn default() -> Self {
        Self::new()
    }
}

impl Supervisor {
    /// Without tasks.
    pub fn new() -> Self {
        let shutdown = CancellationToken::new();
        Self {
            intake: shutdown.child_token(),
            shutdown,
            state: Arc::new(watch::Sender::new(State::default())),
            prefix: Arc::from(""),
        }
    }

    /// The same supervisor, with `<prefix>/` before the names of tasks spawned through this handle.
    #[must_use]
    pub fn prefixed(&self, prefix: &str) -> Self {
        Self {
            prefix: Arc::from(format!("{}{prefix}/", self.prefix)),
            ..self.clone()
        }
    }

    /// Spawns a task that is to live until `intake` or `shutdown` is cancelled.
    pub fn spawn<F>(&self, name: impl Into<String>, future: F)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.spawn_task(name.into(), Lifetime::Process, future);
    }

    /// Spawns a task that may end by itself; its error or panic is a failure like any other.
    pub fn spawn_finite<F>(&self, name: impl Into<String>, future: F)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.spawn_task(name.into(), Lifetime::Finite, future);
    }

    fn spawn_task<F>(&self, name: String, lifetime: Lifetime, future: F)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let watched = self.enter(name, lifetime);
        let id = watched.id;
        let handle = tokio::spawn(async move {
            let result = AssertUnwindSafe(future).catch_unwind().await;
            watched.ended(result);
        });
        self.state.send_if_modified(|state| {
            // It may have ended already.
            if let Some(task) = state.running.get_mut(&id) {
                task.abort = Some(handle.abort_handle());
            }
            false
        });
    }

    /// Runs `body` on a thread of its own that is to live until `intake` or `shutdown` is cancelled; it watches the
    /// tokens itself (`is_cancelled`).
    pub fn spawn_thread<F>(&self, name: impl Into<String>, body: F)
    where
        F: FnOnce() -> anyhow::Result<()> + Send + 'static,
    {
        let watched = self.enter(name.into(), Lifetime::Process);
        let task = watched.name.clone();
        let spawned = std::thread::Builder::new().name(task.clone()).spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(body));
            watched.ended(result);
        });
        if let Err(error) = spawned {
            let cause = Cause::Failed(format!("thread cannot be started: {error}"));
            record(&self.state, TaskFailure { task, cause });
        }
    }

    /// Waits for the first failure; for ever if none comes.
    pub async fn failed(&self) -> TaskFailure {
        let mut changes = self.state.subscribe();
        loop {
            if let Some(failure) = changes.borrow_and_update().failures.first() {
                return failure.clone();
            }
            if changes.changed().await.is_err() {
                // Unreachable while `self` holds the sender.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The failures so far (the first 32).
    pub fn failures(&self) -> Vec<TaskFailure> {
        self.state.borrow().failures.clone()
    }

    /// Names of the tasks and threads that run, in the order they were spawned.
    pub fn running(&self) -> Vec<String> {
        self.state
            .borrow()
            .running
            .values()
            .map(|task| task.name.clone())
            .collect()
    }

    /// How many tasks and threads run.
    pub fn running_count(&self) -> usize {
        self.state.borrow().running.len()
    }

    /// Waits until all have ended, at most until `deadline`; then aborts the tasks that have not and gives their names
    /// (threads are named too, but cannot be aborted). Cancel `shutdown` before.
    pub async fn join_all(&self, deadline: Instant) -> Vec<String> {
        let mut changes = self.state.subscribe();
        let all_ended = changes.wait_for(|state| state.running.is_empty());
        if tokio::time::timeout_at(deadline, all_ended).await.is_ok() {
            return Vec::new();
        }
        let state = self.state.borrow();
        let unfinished = state.running.values().map(|task| task.name.clone()).collect();
        let aborts: Vec<AbortHandle> = state.running.values().filter_map(|task| task.abort.clone()).collect();
        // An abort can run destructors that lock the state again.
        drop(state);
        aborts.iter().for_each(AbortHandle::abort);
        unfinished
    }

    fn enter(&self, name: String, lifetime: Lifetime) -> Watched {
        let name = format!("{}{name}", self.prefix);
        let mut id = 0;
        self.state.send_modify(|state| {
            id = state.next_id;
            state.next_id += 1;
            state.running.insert(
                id,
                Task {
                    name: name.clone(),
                    abort: None,
                },
            );
        });
        Watched {
            id,
            name,
            lifetime,
            intake: self.intake.clone(),
            state: Arc::clone(&self.state),
        }
    }
}

/// One running task; leaves the list of running ones when dropped, however it ends.
struct Watched {
    id: u64,
    name: String,
    lifetime: Lifetime,
    intake: CancellationToken,
    state: Arc<watch::Sender<State>>,
}

impl Watched {
    fn ended(self, result: std::thread::Result<anyhow::Result<()>>) {
        let cause = match result {
            Ok(Ok(())) if self.lifetime == Lifetime::Finite || self.intake.is_cancelled() => return,
            Ok(Ok(())) => Cause::EndedEarly,
            Ok(Err(error)) => Cause::Failed(format!("{error:#}")),
            Err(panic) => Cause::Panicked(panic_message(panic.as_ref())),
        };
        record(
            &self.state,
            TaskFailure {
                task: self.name.clone(),
                cause,
            },
        );
    }
}

fn record(state: &watch::Sender<State>, failure: TaskFailure) {
    tracing::error!(task = failure.task, cause = ?failure.cause, "supervised task went wrong");
    state.send_modify(|state| {
        if state.failures.len() < FAILURES_KEPT {
            state.failures.push(failure);
        }
    });
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.state.send_modify(|state| {
            state.running.remove(&self.id);
        });
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    async fn first_failure(tasks: &Supervisor) -> TaskFailure {
        tokio::time::timeout(SOON, tasks.failed())
            .await
            .expect("a failure is reported")
    }

    #[tokio::test]
    async fn a_panic_is_reported_with_its_message() {
        let tasks = Supervisor::new();
        tasks.spawn("fragile", async { panic!("broke at {}", 7) });
        let failure = first_failure(&tasks).await;
        assert_eq!(
            failure,
            TaskFailure {
                task: "fragile".into(),
                cause: Cause::Panicked("broke at 7".into())
            }
        );
    }

    #[tokio::test]
    async fn an_early_end_is_reported_and_an_end_after_the_stop_is_not() {
        let tasks = Supervisor::new();
        tasks.spawn_finite("once", async { Ok(()) });
        let intake = tasks.intake.clone();
        tasks.spawn("accept", async move {
            intake.cancelled().await;
            Ok(())
        });
        tasks.prefixed("router").spawn("fold", async { Ok(()) });
        let failure = first_failure(&tasks).await;
        assert_eq!(
            (failure.task.as_str(), &failure.cause),
            ("router/fold", &Cause::EndedEarly)
        );

        tasks.intake.cancel();
        assert_eq!(tasks.join_all(Instant::now() + SOON).await, Vec::<String>::new());
        assert_eq!(tasks.failures().len(), 1, "{:?}", tasks.failures());
    }

    #[tokio::test]
    async fn an_error_is_a_failure_also_while_stopping() {
        let tasks = Supervisor::new();
        let shutdown = tasks.shutdown.clone();
        tasks.spawn("commit", async move {
            shutdown.cancelled().await;
            Err(anyhow::anyhow!("no quorum").context("cannot commit"))
        });
        tasks.shutdown.cancel();
        assert!(tasks.intake.is_cancelled(), "shutdown implies no intake");
        let failure = first_failure(&tasks).await;
        assert_eq!(failure.cause, Cause::Failed("cannot commit: no quorum".into()));
    }

    #[tokio::test]
    async fn threads_are_supervised_like_tasks() {
        let tasks = Supervisor::new();
        let shutdown = tasks.shutdown.clone();
        tasks.spawn_thread("poll", move || {
            while !shutdown.is_cancelled() {
                std::thread::yield_now();
            }
            Ok(())
        });
        assert_eq!(tasks.running(), ["poll"]);
        tasks.spawn_thread("dies", || panic!("out of luck"));
        assert_eq!(first_failure(&tasks).await.cause, Cause::Panicked("out of luck".into()));
        tasks.shutdown.cancel();
        assert_eq!(tasks.join_all(Instant::now() + SOON).await, Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn join_all_names_and_aborts_what_does_not_finish() {
        let tasks = Supervisor::new();
        let (alive, ended) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn("stuck", async move {
            let _alive = alive;
            std::future::pending().await
        });
        let shutdown = tasks.shutdown.clone();
        tasks.spawn("obedient", async move {
            shutdown.cancelled().await;
            Ok(())
        });
        tasks.shutdown.cancel();
        let begun = Instant::now();
        assert_eq!(tasks.join_all(begun + Duration::from_secs(3)).await, ["stuck"]);
        assert_eq!(begun.elapsed(), Duration::from_secs(3));
        assert!(ended.await.is_err(), "the task was dropped");
        assert_eq!(tasks.failures(), []);
    }
}
