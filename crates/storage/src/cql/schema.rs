//! The schema: applied by a command, checked at start.
//!
//! The statements of `schema/*.cql` are the only description of the tables; what [`check`] expects is read from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use scylla::client::session::Session;

use super::config::CqlConfig;
use super::errors;
use super::session::{SCHEMA_TIMEOUT, connect, prepare, read_all};
use crate::Error;

const FILES: [&str; 6] = [
    include_str!("schema/meta.cql"),
    include_str!("schema/router.cql"),
    include_str!("schema/history.cql"),
    include_str!("schema/inbox.cql"),
    include_str!("schema/dead_letters.cql"),
    include_str!("schema/runtime.cql"),
];

/// Name of the cursor epoch's row in `meta`.
pub(super) const CURSOR_EPOCH: &str = "cursor_epoch";

const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS ";

/// Something of the schema that is not there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// A table.
    Table(String),
    /// A column of a table that is there.
    Column {
        /// Of which table.
        table: String,
        /// Which.
        column: String,
    },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(table) => write!(f, "table {table}"),
            Self::Column { table, column } => write!(f, "column {table}.{column}"),
        }
    }
}

/// Creates the keyspace and the tables that are not there, and mints the cursor epoch of a new store from
/// `fresh_cursor_epoch` (random, its sign bit is not used). Repeating it changes nothing.
pub async fn apply(config: &CqlConfig, fresh_cursor_epoch: u64) -> Result<(), Error> {
    const OPERATION: &str = "schema apply";
    check_keyspace_name(&config.keyspace)?;
    let session = connect(config, None, SCHEMA_TIMEOUT).await?;
    run(&session, OPERATION, create_keyspace(config)).await?;
    session
        .use_keyspace(config.keyspace.as_str(), false)
        .await
        .map_err(|error| errors::use_keyspace(OPERATION, &error))?;
    for statement in statements() {
        run(&session, OPERATION, statement).await?;
    }
    // Two runs at the same time must not mint two epochs, hence the condition. This is set-up, not the way of a message.
    let epoch = (fresh_cursor_epoch & u64::MAX >> 1).cast_signed();
    let mint = "INSERT INTO meta (name, number) VALUES (?, ?) IF NOT EXISTS";
    let mint = prepare(&session, mint, None).await?;
    Box::pin(session.execute_unpaged(&mint, (CURSOR_EPOCH, epoch)))
        .await
        .map(drop)
        .map_err(|error| errors::execution(OPERATION, &error))
}

/// What of the schema is missing; empty if all is there.
pub async fn check(config: &CqlConfig) -> Result<Vec<Missing>, Error> {
    check_keyspace_name(&config.keyspace)?;
    let session = connect(config, None, SCHEMA_TIMEOUT).await?;
    missing(&session, &config.keyspace).await
}

pub(super) async fn missing(session: &Session, keyspace: &str) -> Result<Vec<Missing>, Error> {
    let text = "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = ?";
    let columns = prepare(session, text, None).await?;
    let rows: Vec<(String, String)> = read_all(session, "schema check", &columns, (keyspace.to_lowercase(),)).await?;
    let mut present: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (table, column) in rows {
        present.entry(table).or_default().insert(column);
    }
    Ok(compare(&expected(), &present))
}

