//! Runs the database off the async threads: a commit waits for the disk.

use crate::error::Error;
use crate::store::Store;

/// A store whose work runs on a blocking thread; in-memory ones, which never wait, run in place.
#[derive(Debug)]
pub(crate) struct OffThread {
    store: Option<Store>,
    in_place: bool,
}

impl OffThread {
    pub(crate) fn new(store: Store, in_memory: bool) -> Self {
        Self {
            store: Some(store),
            in_place: in_memory,
        }
    }

    /// Does `work` and waits for it. Not to be cancelled half-way: the store would be gone.
    pub(crate) async fn run<T, F>(&mut self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut Store) -> Result<T, Error> + Send + 'static,
    {
        let mut store = self.store.take().ok_or(Error::Closed)?;
        if self.in_place {
            let result = work(&mut store);
            self.store = Some(store);
            return result;
        }
        let (store, result) = tokio::task::spawn_blocking(move || {
            let result = work(&mut store);
            (store, result)
        })
        .await
        // The work panicked or the runtime is going down: either way the client ends.
        .map_err(|_| Error::Closed)?;
        self.store = Some(store);
        result
    }
}
