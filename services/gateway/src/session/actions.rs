//! Sends: admission, lanes, the producer, and the link ACK from its report.

use bytes::Bytes;
use tidings_bus::producer::{Confirmation, ProduceError};
use tidings_domain::clock::Millis;
use tidings_domain::{ContentHash, Conversation, Uid};
use tidings_proto::v1::{self, Code};
use tidings_proto::validate::{self, Admitted};
use tokio::time::Instant;

use super::reports;
use super::turns::Session;
use crate::lane::{Lane, LaneKey, Verdict};
use crate::mailbox::Report;
use crate::orphans::OrphanKey;

/// When to come again after a refusal for now.
const RETRY_AFTER_MS: u32 = 1000;

/// A send at the producer.
pub(super) struct Produce {
    conversation: Conversation,
    key: LaneKey,
    hash: ContentHash,
    /// When its frame came.
    received: Instant,
    /// The device knows that it is unconfirmed, and has not sent it again since.
    told: bool,
}

impl Produce {
    fn answer(&self, code: Code, server_time: Millis) -> v1::MsgAck {
        answer(&self.conversation, &self.key, code, server_time)
    }
}

fn answer(conversation: &Conversation, key: &LaneKey, code: Code, server_time: Millis) -> v1::MsgAck {
    v1::MsgAck {
        msg_id: Bytes::copy_from_slice(key.msg_id.as_bytes()),
        op_id: key
            .op_id
            .map_or_else(Bytes::new, |op| Bytes::copy_from_slice(op.as_bytes())),
        action: i32::from(key.action.number()),
        conversation: conversation.as_str().to_owned(),
        code: code as i32,
        server_time: server_time.get(),
        retryable: code.is_retryable(),
        ..v1::MsgAck::default()
    }
}

/// What a device is told of a record that was not written.
fn code_of(error: &ProduceError) -> Code {
    match error {
        ProduceError::QueueFull => Code::Overloaded,
        ProduceError::TooLarge(_) => Code::PayloadTooLarge,
        ProduceError::Unknown(_) => Code::Unconfirmed,
        ProduceError::Refused(_) | ProduceError::Fatal(_) => Code::Unavailable,
    }
}

/// The lane an action that was refused belongs to.
fn lane_of(frame: &v1::UserAction, sender: &Uid) -> Option<Conversation> {
    let conversation = match (frame.conversation.as_str(), frame.to_uid.as_str()) {
        ("", to_uid) => Conversation::direct(sender, &Uid::parse(to_uid).ok()?),
        (conversation, "") => Conversation::parse(conversation).ok()?,
        (_, _) => return None,
    };
    (conversation.direct_member(sender) != Some(false)).then_some(conversation)
}

impl Session {
    /// Takes an action. `oversize` is the refusal of a frame beyond the limit that could still be read.
    pub(super) fn action(&mut self, frame: &v1::UserAction, oversize: Option<v1::Error>, now: Instant) {
        // By the broker's clock, which the fold compares ids with (seq:R3): a gateway whose own clock is wrong must not
        // let in ids that the fold takes for new.
        let wall = self.node.writer.broker_now();
        let admitted = validate::user_action(frame, &self.identity.uid, &self.node.limits, wall);
        match (admitted, oversize) {
            (Ok(admitted), None) => self.admitted(admitted, now),
            (Ok(admitted), Some(error)) => {
                let key = key_of(&admitted);
                let code = error.code();
                let refusal = v1::MsgAck {
                    field: error.field,
                    reason: error.reason,
                    limit: error.limit,
                    ..answer(&admitted.conversation, &key, code, wall)
                };
                self.refuse_for_good(frame, refusal);
            }
            (Err(refusal), _) => self.refuse_for_good(frame, refusal.to_msg_ack(frame, wall)),
        }
    }

