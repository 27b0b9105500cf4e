//! One `Delivery` stream per gateway: batches out, results in, both pipelined.
//!
//! A task owns the stream and its pending batches; [`GatewayStream`] is the handle. A batch ends with the gateway's
//! results, or with [`Undelivered`] when the stream breaks or the answer is late: nothing waits without a bound. A stream
//! on which one answer is late is given up with all that waits on it, and the next batch opens another: a gateway that
//! answers no more, or lost a batch, must not fill the places of those that come.

use std::collections::BTreeMap;
use std::time::Duration;

use tidings_proto::rpc::Channel;
use tidings_proto::v1::delivery_client::DeliveryClient;
use tidings_proto::v1::{DeliverItem, DeliverRequest, DeliverResult};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// The gateway did not say what became of a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("gateway unreachable: {0}")]
pub struct Undelivered(pub String);

struct Batch {
    items: Vec<DeliverItem>,
    /// The answer is late from here on.
    deadline: Instant,
    answer: Answer,
}

type Answer = oneshot::Sender<Result<Vec<DeliverResult>, Undelivered>>;

/// Handle on the stream to one gateway.
#[derive(Clone)]
pub struct GatewayStream {
    batches: mpsc::Sender<Batch>,
    timeout: Duration,
}

impl GatewayStream {
    /// Makes the handle and the task that must be spawned.
    pub fn new(
        channel: Channel,
        timeout: Duration,
        max_in_flight: usize,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let (batches, receiver) = mpsc::channel(max_in_flight);
        (
            Self { batches, timeout },
            run(channel, receiver, max_in_flight, metrics, stop),
        )
    }

    /// Sends a batch and waits for its results.
    pub async fn deliver(&self, items: Vec<DeliverItem>) -> Result<Vec<DeliverResult>, Undelivered> {
        let deadline = Instant::now() + self.timeout;
        let (answer, results) = oneshot::channel();
        let batch = Batch {
            items,
            deadline,
            answer,
        };
        match timeout_at(deadline, self.batches.send(batch)).await {
            // The task answers by the deadline.
            Ok(Ok(())) => results
                .await
                .unwrap_or_else(|_| Err(Undelivered("the stream has ended".to_owned()))),
            Ok(Err(_)) => Err(Undelivered("shutting down".to_owned())),
            Err(_) => Err(Undelivered(format!("no room for the batch within {:?}", self.timeout))),
        }
    }
}

/// Opens the stream when there is something to send, and again after it broke.
async fn run(
    channel: Channel,
    mut batches: mpsc::Receiver<Batch>,
    max_in_flight: usize,
    metrics: Metrics,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        let first = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            batch = batches.recv() => match batch {
                Some(batch) => batch,
                None => return Ok(()),
            },
        };
        let deadline = first.deadline;
        let (requests, outgoing) = mpsc::channel(max_in_flight);
        let mut pending = Pending {
            next_id: 1,
            waiting: BTreeMap::new(),
            requests,
        };
        pending.send(first);
        if pending.waiting.is_empty() {
            // It waited too long behind a stream that was given up.
            continue;
        }
        let mut client = DeliveryClient::new(channel.clone());
        let opened = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            opened = timeout_at(deadline, client.deliver(ReceiverStream::new(outgoing))) => opened,
        };
        let mut incoming = match opened {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => {
                pending.fail(&status.to_string());
                continue;
            }
            Err(_) => {
                pending.fail("the gateway did not open the stream in time");
                continue;
            }
        };
        metrics.streams_opened.inc();
        let why = loop {
            let room = pending.waiting.len() < max_in_flight;
            let late = pending.first_deadline();
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                batch = batches.recv(), if room => match batch {
                    Some(batch) => pending.send(batch),
                    None => return Ok(()),
                },
                response = incoming.message() => match response {
                    Ok(Some(response)) => pending.answered(response.batch_id, response.results),
                    Ok(None) => break "the gateway ended the stream".to_owned(),
                    Err(status) => break status.to_string(),
                },
                () = sleep_until(late.unwrap_or(deadline)), if late.is_some() => {
                    break "the gateway did not answer in time".to_owned();
                }
            }
        };
        pending.fail(&why);
    }
}

/// The batches on the way over one stream.
struct Pending {
    next_id: u64,
    waiting: BTreeMap<u64, (Instant, Answer)>,
    requests: mpsc::Sender<DeliverRequest>,
}

impl Pending {
    fn send(&mut self, batch: Batch) {
        if batch.deadline <= Instant::now() {
            answer(
                batch.answer,
                Err(Undelivered("the gateway was not free in time".to_owned())),
            );
            return;
        }
        let batch_id = self.next_id;
        self.next_id += 1;
        let request = DeliverRequest {
            batch_id,
            items: batch.items,
        };
        // What waits for an answer has room in the queue, so it is never full.
        match self.requests.try_send(request) {
            Ok(()) => {
                self.waiting.insert(batch_id, (batch.deadline, batch.answer));
            }
            Err(_) => answer(batch.answer, Err(Undelivered("the stream has ended".to_owned()))),
        }
    }

    /// Of the batch sent first: later ones were made later, but for the moment two callers need to queue.
    fn first_deadline(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|(_, (deadline, _))| *deadline)
    }

    fn answered(&mut self, batch_id: u64, results: Vec<DeliverResult>) {
        // A batch that is not known was answered before.
        if let Some((_, waits)) = self.waiting.remove(&batch_id) {
            answer(waits, Ok(results));
        }
    }

    fn fail(self, why: &str) {
        for (_, waits) in self.waiting.into_values() {
            answer(waits, Err(Undelivered(why.to_owned())));
        }
    }
}

fn answer(waits: Answer, result: Result<Vec<DeliverResult>, Undelivered>) {
    // The caller is gone when its partition was taken away in the middle of a batch: nobody counts it then.
    let _ = waits.send(result);
}
