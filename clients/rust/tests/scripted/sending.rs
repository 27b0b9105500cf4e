//! The sender's half: local first, the same id on every resend, lanes in order, the ladder, late answers.

use std::time::Duration;

use bytes::Bytes;
use tidings_client::{ClientConfig, ClientEvent, Database, Error, MessageState, RefusalReason};
use tidings_domain::MsgId;
use tidings_domain::state::RejectReason;
use tidings_proto::v1;
use tidings_proto::v1::Code;
use tidings_proto::v1::event::Kind;

use crate::gateway::{Device, Gateway, conversation, echo, hash, now, push, uid};

/// A ladder of milliseconds.
fn short_ladder(config: &mut ClientConfig) {
    config.ack_timeouts = [30, 40, 50].map(Duration::from_millis);
    config.resend_delays = [5, 10, 15].map(Duration::from_millis).to_vec();
}

fn id_of(action: &v1::UserAction) -> MsgId {
    MsgId::from_slice(&action.msg_id).expect("valid")
}

#[tokio::test]
async fn a_message_walks_from_sending_to_read() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let mut session = gateway.synced(0).await;
    let msg_id = device.send("hello").await;
    assert_eq!(device.shown(1).await, ["hello"]);
    let action = session.action().await;
    assert_eq!(id_of(&action), msg_id);
    assert_eq!((action.lane_seq, action.retry_count), (1, 0));
    assert_eq!(action.conversation, "d:alice:bob");

    session.answer(&action, Code::Ok).await;
    assert_eq!(device.reaches(msg_id, MessageState::Sent).await, [MessageState::Sent]);
    session.send(echo(1, &action, 1)).await;
    device.reaches(msg_id, MessageState::Stored).await;
    let receipt = |delivered, read| {
        Kind::Receipt(v1::Receipt {
            conversation: conversation().into(),
            uid: "bob".to_owned(),
            delivered,
            read,
        })
    };
    session.send(push(2, receipt(1, 0))).await;
    device.reaches(msg_id, MessageState::Delivered).await;
    session.send(push(3, receipt(0, 1))).await;
    device.reaches(msg_id, MessageState::Read).await;
    session.stored(3).await;
    assert!(
        session
            .acks
            .iter()
            .flat_map(|ack| &ack.convs)
            .any(|conv| conv.conv_seq == 1),
        "the conversation touched is named"
    );
    device.stop().await;
}

/// req:A2: without any server the message is in the database; the next process sends it under its id.
#[tokio::test]
async fn what_was_not_sent_is_sent_by_the_next_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = Database::File(dir.path().join("client.db"));
    let gateway = Gateway::start().await;
    let mut nowhere = gateway.config(database.clone());
    nowhere.url = "ws://127.0.0.1:9/v1/connect".to_owned();
    let device = Device::start(nowhere);
    let msg_id = device.send("written in a tunnel").await;
    let stored = device.handle.messages(conversation(), 10).await.expect("reads");
    assert_eq!(stored[0].state, Some(MessageState::Sending));
    device.run.abort();

    let mut device = Device::start(gateway.config(database));
    let mut session = gateway.synced(0).await;
    let action = session.action().await;
    assert_eq!((id_of(&action), action.retry_count), (msg_id, 1));
    session.answer(&action, Code::Ok).await;
    device.reaches(msg_id, MessageState::Sent).await;
    device.stop().await;
}

/// Scenario B01: the ACK is lost with the connection; the resend has the same id and times, and says that it is one.
#[tokio::test]
async fn a_lost_ack_causes_a_resend_with_the_same_id() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let mut session = gateway.synced(0).await;
    let msg_id = device.send("hello").await;
    let first = session.action().await;
    drop(session);
    let mut session = gateway.synced(0).await;
    let second = session.action().await;
    assert_eq!(
        second,
        v1::UserAction {
            retry_count: 1,
            client_time: second.client_time,
            ..first
        }
    );
    session.answer(&second, Code::Ok).await;
    device.reaches(msg_id, MessageState::Sent).await;
    assert_eq!(device.handle.diagnostics().await.expect("runs").resends, 1);
    device.stop().await;
}