    /// Answers a refusal for good and lets the lane go on without the action. Out of its turn it is out of order first:
    /// the lane would otherwise wait for ever for a number that the device has given up.
    fn refuse_for_good(&mut self, frame: &v1::UserAction, refusal: v1::MsgAck) {
        if frame.lane_seq > 0
            && let Some(conversation) = lane_of(frame, &self.identity.uid)
            && let Some(lane) = self.lane(&conversation)
        {
            let expected = lane.expected();
            if frame.lane_seq > expected {
                let refusal = v1::MsgAck {
                    code: Code::LaneOutOfOrder as i32,
                    retryable: true,
                    expected_lane_seq: expected,
                    field: "lane_seq".to_owned(),
                    reason: String::new(),
                    limit: 0,
                    ..refusal
                };
                self.answer(refusal);
                return;
            }
            lane.skipped(frame.lane_seq);
        }
        self.answer(refusal);
    }

    fn admitted(&mut self, admitted: Admitted, now: Instant) {
        let (lane_seq, hash, key) = (admitted.lane_seq, admitted.content_hash, key_of(&admitted));
        let conversation = admitted.conversation.clone();
        let Some(lane) = self.lane(&conversation) else {
            let limit = self.node.config.max_lanes;
            self.refuse_for_now(&conversation, &key, Code::Overloaded, "conversation", limit);
            return;
        };
        match lane.offer(lane_seq, &key, &hash) {
            Verdict::Produce => {}
            Verdict::Join(tag) => return self.join(tag, now),
            Verdict::OutOfOrder { expected } => {
                let refusal = answer(&conversation, &key, Code::LaneOutOfOrder, self.node.clock.now());
                return self.answer(v1::MsgAck {
                    expected_lane_seq: expected,
                    field: "lane_seq".to_owned(),
                    ..refusal
                });
            }
        }
        if self.draining.is_some() {
            return self.refuse_for_now(&conversation, &key, Code::Unavailable, "", 0);
        }
        let limit = self.node.config.max_unacked_sends;
        if self.produces.len() >= limit {
            return self.refuse_for_now(&conversation, &key, Code::Overloaded, "max_unacked_sends", limit);
        }
        let tag = self.next_tag;
        self.next_tag += 1;
        let orphan = OrphanKey {
            uid: self.identity.uid.clone(),
            conversation,
            key,
            hash,
        };
        let joined = self.node.orphans.join(&orphan, &self.handle.mailbox, tag);
        let conversation = orphan.conversation;
        let produced = if joined {
            self.node.metrics.resends_joined.inc();
            Ok(())
        } else {
            let record = admitted.into_ingress(
                self.identity.uid.clone(),
                self.identity.role,
                self.handle.key.device.clone(),
            );
            self.node.writer.action(&record, self.trace.as_ref(), &self.sink, tag)
        };
        match produced {
            Ok(()) => {
                if let Some(lane) = self.lane(&conversation) {
                    lane.accepted(lane_seq, key, hash, tag);
                }
                self.unconfirmed
                    .push_back((now + self.node.config.unconfirmed_after, tag));
                self.produces.insert(
                    tag,
                    Produce {
                        conversation,
                        key,
                        hash,
                        received: now,
                        told: false,
                    },
                );
            }
            Err(error) => {
                let code = code_of(&error);
                if code.is_retryable() {
                    return self.refuse_for_now(&conversation, &key, code, "", 0);
                }
                if let Some(lane) = self.lane(&conversation) {
                    lane.skipped(lane_seq);
                }
                let refusal = answer(&conversation, &key, code, self.node.clock.now());
                self.answer(v1::MsgAck {
                    reason: error.to_string(),
                    ..refusal
                });
            }
        }
    }

    /// A resend whose first copy is under way: its report answers both.
    fn join(&mut self, tag: u64, now: Instant) {
        self.node.metrics.resends_joined.inc();
        if let Some(produce) = self.produces.get_mut(&tag)
            && std::mem::take(&mut produce.told)
        {
            self.unconfirmed
                .push_back((now + self.node.config.unconfirmed_after, tag));
        }
    }

