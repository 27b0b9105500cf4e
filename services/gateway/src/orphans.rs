//! Sends whose session ended while they were at the producer.
//!
//! A device that loses its connection sends again at once, often to the same gateway. If the log has not reported the
//! first copy yet, the resend joins it here as it does within a session (req:B7), and its report goes to the new
//! session. **Guarantee.** Only copies without report are joined, so no link ACK comes from memory (req:B1). Entries are
//! never more than records in flight; those with a report are swept.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_domain::{ContentHash, Conversation, Uid};

use crate::lane::LaneKey;
use crate::mailbox::Mailbox;

/// One send and its content.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct OrphanKey {
    /// Who sent it.
    pub(crate) uid: Uid,
    /// Where.
    pub(crate) conversation: Conversation,
    /// Which.
    pub(crate) key: LaneKey,
    /// Its content.
    pub(crate) hash: ContentHash,
}

/// The mailbox of the ended session, and the send's tag there.
type Origin = (Arc<Mailbox>, u64);

/// All orphans of this gateway.
#[derive(Default)]
pub(crate) struct Orphans(Mutex<HashMap<OrphanKey, Origin>>);

impl Orphans {
    /// Takes over the sends of a session that ends.
    pub(crate) fn add(&self, mailbox: &Arc<Mailbox>, sends: impl IntoIterator<Item = (OrphanKey, u64)>) {
        let mut orphans = self.0.lock();
        for (key, tag) in sends {
            if mailbox.orphan(tag) {
                orphans.insert(key, (Arc::clone(mailbox), tag));
            }
        }
    }

    /// Lets `tag` of `heir` get the report of this send, if it is still to come.
    pub(crate) fn join(&self, key: &OrphanKey, heir: &Arc<Mailbox>, tag: u64) -> bool {
        let origin = self.0.lock().remove(key);
        origin.is_some_and(|(mailbox, origin_tag)| mailbox.bequeath(origin_tag, heir, tag))
    }

    /// Forgets what was reported.
    pub(crate) fn sweep(&self) {
        self.0.lock().retain(|_, (mailbox, tag)| mailbox.is_orphaned(*tag));
    }
}

#[cfg(test)]
mod tests {
    use tidings_bus::producer::{Confirmation, DeliverySink};
    use tidings_domain::clock::Millis;
    use tidings_domain::{Action, ContentHasher, MsgId};

    use super::*;
    use crate::config::Config;
    use crate::metrics::Metrics;

    const CONFIRMED: Confirmation = Confirmation {
        offset: Some(1),
        append_time: None,
    };

    fn mailbox() -> Arc<Mailbox> {
        let config = Config::defaults().gateway;
        let mailbox = Mailbox::new(&config, Arc::default(), Metrics::default(), 0, 0);
        Arc::new(mailbox)
    }

    fn key(content: &str) -> OrphanKey {
        let uid = Uid::parse("ann").expect("a uid");
        OrphanKey {
            conversation: Conversation::direct(&uid, &uid),
            uid,
            key: LaneKey {
                msg_id: MsgId::mint(Millis(1_700_000_000_000), [1; 10]),
                action: Action::Send,
                op_id: None,
            },
            hash: ContentHasher::new().part(content.as_bytes()).finish(),
        }
    }

    fn tags(mailbox: &Mailbox) -> Vec<u64> {
        mailbox.take().reports.iter().map(|report| report.tag).collect()
    }

    #[test]
    fn the_report_goes_to_the_last_heir() {
        let (orphans, first, second, third) = (Orphans::default(), mailbox(), mailbox(), mailbox());
        first.assume_in_flight();
        orphans.add(&first, [(key("a"), 5)]);
        assert!(!orphans.join(&key("b"), &second, 1), "other content");
        assert!(orphans.join(&key("a"), &second, 1));
        assert!(!orphans.join(&key("a"), &third, 9), "it has an heir");
        orphans.add(&second, [(key("a"), 1)]);
        assert!(orphans.join(&key("a"), &third, 2));
        first.delivered(5, Ok(CONFIRMED));
        assert_eq!((tags(&first), tags(&second), tags(&third)), (vec![], vec![], vec![2]));
    }

    #[test]
    fn what_was_reported_is_not_joined() {
        let (orphans, first, second) = (Orphans::default(), mailbox(), mailbox());
        first.assume_in_flight();
        orphans.add(&first, [(key("a"), 5)]);
        first.delivered(5, Ok(CONFIRMED));
        assert!(!orphans.join(&key("a"), &second, 1));
        // The report came before the session's end and was not read any more.
        first.assume_in_flight();
        first.delivered(6, Ok(CONFIRMED));
        orphans.add(&first, [(key("a"), 6)]);
        assert!(!orphans.join(&key("a"), &second, 1));
        orphans.sweep();
        assert!(orphans.0.lock().is_empty());
    }
}
