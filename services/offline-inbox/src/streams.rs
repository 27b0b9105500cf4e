//! Reads of users' streams, by any replica: opening a device, sync rounds, heads.
//!
//! **Guarantee.** A round returns every event above the cursor, in order and without a hole, and gives the end marker only
//! after it has probed for rows above the head it knows (architecture.md section 3, Sync). The hot window only speeds
//! it up: its answer is used where it is contiguous with the cursor, everything else comes from the rows. An error ends
//! the round with a status, never with an empty page (req:C3).

use std::sync::Arc;

use bytes::Bytes;
use tidings_domain::clock::SharedClock;
use tidings_domain::state::DeviceOpen;
use tidings_domain::{DeviceId, Uid};
use tidings_storage::Error;
use tidings_storage::port::{HotWindow, InboxReader};

use crate::metrics::Metrics;

/// Reads of users' streams.
#[derive(Clone)]
pub struct Streams {
    reader: Arc<dyn InboxReader>,
    hot: Arc<dyn HotWindow>,
    clock: SharedClock,
    metrics: Metrics,
}

/// Where a device stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Id of the streams' store.
    pub epoch: u64,
    /// What the device has stored, or where a fresh one starts.
    pub cursor: u64,
    /// Newest number of the stream.
    pub head: u64,
}

/// One page of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// (user_seq, encoded Event), contiguous from the cursor.
    pub events: Vec<(u64, Bytes)>,
    /// The round is over: nothing is above `next`.
    pub end: bool,
    /// Newest number known.
    pub head: u64,
    /// The cursor after the page.
    pub next: u64,
}

/// What a round met next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Events, or the end.
    Page(Page),
    /// Numbers up to `floor` are gone by retention; go on from there.
    Truncated {
        /// Last number that is gone.
        floor: u64,
        /// How many events were passed over.
        missed: u64,
    },
}

impl Streams {
    /// Reads rows from `reader`, helped by `hot`.
    #[must_use]
    pub fn new(reader: Arc<dyn InboxReader>, hot: Arc<dyn HotWindow>, clock: SharedClock, metrics: Metrics) -> Self {
        Self {
            reader,
            hot,
            clock,
            metrics,
        }
    }

    /// Makes a device known, durably. The first device a user ever opens starts at the floor, later fresh ones at the
    /// head; a known device goes on where it stored.
    pub async fn open(&self, uid: &Uid, device: &DeviceId, fresh: bool) -> Result<Opened, Error> {
        let epoch = self.reader.cursor_epoch().await?;
        let head = self.head(uid, 0).await?;
        if let Some(open) = self.reader.device_open(uid, device).await? {
            let stored = self
                .reader
                .device_register(uid, device)
                .await?
                .map(|register| register.stored);
            // A fresh device that has not stored anything under this name asks again: the answer to its first try was
            // lost, and what it was promised then is still owed. Only a device that has stored can have lost its data.
            if !fresh || stored.is_none_or(|stored| stored <= open.start_cursor) {
                let cursor = stored.unwrap_or(0).max(open.start_cursor);
                return Ok(Opened { epoch, cursor, head });
            }
        }
        let start_cursor = if self.reader.has_devices(uid).await? {
            head
        } else {
            self.reader.floor(uid).await?
        };
        let open = DeviceOpen {
            start_cursor,
            opened_at: self.clock.now(),
        };
        self.reader.write_device_open(uid, device, open).await?;
        Ok(Opened {
            epoch,
            cursor: start_cursor,
            head,
        })
    }

    /// The id of the streams' store.
    pub async fn epoch(&self) -> Result<u64, Error> {
        self.reader.cursor_epoch().await
    }

    /// The newest number of a stream: the head register lags behind the rows by up to a checkpoint, so the rows above it
    /// are probed.
    pub async fn head(&self, uid: &Uid, known: u64) -> Result<u64, Error> {
        let register = self
            .reader
            .heads(std::slice::from_ref(uid))
            .await?
            .first()
            .copied()
            .unwrap_or(0);
        self.reader.newest_row(uid, register.max(known)).await
    }

    /// Heads of many users, from the registers alone: good enough for a heartbeat.
    pub async fn heads(&self, uids: &[Uid]) -> Result<Vec<u64>, Error> {
        self.reader.heads(uids).await
    }

