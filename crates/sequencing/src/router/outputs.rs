//! What stage 1 emits for one record, each encoded once: the bytes are a function of the record and its outcome, so every
//! owner emits the same.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;
use tidings_domain::clock::Millis;
use tidings_domain::state::RejectReason;
use tidings_domain::{SourcePosition, Topic, Uid};
use tidings_proto::record::{Inbox, InboxAppend, Ingress, event_of_message};
use tidings_proto::v1;

use crate::chain::Chain;
use crate::params::Params;
use crate::record::Output;

/// The numbers of an accepted record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sequenced {
    pub(super) conv_seq: u64,
    pub(super) countable_seq: u64,
    pub(super) append_time: Millis,
}

/// The encoded `Message` of an accepted record.
fn message(record: &Ingress, sequenced: Sequenced) -> Bytes {
    v1::Message {
        conversation: record.conversation.as_str().to_owned(),
        conv_seq: sequenced.conv_seq,
        countable_seq: sequenced.countable_seq,
        sender: record.sender.as_str().to_owned(),
        device: record.device.as_str().to_owned(),
        msg_id: Bytes::copy_from_slice(record.msg_id.as_bytes()),
        op_id: op_id(record),
        action: i32::from(record.action.number()),
        target: record.target.as_ref().map(|target| v1::Target {
            sender: target.sender.as_str().to_owned(),
            msg_id: Bytes::copy_from_slice(target.msg_id.as_bytes()),
            conv_seq: 0,
        }),
        append_time: sequenced.append_time.get(),
        content_type: record.content_type.clone(),
        body: record.body.clone(),
        content_hash: Bytes::copy_from_slice(record.content_hash.as_bytes()),
        member: record
            .member
            .as_ref()
            .map_or_else(String::new, |uid| uid.as_str().to_owned()),
        first_send_time: record.first_send_time.get(),
    }
    .encode_to_vec()
    .into()
}

fn op_id(record: &Ingress) -> Bytes {
    record
        .op_id
        .map_or_else(Bytes::new, |op| Bytes::copy_from_slice(op.as_bytes()))
}

/// The encoded `Event` that tells the sender of a refusal.
fn rejection(record: &Ingress, reason: RejectReason) -> Bytes {
    v1::Event {
        kind: Some(v1::event::Kind::Rejection(v1::Rejection {
            conversation: record.conversation.as_str().to_owned(),
            msg_id: Bytes::copy_from_slice(record.msg_id.as_bytes()),
            op_id: op_id(record),
            action: i32::from(record.action.number()),
            content_hash: Bytes::copy_from_slice(record.content_hash.as_bytes()),
            device: record.device.as_str().to_owned(),
            reason: i32::from(reason as u8),
        })),
    }
    .encode_to_vec()
    .into()
}

/// An accepted record: one output to `history`, and one to each `inbox` partition with recipients (seq:G2).
pub(super) fn accepted(
    params: &Params,
    chain: &mut Chain,
    src: SourcePosition,
    record: &Ingress,
    sequenced: Sequenced,
    recipients: Vec<Uid>,
    outputs: &mut Vec<Output>,
) {
    let message = message(record, sequenced);
    let key = record.conversation.as_str().as_bytes();
    let partition = (params.partition_of)(key, params.partitions.history);
    outputs.push(Output {
        topic: Topic::History,
        partition,
        key: Bytes::copy_from_slice(key),
        value: message.clone(),
        link: chain.next(Topic::History, partition, src),
    });
    to_inbox(params, chain, src, &event_of_message(message), recipients, outputs);
}

/// A refused record: one output to the sender.
pub(super) fn rejected(
    params: &Params,
    chain: &mut Chain,
    src: SourcePosition,
    record: &Ingress,
    reason: RejectReason,
    outputs: &mut Vec<Output>,
) {
    let event = rejection(record, reason);
    to_inbox(params, chain, src, &event, vec![record.sender.clone()], outputs);
}

fn to_inbox(
    params: &Params,
    chain: &mut Chain,
    src: SourcePosition,
    event: &Bytes,
    recipients: Vec<Uid>,
    outputs: &mut Vec<Output>,
) {
    let mut by_partition: BTreeMap<u32, Vec<Uid>> = BTreeMap::new();
    for uid in recipients {
        let partition = (params.partition_of)(uid.as_str().as_bytes(), params.partitions.inbox);
        by_partition.entry(partition).or_default().push(uid);
    }
    for (partition, uids) in by_partition {
        let Some(first) = uids.first() else { continue };
        outputs.push(Output {
            topic: Topic::Inbox,
            partition,
            key: Bytes::copy_from_slice(first.as_str().as_bytes()),
            link: chain.next(Topic::Inbox, partition, src),
            value: Inbox::Append(InboxAppend {
                uids,
                event: event.clone(),
            })
            .encode(),
        });
    }
}
