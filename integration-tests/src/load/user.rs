//! Raw sessions for tests that look at single frames: they see what a client would hide.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use rand::Rng;
use tidings_domain::clock::{Clock, SystemClock};
use tidings_domain::{Conversation, MsgId, Uid};
use tidings_proto::v1;
use tidings_proto::v1::client_frame::Frame as ClientFrame;
use tidings_proto::v1::server_frame::Frame as ServerFrame;

use super::session::{Hello, Session};
use crate::system::System;

/// For one frame on a busy machine.
pub const FRAME_DEADLINE: Duration = Duration::from_secs(60);

/// A uid that no other run used.
pub fn uid(run: &str, name: &str) -> Result<Uid> {
    Ok(Uid::parse(&format!("{run}-{name}"))?)
}

/// What a device says first.
pub fn hello(system: &dyn System, gateway: usize, uid: &Uid, device: &str) -> Result<Hello> {
    Ok(Hello {
        gateway: system.gateway_urls()[gateway].clone(),
        token: system.token(uid)?,
        device: device.to_owned(),
        cursor: None,
    })
}

/// A new message id.
pub fn mint(rng: &mut impl Rng) -> MsgId {
    let mut random = [0; 10];
    rng.fill_bytes(&mut random);
    MsgId::mint(SystemClock.now(), random)
}

/// A SEND of text.
pub fn text(conversation: &Conversation, lane_seq: u64, msg_id: MsgId, body: &str) -> v1::UserAction {
    let now = SystemClock.now().get();
    v1::UserAction {
        action: v1::Action::Send as i32,
        lane_seq,
        conversation: conversation.as_str().to_owned(),
        msg_id: Bytes::copy_from_slice(msg_id.as_bytes()),
        content_type: "text".to_owned(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        client_time: now,
        first_send_time: now,
        ..v1::UserAction::default()
    }
}

impl Session {
    /// Sends an action.
    pub async fn act(&mut self, action: v1::UserAction) -> Result<()> {
        self.send(ClientFrame::Action(action)).await
    }

    /// Sends an action and waits for its link ACK.
    pub async fn act_and_wait(&mut self, action: v1::UserAction) -> Result<v1::MsgAck> {
        let msg_id = action.msg_id.clone();
        self.act(action).await?;
        self.ack_of(&msg_id, FRAME_DEADLINE).await
    }

    /// Starts a sync round from `cursor`.
    pub async fn sync(&mut self, epoch: u64, user_seq: u64) -> Result<()> {
        let cursor = Some(v1::Cursor { epoch, user_seq });
        self.send(ClientFrame::Sync(v1::Sync { cursor })).await
    }

    /// Says that all up to `stored` is in the device's database.
    pub async fn acknowledge(&mut self, epoch: u64, stored: u64) -> Result<()> {
        let ack = v1::Ack {
            epoch,
            delivered: stored,
            stored,
            convs: Vec::new(),
        };
        self.send(ClientFrame::Ack(ack)).await
    }

    /// The next event for which `pick` gives a value, pushed or in a page, with its user_seq.
    pub async fn event<T>(&mut self, what: &str, mut pick: impl FnMut(u64, v1::event::Kind) -> Option<T>) -> Result<T> {
        self.wait_for(what, FRAME_DEADLINE, |frame| {
            let events = if let ServerFrame::Push(push) = frame {
                vec![push]
            } else if let ServerFrame::SyncPage(page) = frame {
                page.events
            } else {
                Vec::new()
            };
            events
                .into_iter()
                .find_map(|push| pick(push.user_seq, push.event?.kind?))
        })
        .await
    }

    /// The event of this message, with its user_seq.
    pub async fn message(&mut self, msg_id: MsgId) -> Result<(u64, v1::Message)> {
        self.event(&format!("message {msg_id}"), |user_seq, kind| {
            let v1::event::Kind::Message(message) = kind else {
                return None;
            };
            (message.msg_id == msg_id.as_bytes().as_slice()).then_some((user_seq, message))
        })
        .await
    }
}
