//! Whether the database still takes writes. Goes from well to poisoned, never back.

use std::fmt::Display;
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

    /// Records a failure, unless there was one before, and returns the error of the poisoned state.
    pub(crate) fn poison(&self, operation: &'static str, error: impl Display) -> Error {
        let reason = self.poison.get_or_init(|| {
            let reason = format!("{operation}: {error}");
            tracing::error!(reason, "database poisoned");
            reason
        });
        Error::Poisoned { reason: reason.clone() }
    }
}
