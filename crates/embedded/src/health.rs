//! Whether the database still takes writes. Goes from well to poisoned, never back.

use std::sync::OnceLock;

use crate::Error;

#[derive(Default)]
pub(crate) struct Health {
    poison: OnceLock<String>,
}

impl Health {
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.poison.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
        }
    }

    /// Records the first failure and returns the error of the poisoned state.
    pub(crate) fn poison(&self, operation: &'static str, error: &fjall::Error) -> Error {
        let reason = self.poison.get_or_init(|| {
            let reason = format!("{operation}: {error}");
            tracing::error!(reason, "database poisoned");
            reason
        });
        Error::Poisoned { reason: reason.clone() }
    }
}
