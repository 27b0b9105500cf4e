//! The one connection of a process: multiplexed, pipelined, reconnecting.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, FromRedisValue, Pipeline, RedisError, Script, ScriptInvocation, ServerErrorKind};

use super::{ANSWER_TIMEOUT, RedisConfig};
use crate::Error;

/// One try to connect, and one answer: both together stay below [`ANSWER_TIMEOUT`].
const CONNECT_TIMEOUT: Duration = Duration::from_millis(400);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(800);
/// Between tries to connect again: so that a Redis that came back is used within a second.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_millis(500);
/// Tries of one round of reconnecting; the next call after it begins another.
const RECONNECT_TRIES: usize = 3;
/// Script calls in one pipeline: bounds what Redis buffers for it, and how long it keeps others waiting.
const PIPELINE_CALLS: usize = 256;

/// A handle on the connection; clones share it.
#[derive(Clone)]
pub struct RedisConnection {
    client: Client,
    link: Arc<Mutex<Link>>,
    key_prefix: Arc<str>,
}

/// The manager reconnects when a connection breaks. One that goes silent (a peer that vanished without a word) does not
/// break for as long as the kernel resends, so after a time-out the next call gets a new one.
struct Link {
    manager: ConnectionManager,
    generation: u64,
}

impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConnection")
            .field("key_prefix", &self.key_prefix)
            .finish_non_exhaustive()
    }
}

impl RedisConnection {
    /// A connection that is made at first use: a process starts also while Redis is down. Must be called in a runtime.
    pub fn open(config: &RedisConfig) -> Result<Self, Error> {
        const OPERATION: &str = "open";
        let client = Client::open(config.url.as_str()).map_err(|error| failed(OPERATION, &error))?;
        let manager = lazy_manager(&client).map_err(|error| failed(OPERATION, &error))?;
        Ok(Self {
            client,
            link: Arc::new(Mutex::new(Link { manager, generation: 0 })),
            key_prefix: Arc::from(config.key_prefix.as_str()),
        })
    }

    /// The key of a user in a family of keys; the braces make all keys of a user one slot.
    pub(super) fn key(&self, family: &str, uid: &str) -> String {
        format!("{}{family}:{{{uid}}}", self.key_prefix)
    }

    /// Runs a pipeline and answers its results.
    pub(super) async fn query<T: FromRedisValue>(
        &self,
        operation: &'static str,
        pipeline: &Pipeline,
    ) -> Result<T, Error> {
        self.try_query(operation, pipeline)
            .await?
            .map_err(|error| failed(operation, &error))
    }

    async fn try_query<T: FromRedisValue>(
        &self,
        operation: &'static str,
        pipeline: &Pipeline,
    ) -> Result<Result<T, RedisError>, Error> {
        let (mut manager, generation) = {
            let link = self.link.lock();
            (link.manager.clone(), link.generation)
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, pipeline.query_async(&mut manager)).await {
            Ok(Err(error)) if error.is_timeout() => {
                self.replace(operation, generation)?;
                Ok(Err(error))
            }
            Ok(answer) => Ok(answer),
            Err(_) => {
                self.replace(operation, generation)?;
                Err(Error::Unavailable {
                    operation,
                    reason: format!("no answer within {} ms", ANSWER_TIMEOUT.as_millis()),
                })
            }
        }
    }

    /// Puts a new connection in the place of the one of `generation`, if nobody else has.
    fn replace(&self, operation: &'static str, generation: u64) -> Result<(), Error> {
        let mut link = self.link.lock();
        if link.generation == generation {
            link.manager = lazy_manager(&self.client).map_err(|error| failed(operation, &error))?;
            link.generation += 1;
        }
        Ok(())
    }

    /// Calls a script many times, in pipelines, and answers one result per call. The server's cache of scripts is
    /// volatile: the script is loaded when it turns out to be missing. Calls must be idempotent, for then they run again.
    pub(super) async fn call_all<T: FromRedisValue>(
        &self,
        operation: &'static str,
        script: &Script,
        calls: &[ScriptInvocation<'_>],
    ) -> Result<Vec<T>, Error> {
        let mut answers = Vec::with_capacity(calls.len());
        for chunk in calls.chunks(PIPELINE_CALLS) {
            let answered = match self.try_query(operation, &pipeline_of(None, chunk)).await? {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    self.try_query(operation, &pipeline_of(Some(script), chunk)).await?
                }
                other => other,
            };
            let answered: Vec<T> = answered.map_err(|error| failed(operation, &error))?;
            answers.extend(answered);
        }
        Ok(answers)
    }

    /// Calls a script once.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        operation: &'static str,
        script: &Script,
        call: ScriptInvocation<'_>,
    ) -> Result<T, Error> {
        let answers = self.call_all(operation, script, &[call]).await?;
        answers.into_iter().next().ok_or_else(|| Error::Damaged {
            operation,
            reason: "the script answered nothing".to_owned(),
        })
    }
}

fn lazy_manager(client: &Client) -> Result<ConnectionManager, RedisError> {
    let settings = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT))
        .set_min_delay(RECONNECT_MIN)
        .set_max_delay(RECONNECT_MAX)
        .set_number_of_retries(RECONNECT_TRIES);
    ConnectionManager::new_lazy_with_config(client.clone(), settings)
}

fn pipeline_of(load: Option<&Script>, calls: &[ScriptInvocation<'_>]) -> Pipeline {
    let mut pipeline = redis::pipe();
    if let Some(script) = load {
        pipeline.load_script(script).ignore();
    }
    for call in calls {
        pipeline.invoke_script(call);
    }
    pipeline
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the driver's enum is non-exhaustive")]
fn failed(operation: &'static str, error: &RedisError) -> Error {
    let reason = error.to_string();
    match error.kind() {
        ErrorKind::AuthenticationFailed
        | ErrorKind::InvalidClientConfig
        | ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::CrossSlot) => {
            Error::NotSetUp { operation, reason }
        }
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Error::Damaged { operation, reason },
        // The driver's enum may grow. Waiting for a Redis loses nothing, all of it is an accelerator.
        _ => Error::Unavailable { operation, reason },
    }
}
