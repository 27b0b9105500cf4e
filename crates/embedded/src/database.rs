//! The database: open, tables, commit, persist.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fjall::PersistMode;
use parking_lot::Mutex;

use crate::health::Health;
use crate::lock::DirectoryLock;
use crate::persist::PersistTick;
use crate::table::{Batch, Table, keyspace_options};
use crate::upkeep::Upkeep;
use crate::{Error, Options};

/// Where the engine keeps its files, inside the data directory.
const ENGINE_DIRECTORY: &str = "database";

/// A million batches a second for 35,000 years.
const MAX_PLAUSIBLE_SEQNO: u64 = 1 << 60;

const OPEN: &str = "open database";
const DAMAGE_REMEDY: &str = "restore the directory from a backup, or move it away to start empty";

/// The open database. Clones are handles; it closes, with a last persist, when the last handle, table and log is dropped.
#[derive(Clone)]
pub struct Database {
    pub(crate) handle: Arc<Handle>,
}

/// What every handle shares. Dropping the last one ends the tick and closes the engine.
pub(crate) struct Handle {
    // Order matters: the tick ends first and persists, then the engine closes, then the lock goes.
    _tick: PersistTick,
    pub(crate) core: Arc<Core>,
}

/// What the threads of the database share with the handles. They hold it, not a [`Handle`], so that they keep nobody open.
pub(crate) struct Core {
    pub(crate) engine: fjall::Database,
    pub(crate) options: Options,
    pub(crate) health: Health,
    /// Set by table commits, cleared by the sync that covers them.
    pub(crate) unsynced: AtomicBool,
    /// Held from a sync until its failure is known to everybody: the system reports a failed sync once, so a sync right
    /// after it would succeed although what lies before it in the journal is lost.
    syncing: Mutex<()>,
    /// What the persist thread does besides, for the log.
    pub(crate) upkeep: Upkeep,
    _lock: DirectoryLock,
}

impl Database {
    /// Opens the database in `path`, creating it if it does not exist, and replays its journal.
    ///
    /// A journal that ends in the middle of a batch is cut to the last whole batch. A damaged one is refused with
    /// [`Error::Damaged`], if the damage shows (see the crash tests for what that covers).
    pub fn open(path: &Path, options: Options) -> Result<Self, Error> {
        options.check().map_err(|reason| Error::Refused {
            operation: OPEN,
            reason,
        })?;
        fs::create_dir_all(path).map_err(|source| Error::Io {
            operation: "create data directory",
            path: path.to_path_buf(),
            source,
        })?;
        let lock = DirectoryLock::acquire(path)?;
        let engine = open_engine(path, &options)?;
        let core = Arc::new(Core {
            engine,
            options,
            health: Health::default(),
            unsynced: AtomicBool::new(false),
            syncing: Mutex::new(()),
            upkeep: Upkeep::default(),
            _lock: lock,
        });
        let tick = PersistTick::start(Arc::clone(&core)).map_err(|source| Error::Io {
            operation: "start the persist thread",
            path: path.to_path_buf(),
            source,
        })?;
        Ok(Self {
            handle: Arc::new(Handle { _tick: tick, core }),
        })
    }

