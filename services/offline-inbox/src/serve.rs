//! The gRPC service `Inbox`: what gateways ask of users' streams.

use std::pin::Pin;

use futures::Stream;
use futures::stream;
use tidings_chassis::grpc::status_of;
use tidings_domain::{DeviceId, Uid};
use tidings_proto::v1::{
    HeadsRequest, HeadsResponse, OpenRequest, OpenResponse, StoredEvent, SyncChunk, SyncEvents, SyncRequest, SyncReset,
    SyncTruncated, inbox_server, sync_chunk,
};
use tonic::{Request, Response, Status};

use crate::config::OfflineInboxConfig;
use crate::streams::{Page, Step, Streams};

/// Most users of one `Heads` call.
const MAX_HEADS: usize = 1000;

/// The gRPC service `Inbox`.
#[derive(Clone)]
pub struct InboxService {
    streams: Streams,
    config: OfflineInboxConfig,
}

impl InboxService {
    /// Serves `streams`.
    #[must_use]
    pub fn new(streams: Streams, config: OfflineInboxConfig) -> Self {
        Self { streams, config }
    }

    fn page_limits(&self, request: &SyncRequest) -> (usize, usize) {
        let limit = |asked: u32, most: u32| if asked == 0 { most } else { asked.min(most) } as usize;
        (
            limit(request.page_events, self.config.page_events),
            limit(request.page_bytes, self.config.page_bytes),
        )
    }
}

fn uid(text: &str) -> Result<Uid, Status> {
    Uid::parse(text).map_err(|error| Status::invalid_argument(error.to_string()))
}

fn device(text: &str) -> Result<DeviceId, Status> {
    DeviceId::parse(text).map_err(|error| Status::invalid_argument(error.to_string()))
}

fn chunk(kind: sync_chunk::Chunk) -> SyncChunk {
    SyncChunk { chunk: Some(kind) }
}

fn events_chunk(page: Page) -> SyncChunk {
    chunk(sync_chunk::Chunk::Events(SyncEvents {
        events: page
            .events
            .into_iter()
            .map(|(user_seq, event)| StoredEvent { user_seq, event })
            .collect(),
        end_of_backlog: page.end,
        head_seq: page.head,
        next_user_seq: page.next,
    }))
}

/// A round under way: pages are read when the caller takes them, so a slow caller holds nothing here.
struct Round {
    streams: Streams,
    uid: Uid,
    after: u64,
    max_events: usize,
    max_bytes: usize,
    ended: bool,
}

impl Round {
    async fn next(mut self) -> Result<Option<(SyncChunk, Self)>, Status> {
        while !self.ended {
            let step = self
                .streams
                .page(&self.uid, self.after, self.max_events, self.max_bytes)
                .await;
            match step.map_err(|error| status_of(&error))? {
                Step::Truncated { floor, missed } => {
                    self.after = floor;
                    let truncated = SyncTruncated {
                        floor_seq: floor,
                        unread: missed,
                    };
                    return Ok(Some((chunk(sync_chunk::Chunk::Truncated(truncated)), self)));
                }
                Step::Page(page) => {
                    self.after = page.next;
                    self.ended = page.end;
                    if page.end || !page.events.is_empty() {
                        return Ok(Some((events_chunk(page), self)));
                    }
                }
            }
        }
        Ok(None)
    }
}

#[tonic::async_trait]
impl inbox_server::Inbox for InboxService {
    type SyncStream = Pin<Box<dyn Stream<Item = Result<SyncChunk, Status>> + Send>>;

    async fn open(&self, request: Request<OpenRequest>) -> Result<Response<OpenResponse>, Status> {
        let request = request.into_inner();
        let opened = self
            .streams
            .open(&uid(&request.viewer_uid)?, &device(&request.device_id)?, request.fresh)
            .await
            .map_err(|error| status_of(&error))?;
        Ok(Response::new(OpenResponse {
            epoch: opened.epoch,
            cursor: opened.cursor,
            head_seq: opened.head,
        }))
    }

    async fn sync(&self, request: Request<SyncRequest>) -> Result<Response<Self::SyncStream>, Status> {
        let request = request.into_inner();
        let uid = uid(&request.viewer_uid)?;
        let (max_events, max_bytes) = self.page_limits(&request);
        let failed = |error| status_of(&error);
        let epoch = self.streams.epoch().await.map_err(failed)?;
        let head = self.streams.head(&uid, 0).await.map_err(failed)?;
        if request.after_user_seq > head || (request.after_user_seq > 0 && request.epoch != epoch) {
            let floor_seq = self.streams.floor(&uid).await.map_err(failed)?;
            let reset = chunk(sync_chunk::Chunk::Reset(SyncReset {
                epoch,
                head_seq: head,
                floor_seq,
            }));
            return Ok(Response::new(Box::pin(stream::iter([Ok(reset)]))));
        }
        let round = Round {
            streams: self.streams.clone(),
            uid,
            after: request.after_user_seq,
            max_events,
            max_bytes,
            ended: false,
        };
        Ok(Response::new(Box::pin(stream::try_unfold(round, Round::next))))
    }

    async fn heads(&self, request: Request<HeadsRequest>) -> Result<Response<HeadsResponse>, Status> {
        let request = request.into_inner();
        if request.uids.len() > MAX_HEADS {
            return Err(Status::invalid_argument(format!(
                "{} uids asked, at most {MAX_HEADS} are answered",
                request.uids.len()
            )));
        }
        let uids = request
            .uids
            .iter()
            .map(|text| uid(text))
            .collect::<Result<Vec<_>, _>>()?;
        let head_seqs = self.streams.heads(&uids).await.map_err(|error| status_of(&error))?;
        Ok(Response::new(HeadsResponse { head_seqs }))
    }
}
