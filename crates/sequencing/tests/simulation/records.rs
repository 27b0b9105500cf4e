//! Records for the tests of single rules.

use bytes::Bytes;
use prost::Message as _;
use tidings_domain::clock::Millis;
use tidings_domain::{
    Action, ContentHasher, Conversation, DeviceId, MsgId, SourcePartition, SourcePosition, Topic, Uid,
};
use tidings_proto::header::SourceLink;
use tidings_proto::record::{DeviceState, Inbox, InboxAppend, Ingress, SenderRole};
use tidings_proto::v1;
use tidings_sequencing::{LogEntry, Params};

use crate::world::{EPOCH, position};

/// One partition of everything, so that tests of single rules need not place anything.
pub(crate) fn one_partition() -> Params {
    let mut params = crate::world::params(1 << 20, 1_000);
    params.partitions.ingress = 1;
    params.partitions.inbox = 1;
    params
}

pub(crate) fn uid(name: &str) -> Uid {
    Uid::parse(name).expect("valid")
}

pub(crate) fn conv(id: &str) -> Conversation {
    Conversation::parse(id).expect("valid")
}

pub(crate) fn entry(offset: u64, time: i64, value: Bytes) -> LogEntry {
    LogEntry {
        offset,
        append_time: Millis(time),
        key: None,
        value: Some(value),
        link: Ok(None),
        dlq_id: None,
    }
}

/// SEND number `n`, dated `time`.
pub(crate) fn send(conversation: &str, sender: &str, n: u8, time: i64, body: &'static str) -> Ingress {
    let body = Bytes::from_static(body.as_bytes());
    Ingress {
        action: Action::Send,
        conversation: conv(conversation),
        sender: uid(sender),
        sender_role: SenderRole::User,
        device: DeviceId::parse("phone").expect("valid"),
        msg_id: MsgId::mint(Millis(time), [n; 10]),
        op_id: None,
        content_hash: ContentHasher::new().part(&body).finish(),
        target: None,
        content_type: "text".to_owned(),
        body,
        client_time: Millis(time),
        first_send_time: Millis(time),
        retry_count: 0,
        member: None,
    }
}

/// The append of message `conv_seq` of `conversation`, emitted by ingress partition 0 from `src` after `prev`.
pub(crate) fn appended(
    offset: u64,
    (src, prev): (u64, Option<u64>),
    uids: &[&str],
    conversation: &str,
    conv_seq: u64,
) -> LogEntry {
    let message = v1::Message {
        conversation: conversation.to_owned(),
        conv_seq,
        countable_seq: conv_seq,
        ..v1::Message::default()
    };
    let event = v1::Event {
        kind: Some(v1::event::Kind::Message(message)),
    };
    let value = Inbox::Append(InboxAppend {
        uids: uids.iter().map(|name| uid(name)).collect(),
        event: event.encode_to_vec().into(),
    })
    .encode();
    linked(entry(offset, 1_000, value), src, prev)
}

pub(crate) fn linked(mut entry: LogEntry, src: u64, prev: Option<u64>) -> LogEntry {
    entry.link = Ok(Some(SourceLink {
        source: SourcePartition {
            topic: Topic::Ingress,
            partition: 0,
        },
        src: SourcePosition::first(position(src)),
        prev: prev.map(|prev| SourcePosition::first(position(prev))),
    }));
    entry
}

/// A device state of `name`'s phone.
pub(crate) fn state(name: &str, stored: u64, convs: &[(&str, u64)], reads: &[(&str, u64)]) -> DeviceState {
    let list = |list: &[(&str, u64)]| list.iter().map(|(c, seq)| (conv(c), *seq)).collect();
    DeviceState {
        uid: uid(name),
        device: DeviceId::parse("phone").expect("valid"),
        epoch: EPOCH,
        delivered: stored,
        stored,
        convs: list(convs),
        reads: list(reads),
    }
}

pub(crate) fn device_state(offset: u64, state: DeviceState) -> LogEntry {
    entry(offset, 1_000, Inbox::DeviceState(state).encode())
}
