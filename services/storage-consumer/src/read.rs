//! Step 2: reads of history, by any replica.
//!
//! Visibility is applied here: the two users of a 1:1 see all of it, nobody else anything.

use std::sync::Arc;

use tidings_chassis::grpc::status_of;
use tidings_domain::{Conversation, ConversationKind, Uid};
use tidings_proto::v1::{HistoryRangeRequest, HistoryRangeResponse, history_server};
use tidings_storage::port::HistoryStore;
use tonic::{Request, Response, Status};

use crate::config::StorageConsumerConfig;
use crate::metrics::Metrics;

/// The gRPC service `History`.
#[derive(Clone)]
pub struct HistoryReads {
    store: Arc<dyn HistoryStore>,
    config: StorageConsumerConfig,
    metrics: Metrics,
}

impl HistoryReads {
    /// Reads from `store`.
    #[must_use]
    pub fn new(store: Arc<dyn HistoryStore>, config: StorageConsumerConfig, metrics: Metrics) -> Self {
        Self { store, config, metrics }
    }
}

/// The range a request asks for, with the page limit applied.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    from: u64,
    to: u64,
    /// More of what was asked for lies outside the page.
    has_more: bool,
}

/// `from` = 0 asks for the page that ends at `to`, otherwise the page begins at `from`.
fn page(from: u64, to: u64, limit: u64) -> Page {
    if from == 0 {
        let low = to.saturating_sub(limit - 1).max(1);
        Page {
            from: low,
            to,
            has_more: low > 1,
        }
    } else {
        let high = to.min(from.saturating_add(limit - 1));
        Page {
            from,
            to: high,
            has_more: high < to,
        }
    }
}

#[tonic::async_trait]
impl history_server::History for HistoryReads {
    async fn range(&self, request: Request<HistoryRangeRequest>) -> Result<Response<HistoryRangeResponse>, Status> {
        let request = request.into_inner();
        let invalid = |error: tidings_domain::IdError| Status::invalid_argument(error.to_string());
        let viewer = Uid::parse(&request.viewer_uid).map_err(invalid)?;
        let conversation = Conversation::parse(&request.conversation).map_err(invalid)?;
        match conversation.kind() {
            ConversationKind::Direct(low, high) if viewer == low || viewer == high => {}
            ConversationKind::Direct(..) => {
                return Err(Status::permission_denied("not a member of this conversation"));
            }
            ConversationKind::Group(_) => return Err(Status::unimplemented("groups are not served yet")),
        }
        let limit = match request.limit {
            0 => self.config.page_messages,
            limit => limit.min(self.config.page_messages),
        };
        let newest = self
            .store
            .newest_conv_seq(&conversation)
            .await
            .map_err(|e| status_of(&e))?;
        let to = if request.to_conv_seq == 0 {
            newest
        } else {
            request.to_conv_seq.min(newest)
        };
        if to == 0 || request.from_conv_seq > to {
            return Ok(Response::new(HistoryRangeResponse {
                messages: Vec::new(),
                has_more: false,
                from_conv_seq: request.from_conv_seq,
                to_conv_seq: to,
            }));
        }
        let mut page = page(request.from_conv_seq, to, u64::from(limit));
        let rows = self
            .store
            .history_range(&conversation, page.from, page.to, limit as usize)
            .await
            .map_err(|e| status_of(&e))?;
        let mut bytes = 0;
        let mut messages = Vec::with_capacity(rows.len());
        let backward = request.from_conv_seq == 0;
        // The byte limit cuts the far end: the oldest of a page that ends at `to`, else the newest.
        let ordered: Box<dyn Iterator<Item = _> + Send> = if backward {
            Box::new(rows.into_iter().rev())
        } else {
            Box::new(rows.into_iter())
        };
        for row in ordered {
            bytes += row.message.len();
            if bytes > self.config.page_bytes as usize && !messages.is_empty() {
                page.has_more = true;
                if backward {
                    page.from = row.conv_seq + 1;
                } else {
                    page.to = row.conv_seq - 1;
                }
                break;
            }
            messages.push(row.message);
        }
        if backward {
            messages.reverse();
        }
        self.metrics.history_messages_read.inc_by(messages.len() as u64);
        Ok(Response::new(HistoryRangeResponse {
            messages,
            has_more: page.has_more,
            from_conv_seq: page.from,
            to_conv_seq: page.to,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_backward_from_the_newest_and_forward_from_a_number() {
        assert_eq!(
            page(0, 250, 100),
            Page {
                from: 151,
                to: 250,
                has_more: true
            }
        );
        assert_eq!(
            page(0, 100, 100),
            Page {
                from: 1,
                to: 100,
                has_more: false
            }
        );
        assert_eq!(
            page(0, 1, 100),
            Page {
                from: 1,
                to: 1,
                has_more: false
            }
        );
        assert_eq!(
            page(10, 250, 100),
            Page {
                from: 10,
                to: 109,
                has_more: true
            }
        );
        assert_eq!(
            page(200, 250, 100),
            Page {
                from: 200,
                to: 250,
                has_more: false
            }
        );
        assert_eq!(
            page(u64::MAX, u64::MAX, 100),
            Page {
                from: u64::MAX,
                to: u64::MAX,
                has_more: false
            }
        );
    }
}
