//! Damages the end of the journal of a database that ended without closing, and opens it.
//!
//! What the engine does, and so what is checked:
//! - A journal that ends within a batch is cut after the last whole one: opening succeeds with all batches before.
//! - A flipped bit within an entry shows by the batch's checksum, its count of entries or an unreadable entry. The first
//!   two refuse to open; an unreadable entry is taken for a torn tail, so this batch *and all after it* are cut off. Such
//!   a cut cannot be told from a torn tail, but what is left is a prefix.
//! - The header of a batch, its count of entries and its sequence number, is under no checksum. A wrong count refuses to
//!   open. With a smaller number the batch may be taken for written out and be passed over: a hole in the log, which
//!   shows when it is read. With a larger one it comes to lie over later writes of the same keys: records have keys of
//!   their own, so none is wrong, but a row that is overwritten in place may show an older value. An absurdly large one
//!   is refused.
//! - On some bytes the engine panics (in builds with debug assertions); that too is refused.
//!
//! Each case is a seeded position. The records that lie wholly before it must be there, whatever is opened must be a
//! prefix with the one possible value of each record and effect, and it must go on from there.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use tidings_embedded::Error;
use tidings_embedded::log::GroupCommit;

use crate::support::{EFFECTS, GROUP, Random, TOPIC, effect_key, id_of, open, record_of, value_of};

const RECORDS: u64 = 120;
/// More than what follows a record's value in its batch: the end marker, and the rest of the record's own batch.
const TRAILER: usize = 64;

/// A database as a crash leaves it.
struct Image {
    files: tempfile::TempDir,
    journal: PathBuf,
    /// The journal's bytes without the zeros it was allocated with.
    bytes: Vec<u8>,
    /// Where the value of each record ends in the journal.
    ends: Vec<usize>,
}

#[derive(Debug)]
enum Damage {
    CutAt(usize),
    FlipBit { at: usize, bit: u8 },
    GarbageFrom(usize),
}

#[test]
fn a_cut_journal_opens_with_everything_before_the_cut() {
    let image = image();
    let mut random = Random(7);
    for _ in 0..60 {
        let damage = Damage::CutAt(image.somewhere_late(&mut random));
        let records = outcome(&image, &damage, &mut random).unwrap_or_else(|error| panic!("{damage:?}: {error}"));
        check_prefix(&image, &damage, records);
    }
}

#[test]
fn a_damaged_journal_opens_with_a_prefix_or_is_refused() {
    let image = image();
    let mut random = Random(11);
    let mut refused = 0;
    let mut opened = 0;
    for round in 0..240 {
        let at = image.somewhere_late(&mut random);
        let damage = if round % 4 == 0 {
            Damage::GarbageFrom(at)
        } else {
            Damage::FlipBit {
                at,
                bit: u8::try_from(random.below(8)).expect("below 8"),
            }
        };
        match outcome(&image, &damage, &mut random) {
            Ok(records) => {
                check_prefix(&image, &damage, records);
                opened += 1;
            }
            Err(error) => {
                assert!(matches!(error, Error::Damaged { .. }), "{damage:?}: {error}");
                refused += 1;
            }
        }
    }
    assert!(
        opened > 0 && refused > 0,
        "{opened} opened, {refused} refused: too few kinds of damage"
    );
}

/// The header of a batch is under no checksum: its count of entries and its sequence number, bit by bit.
#[test]
fn a_damaged_batch_header_opens_with_a_prefix_or_is_refused() {
    const END_OF_BATCH: &[u8] = b"FJL\x03";
    // After the end of the batch before: tag, count (4 bytes), sequence number (8 bytes).
    const HEADER: usize = 1 + 4 + 8;
    let image = image();
    let late = image.bytes.len() * 2 / 3;
    let headers: Vec<usize> = (late..image.bytes.len() - HEADER)
        .filter(|at| image.bytes[*at..].starts_with(END_OF_BATCH))
        .map(|at| at + END_OF_BATCH.len())
        .collect();
    let mut random = Random(13);
    for header in headers.into_iter().step_by(17) {
        for at in header + 1..header + HEADER {
            for bit in 0..8 {
                let damage = Damage::FlipBit { at, bit };
                match outcome(&image, &damage, &mut random) {
                    Ok(records) => check_prefix(&image, &damage, records),
                    Err(error) => assert!(matches!(error, Error::Damaged { .. }), "{damage:?}: {error}"),
                }
            }
        }
    }
}

impl Damage {
    fn at(&self) -> usize {
        match self {
            Self::CutAt(at) | Self::FlipBit { at, .. } | Self::GarbageFrom(at) => *at,
        }
    }
}

impl Image {
    /// A place in the last third of the journal.
    fn somewhere_late(&self, random: &mut Random) -> usize {
        let length = self.bytes.len();
        length * 2 / 3 + usize::try_from(random.below(length as u64 / 3)).expect("fits")
    }
}

