//! What stage 2 asks for and what it decides: the whole of its contract with the service.

use tidings_domain::state::{Checkpoint, DeviceRegister, InboxHead, InboxRow, UserConvRegister};
use tidings_domain::{Conversation, DeviceId, Position, Uid};

use crate::record::{Output, Resolved, Undecodable};

/// What must be read before the batch can be decided. Quorum reads, one kind at a time, in the order asked for: heads
/// before rows (seq:I3) and before registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reads {
    /// First position at which a copy of each dead letter was folded, in this partition.
    DlqIntents(Vec<String>),
    /// `inbox_head` of each.
    InboxHeads(Vec<Uid>),
    /// For each (uid, off, bound): the number of the row with this `off` and `seq <= bound`.
    FindRows(Vec<(Uid, Position, u64)>),
    /// `device` of each.
    DeviceRegisters(Vec<(Uid, DeviceId)>),
    /// `user_conv` of each.
    UserConvRegisters(Vec<(Uid, Conversation)>),
}

/// The answers to [`Reads`], of the same kind and in the same order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answers {
    /// To [`Reads::DlqIntents`].
    DlqIntents(Vec<Option<Position>>),
    /// To [`Reads::InboxHeads`].
    InboxHeads(Vec<Option<InboxHead>>),
    /// To [`Reads::FindRows`].
    FindRows(Vec<Option<u64>>),
    /// To [`Reads::DeviceRegisters`].
    DeviceRegisters(Vec<Option<DeviceRegister>>),
    /// To [`Reads::UserConvRegisters`].
    UserConvRegisters(Vec<Option<UserConvRegister>>),
}

/// What became of a batch's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InboxStats {
    /// Fresh appends.
    pub appends: u64,
    /// Rows assigned, one per recipient.
    pub rows: u64,
    /// Records folded before.
    pub reemissions: u64,
    /// Records behind a missing one: pages, and heals when the source's next run emits both again.
    pub prefix_gaps: u64,
    /// Device states applied.
    pub device_states: u64,
    /// Device states whose device register was ahead of them.
    pub device_states_done: u64,
    /// Device states of another cursor epoch, ignored.
    pub other_cursor_epoch: u64,
    /// Receipts and read-syncs emitted.
    pub receipts: u64,
    /// Replays of dead letters folded.
    pub replays: u64,
    /// Further copies of dead letters, ignored.
    pub repeated_replays: u64,
    /// Records that go to `dlq`.
    pub undecodable: u64,
}

/// What a batch causes. Rows and dead-letter intents must be acknowledged before the next `decide`; pushes are emitted
/// after the rows (seq:I6), receipts in their order (seq:I7).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct InboxPlan {
    /// To write (seq:I5), in offset order, per user ascending.
    pub rows: Vec<(Uid, InboxRow)>,
    /// To emit to `push` once the rows are acknowledged.
    pub pushes: Vec<Output>,
    /// To emit to `inbox`.
    pub receipts: Vec<Output>,
    /// To write: first position of each dead letter folded (seq:I2).
    pub dlq_intents: Vec<(String, Position)>,
    /// To send to `dlq`; acknowledged before the checkpoint (seq:I8a).
    pub rejects: Vec<Undecodable>,
    /// Replays of dead letters that ended well; acknowledged before the checkpoint.
    pub resolved: Vec<Resolved>,
    /// For metrics.
    pub stats: InboxStats,
}

/// What a checkpoint writes, after everything the run has sent and written is acknowledged in order: registers, then
/// heads (seq:I8a), and only after those the one cell of offset and V (seq:I8b).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxCheckpoint {
    /// Timestamp `off`.
    pub devices: Vec<((Uid, DeviceId), DeviceRegister)>,
    /// Timestamp `off`.
    pub user_convs: Vec<((Uid, Conversation), UserConvRegister)>,
    /// Timestamp `seq`: every user assigned a number since the last checkpoint, advanced or not.
    pub heads: Vec<(Uid, InboxHead)>,
    /// The cell.
    pub checkpoint: Checkpoint,
    /// The cell's timestamp.
    pub pos: Position,
}
