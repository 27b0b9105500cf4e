//! Sessions, and the few ways a statement is run.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::deserialize::row::DeserializeRow;
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::speculative_execution::SimpleSpeculativeExecutionPolicy;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};

use super::config::CqlConfig;
use super::errors;
use super::retry_policy::NextNode;
use crate::Error;

/// Schema changes wait for agreement between nodes.
pub(super) const SCHEMA_TIMEOUT: Duration = Duration::from_secs(30);
/// From dial to ready.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A read that is not answered by then is also sent to another node: above a healthy node's 99th percentile.
const SPECULATE_AFTER: Duration = Duration::from_millis(50);
/// Requests of one call in flight at once: enough to fill a cluster's pipes, below the 128 requests at which the servers
/// begin to queue per connection in their default settings.
pub(super) const CONCURRENCY: usize = 64;
/// Rows per page of an answer: with bodies of 64 KiB a page stays near 6 MiB.
const PAGE_ROWS: i32 = 100;
/// Rows and bytes of one batch. The server holds a batch in memory as one mutation, of at most 16 MiB in Cassandra.
const BATCH_ROWS: usize = 100;
const BATCH_BYTES: usize = 1 << 20;

/// Opens a session on `keyspace`, or on none, with `timeout` per request.
pub(super) async fn connect(config: &CqlConfig, keyspace: Option<&str>, timeout: Duration) -> Result<Session, Error> {
    let mut policy = DefaultPolicy::builder().token_aware(true);
    if let Some(datacenter) = &config.local_datacenter {
        policy = policy.prefer_datacenter(datacenter.clone());
    }
    let profile = ExecutionProfile::builder()
        .consistency(Consistency::LocalQuorum)
        .serial_consistency(Some(SerialConsistency::LocalSerial))
        .request_timeout(Some(timeout))
        .retry_policy(Arc::new(NextNode))
        .load_balancing_policy(policy.build())
        .build();
    let mut builder = SessionBuilder::new()
        .known_nodes(&config.contact_points)
        .connection_timeout(CONNECT_TIMEOUT)
        .disallow_shard_aware_port(config.disallow_shard_aware_port)
        .default_execution_profile_handle(profile.into_handle());
    if let Some(username) = &config.username {
        builder = builder.user(username, config.password.as_deref().unwrap_or_default());
    }
    if let Some(keyspace) = keyspace {
        builder = builder.use_keyspace(keyspace, false);
    }
    Box::pin(builder.build())
        .await
        .map_err(|error| errors::new_session("connect", &error))
}

/// The profile of reads: as the session's, and a slow answer is also asked for elsewhere.
pub(super) fn read_profile(session: &Session) -> ExecutionProfileHandle {
    session
        .get_default_execution_profile_handle()
        .pointee_to_builder()
        .speculative_execution_policy(Some(Arc::new(SimpleSpeculativeExecutionPolicy {
            max_retry_count: 1,
            retry_interval: SPECULATE_AFTER,
        })))
        .build()
        .into_handle()
}

/// Prepares an idempotent statement.
pub(super) async fn prepare(
    session: &Session,
    text: &str,
    profile: Option<ExecutionProfileHandle>,
) -> Result<PreparedStatement, Error> {
    let mut statement = Box::pin(session.prepare(text))
        .await
        .map_err(|error| errors::prepare("prepare", &error))?;
    statement.set_is_idempotent(true);
    statement.set_page_size(PAGE_ROWS);
    statement.set_execution_profile_handle(profile);
    Ok(statement)
}

/// Runs a statement that answers nothing.
pub(super) async fn write(
    session: &Session,
    operation: &'static str,
    statement: &PreparedStatement,
    values: impl SerializeRow,
) -> Result<(), Error> {
    Box::pin(session.execute_unpaged(statement, values))
        .await
        .map(drop)
        .map_err(|error| errors::execution(operation, &error))
}

/// Reads at most one row. A server may answer empty pages before the one that has it.
pub(super) async fn read_one<R>(
    session: &Session,
    operation: &'static str,
    statement: &PreparedStatement,
    values: impl SerializeRow + Clone,
) -> Result<Option<R>, Error>
where
    R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
{
    let mut rows = read_all(session, operation, statement, values).await?;
    rows.truncate(1);
    Ok(rows.pop())
}

/// Reads all rows of a bounded answer, page by page.
pub(super) async fn read_all<R>(
    session: &Session,
    operation: &'static str,
    statement: &PreparedStatement,
    values: impl SerializeRow + Clone,
) -> Result<Vec<R>, Error>
where
    R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
{
    let mut rows = Vec::new();
    let mut paging = PagingState::start();
    loop {
        let (page, next) = Box::pin(session.execute_single_page(statement, values.clone(), paging))
            .await
            .map_err(|error| errors::execution(operation, &error))?;
        let page = page
            .into_rows_result()
            .map_err(|error| errors::unreadable(operation, &error))?;
        let decoded = page
            .rows::<R>()
            .map_err(|error| errors::unreadable(operation, &error))?;
        for row in decoded {
            rows.push(row.map_err(|error| errors::unreadable(operation, &error))?);
        }
        match next {
            PagingStateResponse::HasMorePages { state } => paging = state,
            PagingStateResponse::NoMorePages => return Ok(rows),
        }
    }
}

/// A row to write and its size in bytes, about.
pub(super) struct RowToWrite<V> {
    pub(super) values: V,
    pub(super) bytes: usize,
}

/// Upserts rows of one partition, in order: one batch after the other, each within the bounds of a batch.
pub(super) async fn write_partition<V: SerializeRow>(
    session: &Session,
    operation: &'static str,
    statement: &PreparedStatement,
    rows: Vec<RowToWrite<V>>,
) -> Result<(), Error> {
    let mut chunk = Vec::new();
    let mut bytes = 0;
    for row in rows {
        if !chunk.is_empty() && (chunk.len() == BATCH_ROWS || bytes + row.bytes > BATCH_BYTES) {
            write_batch(session, operation, statement, std::mem::take(&mut chunk)).await?;
            bytes = 0;
        }
        bytes += row.bytes;
        chunk.push(row.values);
    }
    write_batch(session, operation, statement, chunk).await
}

async fn write_batch<V: SerializeRow>(
    session: &Session,
    operation: &'static str,
    statement: &PreparedStatement,
    mut rows: Vec<V>,
) -> Result<(), Error> {
    if rows.len() <= 1 {
        return match rows.pop() {
            Some(row) => write(session, operation, statement, row).await,
            None => Ok(()),
        };
    }
    // Not logged: the rows are of one partition, so the batch is one mutation and atomic by itself.
    let mut batch = Batch::new(BatchType::Unlogged);
    batch.set_is_idempotent(true);
    for _ in &rows {
        batch.append_statement(statement.clone());
    }
    Box::pin(session.batch(&batch, rows))
        .await
        .map(drop)
        .map_err(|error| errors::execution(operation, &error))
}

/// Runs futures, [`CONCURRENCY`] at a time; answers in their order.
pub(super) async fn in_order<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    stream::iter(futures).buffered(CONCURRENCY).collect().await
}

/// Runs futures, [`CONCURRENCY`] at a time, all of them also after a failure; the first failure if there is one.
pub(super) async fn all_of(futures: Vec<impl Future<Output = Result<(), Error>>>) -> Result<(), Error> {
    stream::iter(futures)
        .buffer_unordered(CONCURRENCY)
        .fold(Ok(()), |first: Result<(), Error>, next| async move { first.and(next) })
        .await
}
