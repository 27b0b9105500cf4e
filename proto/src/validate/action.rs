//! Admission of a user's action.

use bytes::Bytes;
use tidings_domain::clock::Millis;
use tidings_domain::{
    Action, ContentHash, ContentHasher, Conversation, ConversationKind, DedupKey, DeviceId, MsgId, OpId, Uid,
};

use super::refusal::{Refusal, id, message_id};
use super::{Limits, MAX_CONTENT_TYPE_BYTES};
use crate::json::is_text;
use crate::record::{Ingress, SenderRole, Target};
use crate::v1;

/// A user's action with every part checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    /// What.
    pub action: Action,
    /// Where; `to_uid` is resolved.
    pub conversation: Conversation,
    /// The message's id.
    pub msg_id: MsgId,
    /// The action's own id, where it has one.
    pub op_id: Option<OpId>,
    /// What a RECALL or EDIT is about.
    pub target: Option<Target>,
    /// `text`, `image`, ...
    pub content_type: String,
    /// Opaque; a slice of the frame.
    pub body: Bytes,
    /// Who JOIN adds or KICK removes.
    pub member: Option<Uid>,
    /// The client's clock at this try.
    pub client_time: Millis,
    /// The client's clock at the first try.
    pub first_send_time: Millis,
    /// 0 for the first try.
    pub retry_count: u32,
    /// Number in the lane of (session, conversation), from 1.
    pub lane_seq: u64,
    /// Over everything the user meant.
    pub content_hash: ContentHash,
}

impl Admitted {
    /// The idempotency key of the action if `sender` does it.
    #[must_use]
    pub fn key(&self, sender: &Uid) -> DedupKey {
        DedupKey {
            conversation: self.conversation.clone(),
            sender: sender.clone(),
            msg_id: self.msg_id,
            action: self.action,
            op_id: self.op_id,
        }
    }

    /// The record for topic ingress.
    #[must_use]
    pub fn into_ingress(self, sender: Uid, sender_role: SenderRole, device: DeviceId) -> Ingress {
        Ingress {
            action: self.action,
            conversation: self.conversation,
            sender,
            sender_role,
            device,
            msg_id: self.msg_id,
            op_id: self.op_id,
            content_hash: self.content_hash,
            target: self.target,
            content_type: self.content_type,
            body: self.body,
            client_time: self.client_time,
            first_send_time: self.first_send_time,
            retry_count: self.retry_count,
            member: self.member,
        }
    }
}

/// 16 bytes over everything the user meant: action, content type, body, target, member. Client and gateway compute the
/// same, so that a rejection that names a hash can be matched (architecture.md section 3, decision 4).
#[must_use]
pub fn content_hash(
    action: Action,
    content_type: &str,
    body: &[u8],
    target: Option<&Target>,
    member: Option<&Uid>,
) -> ContentHash {
    let (target_sender, target_id) = target.map_or((&[][..], &[][..]), |target| {
        (target.sender.as_str().as_bytes(), &target.msg_id.as_bytes()[..])
    });
    ContentHasher::new()
        .part(&[action.number()])
        .part(content_type.as_bytes())
        .part(body)
        .part(target_sender)
        .part(target_id)
        .part(member.map_or(&[][..], |uid| uid.as_str().as_bytes()))
        .finish()
}

/// Checks the action that `sender` asks for at `now` (the server's clock).
///
/// # Errors
/// The first thing that is wrong: ids and form first, then the conversation, then size, then time.
pub fn user_action(frame: &v1::UserAction, sender: &Uid, limits: &Limits, now: Millis) -> Result<Admitted, Refusal> {
    let action = Action::from_number(frame.action).ok_or_else(|| Refusal::invalid("action", "missing or not known"))?;
    let msg_id = message_id("msg_id", MsgId::from_slice(&frame.msg_id))?;
    let op_id = op_id(frame, action)?;
    if frame.lane_seq == 0 {
        return Err(Refusal::invalid("lane_seq", "lanes count from 1"));
    }
    let conversation = conversation(frame, sender)?;
    let target = target(frame, action, msg_id)?;
    let member = member(frame, action)?;
    check_membership_action(action, &conversation)?;
    check_content(frame, action, limits)?;
    check_time(action, msg_id, op_id, limits, now)?;
    check_supported(action)?;

    let content_hash = content_hash(
        action,
        &frame.content_type,
        &frame.body,
        target.as_ref(),
        member.as_ref(),
    );
    Ok(Admitted {
        action,
        conversation,
        msg_id,
        op_id,
        target,
        content_type: frame.content_type.clone(),
        body: frame.body.clone(),
        member,
        client_time: Millis(frame.client_time),
        first_send_time: Millis(frame.first_send_time),
        retry_count: frame.retry_count,
        lane_seq: frame.lane_seq,
        content_hash,
    })
}

