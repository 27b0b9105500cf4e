//! The contract suites on the CQL adapter, on a real server. Each test has a keyspace of its own.

#[path = "contract/dead_letters.rs"]
mod dead_letters;
#[path = "contract/fixtures.rs"]
mod fixtures;
#[path = "contract/history.rs"]
mod history;
#[path = "contract/inbox.rs"]
mod inbox;
#[path = "contract/names.rs"]
mod names;
#[path = "contract/router.rs"]
mod router;
#[path = "contract/runtime.rs"]
mod runtime;
#[path = "contract/stack.rs"]
mod stack;

use std::collections::BTreeMap;

use tidings_domain::state::ConvHead;
use tidings_storage::Error;
use tidings_storage::cql::{CqlConfig, CqlStore, schema};
use tidings_storage::port::{HistoryRow, HistoryStore as _, InboxReader as _, RouterStore as _};

fn config() -> CqlConfig {
    let description = stack::description();
    let contact_points = description["cql"]["contact_points"].as_array().expect("contact points");
    CqlConfig {
        contact_points: contact_points
            .iter()
            .map(|point| point.as_str().expect("host:port").to_owned())
            .collect(),
        keyspace: stack::unique_name("t"),
        replication: BTreeMap::from([("replication_factor".to_owned(), 1)]),
        ..CqlConfig::default()
    }
}

async fn store() -> CqlStore {
    let config = config();
    schema::apply(&config, 42).await.expect("applied");
    CqlStore::connect(&config).await.expect("connected")
}

#[tokio::test]
async fn router_store() {
    router::run(&store().await).await;
}

#[tokio::test]
async fn history_store() {
    let store = store().await;
    history::run(&store).await;
    the_newest_is_found_around_the_head(&store).await;
}

/// With a head register far up, as a router writes it, and the oldest buckets expired.
async fn the_newest_is_found_around_the_head(store: &CqlStore) {
    let conversation = fixtures::conversation("around-a", "around-b");
    let rows: Vec<_> = [40_958, 40_959, 40_960]
        .map(|conv_seq| HistoryRow {
            conversation: conversation.clone(),
            conv_seq,
            append_time: fixtures::now(),
            message: bytes::Bytes::from_static(b"x"),
        })
        .to_vec();
    assert_eq!(store.write_history(&rows).await, vec![Ok(()); 3]);
    // A head a checkpoint old at the end of a bucket; exact; and far ahead of the history.
    for head in [40_958, 40_959, 40_960, 60_000] {
        let register = ConvHead {
            head,
            countable: head,
            applied: fixtures::off(head),
        };
        let written = store.write_conv_heads(&[(conversation.clone(), register)]).await;
        written.expect("written");
        assert_eq!(store.newest_conv_seq(&conversation).await, Ok(40_960), "head {head}");
    }
    let read = store.history_range(&conversation, 1, u64::MAX, 10).await;
    assert_eq!(read, Ok(rows), "buckets without rows below are passed over");
}

#[tokio::test]
async fn inbox_store() {
    inbox::run(&store().await).await;
}

#[tokio::test]
async fn dead_letter_store() {
    dead_letters::run(&store().await).await;
}

#[tokio::test]
async fn runtime_store() {
    runtime::run(&store().await).await;
}

#[tokio::test]
async fn the_schema_is_applied_once_and_checked_by_name() {
    let config = config();
    let absent = CqlStore::connect(&config).await.expect_err("there is no keyspace");
    assert!(matches!(absent, Error::NotSetUp { .. }), "{absent:?}");
    let missing = schema::check(&config).await.expect("checked");
    assert!(
        missing.contains(&schema::Missing::Table("inbox".to_owned())),
        "{missing:?}"
    );

    // Any number of commands may apply at the same time or again: one epoch stays.
    schema::apply(&config, u64::MAX).await.expect("applied");
    schema::apply(&config, 5).await.expect("applied again");
    assert_eq!(schema::check(&config).await, Ok(Vec::new()));
    let store = CqlStore::connect(&config).await.expect("connected");
    assert_eq!(store.cursor_epoch().await, Ok(u64::MAX >> 1));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let config = CqlConfig {
        // The discard port: nothing listens there.
        contact_points: vec!["127.0.0.1:9".to_owned()],
        ..CqlConfig::default()
    };
    let error = CqlStore::connect(&config).await.expect_err("nobody answers");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}