    /// Numbers up to this are gone by retention.
    pub async fn floor(&self, uid: &Uid) -> Result<u64, Error> {
        self.reader.floor(uid).await
    }

    /// The next page above `after`, of at most `max_events` events and about `max_bytes`.
    pub async fn page(&self, uid: &Uid, after: u64, max_events: usize, max_bytes: usize) -> Result<Step, Error> {
        let (mut events, hot_hi) = self.hot_events(uid, after, max_events).await;
        if events.is_empty() {
            events = self.cold_events(uid, after, max_events).await?;
        } else {
            self.metrics.hot_pages.inc();
        }
        if events.is_empty() {
            // Not from the window's end on: one that outlived the rows (a store set back) would pass for a head, and the
            // cursor would go beyond the stream.
            let head = self.head(uid, after).await?;
            if head == after {
                return Ok(Step::Page(Page {
                    events,
                    end: true,
                    head,
                    next: after,
                }));
            }
            // Rows came between the read and the probe; they are durable before a head tells of them.
            events = self.cold_events(uid, after, max_events).await?;
        }
        if events.first().is_none_or(|(first, _)| *first != after + 1) {
            return self.passed_over(uid, after).await;
        }
        events.truncate(whole_pages(&events, after, max_bytes));
        let next = events.last().map_or(after, |(seq, _)| *seq);
        Ok(Step::Page(Page {
            events,
            end: false,
            head: hot_hi.max(next),
            next,
        }))
    }

    async fn cold_events(&self, uid: &Uid, after: u64, max_events: usize) -> Result<Vec<(u64, Bytes)>, Error> {
        self.metrics.cold_pages.inc();
        let rows = self.reader.rows_after(uid, after, max_events).await?;
        Ok(rows.into_iter().map(|row| (row.seq, row.event)).collect())
    }

    /// The row right above `after` is not there but later ones are or were: gone by retention, or a hole. A stream has no holes
    /// (seq:I4, seq:I5), so one is a fault that must not look like an old stream: the cursor would pass it for good.
    async fn passed_over(&self, uid: &Uid, after: u64) -> Result<Step, Error> {
        let floor = self.reader.floor(uid).await?;
        if floor > after {
            return Ok(Step::Truncated {
                floor,
                missed: floor - after,
            });
        }
        self.metrics.stream_holes.inc();
        Err(Error::Unavailable {
            operation: "rows_after",
            reason: format!("the stream has no row {} although later ones exist", after + 1),
        })
    }

    /// What the hot window has right above `after`, and its newest number; nothing if it does not begin there. A window
    /// that cannot be read is no error: the rows have everything.
    async fn hot_events(&self, uid: &Uid, after: u64, limit: usize) -> (Vec<(u64, Bytes)>, u64) {
        match self.hot.read(uid, after, limit).await {
            Ok(read) if read.events.first().is_some_and(|(first, _)| *first == after + 1) => (read.events, read.hi),
            Ok(_) => (Vec::new(), 0),
            Err(error) => {
                self.metrics.hot_window_errors.inc();
                tracing::debug!(%error, "hot window not readable, reading rows");
                (Vec::new(), 0)
            }
        }
    }
}

/// How many of `events` make a page: contiguous from the cursor, within the bytes, at least one if there is one.
fn whole_pages(events: &[(u64, Bytes)], after: u64, max_bytes: usize) -> usize {
    let mut bytes = 0;
    for (index, (seq, event)) in events.iter().enumerate() {
        bytes += event.len();
        let contiguous = *seq == after + 1 + index as u64;
        if !contiguous || (bytes > max_bytes && index > 0) {
            return index;
        }
    }
    events.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(seqs: &[u64], size: usize) -> Vec<(u64, Bytes)> {
        seqs.iter().map(|seq| (*seq, Bytes::from(vec![0; size]))).collect()
    }

    #[test]
    fn a_page_stops_at_a_hole_and_at_the_byte_limit() {
        assert_eq!(whole_pages(&events(&[5, 6, 8], 1), 4, 100), 2);
        assert_eq!(whole_pages(&events(&[6], 1), 4, 100), 0);
        assert_eq!(whole_pages(&events(&[5, 6, 7], 60), 4, 130), 2);
        assert_eq!(
            whole_pages(&events(&[5, 6], 500), 4, 130),
            1,
            "at least one, else the round would stand still"
        );
    }
}
