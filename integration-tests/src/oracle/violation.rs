//! What can be wrong, and the figures of a run.

use std::fmt;

use tidings_domain::{Conversation, Uid};

use super::ledger::{DeviceKey, MessageKey};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Link-ACKed and not on a device of an entitled user (req:A4).
    AcknowledgedMissing { message: MessageKey, device: DeviceKey },
    /// More than once on a device (req:A6).
    ShownTwice {
        message: MessageKey,
        device: DeviceKey,
        times: usize,
    },
    /// Never pressed by anybody.
    ShownUnsent { message: MessageKey, device: DeviceKey },
    /// Pressed with another body.
    ContentDiffers { message: MessageKey, seen_by: String },
    /// On a device of somebody who is not entitled to it.
    ShownToStranger { message: MessageKey, device: DeviceKey },
    /// Refused for good and delivered all the same.
    RefusedButShown { message: MessageKey, device: DeviceKey },
    /// Neither acknowledged nor refused at the end (liveness).
    NeverSettled { message: MessageKey },
    /// The ladder was spent (req:B7: nothing is `FAILED`).
    Failed { message: MessageKey },
    /// Two messages of one device in one conversation, sequenced against the order of pressing (req:C2).
    PressOrderBroken { earlier: MessageKey, later: MessageKey },
    /// A device saw a lower conv_seq after a higher one.
    SeenOutOfOrder {
        conversation: Conversation,
        seen_by: String,
        conv_seq: u64,
        after: u64,
    },
    /// One number for two messages.
    ConvSeqReused {
        conversation: Conversation,
        conv_seq: u64,
        first: MessageKey,
        second: MessageKey,
    },
    /// Two numbers for one message (req:A5).
    SequencedTwice { message: MessageKey, conv_seqs: (u64, u64) },
    /// The numbers of a conversation are not 1, 2, 3 ... (req:C2).
    ConvSeqHole { conversation: Conversation, missing: u64 },
    /// A stream's numbers are not 1, 2, 3 ... (req:C1).
    StreamHole { uid: Uid, after: u64, found: u64 },
    /// A stream has one message twice: the devices' own keys had to catch it.
    StreamRepeats { uid: Uid, message: MessageKey },
    /// A device committed a number out of turn (req:C5).
    DeviceGap { device: DeviceKey, after: u64, found: u64 },
    /// One number of a user's stream means two events.
    UserSeqConflict {
        uid: Uid,
        user_seq: u64,
        seen_by: DeviceKey,
    },
    /// A device ends before the end of its stream (liveness).
    DeviceBehind { device: DeviceKey, at: u64, head: u64 },
    /// The server reset a cursor although nothing was lost.
    CursorReset { device: DeviceKey, times: u64 },
    /// Link-ACKed and not in the history.
    HistoryMissing { message: MessageKey },
    /// More than once in the history.
    HistoryRepeats { message: MessageKey },
    /// In the history and never pressed.
    HistoryUnsent { message: MessageKey },
}

/// Counts of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Presses.
    pub sent: usize,
    /// Of them link-ACKed.
    pub acknowledged: usize,
    /// Devices.
    pub devices: usize,
    /// Acknowledged × entitled × device.
    pub expected: usize,
    /// Of `expected`, on the device at least once.
    pub delivered: usize,
    /// Acknowledged and missing.
    pub missing: usize,
    /// Shown more often than once.
    pub twice: usize,
    /// Conversations with a history.
    pub conversations: usize,
    /// Repeats that only the devices' dedup keys caught.
    pub absorbed: usize,
}

/// The judgement of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Counts.
    pub figures: Figures,
    /// What is wrong; empty if nothing is.
    pub violations: Vec<Violation>,
}

/// Violations shown with a failed run.
const SHOWN: usize = 20;

impl Report {
    /// An error with the first violations if there is any.
    pub fn verdict(&self) -> anyhow::Result<()> {
        if self.violations.is_empty() {
            return Ok(());
        }
        let shown: Vec<String> = self.violations.iter().take(SHOWN).map(|v| format!("  {v:?}")).collect();
        anyhow::bail!(
            "{} violations ({}):\n{}",
            self.violations.len(),
            self.figures,
            shown.join("\n")
        )
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sent {}, acknowledged {}, devices {}, expected {}, delivered {}, acknowledged-but-missing {}, shown twice {}, \
             repeats absorbed {}, conversations {}",
            self.sent,
            self.acknowledged,
            self.devices,
            self.expected,
            self.delivered,
            self.missing,
            self.twice,
            self.absorbed,
            self.conversations
        )
    }
}