/// The records that can be read after the damage, or why it was refused.
fn outcome(image: &Image, damage: &Damage, random: &mut Random) -> Result<u64, Error> {
    let dir = tempfile::tempdir().expect("temp dir");
    copy(image.files.path(), dir.path());
    let mut bytes = image.bytes.clone();
    match *damage {
        Damage::CutAt(at) => bytes.truncate(at),
        Damage::FlipBit { at, bit } => bytes[at] ^= 1 << bit,
        Damage::GarbageFrom(at) => {
            for byte in &mut bytes[at..] {
                *byte = u8::try_from(random.below(256)).expect("a byte");
            }
        }
    }
    fs::write(dir.path().join(&image.journal), bytes).expect("journal written");
    let (database, log) = open(dir.path())?;
    let end = log.end(TOPIC, 0)?;
    let mut next = 0;
    while next < end {
        for record in log.read(TOPIC, 0, next, 64, usize::MAX)? {
            assert_eq!(
                id_of(record.value.as_deref().unwrap_or_default()),
                Some(next),
                "{damage:?}"
            );
            next += 1;
        }
    }
    // Effects are written before the offset, and each has one possible value.
    let effects = database.table(EFFECTS)?;
    let committed = log.committed(GROUP, TOPIC, 0)?.map_or(0, |committed| committed.offset);
    assert!(committed <= end, "{damage:?}: {committed} committed, {end} in the log");
    for offset in 0..end {
        let effect = effects.get(&effect_key(0, offset))?;
        match effect.as_deref() {
            Some(value) => assert_eq!(value, offset.to_be_bytes(), "{damage:?}"),
            None => assert!(
                offset >= committed,
                "{damage:?}: {offset} is committed and has no effect"
            ),
        }
    }
    // What was left is a log that goes on.
    let (tx, rx) = mpsc::channel();
    log.append(
        TOPIC,
        0,
        record_of(end),
        Box::new(move |result| tx.send(result).expect("the test waits")),
    )?;
    let appended = rx.recv_timeout(Duration::from_secs(20)).expect("completes")?;
    assert_eq!(appended.offset, end, "{damage:?}");
    drop((effects, log, database));
    let (_, log) = open(dir.path()).unwrap_or_else(|error| panic!("{damage:?}: opened once, then refused: {error}"));
    assert_eq!(
        log.end(TOPIC, 0)?,
        end + 1,
        "{damage:?}: what was appended after the damage is gone"
    );
    Ok(end)
}

fn check_prefix(image: &Image, damage: &Damage, records: u64) {
    let before = image.ends.iter().filter(|end| **end + TRAILER <= damage.at()).count();
    assert!(
        records >= before as u64,
        "{damage:?}: {before} records lie before the damage, {records} were found"
    );
}

/// Makes a database, and copies its files while it is open: everything in it was confirmed, so this is what a crash
/// leaves.
fn image() -> Image {
    let dir = tempfile::tempdir().expect("temp dir");
    let (database, log) = open(dir.path()).expect("opens");
    let effects = database.table(EFFECTS).expect("table");
    for id in 0..RECORDS {
        let (tx, rx) = mpsc::channel();
        log.append(
            TOPIC,
            0,
            record_of(id),
            Box::new(move |result| tx.send(result).expect("the test waits")),
        )
        .expect("queued");
        let appended = rx
            .recv_timeout(Duration::from_secs(20))
            .expect("completes")
            .expect("appended");
        assert_eq!(appended.offset, id);
        let mut batch = database.batch();
        batch.insert(&effects, effect_key(0, id), id.to_be_bytes());
        database.commit(batch).expect("commits");
        let commit = GroupCommit {
            partition: 0,
            offset: id + 1,
            metadata: String::new(),
        };
        log.commit_offsets(GROUP, TOPIC, &[commit]).expect("commits");
    }
    database.persist().expect("persists");
    let files = tempfile::tempdir().expect("temp dir");
    copy(dir.path(), files.path());

    let journal = newest_journal(files.path());
    let mut bytes = fs::read(files.path().join(&journal)).expect("journal");
    let used = bytes.iter().rposition(|byte| *byte != 0).expect("not empty") + 1;
    bytes.truncate(used);
    fs::write(files.path().join(&journal), &bytes).expect("journal written");
    let mut ends = Vec::new();
    let mut from = 0;
    for id in 0..RECORDS {
        let value = value_of(id);
        let at = bytes[from..].windows(value.len()).position(|window| window == value);
        from += at.expect("every record lies in the journal") + value.len();
        ends.push(from);
    }
    Image {
        files,
        journal,
        bytes,
        ends,
    }
}

fn newest_journal(dir: &Path) -> PathBuf {
    let database = Path::new("database");
    let number = |name: &str| name.strip_suffix(".jnl")?.parse::<u64>().ok();
    let newest = fs::read_dir(dir.join(database))
        .expect("directory")
        .filter_map(|entry| number(entry.expect("entry").file_name().to_str()?))
        .max()
        .expect("a journal");
    database.join(format!("{newest}.jnl"))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("directory");
    for entry in fs::read_dir(from).expect("directory") {
        let entry = entry.expect("entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copies");
        }
    }
}
