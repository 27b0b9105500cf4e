//! Waiting for a condition with a deadline.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::Instant;

/// Between two looks.
const POLL: Duration = Duration::from_millis(50);

/// Looks until `look` gives a value. `Ok(None)` and errors mean "not yet"; the last error is told at the deadline.
pub async fn until<T, F, Look>(what: &str, deadline: Duration, look: F) -> Result<T>
where
    F: FnMut() -> Look,
    Look: Future<Output = Result<Option<T>>>,
{
    until_every(POLL, what, deadline, look).await
}

/// The same with another time between two looks, for looks that cost something.
pub async fn until_every<T, F, Look>(poll: Duration, what: &str, deadline: Duration, mut look: F) -> Result<T>
where
    F: FnMut() -> Look,
    Look: Future<Output = Result<Option<T>>>,
{
    let end = Instant::now() + deadline;
    loop {
        let why = match look().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if Instant::now() >= end {
            match why {
                Some(error) => return Err(error.context(format!("{what}: not within {deadline:?}"))),
                None => bail!("{what}: not within {deadline:?}"),
            }
        }
        tokio::time::sleep(poll).await;
    }
}

/// Looks until `look` says true.
pub async fn until_true<F>(what: &str, deadline: Duration, mut look: F) -> Result<()>
where
    F: FnMut() -> bool,
{
    until(what, deadline, || {
        let seen = look();
        async move { Ok(seen.then_some(())) }
    })
    .await
}