fn compare(
    expected: &BTreeMap<String, BTreeSet<String>>,
    present: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<Missing> {
    let mut missing = Vec::new();
    for (table, columns) in expected {
        match present.get(table) {
            None => missing.push(Missing::Table(table.clone())),
            Some(there) => missing.extend(columns.difference(there).map(|column| Missing::Column {
                table: table.clone(),
                column: column.clone(),
            })),
        }
    }
    missing
}

async fn run(session: &Session, operation: &'static str, statement: String) -> Result<(), Error> {
    Box::pin(session.query_unpaged(statement, ()))
        .await
        .map(drop)
        .map_err(|error| errors::execution(operation, &error))
}

/// The name goes into statements as it is.
fn check_keyspace_name(name: &str) -> Result<(), Error> {
    let well_formed = (1..=48).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.starts_with(|first: char| first.is_ascii_alphabetic());
    if well_formed {
        return Ok(());
    }
    Err(Error::NotSetUp {
        operation: "schema",
        reason: format!("`{name}` is no keyspace name: 1 to 48 letters, digits and `_`, a letter first"),
    })
}

fn create_keyspace(config: &CqlConfig) -> String {
    let replicas: Vec<String> = config
        .replication
        .iter()
        .map(|(place, count)| format!(", '{}': {count}", place.replace('\'', "''")))
        .collect();
    format!(
        "CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {{'class': 'NetworkTopologyStrategy'{}}}",
        config.keyspace,
        replicas.concat()
    )
}

/// The statements of all files, without comments.
fn statements() -> Vec<String> {
    FILES
        .iter()
        .flat_map(|file| {
            let code: Vec<&str> = file
                .lines()
                .filter(|line| !line.trim_start().starts_with("--"))
                .collect();
            let code = code.join("\n");
            code.split(';').map(|text| text.trim().to_owned()).collect::<Vec<_>>()
        })
        .filter(|statement| !statement.is_empty())
        .collect()
}

/// Tables and their columns: one column per line until the primary key, as the files are written.
fn expected() -> BTreeMap<String, BTreeSet<String>> {
    let mut tables = BTreeMap::new();
    for statement in statements() {
        let Some(rest) = statement.strip_prefix(CREATE_TABLE) else {
            continue;
        };
        let mut lines = rest.lines().map(str::trim);
        let name = lines.next().unwrap_or_default().trim_end_matches(" (").to_owned();
        let columns = lines
            .take_while(|line| !line.starts_with("PRIMARY KEY"))
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect();
        tables.insert(name, columns);
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_describe_every_table_of_the_architecture() {
        let tables: Vec<String> = expected().into_keys().collect();
        assert_eq!(
            tables,
            [
                "attempt",
                "ckpt",
                "conv_head",
                "cursor_log",
                "dead_letter",
                "dead_letter_audit",
                "dead_letter_run",
                "device",
                "device_open",
                "dlq_intent",
                "fold_skip",
                "history",
                "inbox",
                "inbox_head",
                "intent",
                "locator",
                "member",
                "meta",
                "redaction",
                "trace",
                "user_conv",
            ]
        );
        assert_eq!(statements().len(), tables.len(), "a statement is no CREATE TABLE");
        let inbox = &expected()["inbox"];
        assert!(
            inbox.contains("event") && inbox.contains("uid") && inbox.len() == 10,
            "{inbox:?}"
        );
    }

    #[test]
    fn a_time_window_table_has_one_ttl_and_at_most_fifty_windows() {
        for statement in statements().iter().filter(|text| text.contains("TimeWindow")) {
            let number_after = |words: &str| -> u64 {
                let rest = statement.split_once(words).expect("the option is set").1;
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                digits.parse().expect("a number")
            };
            let windows =
                number_after("default_time_to_live = ") / 86_400 / number_after("'compaction_window_size': '");
            assert!((20..=50).contains(&windows), "{windows} windows: {statement}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut present = expected();
        present.remove("trace");
        present.get_mut("inbox").expect("expected").remove("event");
        let missing: Vec<String> = compare(&expected(), &present).iter().map(Missing::to_string).collect();
        assert_eq!(missing, ["column inbox.event", "table trace"]);
    }

    #[test]
    fn a_keyspace_name_is_no_way_into_a_statement() {
        for bad in ["", "1a", "a-b", "a; DROP", &"x".repeat(49)] {
            assert!(check_keyspace_name(bad).is_err(), "{bad}");
        }
        assert_eq!(check_keyspace_name("tidings_2"), Ok(()));
    }
}