/// req:C2: after a retryable refusal the lane goes back to the refused message and keeps its order and numbers.
#[tokio::test]
async fn a_refused_lane_comes_again_in_order() {
    let gateway = Gateway::start().await;
    let mut config = gateway.config(Database::Memory);
    config.resend_delays = vec![Duration::from_millis(20)];
    let mut device = Device::start(config);
    let mut session = gateway.synced(0).await;
    for text in ["one", "two", "three"] {
        device.send(text).await;
    }
    let mut last = None;
    for lane_seq in 1..=3 {
        let action = session.action().await;
        assert_eq!((action.lane_seq, action.retry_count), (lane_seq, 0));
        let code = if lane_seq == 1 {
            Code::Unconfirmed
        } else {
            Code::LaneOutOfOrder
        };
        session
            .send(v1::MsgAck {
                msg_id: action.msg_id.clone(),
                code: code as i32,
                retryable: true,
                expected_lane_seq: u64::from(lane_seq > 1),
                ..v1::MsgAck::default()
            })
            .await;
    }
    for (lane_seq, text) in [(1, "one"), (2, "two"), (3, "three")] {
        let action = session.action().await;
        assert_eq!((action.lane_seq, action.retry_count), (lane_seq, 1));
        assert_eq!(action.body, text);
        session.answer(&action, Code::Ok).await;
        last = Some(id_of(&action));
    }
    device.reaches(last.expect("three"), MessageState::Sent).await;
    device.stop().await;
}

/// req:A3 and req:A7: no answer at all ends in FAILED; an ACK that comes later still counts.
#[tokio::test]
async fn a_spent_ladder_fails_and_a_late_ack_overrides_it() {
    let gateway = Gateway::start().await;
    let mut config = gateway.config(Database::Memory);
    short_ladder(&mut config);
    let mut device = Device::start(config);
    let mut session = gateway.synced(0).await;
    let msg_id = device.send("hello").await;
    assert_eq!(
        device.reaches(msg_id, MessageState::Failed).await,
        [MessageState::Failed]
    );
    let mut action = session.action().await;
    for retry_count in 0..4 {
        assert_eq!((id_of(&action), action.retry_count), (msg_id, retry_count));
        if retry_count < 3 {
            action = session.action().await;
        }
    }
    session.answer(&action, Code::Ok).await;
    device.reaches(msg_id, MessageState::Sent).await;
    device.stop().await;
}

#[tokio::test]
async fn a_failed_message_is_sent_again_by_hand_under_its_id() {
    let gateway = Gateway::start().await;
    let mut config = gateway.config(Database::Memory);
    config.ack_timeouts = [Duration::from_millis(30); 3];
    config.resend_delays = Vec::new();
    let mut device = Device::start(config);
    let mut session = gateway.synced(0).await;
    let msg_id = device.send("hello").await;
    device.reaches(msg_id, MessageState::Failed).await;
    let first = session.action().await;
    device.handle.resend(msg_id).await.expect("failed before");
    let again = session.action().await;
    assert_eq!(
        (&again.msg_id, again.first_send_time, again.retry_count),
        (&first.msg_id, first.first_send_time, 1)
    );
    session.answer(&again, Code::Ok).await;
    device.reaches(msg_id, MessageState::Sent).await;
    assert!(matches!(device.handle.resend(msg_id).await, Err(Error::NotResendable(id)) if id == msg_id));
    device.stop().await;
}

/// Scenario B53: the echo overtakes the link ACK; one bubble throughout, and it ends stored.
#[tokio::test]
async fn an_echo_before_the_ack_ends_the_sending() {
    let gateway = Gateway::start().await;
    let mut config = gateway.config(Database::Memory);
    short_ladder(&mut config);
    config.ack_timeouts = [Duration::from_secs(5); 3];
    let mut device = Device::start(config);
    let mut session = gateway.synced(0).await;
    let msg_id = device.send("hello").await;
    let action = session.action().await;
    session.send(echo(1, &action, 1)).await;
    assert_eq!(
        device.reaches(msg_id, MessageState::Stored).await,
        [MessageState::Stored]
    );
    session.answer(&action, Code::Ok).await;
    let next = device.send("next").await;
    let action = session.action().await;
    session.answer(&action, Code::Ok).await;
    device.reaches(next, MessageState::Sent).await;
    let all = device.handle.messages(conversation(), 10).await.expect("reads");
    let states: Vec<_> = all.iter().map(|message| message.state).collect();
    assert_eq!(states, [Some(MessageState::Stored), Some(MessageState::Sent)]);
    assert_eq!(device.handle.diagnostics().await.expect("runs").outbox, 0);
    device.stop().await;
}

#[tokio::test]
async fn a_permanent_refusal_and_a_rejection_are_told_with_their_reasons() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let mut session = gateway.synced(0).await;
    let refused = device.send("refused").await;
    let action = session.action().await;
    session.answer(&action, Code::Forbidden).await;
    let reason = device
        .event("the refusal", |event| match event {
            ClientEvent::StateChanged {
                msg_id,
                state: MessageState::Rejected,
                refusal,
                ..
            } if msg_id == refused => refusal,
            _ => None,
        })
        .await;
    assert_eq!(reason, RefusalReason::Gateway(Code::Forbidden));

    let rejected = device.send("rejected").await;
    let action = session.action().await;
    session.answer(&action, Code::Ok).await;
    let rejection = |text: &[u8]| {
        Kind::Rejection(v1::Rejection {
            conversation: conversation().into(),
            msg_id: action.msg_id.clone(),
            action: action.action,
            content_hash: hash(text),
            device: "phone".to_owned(),
            reason: v1::RejectReason::NotMember as i32,
            ..v1::Rejection::default()
        })
    };
    // Of another content under the same id: not ours.
    session.send(push(1, rejection(b"something else"))).await;
    session.send(push(2, rejection(b"rejected"))).await;
    let reason = device
        .event("the rejection", |event| match event {
            ClientEvent::StateChanged {
                msg_id,
                state: MessageState::Rejected,
                refusal,
                ..
            } if msg_id == rejected => refusal,
            _ => None,
        })
        .await;
    assert_eq!(reason, RefusalReason::Log(RejectReason::NotMember));
    session.stored(2).await;
    device.stop().await;
}

