//! Checked forms of the records: decoded once, with every id parsed.
//!
//! A record that fails here cannot be decoded by any owner (a function of its bytes and the fold version alone), which
//! is what seq:I2 needs.

use bytes::Bytes;
use prost::Message as _;
use tidings_domain::clock::Millis;
use tidings_domain::{Action, ContentHash, Conversation, DedupKey, DeviceId, IdError, MsgId, OpId, Uid};

use crate::v1;

/// Why a record's value is not a valid record.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// The record has no value.
    #[error("the record has no value")]
    NullValue,
    /// Not the protobuf message of this topic.
    #[error("not a valid protobuf message: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// A field is missing.
    #[error("field {0} is missing")]
    Missing(&'static str),
    /// A field has an unknown number.
    #[error("field {field} has unknown value {value}")]
    Unknown {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: i32,
    },
    /// A field has the wrong size.
    #[error("field {field} has {length} bytes instead of {expected}")]
    Size {
        /// Which field.
        field: &'static str,
        /// Its length.
        length: usize,
        /// What it should be.
        expected: usize,
    },
    /// An id is malformed.
    #[error("field {field}: {source}")]
    Id {
        /// Which field.
        field: &'static str,
        /// What is wrong.
        source: IdError,
    },
}

/// Parses an id and names the field if it is malformed.
fn id<T>(field: &'static str, parsed: Result<T, IdError>) -> Result<T, DecodeError> {
    parsed.map_err(|source| DecodeError::Id { field, source })
}

fn op_id(bytes: &Bytes) -> Result<Option<OpId>, DecodeError> {
    if bytes.is_empty() {
        Ok(None)
    } else {
        id("op_id", OpId::from_slice(bytes)).map(Some)
    }
}

fn action(number: i32) -> Result<Action, DecodeError> {
    Action::from_number(number).ok_or(DecodeError::Unknown {
        field: "action",
        value: number,
    })
}

fn content_hash(bytes: &Bytes) -> Result<ContentHash, DecodeError> {
    ContentHash::from_slice(bytes).ok_or(DecodeError::Size {
        field: "content_hash",
        length: bytes.len(),
        expected: 16,
    })
}

/// The message that a RECALL or EDIT is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Who sent it.
    pub sender: Uid,
    /// Which.
    pub msg_id: MsgId,
}

/// The role a token gave the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderRole {
    /// A user with a stream.
    User,
    /// A service account without a stream (req:I2).
    Service,
}

/// Topic ingress: one user action as the gateway admitted it.
#[derive(Debug, Clone, PartialEq)]
pub struct Ingress {
    /// What.
    pub action: Action,
    /// Where.
    pub conversation: Conversation,
    /// Who.
    pub sender: Uid,
    /// With which role.
    pub sender_role: SenderRole,
    /// From which device.
    pub device: DeviceId,
    /// The message's id.
    pub msg_id: MsgId,
    /// The action's own id, where it has one.
    pub op_id: Option<OpId>,
    /// Over everything the user meant.
    pub content_hash: ContentHash,
    /// What a RECALL or EDIT is about.
    pub target: Option<Target>,
    /// `text`, `image`, ...
    pub content_type: String,
    /// Opaque.
    pub body: Bytes,
    /// The client's clock at this try.
    pub client_time: Millis,
    /// The client's clock at the first try.
    pub first_send_time: Millis,
    /// 0 for the first try.
    pub retry_count: u32,
    /// Who JOIN adds or KICK removes.
    pub member: Option<Uid>,
}

impl Ingress {
    /// Decodes and checks a record's value.
    pub fn decode(value: Option<&Bytes>) -> Result<Self, DecodeError> {
        let raw = v1::Ingress::decode(value.ok_or(DecodeError::NullValue)?.clone())?;
        let action = action(raw.action)?;
        let op_id = op_id(&raw.op_id)?;
        if action.has_op_id() && op_id.is_none() {
            return Err(DecodeError::Missing("op_id"));
        }
        Ok(Self {
            action,
            conversation: id("conversation", Conversation::parse(&raw.conversation))?,
            sender: id("sender", Uid::parse(&raw.sender))?,
            sender_role: match v1::SenderRole::try_from(raw.sender_role) {
                Ok(v1::SenderRole::User) => SenderRole::User,
                Ok(v1::SenderRole::Service) => SenderRole::Service,
                Ok(v1::SenderRole::Unspecified) | Err(_) => {
                    return Err(DecodeError::Unknown {
                        field: "sender_role",
                        value: raw.sender_role,
                    });
                }
            },
            device: id("device", DeviceId::parse(&raw.device))?,
            msg_id: id("msg_id", MsgId::from_slice(&raw.msg_id))?,
            op_id,
            content_hash: content_hash(&raw.content_hash)?,
            target: match raw.target {
                None => None,
                Some(target) => Some(Target {
                    sender: id("target.sender", Uid::parse(&target.sender))?,
                    msg_id: id("target.msg_id", MsgId::from_slice(&target.msg_id))?,
                }),
            },
            content_type: raw.content_type,
            body: raw.body,
            client_time: Millis(raw.client_time),
            first_send_time: Millis(raw.first_send_time),
            retry_count: raw.retry_count,
            member: if raw.member.is_empty() {
                None
            } else {
                Some(id("member", Uid::parse(&raw.member))?)
            },
        })
    }

