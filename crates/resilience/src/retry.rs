//! Repeating an operation while its error says that it may succeed later.

use std::time::Duration;

use crate::{Backoff, Classify};

/// Runs `op` until it succeeds, fails permanently, or was tried `max_attempts` times; waits `backoff`'s next delay
/// between attempts.
///
/// `max_attempts` counts calls of `op`; `None` repeats until the caller drops the future, which is also the only way
/// to cancel (the wait holds nothing). `on_retry` sees the error and the delay before each wait, to count or log it.
/// The back-off is not reset on entry, so that a caller can carry it over several operations; it is reset on success.
///
/// # Errors
/// The last error of `op`: the permanent one, or the transient one that used up the attempts.
pub async fn retry_transient<T, E, F, Fut>(
    backoff: &mut Backoff,
    max_attempts: Option<u32>,
    mut op: F,
    mut on_retry: impl FnMut(&E, Duration),
) -> Result<T, E>
where
    E: Classify,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let mut tried: u32 = 0;
    loop {
        tried = tried.saturating_add(1);
        let error = match op().await {
            Ok(value) => {
                backoff.reset();
                return Ok(value);
            }
            Err(error) => error,
        };
        if !error.is_transient() || max_attempts.is_some_and(|max| tried >= max) {
            return Err(error);
        }
        let delay = backoff.next_delay();
        on_retry(&error, delay);
        tokio::time::sleep(delay).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{BackoffPolicy, ErrorClass};

    #[derive(Debug, PartialEq)]
    struct Failure(ErrorClass);

    impl Classify for Failure {
        fn class(&self) -> ErrorClass {
            self.0
        }
    }

    fn backoff() -> Backoff {
        Backoff::new(BackoffPolicy::STORE, 11)
    }

    #[tokio::test(start_paused = true)]
    async fn repeats_transient_errors_until_success_and_waits_the_told_delays() {
        let calls = Cell::new(0u32);
        let mut told = Duration::ZERO;
        let started = tokio::time::Instant::now();
        let mut backoff = backoff();
        let result = retry_transient(
            &mut backoff,
            None,
            || async {
                calls.set(calls.get() + 1);
                if calls.get() < 4 {
                    Err(Failure(ErrorClass::Transient))
                } else {
                    Ok(calls.get())
                }
            },
            |_, delay| told += delay,
        )
        .await;
        assert_eq!(result, Ok(4));
        let waited = started.elapsed();
        // The timer of the runtime rounds up to the millisecond.
        assert!(
            waited >= told && waited <= told + Duration::from_millis(5),
            "{waited:?} {told:?}"
        );
        assert_eq!(backoff.attempts(), 0, "a success resets the back-off");
    }

    #[tokio::test(start_paused = true)]
    async fn returns_a_permanent_error_at_once() {
        let calls = Cell::new(0u32);
        let result: Result<(), Failure> = retry_transient(
            &mut backoff(),
            None,
            || async {
                calls.set(calls.get() + 1);
                Err(Failure(ErrorClass::Permanent))
            },
            |_, _| panic!("no retry of a permanent error"),
        )
        .await;
        assert_eq!(result, Err(Failure(ErrorClass::Permanent)));
        assert_eq!(calls.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_after_the_last_attempt() {
        let calls = Cell::new(0u32);
        let mut retries = 0;
        let result: Result<(), Failure> = retry_transient(
            &mut backoff(),
            Some(3),
            || async {
                calls.set(calls.get() + 1);
                Err(Failure(ErrorClass::Transient))
            },
            |_, _| retries += 1,
        )
        .await;
        assert_eq!(result, Err(Failure(ErrorClass::Transient)));
        assert_eq!((calls.get(), retries), (3, 2), "no wait after the last attempt");
    }
}