/// architecture.md section 4: an id from a wrong clock is replaced, once the server's time is known.
#[tokio::test]
async fn an_invalid_id_is_renewed_with_the_servers_time() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let mut session = gateway.synced(0).await;
    let old = device.send("hello").await;
    let action = session.action().await;
    let server_time = now() - 3_600_000;
    session
        .send(v1::MsgAck {
            msg_id: action.msg_id.clone(),
            code: Code::InvalidMsgId as i32,
            server_time,
            ..v1::MsgAck::default()
        })
        .await;
    let new = device
        .event("a new id", |event| match event {
            ClientEvent::Renewed { old: was, new } if was == old => Some(new),
            _ => None,
        })
        .await;
    let again = session.action().await;
    assert_eq!((id_of(&again), again.retry_count), (new, 0));
    let behind = new.time().get() - server_time;
    assert!(
        (0..60_000).contains(&behind),
        "minted by the server's time: {behind} ms off"
    );
    session.answer(&again, Code::Ok).await;
    device.reaches(new, MessageState::Sent).await;
    device.stop().await;
}

/// After a try whose outcome is not known the id must stay, so the message fails instead of being doubled.
#[tokio::test]
async fn after_an_unanswered_try_the_id_stays() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let mut session = gateway.synced(0).await;
    let msg_id = device.send("hello").await;
    session.action().await;
    drop(session);
    let mut session = gateway.synced(0).await;
    let action = session.action().await;
    session.answer(&action, Code::MsgIdExpired).await;
    assert_eq!(
        device.reaches(msg_id, MessageState::Failed).await,
        [MessageState::Failed]
    );
    // The first try had been accepted after all.
    session.send(echo(1, &action, 1)).await;
    device.reaches(msg_id, MessageState::Stored).await;
    device.stop().await;
}

#[tokio::test]
async fn what_the_server_would_refuse_is_refused_at_once() {
    let gateway = Gateway::start().await;
    let mut config = gateway.config(Database::Memory);
    config.max_outbox = 2;
    config.limits.max_body_bytes = 10;
    let device = Device::start(config);
    let send = |content_type: &'static str, body: Bytes| device.handle.send(uid("bob"), content_type, body);
    let code = |result: Result<MsgId, Error>| match result {
        Err(Error::Refused(refusal)) => refusal.code,
        other => panic!("expected a refusal, got {other:?}"),
    };
    assert_eq!(code(send("text", Bytes::new()).await), Code::InvalidArgument);
    assert_eq!(
        code(send("text", Bytes::from_static(&[0xC3, 0x28])).await),
        Code::InvalidArgument
    );
    assert_eq!(
        code(send("text", Bytes::from(vec![b'x'; 11])).await),
        Code::PayloadTooLarge
    );
    for _ in 0..2 {
        send("text", Bytes::from_static(b"x")).await.expect("fits");
    }
    assert!(matches!(
        send("text", Bytes::from_static(b"x")).await,
        Err(Error::OutboxFull { limit: 2 })
    ));
    device.stop().await;
}

/// req:A3: at most 16 sends without an answer, and no more than the server allows.
#[tokio::test]
async fn the_window_is_the_smaller_of_both_sides() {
    let gateway = Gateway::start().await;
    let device = Device::start(gateway.config(Database::Memory));
    for n in 0..20 {
        device.send(&format!("{n}")).await;
    }
    let (mut session, _) = gateway
        .greet_with(v1::Connected {
            epoch: crate::gateway::EPOCH,
            uid: "alice".to_owned(),
            server_time: now(),
            limits: Some(v1::Limits {
                max_unacked_sends: 3,
                ..v1::Limits::default()
            }),
            ..v1::Connected::default()
        })
        .await;
    let mut actions = Vec::new();
    for _ in 0..3 {
        actions.push(session.action().await);
    }
    assert_eq!(device.handle.diagnostics().await.expect("runs").unacknowledged, 3);
    session.answer(&actions[0], Code::Ok).await;
    assert_eq!(session.action().await.lane_seq, 4);
    device.stop().await;
}
