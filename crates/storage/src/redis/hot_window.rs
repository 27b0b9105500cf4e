//! The hot window: a stream per user with ids `seq-0`.

use std::collections::HashMap;

use async_trait::async_trait;
use bytes::Bytes;
use redis::{Script, streams::StreamRangeReply};
use tidings_domain::Uid;

use super::RedisConnection;
use crate::Error;
use crate::port::{HotRead, HotWindow};

/// Events kept of a user, about: Redis trims whole nodes of the stream.
const MAX_EVENTS: usize = 512;
/// After this long without an append the cold store serves a user just as well.
const TTL_SECONDS: u64 = 24 * 60 * 60;
/// Field of the event in a stream entry.
const EVENT: &str = "e";

/// The hot window in Redis.
#[derive(Debug, Clone)]
pub struct RedisHotWindow {
    connection: RedisConnection,
    append: Script,
}

impl RedisHotWindow {
    /// The window on `connection`.
    #[must_use]
    pub fn new(connection: RedisConnection) -> Self {
        Self {
            connection,
            append: Script::new(include_str!("lua/append.lua")),
        }
    }
}

#[async_trait]
impl HotWindow for RedisHotWindow {
    async fn append(&self, events: &[(Uid, u64, Bytes)]) -> Result<(), Error> {
        let mut by_user: HashMap<&str, Vec<(u64, &Bytes)>> = HashMap::new();
        for (uid, seq, event) in events {
            by_user.entry(uid.as_str()).or_default().push((*seq, event));
        }
        let calls: Vec<_> = by_user
            .into_iter()
            .map(|(uid, mut events)| {
                events.sort_by_key(|(seq, _)| *seq);
                // Older ones would be trimmed by the newer ones of the same call.
                let newest = events.len().saturating_sub(MAX_EVENTS);
                let mut call = self.append.prepare_invoke();
                call.key(self.connection.key("ib", uid))
                    .key(self.connection.key("ibm", uid))
                    .arg(MAX_EVENTS)
                    .arg(TTL_SECONDS);
                for (seq, event) in &events[newest..] {
                    call.arg(*seq).arg(event.as_ref());
                }
                call
            })
            .collect();
        self.connection
            .call_all::<String>("append", &self.append, &calls)
            .await
            .map(drop)
    }

    async fn read(&self, uid: &Uid, after: u64, limit: usize) -> Result<HotRead, Error> {
        const OPERATION: &str = "read";
        let mut pipeline = redis::pipe();
        pipeline
            .hget(self.connection.key("ibm", uid.as_str()), "hi")
            .xrange_count(
                self.connection.key("ib", uid.as_str()),
                format!("{}-0", after.saturating_add(1)),
                "+",
                limit,
            );
        let (hi, entries): (Option<u64>, StreamRangeReply) = self.connection.query(OPERATION, &pipeline).await?;
        let mut read = HotRead {
            events: Vec::with_capacity(entries.ids.len()),
            hi: hi.unwrap_or(0),
        };
        // What Redis holds is verified, not believed: a stream that a fail-over set back, or whose other key was evicted,
        // ends where it stops being contiguous.
        for (next, entry) in (after.saturating_add(1)..).zip(&entries.ids) {
            let seq = entry.id.split_once('-').and_then(|(seq, _)| seq.parse::<u64>().ok());
            let Some(event) = entry.get::<Vec<u8>>(EVENT) else {
                break;
            };
            if seq != Some(next) {
                break;
            }
            read.events.push((next, Bytes::from(event)));
            read.hi = read.hi.max(next);
        }
        Ok(read)
    }
}
