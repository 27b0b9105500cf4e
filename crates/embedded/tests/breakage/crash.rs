//! Kills a process that writes under full load, again and again in one directory, and checks what is left (architecture.md
//! section 7): every confirmed record is there with the same bytes, offsets are contiguous, and every record below a
//! committed offset has its effect.
//!
//! A kill keeps the kernel's page cache, so this proves order, atomicity and recovery, not that bytes reached the disk;
//! that each confirmation follows a sync stands in the committer's one line that commits.
//!
//! Negative controls: a writer that confirms when a record is queued, and one that commits the offset before the effect,
//! must both be found out.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{EFFECTS, GROUP, PARTITIONS, Random, TOPIC, child, effect_key, id_of, open, record_of};
use tidings_embedded::log::GroupCommit;
use tidings_embedded::{Database, Error};

/// Records of a partition on their way at the same time.
const WINDOW: u64 = 256;
const READ_RECORDS: usize = 200;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Honest,
    ConfirmsWhenQueued,
    CommitsOffsetFirst,
}

const ROLES: [Role; 3] = [Role::Honest, Role::ConfirmsWhenQueued, Role::CommitsOffsetFirst];

impl Role {
    fn name(self) -> String {
        format!("{self:?}")
    }
}

/// What a child confirmed: (partition, offset) → id.
type Confirmed = BTreeMap<(u32, u64), u64>;

#[test]
fn nothing_confirmed_is_lost_and_no_offset_outruns_its_effects() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut random = Random(0x7469_6469);
    let mut confirmed = Confirmed::new();
    for kill in 0..12 {
        let before = confirmed.len();
        run_and_kill(dir.path(), Role::Honest, &mut random, &mut confirmed);
        assert!(confirmed.len() > before, "kill {kill}: nothing was confirmed");
        if let Err(fault) = check(dir.path(), &confirmed) {
            panic!("kill {kill}: {fault}");
        }
    }
}

#[test]
fn a_writer_that_confirms_too_early_is_found_out() {
    expect_fault(Role::ConfirmsWhenQueued, "is not in the log");
}

#[test]
fn an_offset_committed_before_its_effects_is_found_out() {
    expect_fault(Role::CommitsOffsetFirst, "has no effect");
}

fn expect_fault(role: Role, expected: &str) {
    let mut random = Random(1);
    for _ in 0..20 {
        let dir = tempfile::tempdir().expect("temp dir");
        let mut confirmed = Confirmed::new();
        run_and_kill(dir.path(), role, &mut random, &mut confirmed);
        if let Err(fault) = check(dir.path(), &confirmed) {
            assert!(fault.contains(expected), "found out for another reason: {fault}");
            return;
        }
    }
    panic!("{role:?} was not found out in 20 kills");
}

/// Runs a child, kills it at a random moment after its first confirmation, and takes down what it confirmed.
fn run_and_kill(dir: &Path, role: Role, random: &mut Random, confirmed: &mut Confirmed) {
    let mut process = child("crash::child_process", &role.name(), dir, "")
        .spawn()
        .expect("child starts");
    let stdout = process.stdout.take().expect("piped");
    let (first, started) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut lines = Vec::new();
        for line in BufReader::new(stdout).lines() {
            lines.push(line.expect("text"));
            if lines.last().is_some_and(|line| line.starts_with("c ")) {
                // Nobody listens any more after the first.
                let _ = first.send(());
            }
        }
        lines
    });
    started
        .recv_timeout(Duration::from_secs(60))
        .expect("the child confirms something");
    thread::sleep(Duration::from_millis(20 + random.below(200)));
    process.kill().expect("killed");
    process.wait().expect("waited");
    for line in reader.join().expect("reader") {
        // The last line may be cut; its record was confirmed to nobody.
        let fields: Vec<&str> = line.split(' ').collect();
        if let ["c", partition, offset, id, "."] = fields[..] {
            let place = (partition.parse().expect("number"), offset.parse().expect("number"));
            let id = id.parse().expect("number");
            assert_eq!(confirmed.insert(place, id), None, "confirmed twice: {place:?}");
        }
    }
}

