//! Readiness: the process is ready while all its named gates are open.
//!
//! A component that must be up before traffic makes sense holds a [`Gate`] and opens or closes it with a reason, which
//! `/readyz` shows. A gate starts closed, so that a component that never reports cannot look ready. Once shutdown has
//! begun the process is not ready whatever the gates say.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// Reason of a gate that nobody has opened or closed yet.
const STARTING: &str = "starting";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Gates {
    /// `None` = open, else why it is closed.
    closed: BTreeMap<String, Option<String>>,
    stopping: bool,
}

impl Gates {
    fn ready(&self) -> bool {
        !self.stopping && !self.closed.is_empty() && self.closed.values().all(Option::is_none)
    }
}

/// The gates of a process; clones share them.
#[derive(Clone, Debug)]
pub struct Readiness {
    gates: Arc<watch::Sender<Gates>>,
    prefix: Arc<str>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl Readiness {
    /// Without gates, which is not ready.
    pub fn new() -> Self {
        Self {
            gates: Arc::new(watch::Sender::new(Gates::default())),
            prefix: Arc::from(""),
        }
    }

    /// The same gates, with `<prefix>/` before the names of gates made through this handle.
    #[must_use]
    pub fn prefixed(&self, prefix: &str) -> Self {
        Self {
            prefix: Arc::from(format!("{}{prefix}/", self.prefix)),
            ..self.clone()
        }
    }

    /// A new gate, closed. A second gate of the same name is another handle on the first and closes it.
    pub fn gate(&self, name: &str) -> Gate {
        let gate = Gate {
            name: format!("{}{name}", self.prefix),
            gates: Arc::clone(&self.gates),
        };
        gate.close(STARTING);
        gate
    }

    /// Whether all gates are open and shutdown has not begun.
    pub fn is_ready(&self) -> bool {
        self.gates.borrow().ready()
    }

    /// Waits until ready; the caller bounds the wait.
    pub async fn wait_ready(&self) {
        // The sender lives as long as `self`, so the channel cannot close.
        if self.gates.subscribe().wait_for(Gates::ready).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// From now on not ready, for good.
    pub fn begin_shutdown(&self) {
        self.gates.send_modify(|gates| gates.stopping = true);
    }

    /// One line for the whole and one per gate, with the reason of each that is closed.
    pub fn report(&self) -> String {
        let gates = self.gates.borrow();
        let mut text = match (gates.ready(), gates.stopping) {
            (true, _) => "ready\n".to_owned(),
            (false, true) => "not ready: shutting down\n".to_owned(),
            (false, false) => "not ready\n".to_owned(),
        };
        for (name, closed) in &gates.closed {
            let line = match closed {
                None => format!("open   {name}\n"),
                Some(reason) => format!("closed {name}: {reason}\n"),
            };
            text.push_str(&line);
        }
        text
    }
}

/// One condition of readiness; clones are handles on the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    name: String,
    gates: Arc<watch::Sender<Gates>>,
}

impl Gate {
    /// The condition holds.
    pub fn open(&self) {
        self.set(None);
    }

    /// The condition does not hold, and why.
    pub fn close(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    fn set(&self, closed: Option<String>) {
        let changed = self.gates.send_if_modified(|gates| {
            let before = gates.closed.insert(self.name.clone(), closed.clone());
            before.as_ref() != Some(&closed)
        });
        if changed {
            match closed {
                None => tracing::info!(gate = self.name, "readiness gate opened"),
                Some(reason) => tracing::info!(gate = self.name, reason, "readiness gate closed"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_means_every_gate_open() {
        let readiness = Readiness::new();
        assert!(!readiness.is_ready(), "no gate yet");
        let store = readiness.gate("store");
        let bus = readiness.prefixed("router").gate("bus");
        store.open();
        assert!(!readiness.is_ready());
        assert_eq!(
            readiness.report(),
            "not ready\nclosed router/bus: starting\nopen   store\n"
        );
        bus.open();
        assert!(readiness.is_ready());
        bus.close("no partition assigned");
        assert!(readiness.report().contains("closed router/bus: no partition assigned"));
    }

    #[tokio::test]
    async fn waiting_ends_when_the_last_gate_opens() {
        let readiness = Readiness::new();
        let gate = readiness.gate("bus");
        let waiting = tokio::spawn({
            let readiness = readiness.clone();
            async move { readiness.wait_ready().await }
        });
        gate.open();
        tokio::time::timeout(std::time::Duration::from_secs(10), waiting)
            .await
            .unwrap()
            .unwrap();
    }

    #[test]
    fn shutdown_is_final() {
        let readiness = Readiness::new();
        let gate = readiness.gate("bus");
        gate.open();
        readiness.begin_shutdown();
        gate.open();
        assert!(!readiness.is_ready());
        assert!(readiness.report().starts_with("not ready: shutting down\n"));
    }
}
