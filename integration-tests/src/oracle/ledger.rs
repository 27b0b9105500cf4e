//! What the load saw, as it happened.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_domain::{ContentHash, ContentHasher, Conversation, DeviceId, MsgId, Uid};

/// The ledger of a run, fed by many clients.
pub type SharedLedger = Arc<Mutex<Ledger>>;

/// One device of one user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey {
    /// Whose.
    pub uid: Uid,
    /// Which.
    pub device: DeviceId,
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.uid, self.device)
    }
}

/// One sent message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKey {
    /// Where.
    pub conversation: Conversation,
    /// Who.
    pub sender: Uid,
    /// Which.
    pub msg_id: MsgId,
}

impl fmt::Display for MessageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.msg_id, self.conversation)
    }
}

/// One press of the send button.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Press {
    /// The message.
    pub key: MessageKey,
    /// From which of the sender's devices.
    pub device: DeviceId,
    /// Its body.
    pub body: ContentHash,
    /// Every user who must see it, the sender included.
    pub entitled: Vec<Uid>,
}

/// What became of a press, as its device knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No link ACK yet.
    Pending,
    /// Link ACK with code 0.
    Acknowledged,
    /// The ladder was spent.
    Failed,
    /// Refused for good, with this code.
    Refused(i32),
}

/// What an event is, for comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A sent message. The body is absent in an echo.
    Message {
        /// Which.
        key: MessageKey,
        /// Its number in the conversation.
        conv_seq: u64,
        /// Its body.
        body: Option<ContentHash>,
    },
    /// Anything else, by its bytes.
    Other(ContentHash),
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the user's stream.
    pub user_seq: u64,
    /// What it is.
    pub event: EventKind,
}

/// One row of a conversation's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Its number.
    pub conv_seq: u64,
    /// Which message.
    pub key: MessageKey,
    /// Its body.
    pub body: ContentHash,
}

/// What one device was given and showed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceLog {
    /// Where it began: it is entitled to what comes after.
    pub start: u64,
    /// Committed events in order; a message among them was shown unless it is in `absorbed`.
    pub entries: Vec<Entry>,
    /// Numbers of events whose message was shown before, so that it was not shown again.
    pub absorbed: Vec<u64>,
    /// Times its cursor was reset by the server.
    pub resets: u64,
}

/// Everything that is known of a run.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    pub(super) presses: Vec<(Press, Outcome)>,
    pub(super) index: HashMap<MessageKey, usize>,
    pub(super) devices: BTreeMap<DeviceKey, DeviceLog>,
    pub(super) streams: BTreeMap<Uid, Vec<Entry>>,
    pub(super) histories: BTreeMap<Conversation, Vec<HistoryEntry>>,
}

impl Ledger {
    /// An empty ledger to be shared.
    pub fn shared() -> SharedLedger {
        Arc::new(Mutex::new(Self::default()))
    }

    /// The hash that stands for a body.
    pub fn body_hash(body: &[u8]) -> ContentHash {
        ContentHasher::new().part(body).finish()
    }

    /// A device exists and is entitled to every event after `start`.
    pub fn device_opened(&mut self, device: DeviceKey, start: u64) {
        self.devices.entry(device).or_insert_with(|| DeviceLog {
            start,
            ..DeviceLog::default()
        });
    }

    /// The send button was pressed. Presses of one device come in the order of pressing.
    pub fn pressed(&mut self, press: Press) {
        self.index.insert(press.key.clone(), self.presses.len());
        self.presses.push((press, Outcome::Pending));
    }

    /// What became of a press. A late ACK overrides `Failed`.
    pub fn settled(&mut self, key: &MessageKey, outcome: Outcome) {
        if let Some(&index) = self.index.get(key) {
            let known = &mut self.presses[index].1;
            if *known != Outcome::Acknowledged {
                *known = outcome;
            }
        }
    }

    /// A device committed an event. `shown` is false if its dedup keys had the message.
    pub fn committed(&mut self, device: &DeviceKey, entry: Entry, shown: bool) {
        let log = self.devices.entry(device.clone()).or_default();
        if !shown {
            log.absorbed.push(entry.user_seq);
        }
        log.entries.push(entry);
    }

    /// The server reset a device's cursor.
    pub fn reset(&mut self, device: &DeviceKey) {
        self.devices.entry(device.clone()).or_default().resets += 1;
    }

    /// The whole stream of a user, as the server tells it after the run.
    pub fn stream(&mut self, uid: Uid, entries: Vec<Entry>) {
        self.streams.insert(uid, entries);
    }

    /// The whole history of a conversation, as the server tells it after the run.
    pub fn history(&mut self, conversation: Conversation, entries: Vec<HistoryEntry>) {
        self.histories.insert(conversation, entries);
    }

    /// How many presses have this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.presses.iter().filter(|(_, known)| *known == outcome).count()
    }

    /// How many presses there were.
    pub fn sent(&self) -> usize {
        self.presses.len()
    }

    /// What became of one press.
    pub fn outcome(&self, key: &MessageKey) -> Option<Outcome> {
        self.index.get(key).map(|&index| self.presses[index].1)
    }

    /// All devices.
    pub fn devices(&self) -> impl Iterator<Item = (&DeviceKey, &DeviceLog)> {
        self.devices.iter()
    }

    /// The users and conversations that presses name: whose streams and histories belong to the evidence.
    pub fn subjects(&self) -> (Vec<Uid>, Vec<(Conversation, Uid)>) {
        let mut uids: Vec<Uid> = self.devices.keys().map(|device| device.uid.clone()).collect();
        uids.dedup();
        let conversations: BTreeMap<Conversation, Uid> = self
            .presses
            .iter()
            .map(|(press, _)| (press.key.conversation.clone(), press.key.sender.clone()))
            .collect();
        (uids, conversations.into_iter().collect())
    }

    /// Events a device still misses, by what its presses entitle it to: for waiting until all has arrived. Counts
    /// acknowledged presses only.
    pub fn missing(&self) -> usize {
        let mut has: BTreeMap<&DeviceKey, std::collections::HashSet<&MessageKey>> = BTreeMap::new();
        for (device, log) in &self.devices {
            let keys = log.entries.iter().filter_map(|entry| match &entry.event {
                EventKind::Message { key, .. } => Some(key),
                EventKind::Other(_) => None,
            });
            has.insert(device, keys.collect());
        }
        let acknowledged = self
            .presses
            .iter()
            .filter(|(_, outcome)| *outcome == Outcome::Acknowledged);
        acknowledged
            .flat_map(|(press, _)| press.entitled.iter().map(move |uid| (press, uid)))
            .flat_map(|(press, uid)| self.devices_of(uid).map(move |device| (press, device)))
            .filter(|(press, device)| !has[device].contains(&press.key))
            .count()
    }

    pub(super) fn devices_of<'a>(&'a self, uid: &'a Uid) -> impl Iterator<Item = &'a DeviceKey> {
        let first = DeviceKey {
            uid: uid.clone(),
            // The smallest name there is.
            device: DeviceId::parse("-").unwrap_or_else(|error| unreachable!("`-` is a name: {error}")),
        };
        self.devices
            .range(first..)
            .map(|(device, _)| device)
            .take_while(move |device| device.uid == *uid)
    }
}
