//! What offline-inbox keeps: `inbox`, `inbox_head`, `ckpt`, `dlq_intent`, `device`, `user_conv`, `device_open`.
//!
//! [`InboxStore`] is the fold's (one owner per partition), [`InboxReader`] any replica's.

use async_trait::async_trait;
use tidings_domain::state::{Checkpoint, DeviceOpen, DeviceRegister, InboxHead, InboxRow, UserConvRegister};
use tidings_domain::{Conversation, DeviceId, Position, Uid};

use crate::Error;

/// Rows of a stream are kept in buckets of 2^12 numbers (notes/storage.md section 3: bounded partitions, exact ranges).
pub const BUCKET_BITS: u32 = 12;

/// The bucket of a number.
#[must_use]
pub const fn bucket_of(seq: u64) -> u64 {
    seq >> BUCKET_BITS
}

/// What a checkpoint writes before `ckpt` (seq:I8a), in this order: registers, then heads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointWrites {
    /// Timestamp `off`.
    pub devices: Vec<((Uid, DeviceId), DeviceRegister)>,
    /// Timestamp `off`.
    pub user_convs: Vec<((Uid, Conversation), UserConvRegister)>,
    /// Timestamp `seq`.
    pub heads: Vec<(Uid, InboxHead)>,
}

/// Store of offline-inbox's fold. Quorum reads and writes.
#[async_trait]
pub trait InboxStore: Send + Sync + 'static {
    /// `ckpt` of an inbox partition.
    async fn checkpoint(&self, partition: u32) -> Result<Option<Checkpoint>, Error>;

    /// Writes `ckpt`: one cell, timestamp `pos` (its `next_offset` under the topic's epoch).
    async fn write_checkpoint(&self, partition: u32, checkpoint: &Checkpoint, pos: Position) -> Result<(), Error>;

    /// `inbox_head` of each user.
    async fn inbox_heads(&self, uids: &[Uid]) -> Result<Vec<Option<InboxHead>>, Error>;

    /// For each (uid, off, upper bound): the number of the row with this `off` and `seq <=` bound, if it exists (seq:I3).
    async fn find_rows(&self, wanted: &[(Uid, Position, u64)]) -> Result<Vec<Option<u64>>, Error>;

    /// Upserts rows (seq:I5): per user ascending, a lower bucket acknowledged before the next is written. Write
    /// timestamp is the row's append time.
    async fn write_rows(&self, rows: &[(Uid, InboxRow)]) -> Result<(), Error>;

    /// `device` registers.
    async fn device_registers(&self, devices: &[(Uid, DeviceId)]) -> Result<Vec<Option<DeviceRegister>>, Error>;

    /// `user_conv` registers.
    async fn user_conv_registers(&self, convs: &[(Uid, Conversation)]) -> Result<Vec<Option<UserConvRegister>>, Error>;

    /// First inbox position at which a copy of each dead letter was folded (seq:I2).
    async fn dlq_intents(&self, partition: u32, ids: &[String]) -> Result<Vec<Option<Position>>, Error>;

    /// Upserts dead-letter intents; the lowest position wins.
    async fn write_dlq_intents(&self, partition: u32, intents: &[(String, Position)]) -> Result<(), Error>;

    /// Registers and heads of a checkpoint (seq:I8a).
    async fn write_registers(&self, writes: &CheckpointWrites) -> Result<(), Error>;
}

/// Reads of streams, and what opening a device writes; any replica.
#[async_trait]
pub trait InboxReader: Send + Sync + 'static {
    /// The random id of this store's streams, minted when the schema or data directory was made. A cursor of another
    /// epoch is reset.
    async fn cursor_epoch(&self) -> Result<u64, Error>;

    /// `inbox_head` of each user; 0 if none.
    async fn heads(&self, uids: &[Uid]) -> Result<Vec<u64>, Error>;

    /// Rows with `seq > after`, ascending, at most `limit`, across buckets.
    async fn rows_after(&self, uid: &Uid, after: u64, limit: usize) -> Result<Vec<InboxRow>, Error>;

    /// The newest row's number, found by probing bucket after bucket from that of `from` until the one after is empty
    /// (architecture.md section 3, Sync); `from` if there is none above it.
    async fn newest_row(&self, uid: &Uid, from: u64) -> Result<u64, Error>;

    /// Numbers at and below this are gone by retention; 0 if the stream is whole.
    async fn floor(&self, uid: &Uid) -> Result<u64, Error>;

    /// `device_open` of one device.
    async fn device_open(&self, uid: &Uid, device: &DeviceId) -> Result<Option<DeviceOpen>, Error>;

    /// Whether the user ever opened any device.
    async fn has_devices(&self, uid: &Uid) -> Result<bool, Error>;

    /// Upserts `device_open` (wall-clock timestamp).
    async fn write_device_open(&self, uid: &Uid, device: &DeviceId, open: DeviceOpen) -> Result<(), Error>;

    /// `device` register of one device.
    async fn device_register(&self, uid: &Uid, device: &DeviceId) -> Result<Option<DeviceRegister>, Error>;

    /// All `user_conv` registers of a user.
    async fn user_convs(&self, uid: &Uid) -> Result<Vec<(Conversation, UserConvRegister)>, Error>;
}
