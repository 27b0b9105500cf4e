//! The persist tick: one thread that makes table batches durable in equal intervals, notices a poisoned engine, and does
//! the log's upkeep.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

use crate::database::Core;

/// The running tick. Dropping it ends the thread after a last persist.
pub(crate) struct PersistTick {
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct StopSignal {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl PersistTick {
    pub(crate) fn start(core: Arc<Core>) -> io::Result<Self> {
        let stop = Arc::new(StopSignal::default());
        let signal = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("embedded-persist".to_owned())
            .spawn(move || run(&core, &signal))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for PersistTick {
    fn drop(&mut self) {
        *self.stop.stopped.lock() = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("persist thread panicked");
        }
    }
}

fn run(core: &Core, signal: &StopSignal) {
    let mut stopped = signal.stopped.lock();
    while !*stopped {
        signal.changed.wait_for(&mut stopped, core.options.persist_interval);
        parking_lot::MutexGuard::unlocked(&mut stopped, || {
            if let Err(error) = core.persist() {
                // The first failure was logged where it poisoned the database; from then on `healthy` tells it.
                tracing::debug!(%error, "not persisted");
            }
            core.upkeep.run();
        });
    }
}