    /// Opens a table, creating it if it does not exist. Names: 1 to 64 bytes of `[a-z0-9_]` (the log's own keyspaces have
    /// a dot in theirs).
    pub fn table(&self, name: &str) -> Result<Table, Error> {
        let well_formed = (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if !well_formed {
            return Err(Error::Refused {
                operation: "open table",
                reason: format!("{name:?} is not a table name (1 to 64 bytes of [a-z0-9_])"),
            });
        }
        self.keyspace(name)
    }

    pub(crate) fn keyspace(&self, name: &str) -> Result<Table, Error> {
        let core = &self.handle.core;
        core.health.check()?;
        let keyspace = core
            .engine
            .keyspace(name, || keyspace_options(&core.options))
            .map_err(|error| Error::engine("open table", &error))?;
        Ok(Table::new(keyspace, Arc::clone(&self.handle)))
    }

    /// Starts an empty batch.
    pub fn batch(&self) -> Batch {
        Batch::new(self.handle.core.engine.batch(), Arc::clone(&self.handle))
    }

    /// Commits a batch: atomic, visible, and in the journal in the order of commits. It survives the end of the process at
    /// once, and a power failure after the next persist tick.
    ///
    /// May wait while the engine writes memtables out. A failure poisons the database.
    pub fn commit(&self, batch: Batch) -> Result<(), Error> {
        self.handle.core.commit_writes("commit", batch.writes)
    }

    /// Makes everything committed so far durable. A failure poisons the database.
    pub fn persist(&self) -> Result<(), Error> {
        self.handle.core.persist()
    }

    /// Whether the database takes writes; the error tells the failure that poisoned it.
    pub fn healthy(&self) -> Result<(), Error> {
        self.handle.core.health.check()
    }
}

impl Core {
    /// Commits writes without a sync.
    pub(crate) fn commit_writes(&self, operation: &'static str, writes: fjall::OwnedWriteBatch) -> Result<(), Error> {
        self.health.check()?;
        let result = writes.commit();
        // Set after the write: a sync that clears it in between has covered the write, and one too many does no harm.
        self.unsynced.store(true, Ordering::Release);
        result.map_err(|error| self.health.poison(operation, error))
    }

    /// Commits writes that sync themselves; `Ok` means durable, and so is everything before them.
    pub(crate) fn commit_durably(&self, operation: &'static str, writes: fjall::OwnedWriteBatch) -> Result<(), Error> {
        let _syncing = self.syncing.lock();
        self.health.check()?;
        writes.commit().map_err(|error| self.health.poison(operation, error))
    }

    pub(crate) fn persist(&self) -> Result<(), Error> {
        let _syncing = self.syncing.lock();
        self.health.check()?;
        // Cleared before the sync: a commit during the sync sets it again.
        let mode = if self.unsynced.swap(false, Ordering::AcqRel) {
            PersistMode::SyncData
        } else {
            // Nothing to sync; still asks the engine whether a background thread of it has failed.
            PersistMode::Buffer
        };
        self.engine
            .persist(mode)
            .map_err(|error| self.health.poison("persist", error))
    }
}

fn open_engine(path: &Path, options: &Options) -> Result<fjall::Database, Error> {
    let builder = fjall::Database::builder(path.join(ENGINE_DIRECTORY))
        .cache_size(options.block_cache_bytes)
        .max_journaling_size(options.max_journaling_bytes)
        .worker_threads(options.worker_threads);
    // On some damaged bytes the engine panics instead of failing. Nothing of it is left when it does: it builds itself
    // from the files alone, and what it had built is dropped on the way here.
    match panic::catch_unwind(AssertUnwindSafe(|| builder.open())) {
        // No database gets there by writing: a batch's number in the journal, which no checksum covers, is damaged. The
        // engine would panic at a later write.
        Ok(Ok(engine)) if engine.seqno() > MAX_PLAUSIBLE_SEQNO => Err(Error::Damaged {
            operation: OPEN,
            reason: format!(
                "the journal in {} names a sequence number of {}; {DAMAGE_REMEDY}",
                path.display(),
                engine.seqno()
            ),
        }),
        Ok(Ok(engine)) => Ok(engine),
        Ok(Err(error)) => Err(open_error(path, error)),
        Err(_) => Err(Error::Damaged {
            operation: OPEN,
            reason: format!(
                "the engine panicked on the files in {}; {DAMAGE_REMEDY}",
                path.display()
            ),
        }),
    }
}

fn open_error(path: &Path, error: fjall::Error) -> Error {
    if let fjall::Error::Io(source) = error {
        return Error::Io {
            operation: OPEN,
            path: path.to_path_buf(),
            source,
        };
    }
    match Error::engine(OPEN, &error) {
        Error::Damaged { operation, reason } => Error::Damaged {
            operation,
            reason: format!("{reason} in {}; {DAMAGE_REMEDY}", path.display()),
        },
        error @ (Error::Locked { .. }
        | Error::Io { .. }
        | Error::Engine { .. }
        | Error::Poisoned { .. }
        | Error::QueueFull { .. }
        | Error::OutOfRange { .. }
        | Error::Refused { .. }) => error,
    }
}
