//! Tables: order, bounds, atomic batches, the lock, and what survives closing.

use std::path::Path;

use tidings_embedded::{Database, Error, Options};
use tidings_resilience::Classify;

fn open(path: &Path) -> Database {
    Database::open(path, Options::default()).expect("opens")
}

fn keys(entries: &[(bytes::Bytes, bytes::Bytes)]) -> Vec<&[u8]> {
    entries.iter().map(|(key, _)| key.as_ref()).collect()
}

#[test]
fn ranges_are_half_open_and_limited() {
    let dir = tempfile::tempdir().expect("temp dir");
    let db = open(dir.path());
    let table = db.table("rows").expect("table");
    let other = db.table("other").expect("table");
    let mut batch = db.batch();
    for key in [b"a", b"b", b"c", b"d"] {
        batch.insert(&table, key, [key.as_slice(), b"!"].concat());
    }
    batch.insert(&other, b"b2", b"");
    db.commit(batch).expect("commit");

    assert_eq!(table.get(b"b").expect("get").as_deref(), Some(b"b!".as_slice()));
    assert_eq!(other.get(b"b2").expect("get").as_deref(), Some(b"".as_slice()));
    assert_eq!(table.get(b"b2").expect("get"), None);
    assert_eq!(keys(&table.range(b"b", b"d", 10).expect("range")), [b"b", b"c"]);
    assert_eq!(keys(&table.range(b"a", b"z", 2).expect("range")), [b"a", b"b"]);
    assert_eq!(keys(&table.range_rev(b"a", b"d", 2).expect("range")), [b"c", b"b"]);
    assert_eq!(keys(&table.range(b"a", b"z", 0).expect("range")), Vec::<&[u8]>::new());
    assert!(table.range(b"d", b"b", 10).expect("range").is_empty());
    assert!(table.range_rev(b"b", b"b", 10).expect("range").is_empty());
}

#[test]
fn a_batch_is_invisible_until_committed_and_its_last_write_wins() {
    let dir = tempfile::tempdir().expect("temp dir");
    let db = open(dir.path());
    let table = db.table("rows").expect("table");
    let mut batch = db.batch();
    batch.insert(&table, b"k", b"1");
    batch.insert(&table, b"k", b"2");
    batch.insert(&table, b"gone", b"1");
    batch.remove(&table, b"gone");
    assert_eq!(batch.len(), 4);
    assert_eq!(table.get(b"k").expect("get"), None);
    db.commit(batch).expect("commit");
    assert_eq!(table.get(b"k").expect("get").as_deref(), Some(b"2".as_slice()));
    assert_eq!(table.get(b"gone").expect("get"), None);
}

#[test]
fn contents_survive_closing_and_a_table_keeps_the_database_open() {
    let dir = tempfile::tempdir().expect("temp dir");
    let db = open(dir.path());
    let table = db.table("rows").expect("table");
    let mut batch = db.batch();
    batch.insert(&table, b"k", b"v");
    db.commit(batch).expect("commit");
    drop(db);
    let locked = Database::open(dir.path(), Options::default())
        .err()
        .expect("still open");
    assert!(matches!(locked, Error::Locked { .. }), "{locked}");
    assert!(locked.is_transient());
    drop(table);

    let db = open(dir.path());
    let table = db.table("rows").expect("table");
    assert_eq!(table.get(b"k").expect("get").as_deref(), Some(b"v".as_slice()));
    db.healthy().expect("healthy");
    db.persist().expect("persist");
}

#[test]
fn wrong_calls_and_impossible_places_are_refused() {
    let dir = tempfile::tempdir().expect("temp dir");
    let db = open(dir.path());
    for name in ["", "log.records", "Rows", "a/b", &"x".repeat(65)] {
        assert!(matches!(db.table(name), Err(Error::Refused { .. })), "{name:?}");
    }
    let options = Options {
        max_journaling_bytes: 1,
        ..Options::default()
    };
    let error = Database::open(&dir.path().join("x"), options).err().expect("refused");
    assert!(matches!(error, Error::Refused { .. }), "{error}");

    let file = dir.path().join("file");
    std::fs::write(&file, b"").expect("write");
    let error = Database::open(&file.join("below"), Options::default())
        .err()
        .expect("refused");
    assert!(matches!(error, Error::Io { .. }), "{error}");
}
