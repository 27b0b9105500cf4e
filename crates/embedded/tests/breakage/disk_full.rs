//! A disk without room, played by a limit on the size of files: a write beyond it fails as one on a full disk does.
//!
//! The first failed write must be answered with an error, poison the database for good, and cost nothing that was
//! confirmed. Reads go on.

use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tidings_embedded::Error;
use tidings_embedded::log::Log;

use crate::support::{DIRECTORY, EFFECTS, ROLE, TOPIC, child, id_of, open, record_of};

const WAIT: Duration = Duration::from_secs(20);
/// `ulimit -f` counts in blocks of 512 or 1,024 bytes, by shell: the journal may have 1 or 2 MiB. The signal that comes
/// with the failure is ignored, as it is nobody's business here.
const LIMIT: &str = "ulimit -f 2048; trap '' XFSZ;";

fn append(log: &Log, id: u64) -> Result<u64, Error> {
    let (tx, rx) = mpsc::channel();
    log.append(
        TOPIC,
        0,
        record_of(id),
        Box::new(move |result| tx.send(result).expect("the test waits")),
    )?;
    rx.recv_timeout(WAIT)
        .expect("completes")
        .map(|appended| appended.offset)
}

#[test]
fn a_full_disk_is_an_error_and_costs_nothing_confirmed() {
    let dir = tempfile::tempdir().expect("temp dir");
    {
        // The journal of a new database is allocated at once, beyond the limit; reopened, it has its true size.
        let (_database, log) = open(dir.path()).expect("opens");
        assert_eq!(append(&log, 0).expect("appended"), 0);
    }
    let output = child("disk_full::child_process", "fill", dir.path(), LIMIT)
        .stderr(Stdio::inherit())
        .output()
        .expect("child runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8(output.stdout).expect("text");
    let confirmed: u64 = text
        .lines()
        .find_map(|line| line.split_once("confirmed "))
        .and_then(|(_, number)| number.parse().ok())
        .expect("the child tells how far it came");
    assert!(confirmed > 100, "only {confirmed} records fitted");

    let (_database, log) = open(dir.path()).expect("opens when there is room");
    assert!(log.end(TOPIC, 0).expect("end") >= confirmed);
    let mut next = 0;
    while next < confirmed {
        for record in log.read(TOPIC, 0, next, 100, usize::MAX).expect("reads") {
            assert_eq!(id_of(record.value.as_deref().unwrap_or_default()), Some(next));
            next += 1;
        }
    }
    let end = log.end(TOPIC, 0).expect("end");
    assert_eq!(append(&log, end).expect("appended"), end);
}

#[test]
fn a_place_that_cannot_be_written_is_an_error() {
    let dir = tempfile::tempdir().expect("temp dir");
    std::fs::write(dir.path().join("database"), b"in the way").expect("written");
    let error = open(dir.path()).err().expect("refused");
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

/// The child: does nothing unless the parent told it to.
#[test]
fn child_process() {
    if std::env::var(ROLE).is_ok_and(|role| role == "fill") {
        fill(Path::new(&std::env::var_os(DIRECTORY).expect("directory")));
    }
}

fn fill(dir: &Path) {
    let (database, log) = open(dir).expect("opens");
    let table = database.table(EFFECTS).expect("table");
    let deadline = Instant::now() + WAIT;
    let mut next = 1;
    let error = loop {
        assert!(Instant::now() < deadline, "nothing failed");
        match append(&log, next) {
            Ok(offset) => assert_eq!(offset, next),
            Err(error) => break error,
        }
        next += 1;
    };
    println!("\nconfirmed {next}");
    assert!(matches!(error, Error::Poisoned { .. }), "{error}");
    let again = append(&log, next).expect_err("poisoned for good");
    assert!(matches!(again, Error::Poisoned { .. }), "{again}");
    let mut batch = database.batch();
    batch.insert(&table, b"k", b"v");
    assert!(matches!(database.commit(batch), Err(Error::Poisoned { .. })));
    assert!(matches!(database.persist(), Err(Error::Poisoned { .. })));
    assert!(database.healthy().is_err() && log.healthy().is_err());
    assert_eq!(log.read(TOPIC, 0, 0, 10, usize::MAX).expect("reads").len(), 10);
}
