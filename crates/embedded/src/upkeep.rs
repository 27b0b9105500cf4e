//! What the persist thread does for the log at every tick, as long as the log is open.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::database::Core;

/// Work to do at every tick; must be bounded, since the next persist waits for it.
pub(crate) trait Task: Send + Sync {
    fn run(&self);
}

#[derive(Default)]
pub(crate) struct Upkeep {
    task: Mutex<Option<Weak<dyn Task>>>,
}

/// Ends the upkeep of a log when dropped; the next log can then be opened.
pub(crate) struct Registration {
    core: Arc<Core>,
}

impl Upkeep {
    /// Takes a task, unless one is registered.
    pub(crate) fn register<T: Task + 'static>(core: &Arc<Core>, task: &Arc<T>) -> Option<Registration> {
        let mut registered = core.upkeep.task.lock();
        if registered.is_some() {
            return None;
        }
        let task: Weak<T> = Arc::downgrade(task);
        *registered = Some(task);
        drop(registered);
        Some(Registration { core: Arc::clone(core) })
    }

    pub(crate) fn run(&self) {
        let task = self.task.lock().as_ref().and_then(Weak::upgrade);
        if let Some(task) = task {
            task.run();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        *self.core.upkeep.task.lock() = None;
    }
}
