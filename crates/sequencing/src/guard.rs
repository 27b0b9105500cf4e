//! The stale guard (seq:G7) and the order of offsets: what a batch must satisfy before anything of it is written.

use tidings_domain::clock::Millis;

use crate::params::Params;
use crate::record::LogEntry;
use crate::stop::Stop;

/// After a batch's reads and before its first write: a record older than LIMIT may have outlived the memory of ids and
/// rows, so its owner stops instead of guessing.
pub(crate) fn not_stale(params: &Params, batch: &[LogEntry], broker_now: Millis) -> Result<(), Stop> {
    let (Some(limit), Some(oldest)) = (params.guard_limit, batch.iter().min_by_key(|entry| entry.append_time)) else {
        return Ok(());
    };
    let age = broker_now.since(oldest.append_time);
    if age > limit {
        return Err(Stop::GuardLimit {
            offset: oldest.offset,
            age,
            limit,
        });
    }
    Ok(())
}

/// Offsets ascend (they need not be dense) and begin at or after `next`.
pub(crate) fn in_order(batch: &[LogEntry], next: u64) -> Result<(), Stop> {
    let mut expected = next;
    for entry in batch {
        if entry.offset < expected {
            return Err(Stop::OffsetOrder {
                offset: entry.offset,
                expected,
            });
        }
        expected = entry.offset + 1;
    }
    Ok(())
}