    /// The record's value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        v1::Ingress {
            action: i32::from(self.action.number()),
            conversation: self.conversation.as_str().to_owned(),
            sender: self.sender.as_str().to_owned(),
            sender_role: match self.sender_role {
                SenderRole::User => v1::SenderRole::User,
                SenderRole::Service => v1::SenderRole::Service,
            } as i32,
            device: self.device.as_str().to_owned(),
            msg_id: Bytes::copy_from_slice(self.msg_id.as_bytes()),
            op_id: self
                .op_id
                .map_or_else(Bytes::new, |op| Bytes::copy_from_slice(op.as_bytes())),
            content_hash: Bytes::copy_from_slice(self.content_hash.as_bytes()),
            target: self.target.as_ref().map(|target| v1::Target {
                sender: target.sender.as_str().to_owned(),
                msg_id: Bytes::copy_from_slice(target.msg_id.as_bytes()),
                conv_seq: 0,
            }),
            content_type: self.content_type.clone(),
            body: self.body.clone(),
            client_time: self.client_time.get(),
            first_send_time: self.first_send_time.get(),
            retry_count: self.retry_count,
            member: self
                .member
                .as_ref()
                .map_or_else(String::new, |uid| uid.as_str().to_owned()),
        }
        .encode_to_vec()
        .into()
    }

    /// The idempotency key.
    #[must_use]
    pub fn key(&self) -> DedupKey {
        DedupKey {
            conversation: self.conversation.clone(),
            sender: self.sender.clone(),
            msg_id: self.msg_id,
            action: self.action,
            op_id: self.op_id,
        }
    }
}

/// Topic inbox.
#[derive(Debug, Clone, PartialEq)]
pub enum Inbox {
    /// Append one event to several users' streams.
    Append(InboxAppend),
    /// A device's cumulative report.
    DeviceState(DeviceState),
}

/// Append one encoded `Event` to these users' streams.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxAppend {
    /// Each at most once (seq:G2).
    pub uids: Vec<Uid>,
    /// An encoded `Event`.
    pub event: Bytes,
}

/// Cumulative report of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceState {
    /// Whose device.
    pub uid: Uid,
    /// Which.
    pub device: DeviceId,
    /// Cursor epoch that the numbers belong to.
    pub epoch: u64,
    /// Received up to this user_seq.
    pub delivered: u64,
    /// Stored up to this user_seq.
    pub stored: u64,
    /// Stored up to conv_seq.
    pub convs: Vec<(Conversation, u64)>,
    /// Read up to conv_seq.
    pub reads: Vec<(Conversation, u64)>,
}

fn conv_positions(field: &'static str, raw: &[v1::ConvPosition]) -> Result<Vec<(Conversation, u64)>, DecodeError> {
    raw.iter()
        .map(|p| Ok((id(field, Conversation::parse(&p.conversation))?, p.conv_seq)))
        .collect()
}

fn raw_conv_positions(positions: &[(Conversation, u64)]) -> Vec<v1::ConvPosition> {
    positions
        .iter()
        .map(|(conversation, conv_seq)| v1::ConvPosition {
            conversation: conversation.as_str().to_owned(),
            conv_seq: *conv_seq,
        })
        .collect()
}

