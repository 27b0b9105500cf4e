//! ACKs of the device: merged, then written as device state.

use tidings_proto::record::{DeviceState, SenderRole};
use tidings_proto::v1::{self, Code};
use tidings_proto::validate;
use tokio::time::Instant;

use super::turns::Session;
use crate::metrics::Stage;

/// Tag of the device-state record; one is under way at a time. Sends count from 1.
pub(super) const TAG: u64 = 0;

impl Session {
    /// Cumulative ACK.
    pub(super) fn ack(&mut self, frame: &v1::Ack, now: Instant) {
        let report = match validate::ack(frame) {
            Ok(report) => report,
            Err(refusal) => return self.refuse(&refusal, 0),
        };
        if report.epoch != self.epoch {
            return self.wrong_epoch("epoch");
        }
        let uid = &self.identity.uid;
        if report
            .convs
            .iter()
            .any(|(conversation, _)| conversation.direct_member(uid) == Some(false))
        {
            return self.error(v1::Error {
                code: Code::Forbidden as i32,
                field: "convs.conversation".to_owned(),
                reason: "a 1:1 conversation of others".to_owned(),
                ..v1::Error::default()
            });
        }
        self.count_ack();
        self.acks.report(report, now);
        self.acknowledged(now);
    }

    /// The device got one message.
    pub(super) fn delivered_ack(&mut self, frame: &v1::DeliveredAck, now: Instant) {
        let msg_id = match validate::acked_msg_id(&frame.msg_id) {
            Ok(msg_id) => msg_id,
            Err(refusal) => return self.refuse(&refusal, 0),
        };
        self.count_ack();
        // A binary session says which messages its pushes were only from now on; this ACK is lost, which costs nothing.
        self.handle.mailbox.track();
        let delivered = self.recent.received(&msg_id, self.acks.delivered());
        self.acks.received(delivered, now);
        self.acknowledged(now);
    }

    /// The user read up to one message.
    pub(super) fn read_ack(&mut self, frame: &v1::ReadAck, now: Instant) {
        let msg_id = match validate::acked_msg_id(&frame.msg_id) {
            Ok(msg_id) => msg_id,
            Err(refusal) => return self.refuse(&refusal, 0),
        };
        self.count_ack();
        self.handle.mailbox.track();
        // Not pushed in this session: the device has the cumulative form for it.
        if let Some(message) = self.recent.find(&msg_id) {
            self.acks.read(message.conversation.clone(), message.conv_seq, now);
            self.write_acks_if_full(now);
        }
    }

    /// The user read up to a number.
    pub(super) fn read(&mut self, frame: &v1::Read, now: Instant) {
        match validate::read(frame, &self.identity.uid) {
            Ok((conversation, conv_seq)) => {
                self.count_ack();
                self.acks.read(conversation, conv_seq, now);
                self.write_acks_if_full(now);
            }
            Err(refusal) => self.refuse(&refusal, 0),
        }
    }

    /// A cursor is a storage ACK.
    pub(super) fn cursor_ack(&mut self, user_seq: u64, now: Instant) {
        self.count_ack();
        self.acks.cursor(user_seq, now);
        self.acknowledged(now);
    }

    pub(super) fn wrong_epoch(&mut self, field: &'static str) {
        self.error(v1::Error {
            code: Code::InvalidArgument as i32,
            field: field.to_owned(),
            reason: format!("the cursor epoch of this server is {}", self.epoch),
            ..v1::Error::default()
        });
    }

    fn count_ack(&self) {
        self.node.metrics.device_acks.inc();
    }

    /// Frees the push window and measures what came to be stored.
    fn acknowledged(&mut self, now: Instant) {
        let stored = self
            .handle
            .mailbox
            .acknowledged(self.acks.delivered(), self.acks.stored());
        if !stored.is_empty() {
            let broker_now = self.node.writer.broker_now();
            for appended in stored {
                self.node.metrics.end_to_end(Stage::Stored, broker_now.since(appended));
            }
        }
        self.write_acks_if_full(now);
    }

    fn write_acks_if_full(&mut self, now: Instant) {
        if self.acks.due().is_some_and(|due| due <= now) {
            self.write_acks(now);
        }
    }

    /// Writes what was merged.
    pub(super) fn write_acks(&mut self, now: Instant) {
        match self.identity.role {
            SenderRole::User => {}
            // No stream, nothing to acknowledge (req:I2).
            SenderRole::Service => return,
        }
        let Some(report) = self.acks.take(now) else { return };
        let state = DeviceState {
            uid: self.identity.uid.clone(),
            device: self.handle.key.device.clone(),
            epoch: self.epoch,
            delivered: report.delivered,
            stored: report.stored,
            convs: report.convs,
            reads: report.reads,
        };
        if let Err(error) = self.node.writer.device_state(state, &self.sink, TAG) {
            // Merged back; the next interval tries again.
            tracing::debug!(%error, "device state not written");
            self.acks.done(false, now);
        }
    }
}
