//! Values whose drop blocks: dropped on a thread of their own, waited for at most as long as the owner likes.

use std::ops::Deref;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Holds a client; its drop happens on a thread of its own, never on the thread that lets go of it.
pub(super) struct OffThread<T: Send + 'static> {
    /// Present until the drop.
    value: Option<T>,
    what: String,
}

impl<T: Send + 'static> OffThread<T> {
    pub(super) fn new(what: impl Into<String>, value: T) -> Self {
        Self {
            value: Some(value),
            what: what.into(),
        }
    }

    /// Drops the value and waits for it at most `deadline`; after that it is left to its thread. The last thing that
    /// may be done with it.
    pub(super) fn drop_within(&mut self, deadline: Duration) -> bool {
        let dropped = self.begin_drop();
        // An error means time-out here: the thread sends before it ends, or its sender is dropped by a panic.
        let in_time = dropped.is_none_or(|dropped| dropped.recv_timeout(deadline).is_ok());
        if !in_time {
            tracing::warn!(client = %self.what, ?deadline, "not closed in time: left to itself");
        }
        in_time
    }

    fn begin_drop(&mut self) -> Option<mpsc::Receiver<()>> {
        let value = self.value.take()?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let spawned = thread::Builder::new().name("kafka-close".to_owned()).spawn(move || {
            drop(value);
            // Nobody may be waiting any more.
            let _ = sender.send(());
        });
        if let Err(error) = spawned {
            // The value was dropped here, with the closure.
            tracing::warn!(client = %self.what, %error, "no thread to close on: closed in place");
            return None;
        }
        Some(receiver)
    }
}

impl<T: Send + 'static> Deref for OffThread<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("taken only by the drop")
    }
}

impl<T: Send + 'static> Drop for OffThread<T> {
    fn drop(&mut self) {
        self.begin_drop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct BlocksUntil(mpsc::Receiver<()>);

    impl Drop for BlocksUntil {
        fn drop(&mut self) {
            self.0.recv_timeout(Duration::from_secs(30)).expect("released");
        }
    }

    #[test]
    fn a_drop_that_blocks_is_abandoned_after_the_deadline() {
        let (release, blocked) = mpsc::channel();
        let mut value = OffThread::new("test", BlocksUntil(blocked));
        assert!(!value.drop_within(Duration::from_millis(20)));
        release.send(()).unwrap();
    }

    #[test]
    fn a_quick_drop_is_waited_for() {
        let (release, blocked) = mpsc::channel();
        release.send(()).unwrap();
        assert!(OffThread::new("test", BlocksUntil(blocked)).drop_within(Duration::from_secs(30)));
    }
}