impl Inbox {
    /// Decodes and checks a record's value.
    pub fn decode(value: Option<&Bytes>) -> Result<Self, DecodeError> {
        let raw = v1::InboxRecord::decode(value.ok_or(DecodeError::NullValue)?.clone())?;
        match raw.kind.ok_or(DecodeError::Missing("kind"))? {
            v1::inbox_record::Kind::Append(append) => {
                if append.uids.is_empty() {
                    return Err(DecodeError::Missing("uids"));
                }
                if append.event.is_empty() {
                    return Err(DecodeError::Missing("event"));
                }
                let mut uids = Vec::with_capacity(append.uids.len());
                for uid in &append.uids {
                    uids.push(id("uids", Uid::parse(uid))?);
                }
                Ok(Self::Append(InboxAppend {
                    uids,
                    event: append.event,
                }))
            }
            v1::inbox_record::Kind::DeviceState(state) => Ok(Self::DeviceState(DeviceState {
                uid: id("uid", Uid::parse(&state.uid))?,
                device: id("device", DeviceId::parse(&state.device))?,
                epoch: state.epoch,
                delivered: state.delivered,
                stored: state.stored,
                convs: conv_positions("convs", &state.convs)?,
                reads: conv_positions("reads", &state.reads)?,
            })),
        }
    }

    /// The record's value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let kind = match self {
            Self::Append(append) => v1::inbox_record::Kind::Append(v1::InboxAppend {
                uids: append.uids.iter().map(|uid| uid.as_str().to_owned()).collect(),
                event: append.event.clone(),
            }),
            Self::DeviceState(state) => v1::inbox_record::Kind::DeviceState(v1::DeviceState {
                uid: state.uid.as_str().to_owned(),
                device: state.device.as_str().to_owned(),
                epoch: state.epoch,
                delivered: state.delivered,
                stored: state.stored,
                convs: raw_conv_positions(&state.convs),
                reads: raw_conv_positions(&state.reads),
            }),
        };
        v1::InboxRecord { kind: Some(kind) }.encode_to_vec().into()
    }
}

/// Topic push: an event with the number it has in each target's stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Push {
    /// (uid, user_seq).
    pub targets: Vec<(Uid, u64)>,
    /// An encoded `Event`.
    pub event: Bytes,
}

impl Push {
    /// Decodes and checks a record's value.
    pub fn decode(value: Option<&Bytes>) -> Result<Self, DecodeError> {
        let raw = v1::PushRecord::decode(value.ok_or(DecodeError::NullValue)?.clone())?;
        if raw.event.is_empty() {
            return Err(DecodeError::Missing("event"));
        }
        let targets = raw
            .targets
            .iter()
            .map(|target| Ok((id("targets.uid", Uid::parse(&target.uid))?, target.user_seq)))
            .collect::<Result<_, DecodeError>>()?;
        Ok(Self {
            targets,
            event: raw.event,
        })
    }

    /// The record's value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        v1::PushRecord {
            targets: self
                .targets
                .iter()
                .map(|(uid, user_seq)| v1::PushTarget {
                    uid: uid.as_str().to_owned(),
                    user_seq: *user_seq,
                })
                .collect(),
            event: self.event.clone(),
        }
        .encode_to_vec()
        .into()
    }
}

/// Topic history: a sequenced message with the ids a row needs, and its bytes as they came.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// Where.
    pub conversation: Conversation,
    /// Its number there, from 1.
    pub conv_seq: u64,
    /// Who.
    pub sender: Uid,
    /// Which message.
    pub msg_id: MsgId,
    /// What.
    pub action: Action,
    /// Broker time of the ingress record.
    pub append_time: Millis,
    /// The encoded `Message`, as it will be served.
    pub message: Bytes,
}

impl History {
    /// Decodes and checks a record's value.
    pub fn decode(value: Option<&Bytes>) -> Result<Self, DecodeError> {
        let message = value.ok_or(DecodeError::NullValue)?.clone();
        let raw = v1::Message::decode(message.clone())?;
        if raw.conv_seq == 0 {
            return Err(DecodeError::Missing("conv_seq"));
        }
        Ok(Self {
            conversation: id("conversation", Conversation::parse(&raw.conversation))?,
            conv_seq: raw.conv_seq,
            sender: id("sender", Uid::parse(&raw.sender))?,
            msg_id: id("msg_id", MsgId::from_slice(&raw.msg_id))?,
            action: action(raw.action)?,
            append_time: Millis(raw.append_time),
            message,
        })
    }
}

/// Wraps an encoded `Message` into the encoded `Event` that carries it, without decoding it.
#[must_use]
pub fn event_of_message(message: Bytes) -> Bytes {
    v1::RawEvent {
        kind: Some(v1::raw_event::Kind::Message(message)),
    }
    .encode_to_vec()
    .into()
}
