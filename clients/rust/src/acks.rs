//! Cumulative ACKs, coalesced (req:B4). Pure: the time comes in.
//!
//! An ACK says how far the device has received (delivered) and committed (stored). It is sent `coalesce` after the first
//! reason for one; a lost one costs nothing, since the next says the same and more, and so does the cursor of every
//! `Connect` and `Sync`. A duplicate delivery is a reason to repeat it.

use std::collections::BTreeMap;
use std::time::Duration;

use tidings_domain::Conversation;
use tidings_proto::v1;
use tidings_proto::validate::MAX_ACK_CONVS;
use tokio::time::Instant;

/// What is to be acknowledged.
#[derive(Debug)]
pub(crate) struct AckBook {
    coalesce: Duration,
    due_at: Option<Instant>,
    /// Stored up to conv_seq, for the conversations touched since the last ACK.
    convs: BTreeMap<Conversation, u64>,
}

impl AckBook {
    pub(crate) fn new(coalesce: Duration) -> Self {
        Self {
            coalesce,
            due_at: None,
            convs: BTreeMap::new(),
        }
    }

    /// There is something to say: an event was received, committed, or came again.
    pub(crate) fn note(&mut self, now: Instant) {
        self.due_at.get_or_insert(now + self.coalesce);
    }

    /// A message of `conversation` was committed.
    pub(crate) fn stored(&mut self, conversation: Conversation, conv_seq: u64, now: Instant) {
        let newest = self.convs.entry(conversation).or_default();
        *newest = conv_seq.max(*newest);
        self.note(now);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.due_at
    }

    /// The ACKs to send now: one, or several if more conversations were touched than fit into one.
    pub(crate) fn due(&mut self, now: Instant, cursor: v1::Cursor, received: u64) -> Vec<v1::Ack> {
        if self.due_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.due_at = None;
        let convs: Vec<v1::AckConv> = std::mem::take(&mut self.convs)
            .into_iter()
            .map(|(conversation, conv_seq)| v1::AckConv {
                conversation: conversation.into(),
                conv_seq,
            })
            .collect();
        let ack = |convs: &[v1::AckConv]| v1::Ack {
            epoch: cursor.epoch,
            delivered: received.max(cursor.user_seq),
            stored: cursor.user_seq,
            convs: convs.to_vec(),
        };
        if convs.is_empty() {
            return vec![ack(&[])];
        }
        convs.chunks(MAX_ACK_CONVS).map(ack).collect()
    }

    /// Forgets everything: the cursor starts anew.
    pub(crate) fn reset(&mut self) {
        self.due_at = None;
        self.convs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_domain::Uid;

    const COALESCE: Duration = Duration::from_millis(100);

    fn conversation(n: usize) -> Conversation {
        Conversation::direct(
            &Uid::parse("alice").expect("valid"),
            &Uid::parse(&format!("user{n:04}")).expect("valid"),
        )
    }

    fn cursor(user_seq: u64) -> v1::Cursor {
        v1::Cursor { epoch: 9, user_seq }
    }

    #[test]
    fn one_ack_for_everything_within_the_window() {
        let now = Instant::now();
        let mut book = AckBook::new(COALESCE);
        assert!(book.due(now, cursor(0), 0).is_empty());
        book.note(now);
        book.stored(conversation(1), 5, now + COALESCE / 2);
        book.stored(conversation(1), 4, now + COALESCE / 2);
        assert_eq!(book.next_deadline(), Some(now + COALESCE));
        assert!(book.due(now + COALESCE / 2, cursor(7), 8).is_empty());
        let acks = book.due(now + COALESCE, cursor(7), 8);
        assert_eq!(
            acks,
            [v1::Ack {
                epoch: 9,
                delivered: 8,
                stored: 7,
                convs: vec![v1::AckConv {
                    conversation: conversation(1).into(),
                    conv_seq: 5
                }]
            }]
        );
        assert!(book.due(now + COALESCE * 5, cursor(7), 8).is_empty(), "said once");
    }

    #[test]
    fn many_conversations_are_split() {
        let now = Instant::now();
        let mut book = AckBook::new(COALESCE);
        for n in 0..250 {
            book.stored(conversation(n), 1, now);
        }
        let acks = book.due(now + COALESCE, cursor(250), 250);
        assert_eq!(
            acks.iter().map(|ack| ack.convs.len()).collect::<Vec<_>>(),
            [100, 100, 50]
        );
        assert!(acks.iter().all(|ack| ack.stored == 250));
    }
}
