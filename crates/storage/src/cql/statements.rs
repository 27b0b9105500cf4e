//! Every statement of the adapter, prepared once per process.

use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;

use super::session::{prepare, read_profile};
use crate::Error;

macro_rules! statements {
    (
        reads { $($read:ident = $read_text:literal,)* }
        writes { $($write:ident = $write_text:literal,)* }
    ) => {
        /// The prepared statements.
        pub(super) struct Statements {
            $(pub(super) $read: PreparedStatement,)*
            $(pub(super) $write: PreparedStatement,)*
        }

        impl Statements {
            /// Prepares all of them; fails with what is missing in the schema.
            pub(super) async fn prepare(session: &Session) -> Result<Self, Error> {
                let reads = read_profile(session);
                Ok(Self {
                    $($read: prepare(session, $read_text, Some(reads.clone())).await?,)*
                    $($write: prepare(session, $write_text, None).await?,)*
                })
            }
        }
    };
}

statements! {
    reads {
        meta_number = "SELECT number FROM meta WHERE name = ?",

        conv_head = "SELECT head, countable, applied FROM conv_head WHERE conversation = ?",
        members = "SELECT uid, join_seq, leave_seq FROM member WHERE conversation = ?",
        intent = "SELECT outcome, conv_seq, countable_seq, content_hash, off, append_time FROM intent \
            WHERE conversation = ? AND sender = ? AND msg_id = ? AND action = ? AND op_id = ?",

        history_range = "SELECT conv_seq, append_time, message FROM history \
            WHERE conversation = ? AND bucket = ? AND conv_seq >= ? AND conv_seq <= ? ORDER BY conv_seq ASC LIMIT ?",
        history_newest = "SELECT conv_seq FROM history WHERE conversation = ? AND bucket = ? LIMIT 1",
        locate = "SELECT conversation, sender, conv_seq, append_time FROM locator WHERE msg_id = ?",

        checkpoint = "SELECT state FROM ckpt WHERE partition = ?",
        inbox_head = "SELECT seq, off FROM inbox_head WHERE uid = ?",
        row_offsets = "SELECT seq, off FROM inbox WHERE uid = ? AND bucket = ? AND seq <= ? LIMIT ?",
        inbox_rows = "SELECT seq, off, src_topic, src_partition, src_pos, src_idx, append_time, event FROM inbox \
            WHERE uid = ? AND bucket = ? AND seq > ? ORDER BY seq ASC LIMIT ?",
        inbox_newest = "SELECT seq FROM inbox WHERE uid = ? AND bucket = ? LIMIT 1",
        inbox_oldest = "SELECT seq FROM inbox WHERE uid = ? AND bucket = ? ORDER BY seq ASC LIMIT 1",
        dlq_intent = "SELECT off FROM dlq_intent WHERE partition = ? AND dlq_id = ? LIMIT 1",
        device = "SELECT delivered, stored, off FROM device WHERE uid = ? AND device = ?",
        user_conv = "SELECT appended, appended_countable, delivered, read, read_countable, off FROM user_conv \
            WHERE uid = ? AND conversation = ?",
        user_convs = "SELECT conversation, appended, appended_countable, delivered, read, read_countable, off \
            FROM user_conv WHERE uid = ?",
        device_open = "SELECT start_cursor, opened_at FROM device_open WHERE uid = ? AND device = ?",
        any_device = "SELECT device FROM device_open WHERE uid = ? LIMIT 1",

        dead_letter = "SELECT dlq_id, topic, origin_partition, origin_offset, origin_time, consumer_group, record_key, \
            record_value, headers, error_class, error_detail, attempts, first_failed_at, last_failed_at, replay_count, \
            state FROM dead_letter WHERE shard = ? AND dlq_id = ?",
        dead_letter_ttl = "SELECT topic, ttl(topic) FROM dead_letter WHERE shard = ? AND dlq_id = ?",
        dead_letter_page = "SELECT dlq_id, topic, error_class, state FROM dead_letter \
            WHERE shard = ? AND dlq_id > ? LIMIT ?",

        fold_skips = "SELECT record_offset, reason, who, time FROM fold_skip WHERE topic = ? AND partition = ?",
    }
    writes {
        write_conv_head = "INSERT INTO conv_head (conversation, head, countable, applied) VALUES (?, ?, ?, ?) \
            USING TIMESTAMP ?",
        write_join = "INSERT INTO member (conversation, uid, join_seq) VALUES (?, ?, ?) USING TIMESTAMP ?",
        write_leave = "INSERT INTO member (conversation, uid, join_seq, leave_seq) VALUES (?, ?, ?, ?) \
            USING TIMESTAMP ?",
        write_intent = "INSERT INTO intent (conversation, sender, msg_id, action, op_id, outcome, conv_seq, \
            countable_seq, content_hash, off, append_time) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",

        write_history = "INSERT INTO history (conversation, bucket, conv_seq, append_time, message) \
            VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
        write_locator = "INSERT INTO locator (msg_id, conversation, sender, conv_seq, append_time) \
            VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",

        write_checkpoint = "INSERT INTO ckpt (partition, state) VALUES (?, ?) USING TIMESTAMP ?",
        write_inbox_row = "INSERT INTO inbox (uid, bucket, seq, off, src_topic, src_partition, src_pos, src_idx, \
            append_time, event) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
        write_inbox_head = "INSERT INTO inbox_head (uid, seq, off) VALUES (?, ?, ?) USING TIMESTAMP ?",
        write_dlq_intent = "INSERT INTO dlq_intent (partition, dlq_id, off) VALUES (?, ?, ?)",
        write_device = "INSERT INTO device (uid, device, delivered, stored, off) VALUES (?, ?, ?, ?, ?) \
            USING TIMESTAMP ?",
        write_user_conv = "INSERT INTO user_conv (uid, conversation, appended, appended_countable, delivered, read, \
            read_countable, off) VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
        write_device_open = "INSERT INTO device_open (uid, device, start_cursor, opened_at) VALUES (?, ?, ?, ?)",

        write_dead_letter = "INSERT INTO dead_letter (shard, dlq_id, topic, origin_partition, origin_offset, \
            origin_time, consumer_group, record_key, record_value, headers, error_class, error_detail, attempts, \
            first_failed_at, last_failed_at, replay_count) \
            VALUES (:shard, :dlq_id, :topic, :origin_partition, :origin_offset, \
            :origin_time, :consumer_group, :record_key, :record_value, :headers, :error_class, :error_detail, \
            :attempts, :first_failed_at, :last_failed_at, :replay_count)",
        // Below every wall-clock timestamp: taking in again never takes a state back.
        write_first_state = "UPDATE dead_letter USING TIMESTAMP 1 SET state = ? WHERE shard = ? AND dlq_id = ?",
        write_state = "UPDATE dead_letter USING TTL ? SET state = ? WHERE shard = ? AND dlq_id = ?",

        write_fold_skip = "INSERT INTO fold_skip (topic, partition, record_offset, reason, who, time) \
            VALUES (?, ?, ?, ?, ?, ?)",
    }
}
