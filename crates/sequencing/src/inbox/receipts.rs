//! What stage 2 emits: pushes for clients, receipts back into `inbox` (seq:I6, seq:I7).
//!
//! One device state may cause several events, for several users or for one. Each stands in a record of its own, and its
//! source position is (off, idx) with idx = 2 x place of the conversation in the report, plus 1 for the read-sync: a
//! function of the report alone (seq:G2), whichever of them are due at a refold.

use bytes::Bytes;
use prost::Message as _;
use tidings_domain::{Conversation, ConversationKind, Position, SourcePosition, Topic, Uid};
use tidings_proto::record::{Inbox, InboxAppend, Push};
use tidings_proto::v1;

use crate::chain::Chain;
use crate::params::Params;
use crate::record::Output;

use super::registers::Growth;

/// Emits what a grown register of `uid` tells others: a receipt to the other user of a 1:1 (req:B5), none to oneself, and
/// the new read position to the user's own devices.
pub(super) fn grown(
    params: &Params,
    chain: &mut Chain,
    (off, place): (Position, u32),
    uid: &Uid,
    conversation: &Conversation,
    growth: Growth,
    outputs: &mut Vec<Output>,
) {
    let src = |of| SourcePosition {
        pos: off,
        idx: 2 * place + of,
    };
    if let Some(peer) = peer(conversation, uid) {
        let receipt = v1::event::Kind::Receipt(v1::Receipt {
            conversation: conversation.as_str().to_owned(),
            uid: uid.as_str().to_owned(),
            delivered: growth.delivered,
            read: growth.read,
        });
        outputs.push(to_user(params, chain, src(0), &peer, receipt));
    }
    if growth.read > 0 {
        let read_sync = v1::event::Kind::ReadSync(v1::ReadSync {
            conversation: conversation.as_str().to_owned(),
            read: growth.read,
        });
        outputs.push(to_user(params, chain, src(1), uid, read_sync));
    }
}

/// The other user of a 1:1; `None` in a group and in a conversation with oneself.
fn peer(conversation: &Conversation, uid: &Uid) -> Option<Uid> {
    match conversation.kind() {
        ConversationKind::Direct(low, high) if low == high => None,
        ConversationKind::Direct(low, high) if low == *uid => Some(high),
        ConversationKind::Direct(low, high) if high == *uid => Some(low),
        ConversationKind::Direct(..) | ConversationKind::Group(_) => None,
    }
}

fn to_user(params: &Params, chain: &mut Chain, src: SourcePosition, uid: &Uid, kind: v1::event::Kind) -> Output {
    let key = Bytes::copy_from_slice(uid.as_str().as_bytes());
    let partition = (params.partition_of)(&key, params.partitions.inbox);
    Output {
        topic: Topic::Inbox,
        partition,
        key,
        link: chain.next(Topic::Inbox, partition, src),
        value: Inbox::Append(InboxAppend {
            uids: vec![uid.clone()],
            event: v1::Event { kind: Some(kind) }.encode_to_vec().into(),
        })
        .encode(),
    }
}

/// The push of an appended event: one record for all its recipients, same partition number as its inbox record.
pub(super) fn push(
    chain: &mut Chain,
    partition: u32,
    off: Position,
    targets: Vec<(Uid, u64)>,
    event: Bytes,
) -> Option<Output> {
    let key = Bytes::copy_from_slice(targets.first()?.0.as_str().as_bytes());
    Some(Output {
        topic: Topic::Push,
        partition,
        key,
        link: chain.next(Topic::Push, partition, SourcePosition::first(off)),
        value: Push { targets, event }.encode(),
    })
}
