//! A user's state in a run: the stream's head and the registers, together, so that they are read in order and leave
//! memory together (seq:I3, seq:I9).
//!
//! The head is always read before the user's registers: registers are written before heads (seq:I8a), so a head at or
//! beyond a device report means that the report's register is there too.

use std::collections::HashMap;

use tidings_domain::state::{DeviceRegister, InboxHead, UserConvRegister};
use tidings_domain::{Conversation, DeviceId, Position, Uid};

use crate::stop::Stop;
use crate::touched::Stamp;

/// The head of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// The number of the last event before the record at hand.
    Exact(u64),
    /// As read; may be ahead of the record at hand.
    Register(InboxHead),
}

/// A register with its place in the next checkpoint.
#[derive(Debug, Clone)]
pub(super) struct Cell<T> {
    pub(super) register: Option<T>,
    pub(super) stamp: Stamp,
}

impl<T> Cell<T> {
    pub(super) fn read(register: Option<T>) -> Self {
        Self {
            register,
            stamp: Stamp::default(),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct User {
    pub(super) head: Head,
    /// Last number assigned by this run.
    pub(super) assigned: Option<InboxHead>,
    pub(super) stamp: Stamp,
    pub(super) devices: HashMap<DeviceId, Cell<DeviceRegister>>,
    pub(super) conversations: HashMap<Conversation, Cell<UserConvRegister>>,
    /// Newest stamp of the head and all registers.
    pub(super) last_stamp: Stamp,
    /// When it was last needed, for eviction.
    pub(super) used: u64,
}

impl User {
    /// As read at first touch.
    pub(super) fn read(head: Option<InboxHead>, used: u64) -> Self {
        Self {
            head: head.map_or(Head::Exact(0), Head::Register),
            assigned: None,
            stamp: Stamp::default(),
            devices: HashMap::new(),
            conversations: HashMap::new(),
            last_stamp: Stamp::default(),
            used,
        }
    }

    /// How much memory it takes, in states.
    pub(super) fn weight(&self) -> usize {
        1 + self.devices.len() + self.conversations.len()
    }

    /// The head read, if it is at or beyond `off`: then the row of the record is durable and must be found (seq:I3).
    pub(super) fn ahead_of(&self, off: Position) -> Option<InboxHead> {
        match self.head {
            Head::Exact(_) => None,
            Head::Register(head) => (head.off >= off).then_some(head),
        }
    }

    /// The exact head at a record at `off` that assigns nothing; `None` if the head is ahead of it.
    pub(super) fn exact_head(&mut self, off: Position) -> Option<u64> {
        match self.head {
            Head::Exact(seq) => Some(seq),
            Head::Register(head) if head.off < off => {
                self.head = Head::Exact(head.seq);
                Some(head.seq)
            }
            Head::Register(_) => None,
        }
    }

    /// Assigns the next number to the record at `off`. `found` is the answer to the search for its row, if the head was
    /// ahead of it.
    pub(super) fn assign(&mut self, uid: &Uid, off: Position, found: Option<Option<u64>>) -> Result<u64, Stop> {
        let offset = off.offset();
        let before = match self.head {
            Head::Exact(seq) => seq,
            Head::Register(head) if head.off < off => head.seq,
            Head::Register(head) => found
                .ok_or(Stop::NotRead { offset, what: "row" })?
                .and_then(|seq| seq.checked_sub(1))
                .ok_or_else(|| Stop::RowMissing {
                    offset,
                    uid: uid.clone(),
                    head: head.seq,
                })?,
        };
        let seq = before + 1;
        self.head = Head::Exact(seq);
        self.assigned = Some(InboxHead { seq, off });
        Ok(seq)
    }
}
