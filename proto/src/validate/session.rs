//! Checks of the frames that are not user actions.

use bytes::Bytes;
use tidings_domain::{Conversation, DeviceId, MsgId, Uid};

use super::MAX_CLIENT_BYTES;
use super::refusal::{Refusal, id, message_id};
use crate::v1;

/// Most conversations in one cumulative ACK; a client with more sends several.
pub const MAX_ACK_CONVS: usize = 100;

/// A checked `Connect`, without the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Which device.
    pub device: DeviceId,
    /// Its local data is empty.
    pub fresh: bool,
    /// Where it stands: a storage ACK. `None` if fresh.
    pub cursor: Option<v1::Cursor>,
    /// What it says about itself, for logs.
    pub client: String,
}

/// A checked cumulative ACK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckReport {
    /// Cursor epoch that the numbers belong to.
    pub epoch: u64,
    /// Received up to this user_seq; at least `stored`.
    pub delivered: u64,
    /// Committed to the device's database up to this user_seq (req:B3).
    pub stored: u64,
    /// Stored up to conv_seq.
    pub convs: Vec<(Conversation, u64)>,
}

/// A checked request for history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRange {
    /// Echoed in the answer.
    pub request_id: u64,
    /// Where.
    pub conversation: Conversation,
    /// First conv_seq wanted, at least 1 unless both ends are open; 0: from the newest backwards.
    pub from: u64,
    /// Last conv_seq wanted; 0: the newest.
    pub to: u64,
    /// Most messages wanted; 0: the page limit.
    pub limit: u32,
}

/// Checks the first frame of a connection.
pub fn connect(frame: &v1::Connect) -> Result<Hello, Refusal> {
    let device = id("device_id", DeviceId::parse(&frame.device_id))?;
    if frame.client.len() > MAX_CLIENT_BYTES {
        return Err(Refusal::invalid(
            "client",
            format!(
                "client has {} bytes; allowed are {MAX_CLIENT_BYTES}",
                frame.client.len()
            ),
        )
        .with_limit(MAX_CLIENT_BYTES));
    }
    match (frame.fresh, &frame.cursor) {
        (true, Some(_)) => Err(Refusal::invalid("cursor", "a fresh device has none")),
        (false, None) => Err(Refusal::invalid("cursor", "missing; a device without one is fresh")),
        (true, None) | (false, Some(_)) => Ok(Hello {
            device,
            fresh: frame.fresh,
            cursor: frame.cursor,
            client: frame.client.clone(),
        }),
    }
}

/// Checks a cumulative ACK.
pub fn ack(frame: &v1::Ack) -> Result<AckReport, Refusal> {
    if frame.convs.len() > MAX_ACK_CONVS {
        return Err(Refusal::invalid(
            "convs",
            format!("{} conversations; allowed are {MAX_ACK_CONVS}", frame.convs.len()),
        )
        .with_limit(MAX_ACK_CONVS));
    }
    let convs = frame
        .convs
        .iter()
        .map(|conv| {
            Ok((
                id("convs.conversation", Conversation::parse(&conv.conversation))?,
                conv.conv_seq,
            ))
        })
        .collect::<Result<_, Refusal>>()?;
    Ok(AckReport {
        epoch: frame.epoch,
        // What is stored was received.
        delivered: frame.delivered.max(frame.stored),
        stored: frame.stored,
        convs,
    })
}

/// Checks the id of a per-message ACK (`delivered_ack`, `read_ack`; req:B6).
pub fn acked_msg_id(msg_id: &Bytes) -> Result<MsgId, Refusal> {
    message_id("msg_id", MsgId::from_slice(msg_id))
}

/// Checks a read report: (conversation, read up to this conv_seq).
pub fn read(frame: &v1::Read, reader: &Uid) -> Result<(Conversation, u64), Refusal> {
    let conversation = id("conversation", Conversation::parse(&frame.conversation))?;
    check_viewer(&conversation, reader)?;
    if frame.conv_seq == 0 {
        return Err(Refusal::invalid("conv_seq", "messages count from 1"));
    }
    Ok((conversation, frame.conv_seq))
}

/// Checks a request for history.
pub fn history(frame: &v1::HistoryRequest, viewer: &Uid) -> Result<HistoryRange, Refusal> {
    let conversation = id("conversation", Conversation::parse(&frame.conversation))?;
    check_viewer(&conversation, viewer)?;
    if frame.to_conv_seq != 0 && frame.from_conv_seq > frame.to_conv_seq {
        return Err(Refusal::invalid("from_conv_seq", "beyond to_conv_seq"));
    }
    Ok(HistoryRange {
        request_id: frame.request_id,
        conversation,
        from: frame.from_conv_seq,
        to: frame.to_conv_seq,
        limit: frame.limit,
    })
}

/// Checks the start of a sync round.
pub fn sync(frame: &v1::Sync) -> Result<v1::Cursor, Refusal> {
    frame.cursor.ok_or_else(|| Refusal::invalid("cursor", "missing"))
}

/// A 1:1 conversation is its two members' alone; whom a group lets see what, only the log knows.
pub(super) fn check_viewer(conversation: &Conversation, viewer: &Uid) -> Result<(), Refusal> {
    match conversation.direct_member(viewer) {
        Some(false) => Err(Refusal::new(
            v1::Code::Forbidden,
            "conversation",
            "a 1:1 conversation of others",
        )),
        Some(true) | None => Ok(()),
    }
}
