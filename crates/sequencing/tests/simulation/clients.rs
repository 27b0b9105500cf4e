//! What users, devices and operators do to the logs.

use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::{Action, ContentHasher, Conversation, DeviceId, MsgId, Uid};
use tidings_proto::record::{DeviceState, Inbox, Ingress, SenderRole};

use crate::world::{EPOCH, INGRESS_PARTITIONS, SKEW, World, inbox_partition, partition_of};

const CONVERSATIONS: [&str; 6] = [
    "d:ann:bob",
    "d:ann:cat",
    "d:bob:bob",
    "d:cat:dan",
    "d:bob:dan",
    "g:01890a5d-ac96-774b-bcce-b302099a8057",
];
const USERS: [&str; 4] = ["ann", "bob", "cat", "dan"];

#[derive(Debug, Default)]
pub(crate) struct Clients {
    sent: Vec<Ingress>,
}

impl Clients {
    /// One user action: a new message, or an earlier one again.
    pub(crate) fn act(&mut self, world: &mut World) {
        world.now += [1, 0, 3, 60][world.tape.pick(4)];
        if world.tape.chance(4) && world.faults {
            let partition = world.tape.pick(INGRESS_PARTITIONS as usize);
            world.append_ingress(u32::try_from(partition).expect("small"), Bytes::from_static(b"\xff"));
            return;
        }
        let gateway = world.gateway_now();
        let record = if !self.sent.is_empty() && world.tape.chance(35) {
            let near = self.sent.len().min(3);
            let back = if world.tape.chance(50) { self.sent.len() } else { near };
            let mut record = self.sent[self.sent.len() - 1 - world.tape.pick(back)].clone();
            record.retry_count += 1;
            if world.tape.chance(25) {
                record.body = Bytes::from_static(b"other");
                record.content_hash = ContentHasher::new().part(&record.body).finish();
            }
            record
        } else {
            let record = self.new_message(world, gateway);
            self.sent.push(record.clone());
            record
        };
        // The gateway admits no id that is too far ahead of its clock.
        if record.msg_id.time().get() > gateway + SKEW {
            return;
        }
        let partition = partition_of(record.conversation.as_str().as_bytes(), INGRESS_PARTITIONS);
        world.append_ingress(partition, record.encode());
    }

    fn new_message(&self, world: &mut World, gateway: i64) -> Ingress {
        let conversation = Conversation::parse(CONVERSATIONS[world.tape.pick(CONVERSATIONS.len())]).expect("valid");
        let sender = Uid::parse(USERS[world.tape.pick(USERS.len())]).expect("valid");
        let time = Millis(gateway + [0, SKEW, -40, -2_000][world.tape.pick(4)]);
        let number = u64::try_from(self.sent.len()).expect("small");
        let mut random = [0; 10];
        random[2..].copy_from_slice(&number.to_be_bytes());
        let body = Bytes::from(format!("message {number}"));
        Ingress {
            action: if world.tape.chance(3) {
                Action::Recall
            } else {
                Action::Send
            },
            conversation,
            sender,
            sender_role: if world.tape.chance(10) {
                SenderRole::Service
            } else {
                SenderRole::User
            },
            device: DeviceId::parse("phone").expect("valid"),
            msg_id: MsgId::mint(time, random),
            op_id: None,
            content_hash: ContentHasher::new().part(&body).finish(),
            target: None,
            content_type: "text".to_owned(),
            body,
            client_time: time,
            first_send_time: time,
            retry_count: 0,
            member: None,
        }
    }

    /// A device reports, or an operator replays a dead letter.
    pub(crate) fn report(&mut self, world: &mut World) {
        if !world.originals.is_empty() && world.tape.chance(30) {
            let at = world.tape.pick(world.originals.len());
            let (q, id, value) = world.originals[at].clone();
            // Only what the service has sent to dlq can be replayed.
            if world.dead_letters.contains(&id) {
                let entry = world.append_inbox(q, value, Some(id));
                world.reference.replayed(q, &entry);
            }
            return;
        }
        let uid = Uid::parse(USERS[world.tape.pick(USERS.len())]).expect("valid");
        let q = inbox_partition(&uid);
        if world.faults && world.tape.chance(5) {
            let entry = world.append_inbox(q, Bytes::from_static(b"\xff"), None);
            world.reference.garbage(q, &entry);
            return;
        }
        let numbers = |world: &mut World| {
            let mut list = Vec::new();
            for _ in 0..world.tape.pick(4) {
                let conversation = CONVERSATIONS[world.tape.pick(CONVERSATIONS.len())];
                let seq = world.tape.pick(12) as u64;
                list.push((Conversation::parse(conversation).expect("valid"), seq));
            }
            list
        };
        let state = DeviceState {
            device: DeviceId::parse(["phone", "desk"][world.tape.pick(2)]).expect("valid"),
            epoch: if world.tape.chance(5) { EPOCH + 1 } else { EPOCH },
            delivered: world.tape.pick(20) as u64,
            stored: world.tape.pick(20) as u64,
            convs: numbers(world),
            reads: numbers(world),
            uid,
        };
        let entry = world.append_inbox(q, Inbox::DeviceState(state.clone()).encode(), None);
        world.reference.device_state(q, &entry, &state);
    }
}
