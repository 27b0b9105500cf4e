//! Step 2: the operator's view of dead letters.

use std::sync::Arc;

use prost::Message as _;
use tidings_chassis::grpc::status_of;
use tidings_domain::Topic;
use tidings_proto::v1::{DeadLetter, ListDeadLettersRequest, ListDeadLettersResponse, dead_letters_server};
use tidings_storage::port::{DeadLetterFilter, DeadLetterRow, DeadLetterState, DeadLetterStore};
use tonic::{Request, Response, Status};

use crate::config::CompensatorConfig;

/// Bytes of one page, passed by its first entry alone: with the values shown, the entries of a page could be larger than
/// the 4 MiB that a gRPC message may have.
const PAGE_BYTES: usize = 1 << 20;

/// The gRPC service `DeadLetters`.
#[derive(Clone)]
pub struct Operate {
    store: Arc<dyn DeadLetterStore>,
    config: CompensatorConfig,
}

impl Operate {
    /// Reads from `store`.
    #[must_use]
    pub fn new(store: Arc<dyn DeadLetterStore>, config: CompensatorConfig) -> Self {
        Self { store, config }
    }
}

fn filter_of(request: &ListDeadLettersRequest) -> Result<DeadLetterFilter, Status> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let topic = match request.topic.as_str() {
        "" => None,
        name => Some(Topic::ALL.into_iter().find(|t| t.short_name() == name).ok_or_else(|| {
            let names: Vec<_> = Topic::ALL.iter().map(|t| t.short_name()).collect();
            Status::invalid_argument(format!("topic {name} is unknown; known are {}", names.join(", ")))
        })?),
    };
    let state = match request.state.as_str() {
        "" => None,
        name => Some(DeadLetterState::from_name(name).ok_or_else(|| {
            Status::invalid_argument(format!(
                "state {name} is unknown; known are new, replaying, resolved, parked, dropped"
            ))
        })?),
    };
    Ok(DeadLetterFilter {
        error_class: some(&request.error_class),
        topic,
        state,
        after_id: some(&request.after_id),
    })
}

/// What is shown of an entry; key and value only if asked for.
fn shown(row: DeadLetterRow, with_value: bool) -> DeadLetter {
    DeadLetter {
        value_bytes: u32::try_from(row.value.as_ref().map_or(0, |value| value.len())).unwrap_or(u32::MAX),
        value_is_null: row.value.is_none(),
        key: if with_value {
            row.key.unwrap_or_default()
        } else {
            Default::default()
        },
        value: if with_value {
            row.value.unwrap_or_default()
        } else {
            Default::default()
        },
        dlq_id: row.dlq_id,
        topic: row.topic.short_name().to_owned(),
        partition: row.partition,
        offset: row.offset,
        consumer_group: row.group,
        error_class: row.error_class,
        error_detail: row.error_detail,
        attempts: row.attempts,
        first_failed_at: row.first_failed_at.get(),
        last_failed_at: row.last_failed_at.get(),
        state: row.state.name().to_owned(),
        replay_count: row.replay_count,
    }
}

#[tonic::async_trait]
impl dead_letters_server::DeadLetters for Operate {
    async fn list(
        &self,
        request: Request<ListDeadLettersRequest>,
    ) -> Result<Response<ListDeadLettersResponse>, Status> {
        let request = request.into_inner();
        let filter = filter_of(&request)?;
        let limit = match request.limit {
            0 => self.config.page_entries,
            limit => limit.min(self.config.page_entries),
        } as usize;
        let rows = self.store.list(&filter, limit).await.map_err(|e| status_of(&e))?;
        let mut more = rows.len() == limit;
        let mut entries: Vec<DeadLetter> = Vec::with_capacity(rows.len());
        let mut bytes = 0;
        for row in rows {
            let entry = shown(row, request.with_value);
            bytes += entry.encoded_len();
            if bytes > PAGE_BYTES && !entries.is_empty() {
                more = true;
                break;
            }
            entries.push(entry);
        }
        let next_after_id = match entries.last() {
            Some(last) if more => last.dlq_id.clone(),
            Some(_) | None => String::new(),
        };
        Ok(Response::new(ListDeadLettersResponse { entries, next_after_id }))
    }
}
