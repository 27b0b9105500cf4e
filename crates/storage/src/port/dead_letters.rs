//! What the compensator keeps: `dead_letter`.

use async_trait::async_trait;
use bytes::Bytes;
use tidings_domain::Topic;
use tidings_domain::clock::Millis;

use crate::Error;

/// Where a dead letter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadLetterState {
    /// Taken in.
    New,
    /// Sent back to its origin topic, not yet confirmed by the service.
    Replaying,
    /// The service handled it.
    Resolved,
    /// Waits for a person.
    Parked,
    /// Given up by a person, with a reason.
    Dropped,
}

impl DeadLetterState {
    /// The stored and shown name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Replaying => "replaying",
            Self::Resolved => "resolved",
            Self::Parked => "parked",
            Self::Dropped => "dropped",
        }
    }

    /// The state of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::New, Self::Replaying, Self::Resolved, Self::Parked, Self::Dropped]
            .into_iter()
            .find(|s| s.name() == name)
    }
}

/// A dead letter as taken in: the untouched record and what is known of its failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRow {
    /// `<topic>/<partition>/<offset>/<group>` of the origin: the identity on every replay.
    pub dlq_id: String,
    /// Origin topic.
    pub topic: Topic,
    /// Origin partition.
    pub partition: u32,
    /// Origin offset.
    pub offset: u64,
    /// Broker time of the origin record.
    pub origin_time: Millis,
    /// Consumer group that failed.
    pub group: String,
    /// Untouched.
    pub key: Option<Bytes>,
    /// Untouched; `None` for a null value.
    pub value: Option<Bytes>,
    /// All headers of the dlq record.
    pub headers: Vec<(String, Bytes)>,
    /// Stable name of the failure.
    pub error_class: String,
    /// At most 512 bytes, without message text.
    pub error_detail: String,
    /// Tries before it was given up.
    pub attempts: u32,
    /// When it failed first.
    pub first_failed_at: Millis,
    /// When it failed last.
    pub last_failed_at: Millis,
    /// Replays so far.
    pub replay_count: u32,
    /// Where it stands.
    pub state: DeadLetterState,
}

/// Which dead letters to list. Empty fields do not filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Only of this class.
    pub error_class: Option<String>,
    /// Only of this origin topic.
    pub topic: Option<Topic>,
    /// Only in this state.
    pub state: Option<DeadLetterState>,
    /// Only ids after this one.
    pub after_id: Option<String>,
}

impl DeadLetterFilter {
    /// Whether a dead letter of this class, topic and state passes; `after_id` is the reader's to apply.
    #[must_use]
    pub fn admits(&self, error_class: &str, topic: Topic, state: DeadLetterState) -> bool {
        self.error_class.as_deref().is_none_or(|wanted| wanted == error_class)
            && self.topic.is_none_or(|wanted| wanted == topic)
            && self.state.is_none_or(|wanted| wanted == state)
    }
}

/// Store of dead letters.
#[async_trait]
pub trait DeadLetterStore: Send + Sync + 'static {
    /// Takes entries in: an entry that is already there stays as it is, state included (idempotent by origin position).
    /// Result i is that of row i: true if it was new.
    async fn take_in(&self, rows: &[DeadLetterRow]) -> Vec<Result<bool, Error>>;

    /// Moves an entry to a state. False if there is no such entry.
    async fn set_state(&self, dlq_id: &str, state: DeadLetterState) -> Result<bool, Error>;

    /// One entry.
    async fn get(&self, dlq_id: &str) -> Result<Option<DeadLetterRow>, Error>;

    /// Entries in the order of their ids, at most `limit`.
    async fn list(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetterRow>, Error>;
}
