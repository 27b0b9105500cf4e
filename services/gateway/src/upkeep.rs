//! What a gateway does beside its sessions: readiness, heartbeats, heads, the end.
//!
//! Ready means: the producer can write, the topics give the durability that a link ACK promises (req:B1), an
//! offline-inbox replica answers, the public port listens. The route registry is no part of it.

use std::sync::Arc;
use std::time::Duration;

use tidings_chassis::{Context, Running};
use tokio::time::{MissedTickBehavior, interval};

use crate::heads;
use crate::node::Node;

const PRODUCER_CHECK: Duration = Duration::from_secs(1);
const INBOX_CHECK: Duration = Duration::from_secs(5);
const TOPICS_CHECK: Duration = Duration::from_secs(10);

/// How long the rest of the producer's queue may take at the end, after the sessions are gone; the chassis's deadline
/// bounds it too.
const FLUSH: Duration = Duration::from_secs(10);

/// Spawns the tasks.
pub(crate) fn spawn(context: &Context, node: &Arc<Node>) {
    context.readiness.gate("public listener").open();
    every(
        context,
        node,
        "producer health",
        PRODUCER_CHECK,
        context.readiness.gate("producer"),
        |node, gate| async move {
            match node.writer.producer().health() {
                Ok(()) => gate.open(),
                Err(reason) => gate.close(reason),
            }
        },
    );
    every(
        context,
        node,
        "inbox health",
        INBOX_CHECK,
        context.readiness.gate("inbox"),
        |node, gate| async move {
            match heads::probe(&node.inbox).await {
                Ok(()) => gate.open(),
                Err(error) => gate.close(error.to_string()),
            }
        },
    );
    every(
        context,
        node,
        "topics check",
        TOPICS_CHECK,
        context.readiness.gate("topics"),
        |node, gate| async move {
            match node.writer.check_topics().await {
                Ok(differences) if differences.is_empty() => gate.open(),
                Ok(differences) => gate.close(differences.join("; ")),
                Err(error) => gate.close(error.to_string()),
            }
        },
    );
    every(
        context,
        node,
        "route heartbeat",
        node.config.route_heartbeat,
        (),
        |node, ()| async move { node.routes.heartbeat(&node.table).await },
    );
    every(
        context,
        node,
        "stream heads",
        node.config.heads_interval,
        (),
        |node, ()| async move {
            node.orphans.sweep();
            if let Err(error) = heads::refresh(&node.table, &node.inbox).await {
                tracing::warn!(%error, "stream heads not refreshed");
            }
        },
    );
    let (watched, shutdown) = (Arc::clone(node), context.tasks.shutdown.clone());
    context.tasks.spawn("producer life", async move {
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            // A new process has a new producer; devices send again what was not confirmed.
            error = watched.writer.died() => Err(error.into()),
        }
    });
}

/// A task that does `work` now and every `period`.
fn every<S, W, F>(context: &Context, node: &Arc<Node>, name: &'static str, period: Duration, state: S, work: W)
where
    S: Clone + Send + 'static,
    W: Fn(Arc<Node>, S) -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let node = Arc::clone(node);
    let shutdown = context.tasks.shutdown.clone();
    context.tasks.spawn(name, async move {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = work(Arc::clone(&node), state.clone()) => {}
            }
        }
    });
}

/// The end: sessions wait for their confirms and say goodbye, then the producer is emptied. By then no new connection
/// comes, since `intake` is cancelled.
pub(crate) fn drain(node: &Arc<Node>) -> Running {
    let (sessions, writer) = (Arc::clone(node), Arc::clone(node));
    Running::new()
        .drain("sessions", async move {
            for handle in sessions.table.all() {
                handle.mailbox.drain();
            }
            sessions.connections.close();
            sessions.connections.wait().await;
            Ok(())
        })
        .drain("producer", async move {
            let left = writer.writer.producer().flush(FLUSH).await;
            anyhow::ensure!(
                left == 0,
                "{left} records were not confirmed; none of them was acknowledged"
            );
            Ok(())
        })
}
