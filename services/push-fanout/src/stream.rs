//! One `Delivery` stream per gateway: batches out, results in, both pipelined.
//!
//! A task owns the stream and its pending batches; [`GatewayStream`] is the handle. A batch ends with the gateway's
//! results, or with [`Undelivered`] when the stream breaks or the answer is late: nothing waits without a bound.

use std::collections::HashMap;
use std::time::Duration;

use tidings_proto::rpc::Channel;
use tidings_proto::v1::delivery_client::DeliveryClient;
use tidings_proto::v1::{DeliverItem, DeliverRequest, DeliverResult};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// The gateway did not say what became of a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("gateway unreachable: {0}")]
pub struct Undelivered(pub String);

struct Batch {
    items: Vec<DeliverItem>,
    answer: oneshot::Sender<Result<Vec<DeliverResult>, Undelivered>>,
}

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
        let gone = |_| Undelivered("the stream has ended".to_owned());
        let exchange = async {
            let (answer, results) = oneshot::channel();
            self.batches
                .send(Batch { items, answer })
                .await
                .map_err(|_| Undelivered("shutting down".to_owned()))?;
            results.await.map_err(gone)?
        };
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(results) => results,
            Err(_) => Err(Undelivered(format!("no answer within {:?}", self.timeout))),
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
        let (requests, outgoing) = mpsc::channel(max_in_flight);
        let mut pending = Pending {
            next_id: 1,
            answers: HashMap::new(),
            requests,
        };
        pending.send(first).await;
        let mut client = DeliveryClient::new(channel.clone());
        let opened = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            opened = client.deliver(ReceiverStream::new(outgoing)) => opened,
        };
        let mut incoming = match opened {
            Ok(response) => response.into_inner(),
            Err(status) => {
                pending.fail(&status.to_string());
                continue;
            }
        };
        metrics.streams_opened.inc();
        let why = loop {
            let room = pending.answers.len() < max_in_flight;
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                batch = batches.recv(), if room => match batch {
                    Some(batch) => pending.send(batch).await,
                    None => return Ok(()),
                },
                response = incoming.message() => match response {
                    Ok(Some(response)) => {
                        // A late answer to a batch that timed out finds nobody waiting: the batch was counted already.
                        if let Some(answer) = pending.answers.remove(&response.batch_id) {
                            let _ = answer.send(Ok(response.results));
                        }
                    }
                    Ok(None) => break "the gateway ended the stream".to_owned(),
                    Err(status) => break status.to_string(),
                },
            }
        };
        pending.fail(&why);
    }
}

struct Pending {
    next_id: u64,
    answers: HashMap<u64, oneshot::Sender<Result<Vec<DeliverResult>, Undelivered>>>,
    requests: mpsc::Sender<DeliverRequest>,
}

impl Pending {
    async fn send(&mut self, batch: Batch) {
        // Answers given up by time-out make room again.
        self.answers.retain(|_, answer| !answer.is_closed());
        let batch_id = self.next_id;
        self.next_id += 1;
        let request = DeliverRequest {
            batch_id,
            items: batch.items,
        };
        match self.requests.send(request).await {
            Ok(()) => {
                self.answers.insert(batch_id, batch.answer);
            }
            Err(_) => {
                // The receiver of the answer may have timed out; then it was counted there.
                let _ = batch.answer.send(Err(Undelivered("the stream has ended".to_owned())));
            }
        }
    }

    fn fail(self, why: &str) {
        for answer in self.answers.into_values() {
            // As above.
            let _ = answer.send(Err(Undelivered(why.to_owned())));
        }
    }
}