/// Reopens and compares; the text tells the first fault.
fn check(dir: &Path, confirmed: &Confirmed) -> Result<(), String> {
    let (database, log) = open(dir).map_err(|error| error.to_string())?;
    let effects = database.table(EFFECTS).map_err(|error| error.to_string())?;
    let mut stored = Confirmed::new();
    for partition in 0..PARTITIONS {
        let mut next = 0;
        let mut time = i64::MIN;
        loop {
            // Refuses a gap by itself.
            let records = log
                .read(TOPIC, partition, next, READ_RECORDS, usize::MAX)
                .map_err(|error| error.to_string())?;
            let Some(last) = records.last() else { break };
            next = last.offset + 1;
            for record in &records {
                let id = id_of(record.value.as_deref().unwrap_or_default());
                let id =
                    id.ok_or_else(|| format!("partition {partition} offset {} has a wrong value", record.offset))?;
                if record.append_time < time {
                    return Err(format!("append time went back at {}", record.offset));
                }
                time = record.append_time;
                stored.insert((partition, record.offset), id);
            }
        }
        let committed = log
            .committed(GROUP, TOPIC, partition)
            .map_err(|error| error.to_string())?
            .map_or(0, |committed| committed.offset);
        if committed > next {
            return Err(format!(
                "partition {partition} has {committed} committed, beyond its end {next}"
            ));
        }
        for offset in 0..committed {
            let effect = effects
                .get(&effect_key(partition, offset))
                .map_err(|error| error.to_string())?;
            let expected = stored[&(partition, offset)].to_be_bytes();
            if effect.as_deref() != Some(expected.as_slice()) {
                return Err(format!(
                    "partition {partition} offset {offset} is committed and has no effect"
                ));
            }
        }
    }
    for (place, id) in confirmed {
        if stored.get(place) != Some(id) {
            return Err(format!(
                "confirmed {id} at {place:?} is not in the log: {:?}",
                stored.get(place)
            ));
        }
    }
    Ok(())
}

/// The child: does nothing unless the parent told it its role.
#[test]
fn child_process() {
    let Ok(name) = std::env::var(crate::support::ROLE) else {
        return;
    };
    let role = ROLES.into_iter().find(|role| role.name() == name).expect("known role");
    let dir = std::env::var_os(crate::support::DIRECTORY).expect("directory");
    write_forever(Path::new(&dir), role).expect("writes until killed");
}

/// Room in a partition's window.
struct Window {
    in_flight: Mutex<u64>,
    freed: Condvar,
}

fn write_forever(dir: &Path, role: Role) -> Result<(), Error> {
    let (database, log) = open(dir)?;
    let mut threads = Vec::new();
    for partition in 0..PARTITIONS {
        let log = log.clone();
        threads.push(thread::spawn(move || -> Result<(), Error> {
            let window = Arc::new(Window {
                in_flight: Mutex::new(0),
                freed: Condvar::new(),
            });
            // Ids follow from the place, which is known beforehand with one writer per partition.
            let mut offset = log.end(TOPIC, partition)?;
            loop {
                let id = u64::from(partition) << 40 | offset;
                {
                    let mut in_flight = window.in_flight.lock().expect("window");
                    while *in_flight >= WINDOW {
                        in_flight = window.freed.wait(in_flight).expect("window");
                    }
                    *in_flight += 1;
                }
                let freed = Arc::clone(&window);
                log.append(
                    TOPIC,
                    partition,
                    record_of(id),
                    Box::new(move |result| {
                        let appended = result.expect("appended");
                        if role != Role::ConfirmsWhenQueued {
                            confirm(partition, appended.offset, id);
                        }
                        *freed.in_flight.lock().expect("window") -= 1;
                        freed.freed.notify_one();
                    }),
                )?;
                if role == Role::ConfirmsWhenQueued {
                    confirm(partition, offset, id);
                }
                offset += 1;
            }
        }));
    }
    threads.push(thread::spawn(move || consume_forever(&database, &log, role)));
    for thread in threads {
        thread.join().expect("no panic")?;
    }
    Ok(())
}

/// Tells the parent. One write per line: a kill cuts at most the last.
fn confirm(partition: u32, offset: u64, id: u64) {
    let line = format!("c {partition} {offset} {id} .\n");
    std::io::stdout()
        .lock()
        .write_all(line.as_bytes())
        .expect("the parent reads");
}

fn consume_forever(database: &Database, log: &tidings_embedded::log::Log, role: Role) -> Result<(), Error> {
    let effects = database.table(EFFECTS)?;
    let mut news = log.subscribe(TOPIC)?;
    let mut positions = VecDeque::new();
    for partition in 0..PARTITIONS {
        let committed = log.committed(GROUP, TOPIC, partition)?;
        positions.push_back((partition, committed.map_or(0, |committed| committed.offset)));
    }
    let mut idle_since = Instant::now();
    loop {
        let (partition, position) = positions.pop_front().expect("partitions");
        let records = log.read(TOPIC, partition, position, READ_RECORDS, usize::MAX)?;
        let next = records.last().map_or(position, |last| last.offset + 1);
        positions.push_back((partition, next));
        if records.is_empty() {
            if idle_since.elapsed() > Duration::from_millis(10) {
                news.wait(Duration::from_secs(1));
                idle_since = Instant::now();
            }
            continue;
        }
        let commit = || {
            let commit = GroupCommit {
                partition,
                offset: next,
                metadata: String::new(),
            };
            log.commit_offsets(GROUP, TOPIC, &[commit])
        };
        if role == Role::CommitsOffsetFirst {
            commit()?;
        }
        // One batch per effect: the test is about the order of batches, not about one of them being whole.
        for record in &records {
            let id = id_of(record.value.as_deref().unwrap_or_default()).expect("own record");
            let mut batch = database.batch();
            batch.insert(&effects, effect_key(partition, record.offset), id.to_be_bytes());
            database.commit(batch)?;
        }
        if role != Role::CommitsOffsetFirst {
            commit()?;
        }
    }
}
