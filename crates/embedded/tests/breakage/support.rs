//! What the tests that break things share: a seeded generator, records that can be told from damaged ones, child
//! processes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tidings_embedded::log::{EncodedRecord, Log, LogConfig, TopicConfig};
use tidings_embedded::{Database, Error, Options};

/// Environment of a child: what to do, and in which directory.
pub(crate) const ROLE: &str = "EMBEDDED_TEST_ROLE";
pub(crate) const DIRECTORY: &str = "EMBEDDED_TEST_DIRECTORY";

pub(crate) const TOPIC: u8 = 1;
pub(crate) const PARTITIONS: u32 = 4;
pub(crate) const GROUP: &str = "readers";
/// Table of effects: (partition, offset) of a record → its id.
pub(crate) const EFFECTS: &str = "effects";

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The one value that a record of this id may have: its id, then bytes that follow from it.
pub(crate) fn value_of(id: u64) -> Vec<u8> {
    let mut random = Random(id);
    let words = 2 + random.below(120);
    let mut value = id.to_be_bytes().to_vec();
    for _ in 0..words {
        value.extend_from_slice(&random.next().to_be_bytes());
    }
    value
}

/// The id of a value; `None` if it is not, byte for byte, the value of an id.
pub(crate) fn id_of(value: &[u8]) -> Option<u64> {
    let id = u64::from_be_bytes(*value.first_chunk()?);
    (value == value_of(id)).then_some(id)
}

pub(crate) fn record_of(id: u64) -> EncodedRecord {
    EncodedRecord::new(Some(&id.to_be_bytes()), Some(&value_of(id)), &[]).expect("encodes")
}

/// Small memtables and a fast tick, so that files are written out, merged and synced while things break.
pub(crate) fn options() -> Options {
    Options {
        memtable_bytes: 256 << 10,
        block_cache_bytes: 8 << 20,
        persist_interval: Duration::from_millis(20),
        ..Options::default()
    }
}

pub(crate) fn open(path: &Path) -> Result<(Database, Log), Error> {
    let database = Database::open(path, options())?;
    let topic = TopicConfig {
        id: TOPIC,
        name: "one".to_owned(),
        partitions: PARTITIONS,
        group: GROUP.to_owned(),
        retention: Duration::from_secs(3600),
    };
    let started = std::time::Instant::now();
    let clock = Arc::new(move || i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX));
    let log = database.log(LogConfig::new(vec![topic], clock))?;
    Ok((database, log))
}

pub(crate) fn effect_key(partition: u32, offset: u64) -> Vec<u8> {
    let mut key = partition.to_be_bytes().to_vec();
    key.extend_from_slice(&offset.to_be_bytes());
    key
}

/// This test binary, to be run as a child that runs the test `entry` alone, with these marks in its environment.
/// `shell` is run before it, in the same process.
pub(crate) fn child(entry: &str, role: &str, directory: &Path, shell: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{shell} exec \"$0\" --exact {entry} --nocapture"))
        .arg(std::env::current_exe().expect("test binary"))
        .env(ROLE, role)
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped());
    command
}