fn op_id(frame: &v1::UserAction, action: Action) -> Result<Option<OpId>, Refusal> {
    match (action.has_op_id(), frame.op_id.is_empty()) {
        (true, _) => message_id("op_id", OpId::from_slice(&frame.op_id)).map(Some),
        (false, true) => Ok(None),
        (false, false) => Err(Refusal::invalid("op_id", "SEND and RECALL have none")),
    }
}

fn conversation(frame: &v1::UserAction, sender: &Uid) -> Result<Conversation, Refusal> {
    let conversation = match (frame.conversation.is_empty(), frame.to_uid.is_empty()) {
        (false, true) => id("conversation", Conversation::parse(&frame.conversation))?,
        (true, false) => Conversation::direct(sender, &id("to_uid", Uid::parse(&frame.to_uid))?),
        (true, true) => return Err(Refusal::invalid("conversation", "conversation or to_uid is needed")),
        (false, false) => {
            return Err(Refusal::invalid(
                "conversation",
                "only one of conversation and to_uid is allowed",
            ));
        }
    };
    super::session::check_viewer(&conversation, sender)?;
    Ok(conversation)
}

fn target(frame: &v1::UserAction, action: Action, msg_id: MsgId) -> Result<Option<Target>, Refusal> {
    let wanted = match action {
        Action::Recall | Action::Edit => true,
        Action::Send | Action::Create | Action::Join | Action::Leave | Action::Kick => false,
    };
    match (&frame.target, wanted) {
        (None, false) => Ok(None),
        (None, true) => Err(Refusal::invalid("target", "RECALL and EDIT need one")),
        (Some(_), false) => Err(Refusal::invalid("target", "only RECALL and EDIT have one")),
        (Some(raw), true) => {
            let target = Target {
                sender: id("target.sender", Uid::parse(&raw.sender))?,
                msg_id: message_id("target.msg_id", MsgId::from_slice(&raw.msg_id))?,
            };
            if target.msg_id != msg_id {
                return Err(Refusal::invalid(
                    "target.msg_id",
                    "RECALL and EDIT carry the target's msg_id as their own",
                ));
            }
            Ok(Some(target))
        }
    }
}

fn member(frame: &v1::UserAction, action: Action) -> Result<Option<Uid>, Refusal> {
    let member = if frame.member.is_empty() {
        None
    } else {
        Some(id("member", Uid::parse(&frame.member))?)
    };
    match (action, &member) {
        (Action::Kick, None) => Err(Refusal::invalid("member", "KICK needs one")),
        (Action::Send | Action::Recall | Action::Edit | Action::Create | Action::Leave, Some(_)) => {
            Err(Refusal::invalid("member", "only JOIN and KICK have one"))
        }
        (Action::Kick | Action::Join, Some(_))
        | (Action::Send | Action::Recall | Action::Edit | Action::Create | Action::Join | Action::Leave, None) => {
            Ok(member)
        }
    }
}

fn check_membership_action(action: Action, conversation: &Conversation) -> Result<(), Refusal> {
    let of_groups = match action {
        Action::Create | Action::Join | Action::Leave | Action::Kick => true,
        Action::Send | Action::Recall | Action::Edit => false,
    };
    match conversation.kind() {
        ConversationKind::Direct(..) if of_groups => {
            Err(Refusal::invalid("conversation", "only groups have changing members"))
        }
        ConversationKind::Direct(..) | ConversationKind::Group(_) => Ok(()),
    }
}

