//! The register rule for what devices report (sequencing.md section 1, "State beyond the heads").
//!
//! A register holds a value and `off`, the position of the last record applied to it. `off >= o`: the record at o is done
//! and its effects are durable, because registers are written after the acknowledgements of everything the run had sent.
//! `off < o`: the value is exact. Each effect below depends on one register alone.

use tidings_domain::Position;
use tidings_domain::state::{ConvMark, DeviceRegister, UserConvRegister};

use super::prepare::ConvReport;

/// What a record does to a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Done before; to be written again, because the value read may be a phantom.
    Done,
    /// Exact, and the record changes nothing: no write.
    Unchanged,
    /// Changed.
    Grew(Growth),
}

/// Watermarks that grew, with their new values; 0: unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Growth {
    pub(super) delivered: u64,
    pub(super) read: u64,
}

/// Whether the record at `off` has been applied to a register.
pub(super) fn is_done(register_off: Option<Position>, off: Position) -> bool {
    register_off.is_some_and(|register_off| register_off >= off)
}

/// A message was appended to the user's stream.
pub(super) fn appended(register: &mut Option<UserConvRegister>, mark: ConvMark, off: Position) -> Effect {
    if is_done(register.map(|r| r.off), off) {
        return Effect::Done;
    }
    let old = register.unwrap_or(UserConvRegister {
        appended: ConvMark::default(),
        delivered: 0,
        read: ConvMark::default(),
        off,
    });
    if mark <= old.appended {
        // A dead letter that was replayed: older than what the stream already has.
        return Effect::Unchanged;
    }
    *register = Some(UserConvRegister {
        appended: mark,
        off,
        ..old
    });
    Effect::Grew(Growth::default())
}

/// A device reports what it has stored and what was read, clamped to what was appended. Nothing was appended: nothing
/// can be reported.
pub(super) fn reported(register: &mut Option<UserConvRegister>, report: &ConvReport, off: Position) -> Effect {
    if is_done(register.map(|r| r.off), off) {
        return Effect::Done;
    }
    let Some(old) = *register else {
        return Effect::Unchanged;
    };
    let delivered = old.delivered.max(report.delivered.min(old.appended.conv_seq));
    let read = old.read.conv_seq.max(report.read.min(old.appended.conv_seq));
    let growth = Growth {
        delivered: if delivered > old.delivered { delivered } else { 0 },
        read: if read > old.read.conv_seq { read } else { 0 },
    };
    if growth == Growth::default() {
        return Effect::Unchanged;
    }
    *register = Some(UserConvRegister {
        delivered,
        read: if growth.read > 0 {
            read_mark(old.appended, old.read, read)
        } else {
            old.read
        },
        off,
        ..old
    });
    Effect::Grew(growth)
}

/// The countable number at `conv_seq`, as far as the appended pair tells: each number counts at most one, so it is at
/// least `appended.countable_seq - (appended.conv_seq - conv_seq)`. Exact where everything counts, else it leaves unread
/// rather too high than too low; it never goes back and never passes `conv_seq`.
fn read_mark(appended: ConvMark, old: ConvMark, conv_seq: u64) -> ConvMark {
    let least = appended
        .countable_seq
        .saturating_sub(appended.conv_seq.saturating_sub(conv_seq));
    ConvMark {
        conv_seq,
        countable_seq: least.max(old.countable_seq).min(conv_seq),
    }
}

/// A device reports how far it got in the user's stream, clamped to the stream's `head` at the record. Always moves
/// `off`: at a refold the head may be ahead, and then the register must say that the record is done.
pub(super) fn progressed(register: &mut Option<DeviceRegister>, delivered: u64, stored: u64, head: u64, off: Position) {
    let old = register.unwrap_or(DeviceRegister {
        delivered: 0,
        stored: 0,
        off,
    });
    *register = Some(DeviceRegister {
        // What is stored has arrived.
        delivered: old.delivered.max(delivered.max(stored).min(head)),
        stored: old.stored.max(stored.min(head)),
        off,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_domain::{Conversation, LogEpoch};

    fn pos(offset: u64) -> Position {
        Position::new(LogEpoch::FIRST, offset)
    }

    fn mark(conv_seq: u64, countable_seq: u64) -> ConvMark {
        ConvMark {
            conv_seq,
            countable_seq,
        }
    }

    fn report(delivered: u64, read: u64) -> ConvReport {
        ConvReport {
            conversation: Conversation::parse("d:a:b").expect("valid"),
            delivered,
            read,
        }
    }

    #[test]
    fn reports_are_clamped_and_only_growth_counts() {
        let mut register = None;
        assert_eq!(reported(&mut register, &report(5, 5), pos(1)), Effect::Unchanged);
        assert_eq!(register, None, "nothing appended: no register");
        assert_eq!(
            appended(&mut register, mark(3, 3), pos(2)),
            Effect::Grew(Growth::default())
        );
        assert_eq!(
            reported(&mut register, &report(9, 2), pos(3)),
            Effect::Grew(Growth { delivered: 3, read: 2 })
        );
        assert_eq!(reported(&mut register, &report(1, 1), pos(4)), Effect::Unchanged);
        assert_eq!(reported(&mut register, &report(9, 9), pos(3)), Effect::Done);
        let register = register.expect("appended");
        assert_eq!(
            (register.delivered, register.read, register.off),
            (3, mark(2, 2), pos(3))
        );
    }

    #[test]
    fn the_countable_number_of_a_read_is_never_too_high() {
        assert_eq!(read_mark(mark(10, 6), mark(0, 0), 10), mark(10, 6));
        assert_eq!(read_mark(mark(10, 6), mark(0, 0), 8), mark(8, 4));
        assert_eq!(read_mark(mark(10, 6), mark(7, 5), 8), mark(8, 5));
        assert_eq!(read_mark(mark(10, 2), mark(0, 0), 3), mark(3, 0));
    }

    #[test]
    fn a_device_never_gets_past_the_head_nor_back() {
        let mut register = None;
        progressed(&mut register, 2, 9, 5, pos(1));
        assert_eq!(
            register,
            Some(DeviceRegister {
                delivered: 5,
                stored: 5,
                off: pos(1)
            })
        );
        progressed(&mut register, 1, 1, 5, pos(2));
        assert_eq!(register.map(|r| (r.stored, r.off)), Some((5, pos(2))));
    }
}