    /// The lane of a conversation; `None` if the session has too many.
    fn lane(&mut self, conversation: &Conversation) -> Option<&mut Lane> {
        if !self.lanes.contains_key(conversation) {
            if self.lanes.len() >= self.node.config.max_lanes {
                return None;
            }
            self.lanes.insert(conversation.clone(), Lane::default());
        }
        self.lanes.get_mut(conversation)
    }

    /// The report of a record.
    pub(super) fn delivery_report(&mut self, report: Report) {
        if let Err(error) = &report.result {
            self.node.writer.note(error);
        }
        if report.tag == reports::TAG {
            self.acks.done(report.result.is_ok(), Instant::now());
            return;
        }
        let Some(produce) = self.produces.remove(&report.tag) else {
            tracing::error!(tag = report.tag, "report of a record that is not pending");
            return;
        };
        let answer = match report.result {
            Ok(Confirmation { append_time, .. }) => {
                self.node
                    .metrics
                    .link_ack_seconds
                    .observe(produce.received.elapsed().as_secs_f64());
                // A broker that knew the record as a duplicate does not tell its time.
                let server_time = append_time.unwrap_or_else(|| self.node.writer.broker_now());
                produce.answer(Code::Ok, server_time)
            }
            Err(error) => {
                // One line per send would flood the log when the broker is away; the readiness gate and the counter tell.
                tracing::debug!(%error, conversation = %produce.conversation, "send not confirmed");
                v1::MsgAck {
                    reason: error.to_string(),
                    ..produce.answer(code_of(&error), self.node.clock.now())
                }
            }
        };
        if let Some(lane) = self.lanes.get_mut(&produce.conversation) {
            if answer.retryable {
                lane.failed(report.tag);
            } else {
                lane.confirmed(report.tag);
            }
        }
        self.answer(answer);
    }

    /// Tells the device which sends the log has not confirmed in time. They stay with the producer.
    pub(super) fn tell_unconfirmed(&mut self, now: Instant) {
        while let Some((due, tag)) = self.unconfirmed.front().copied()
            && due <= now
        {
            self.unconfirmed.pop_front();
            self.tell_one_unconfirmed(tag);
        }
    }

    /// Leaves the sends without report to the device's next session.
    pub(super) fn orphan_pending(&mut self) {
        let uid = self.identity.uid.clone();
        let sends = self.produces.drain().map(|(tag, produce)| {
            let key = OrphanKey {
                uid: uid.clone(),
                conversation: produce.conversation,
                key: produce.key,
                hash: produce.hash,
            };
            (key, tag)
        });
        self.node.orphans.add(&self.handle.mailbox, sends);
    }

    /// Answers every send without report: its outcome is not known.
    pub(super) fn answer_pending(&mut self) {
        let mut tags: Vec<u64> = self.produces.keys().copied().collect();
        tags.sort_unstable();
        for tag in tags {
            self.tell_one_unconfirmed(tag);
        }
    }

    fn tell_one_unconfirmed(&mut self, tag: u64) {
        let now = self.node.clock.now();
        if let Some(produce) = self.produces.get_mut(&tag)
            && !std::mem::replace(&mut produce.told, true)
        {
            let answer = produce.answer(Code::Unconfirmed, now);
            self.answer(answer);
        }
    }

    fn refuse_for_now(
        &mut self,
        conversation: &Conversation,
        key: &LaneKey,
        code: Code,
        field: &'static str,
        limit: usize,
    ) {
        self.answer(v1::MsgAck {
            field: field.to_owned(),
            limit: limit as u64,
            retry_after_ms: RETRY_AFTER_MS,
            ..answer(conversation, key, code, self.node.clock.now())
        });
    }

    fn answer(&mut self, ack: v1::MsgAck) {
        self.node.metrics.answered(ack.code());
        self.link.send(ack);
    }
}

fn key_of(admitted: &Admitted) -> LaneKey {
    LaneKey {
        msg_id: admitted.msg_id,
        action: admitted.action,
        op_id: admitted.op_id,
    }
}