fn check_content(frame: &v1::UserAction, action: Action, limits: &Limits) -> Result<(), Refusal> {
    if frame.body.len() > limits.max_body_bytes {
        return Err(Refusal::new(
            v1::Code::PayloadTooLarge,
            "body",
            format!(
                "the body has {} bytes; allowed are {}",
                frame.body.len(),
                limits.max_body_bytes
            ),
        )
        .with_limit(limits.max_body_bytes));
    }
    let has_content = match action {
        Action::Send | Action::Edit => true,
        Action::Recall | Action::Create | Action::Join | Action::Leave | Action::Kick => false,
    };
    if !has_content {
        if !frame.body.is_empty() {
            return Err(Refusal::invalid("body", "only SEND and EDIT have one"));
        }
        if !frame.content_type.is_empty() {
            return Err(Refusal::invalid("content_type", "only SEND and EDIT have one"));
        }
        return Ok(());
    }
    check_content_type(&frame.content_type)?;
    if is_text(&frame.content_type) {
        if frame.body.is_empty() {
            return Err(Refusal::invalid("body", "a text must not be empty"));
        }
        if let Err(error) = std::str::from_utf8(&frame.body) {
            return Err(Refusal::invalid(
                "body",
                format!("the text is not valid UTF-8 at byte {}", error.valid_up_to()),
            ));
        }
    }
    Ok(())
}

fn check_content_type(content_type: &str) -> Result<(), Refusal> {
    if content_type.is_empty() || content_type.len() > MAX_CONTENT_TYPE_BYTES {
        return Err(Refusal::invalid(
            "content_type",
            format!(
                "content_type has {} bytes; allowed are 1 to {MAX_CONTENT_TYPE_BYTES}",
                content_type.len()
            ),
        )
        .with_limit(MAX_CONTENT_TYPE_BYTES));
    }
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'/' | b'+' | b'-');
    match content_type.bytes().position(|b| !allowed(b)) {
        None => Ok(()),
        Some(at) => Err(Refusal::invalid(
            "content_type",
            format!("content_type has a character outside [a-z0-9._/+-] at byte {at}"),
        )),
    }
}

/// Ids ahead of the server would break the router's dedup without a read (sequencing.md section 2); ids older than its
/// memory would be taken for new (req:A5).
fn check_time(action: Action, msg_id: MsgId, op_id: Option<OpId>, limits: &Limits, now: Millis) -> Result<(), Refusal> {
    let newest = now.plus(limits.max_ahead);
    let ids = [Some(("msg_id", msg_id.time())), op_id.map(|op| ("op_id", op.time()))];
    for (field, time) in ids.into_iter().flatten() {
        if time > newest {
            return Err(Refusal::new(
                v1::Code::InvalidMsgId,
                field,
                format!(
                    "the time in {field} is {} ms ahead of the server's {}",
                    time.since(now).as_millis(),
                    now.get()
                ),
            )
            .with_limit(usize::try_from(limits.max_ahead.as_millis()).unwrap_or(usize::MAX)));
        }
    }
    let (field, time) = match (action, op_id) {
        // Repeating a recall is harmless.
        (Action::Recall, _) => return Ok(()),
        (_, Some(op)) => ("op_id", op.time()),
        (_, None) => ("msg_id", msg_id.time()),
    };
    if time < now.minus(limits.max_id_age) {
        return Err(Refusal::new(
            v1::Code::MsgIdExpired,
            field,
            format!("the time in {field} is more than {} s old", limits.max_id_age.as_secs()),
        )
        .with_limit(usize::try_from(limits.max_id_age.as_millis()).unwrap_or(usize::MAX)));
    }
    Ok(())
}

/// Only SEND goes further so far.
fn check_supported(action: Action) -> Result<(), Refusal> {
    match action {
        Action::Send => Ok(()),
        Action::Recall | Action::Edit | Action::Create | Action::Join | Action::Leave | Action::Kick => Err(
            Refusal::new(v1::Code::Unsupported, "action", "this server knows SEND only"),
        ),
    }
}
