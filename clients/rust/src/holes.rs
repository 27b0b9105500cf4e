//! Holes in a conversation's numbers, filled from history (req:C5). Pure: the time comes in.
//!
//! `user_seq` alone gates what is shown; `conv_seq` sorts. A number that is passed over (a dead letter, a time in which
//! the user was no member) is asked for once: what the answer does not contain is void or not visible, and asking again
//! would not change that (scenario B39). A request that got no answer is repeated, a few times.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tidings_domain::Conversation;
use tidings_proto::v1;
use tokio::time::Instant;

/// Requests under way; gateways bound them too.
const MAX_ASKED: usize = 2;
/// Holes remembered; the oldest are forgotten, which costs a scroll through history.
const MAX_HOLES: usize = 256;
/// Requests per hole that got no answer.
const MAX_TRIES: u32 = 3;

/// Numbers that were passed over, both ends included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) conversation: Conversation,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

#[derive(Debug)]
struct Wanted {
    hole: Hole,
    tries: u32,
}

/// The holes of all conversations.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    queue: VecDeque<Wanted>,
    asked: BTreeMap<u64, Wanted>,
    last_request: u64,
    not_before: Option<Instant>,
}

impl Holes {
    /// A hole was found.
    pub(crate) fn found(&mut self, hole: Hole) {
        self.push(Wanted { hole, tries: 0 });
    }

    fn push(&mut self, wanted: Wanted) {
        if self.queue.len() == MAX_HOLES {
            self.queue.pop_front();
        }
        self.queue.push_back(wanted);
    }

    /// The requests to send now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<v1::HistoryRequest> {
        let mut requests = Vec::new();
        while self.asked.len() < MAX_ASKED && self.not_before.is_none_or(|at| at <= now) {
            let Some(mut wanted) = self.queue.pop_front() else {
                break;
            };
            self.last_request += 1;
            wanted.tries += 1;
            requests.push(v1::HistoryRequest {
                request_id: self.last_request,
                conversation: wanted.hole.conversation.as_str().to_owned(),
                from_conv_seq: wanted.hole.from,
                to_conv_seq: wanted.hole.to,
                limit: 0,
            });
            self.asked.insert(self.last_request, wanted);
        }
        requests
    }

    /// When `due` has something to do next.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        (self.asked.len() < MAX_ASKED && !self.queue.is_empty()).then(|| self.not_before.unwrap_or(now))
    }

    /// An answer came: what of the hole it does not cover is asked for next. `false` if it was not asked for.
    pub(crate) fn answered(&mut self, page: &v1::HistoryPage) -> bool {
        let Some(Wanted { hole, .. }) = self.asked.remove(&page.request_id) else {
            return false;
        };
        let covers = page.from_conv_seq <= page.to_conv_seq && page.to_conv_seq > 0;
        if page.has_more && covers {
            let below = (hole.from, hole.to.min(page.from_conv_seq.saturating_sub(1)));
            let above = (hole.from.max(page.to_conv_seq.saturating_add(1)), hole.to);
            for (from, to) in [below, above] {
                // An answer beside the question covers nothing and ends it.
                if from <= to && to - from < hole.to - hole.from {
                    self.found(Hole {
                        conversation: hole.conversation.clone(),
                        from,
                        to,
                    });
                }
            }
        }
        true
    }

    /// A request was refused for now.
    pub(crate) fn refused(&mut self, request_id: u64, retry_after: Duration, now: Instant) {
        if let Some(wanted) = self.asked.remove(&request_id) {
            self.not_before = Some(now + retry_after);
            self.again(wanted);
        }
    }

    /// The session is over: what was asked is asked again in the next one.
    pub(crate) fn disconnected(&mut self) {
        for wanted in std::mem::take(&mut self.asked).into_values() {
            self.again(wanted);
        }
    }

    /// The numbers of the old epoch mean nothing any more.
    pub(crate) fn reset(&mut self) {
        self.queue.clear();
        self.asked.clear();
    }

    fn again(&mut self, wanted: Wanted) {
        if wanted.tries < MAX_TRIES {
            self.push(wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_domain::Uid;

    fn hole(from: u64, to: u64) -> Hole {
        Hole {
            conversation: Conversation::direct(
                &Uid::parse("alice").expect("valid"),
                &Uid::parse("bob").expect("valid"),
            ),
            from,
            to,
        }
    }

    fn page(request_id: u64, from: u64, to: u64, has_more: bool) -> v1::HistoryPage {
        v1::HistoryPage {
            request_id,
            has_more,
            from_conv_seq: from,
            to_conv_seq: to,
            ..v1::HistoryPage::default()
        }
    }

    fn asked(holes: &mut Holes, now: Instant) -> Vec<(u64, u64, u64)> {
        holes
            .due(now)
            .iter()
            .map(|request| (request.request_id, request.from_conv_seq, request.to_conv_seq))
            .collect()
    }

    /// Scenario B39: a void number is asked for once.
    #[test]
    fn a_hole_is_asked_for_once_even_if_it_stays() {
        let now = Instant::now();
        let mut holes = Holes::default();
        holes.found(hole(77, 77));
        assert_eq!(asked(&mut holes, now), [(1, 77, 77)]);
        assert!(holes.answered(&page(1, 77, 77, false)));
        assert!(asked(&mut holes, now).is_empty());
        assert!(!holes.answered(&page(1, 77, 77, false)), "it was answered");
    }

    #[test]
    fn long_holes_are_filled_page_by_page_from_either_end() {
        let now = Instant::now();
        let mut holes = Holes::default();
        holes.found(hole(1, 250));
        assert_eq!(asked(&mut holes, now), [(1, 1, 250)]);
        holes.answered(&page(1, 1, 100, true));
        assert_eq!(asked(&mut holes, now), [(2, 101, 250)]);
        holes.answered(&page(2, 151, 250, true));
        assert_eq!(asked(&mut holes, now), [(3, 101, 150)]);
        // A server that answers beside the question is not asked for ever.
        holes.answered(&page(3, 900, 950, true));
        assert!(asked(&mut holes, now).is_empty());
    }

    #[test]
    fn an_unanswered_request_is_repeated_a_few_times() {
        let now = Instant::now();
        let mut holes = Holes::default();
        holes.found(hole(5, 6));
        assert_eq!(asked(&mut holes, now), [(1, 5, 6)]);
        holes.refused(1, Duration::from_secs(2), now);
        assert!(asked(&mut holes, now).is_empty());
        let later = now + Duration::from_secs(2);
        assert_eq!(holes.next_deadline(now), Some(later));
        assert_eq!(asked(&mut holes, later), [(2, 5, 6)]);
        holes.disconnected();
        assert_eq!(asked(&mut holes, later), [(3, 5, 6)]);
        holes.disconnected();
        assert!(asked(&mut holes, later).is_empty(), "three tries are enough");
    }

    #[test]
    fn few_are_under_way_at_once() {
        let now = Instant::now();
        let mut holes = Holes::default();
        for n in 1..=5 {
            holes.found(hole(n * 10, n * 10));
        }
        assert_eq!(holes.due(now).len(), MAX_ASKED);
        assert_eq!(holes.next_deadline(now), None);
        holes.answered(&page(1, 10, 10, false));
        assert_eq!(holes.due(now).len(), 1);
    }
}
