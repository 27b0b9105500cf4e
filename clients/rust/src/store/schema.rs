//! Tables of the local database.

use rusqlite::Connection;

/// Version of the tables, kept in `user_version`.
const VERSION: i64 = 1;

/// A message lies once in `messages`, under two unique keys (req:A6): its number in the conversation, and its
/// idempotency key, so that even a faulty server shows it once. Numbers are those of one server store (`epoch`): after
/// a server has lost its data, old numbers must not hide new messages. `state` is set for own messages only.
const TABLES: &str = "
CREATE TABLE account (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    uid TEXT NOT NULL,
    device_id TEXT NOT NULL
) STRICT;
CREATE TABLE cursor (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch INTEGER NOT NULL,
    user_seq INTEGER NOT NULL
) STRICT;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    epoch INTEGER,
    conversation TEXT NOT NULL,
    conv_seq INTEGER,
    sender TEXT NOT NULL,
    device TEXT NOT NULL,
    msg_id BLOB NOT NULL,
    action INTEGER NOT NULL,
    op_id BLOB NOT NULL,
    content_type TEXT NOT NULL,
    body BLOB NOT NULL,
    content_hash BLOB NOT NULL,
    append_time INTEGER,
    first_send_time INTEGER NOT NULL,
    state INTEGER,
    UNIQUE (epoch, conversation, conv_seq),
    UNIQUE (conversation, sender, msg_id, action, op_id)
) STRICT;
CREATE INDEX own_messages ON messages (conversation, state, conv_seq) WHERE state IS NOT NULL;
CREATE INDEX own_ids ON messages (msg_id) WHERE state IS NOT NULL;
CREATE TABLE outbox (
    message INTEGER PRIMARY KEY REFERENCES messages (id),
    retry_count INTEGER NOT NULL,
    since INTEGER NOT NULL
) STRICT;
CREATE TABLE read_positions (
    conversation TEXT PRIMARY KEY,
    conv_seq INTEGER NOT NULL,
    confirmed INTEGER NOT NULL
) STRICT;
";

/// Prepares a connection and makes the tables if there are none.
pub(super) fn prepare(db: &mut Connection) -> rusqlite::Result<()> {
    // A commit is on disk when it returns: only then may it be acknowledged (req:B3).
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "foreign_keys", true)?;
    let tx = db.transaction()?;
    let version: i64 = tx.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version < VERSION {
        tx.execute_batch(TABLES)?;
        tx.pragma_update(None, "user_version", VERSION)?;
    }
    tx.commit()
}
