//! Reports of what the user has read (req:D4). Pure: the time comes in.
//!
//! A report says "read up to conv_seq"; it only moves forward, and at most one per conversation and `interval` is sent.
//! It is repeated in every session until the user's own stream confirms it, so that a lost one costs nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use tidings_domain::Conversation;
use tidings_proto::v1;
use tokio::time::Instant;

#[derive(Debug)]
struct Report {
    read: u64,
    /// In this session; 0: not yet.
    sent: u64,
    next_at: Option<Instant>,
}

/// What is read and not confirmed. One small entry per conversation that the user reads in.
#[derive(Debug)]
pub(crate) struct ReadBook {
    interval: Duration,
    reports: BTreeMap<Conversation, Report>,
}

impl ReadBook {
    pub(crate) fn new(interval: Duration, unconfirmed: Vec<(Conversation, u64)>) -> Self {
        let mut book = Self {
            interval,
            reports: BTreeMap::new(),
        };
        for (conversation, read) in unconfirmed {
            book.read(conversation, read);
        }
        book
    }

    /// The user has read up to here.
    pub(crate) fn read(&mut self, conversation: Conversation, read: u64) {
        let report = self.reports.entry(conversation).or_insert(Report {
            read: 0,
            sent: 0,
            next_at: None,
        });
        report.read = report.read.max(read);
    }

    /// The server has it.
    pub(crate) fn confirmed(&mut self, conversation: &Conversation, read: u64) {
        if self.reports.get(conversation).is_some_and(|report| report.read <= read) {
            self.reports.remove(conversation);
        }
    }

    /// The session is over: the next one starts with what is not confirmed.
    pub(crate) fn disconnected(&mut self) {
        for report in self.reports.values_mut() {
            report.sent = 0;
        }
    }

    /// The reports to send now, at most `room`.
    pub(crate) fn due(&mut self, now: Instant, room: usize) -> Vec<v1::Read> {
        let interval = self.interval;
        self.reports
            .iter_mut()
            .filter(|(_, report)| report.read > report.sent && report.next_at.is_none_or(|at| at <= now))
            .take(room)
            .map(|(conversation, report)| {
                report.sent = report.read;
                report.next_at = Some(now + interval);
                v1::Read {
                    conversation: conversation.as_str().to_owned(),
                    conv_seq: report.read,
                }
            })
            .collect()
    }

    /// When `due` has something to do next.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.reports
            .values()
            .filter(|report| report.read > report.sent)
            .map(|report| report.next_at.unwrap_or(now))
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_domain::Uid;

    const SECOND: Duration = Duration::from_secs(1);

    fn conversation() -> Conversation {
        Conversation::direct(&Uid::parse("alice").expect("valid"), &Uid::parse("bob").expect("valid"))
    }

    fn due(book: &mut ReadBook, now: Instant) -> Vec<u64> {
        book.due(now, 10).iter().map(|read| read.conv_seq).collect()
    }

    #[test]
    fn one_report_per_conversation_and_second_and_never_back() {
        let now = Instant::now();
        let mut book = ReadBook::new(SECOND, vec![]);
        book.read(conversation(), 5);
        book.read(conversation(), 3);
        assert_eq!(due(&mut book, now), [5]);
        book.read(conversation(), 9);
        assert!(due(&mut book, now).is_empty());
        assert_eq!(book.next_deadline(now), Some(now + SECOND));
        assert_eq!(due(&mut book, now + SECOND), [9]);
        book.read(conversation(), 4);
        assert_eq!(book.next_deadline(now), None);
    }

    #[test]
    fn a_report_is_repeated_until_it_is_confirmed() {
        let now = Instant::now();
        let mut book = ReadBook::new(SECOND, vec![(conversation(), 7)]);
        assert_eq!(due(&mut book, now), [7]);
        book.disconnected();
        assert_eq!(due(&mut book, now + SECOND), [7]);
        book.confirmed(&conversation(), 6);
        book.disconnected();
        assert_eq!(due(&mut book, now + SECOND * 2), [7]);
        book.confirmed(&conversation(), 7);
        book.disconnected();
        assert!(due(&mut book, now + SECOND * 3).is_empty());
    }
}
