//! offline-inbox and storage-consumer, as far as the gateway sees them.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tidings_proto::v1::{
    HeadsRequest, HeadsResponse, HistoryRangeRequest, HistoryRangeResponse, OpenRequest, OpenResponse, SyncChunk,
    SyncEvents, SyncRequest, history_server, inbox_server, sync_chunk,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Id of the streams' store.
pub(crate) const EPOCH: u64 = 0xfeed_0000_0000_0001;

type Chunks = mpsc::Receiver<Result<SyncChunk, Status>>;

#[derive(Default)]
struct InboxState {
    opened: Vec<OpenRequest>,
    syncs: Vec<SyncRequest>,
    rounds: VecDeque<Chunks>,
    heads: BTreeMap<String, u64>,
    down: bool,
}

/// Every device stands at 0 of a stream whose head the test sets.
#[derive(Clone, Default)]
pub(crate) struct FakeInbox(Arc<Mutex<InboxState>>);

impl FakeInbox {
    pub(crate) fn opened(&self) -> Vec<OpenRequest> {
        self.0.lock().opened.clone()
    }

    pub(crate) fn syncs(&self) -> Vec<SyncRequest> {
        self.0.lock().syncs.clone()
    }

    pub(crate) fn set_head(&self, uid: &str, head: u64) {
        self.0.lock().heads.insert(uid.to_owned(), head);
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.0.lock().down = down;
    }

    /// The chunks of the next round that has none yet.
    pub(crate) fn script_round(&self) -> mpsc::Sender<Result<SyncChunk, Status>> {
        let (sender, receiver) = mpsc::channel(1);
        self.0.lock().rounds.push_back(receiver);
        sender
    }

    fn check(&self) -> Result<(), Status> {
        if self.0.lock().down {
            return Err(Status::unavailable("down"));
        }
        Ok(())
    }
}

pub(crate) fn events(events: SyncEvents) -> SyncChunk {
    SyncChunk {
        chunk: Some(sync_chunk::Chunk::Events(events)),
    }
}

#[tonic::async_trait]
impl inbox_server::Inbox for FakeInbox {
    type SyncStream = Pin<Box<dyn Stream<Item = Result<SyncChunk, Status>> + Send>>;

    async fn open(&self, request: Request<OpenRequest>) -> Result<Response<OpenResponse>, Status> {
        self.check()?;
        let request = request.into_inner();
        let mut state = self.0.lock();
        let head_seq = state.heads.get(&request.viewer_uid).copied().unwrap_or(0);
        state.opened.push(request);
        Ok(Response::new(OpenResponse {
            epoch: EPOCH,
            cursor: 0,
            head_seq,
        }))
    }

    async fn sync(&self, request: Request<SyncRequest>) -> Result<Response<Self::SyncStream>, Status> {
        self.check()?;
        let request = request.into_inner();
        let after = request.after_user_seq;
        let mut state = self.0.lock();
        state.syncs.push(request);
        let stream: Self::SyncStream = match state.rounds.pop_front() {
            Some(chunks) => ReceiverStream::new(chunks).boxed(),
            None => tokio_stream::once(Ok(events(SyncEvents {
                end_of_backlog: true,
                head_seq: after,
                next_user_seq: after,
                ..SyncEvents::default()
            })))
            .boxed(),
        };
        Ok(Response::new(stream))
    }

    async fn heads(&self, request: Request<HeadsRequest>) -> Result<Response<HeadsResponse>, Status> {
        self.check()?;
        let state = self.0.lock();
        let head_of = |uid: &String| state.heads.get(uid).copied().unwrap_or(0);
        Ok(Response::new(HeadsResponse {
            head_seqs: request.into_inner().uids.iter().map(head_of).collect(),
        }))
    }
}

/// Answers the range with one page that the test sets, or an error.
#[derive(Clone, Default)]
pub(crate) struct FakeHistory(Arc<Mutex<HistoryState>>);

#[derive(Default)]
struct HistoryState {
    asked: Vec<HistoryRangeRequest>,
    page: Option<HistoryRangeResponse>,
}

impl FakeHistory {
    pub(crate) fn asked(&self) -> Vec<HistoryRangeRequest> {
        self.0.lock().asked.clone()
    }

    pub(crate) fn answer_with(&self, page: HistoryRangeResponse) {
        self.0.lock().page = Some(page);
    }
}

#[tonic::async_trait]
impl history_server::History for FakeHistory {
    async fn range(&self, request: Request<HistoryRangeRequest>) -> Result<Response<HistoryRangeResponse>, Status> {
        let mut state = self.0.lock();
        state.asked.push(request.into_inner());
        let page = state.page.clone();
        page.map(Response::new).ok_or_else(|| Status::unavailable("down"))
    }
}
