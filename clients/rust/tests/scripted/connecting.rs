//! Sessions over time: reconnects, dead links, terminal ends, cursors that the server does not know.

use std::time::Duration;

use tidings_client::{ClientEvent, Database, Error};
use tidings_proto::v1;

use crate::gateway::{Device, EPOCH, Gateway, message_of, now, push, push_of, soon};

fn connected(epoch: u64, head_seq: u64) -> v1::Connected {
    v1::Connected {
        epoch,
        head_seq,
        server_time: now(),
        uid: "alice".to_owned(),
        ..v1::Connected::default()
    }
}

/// Scenario B23: the loser of two logins ends and does not come back by itself.
#[tokio::test]
async fn replaced_is_terminal() {
    let gateway = Gateway::start().await;
    let device = Device::start(gateway.config(Database::Memory));
    let mut session = gateway.synced(0).await;
    session
        .send(v1::Closing {
            code: v1::Code::Replaced as i32,
            ..v1::Closing::default()
        })
        .await;
    let end = soon("the end", device.run).await.expect("no panic");
    assert!(matches!(end, Err(Error::Replaced)), "{end:?}");
    assert!(matches!(device.handle.diagnostics().await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_refused_token_is_terminal_and_another_goodbye_is_not() {
    let gateway = Gateway::start().await;
    let device = Device::start(gateway.config(Database::Memory));
    let mut session = gateway.synced(0).await;
    session
        .send(v1::Closing {
            code: v1::Code::GoingAway as i32,
            reconnect_after_ms: 20,
            ..v1::Closing::default()
        })
        .await;
    let mut session = gateway.synced(0).await;
    session
        .send(v1::Closing {
            code: v1::Code::Unauthenticated as i32,
            reason: "expired".to_owned(),
            ..v1::Closing::default()
        })
        .await;
    let end = soon("the end", device.run).await.expect("no panic");
    assert!(matches!(end, Err(Error::Unauthenticated { reason }) if reason == "expired"));
}

#[tokio::test]
async fn a_token_of_somebody_else_is_terminal() {
    let gateway = Gateway::start().await;
    let device = Device::start(gateway.config(Database::Memory));
    let (_session, _) = gateway
        .greet_with(v1::Connected {
            uid: "mallory".to_owned(),
            ..connected(EPOCH, 0)
        })
        .await;
    let end = soon("the end", device.run).await.expect("no panic");
    assert!(matches!(end, Err(Error::OtherSubject { actual, .. }) if actual == "mallory"));
}

/// Scenario B25: many reconnects leave one subscription: each message is shown once.
#[tokio::test]
async fn after_many_reconnects_a_message_is_shown_once() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    for _ in 0..10 {
        let session = gateway.synced(0).await;
        drop(session);
    }
    let mut session = gateway.synced(0).await;
    session.send(push_of(1)).await;
    session.send(push_of(2)).await;
    session.stored(2).await;
    assert_eq!(device.shown(2).await, ["message 1", "message 2"]);
    assert_eq!(device.handle.diagnostics().await.expect("runs").sessions, 11);
    device.stop().await;
}

/// A link on which nothing comes back is given up (half-open, scenario B17).
#[tokio::test]
async fn a_silent_link_is_given_up() {
    let gateway = Gateway::start().await;
    let mut config = gateway.config(Database::Memory);
    config.pong_timeout = Duration::from_millis(100);
    let mut device = Device::start(config);
    let (silent, _) = gateway
        .greet_with(v1::Connected {
            limits: Some(v1::Limits {
                ping_interval_ms: 50,
                ..v1::Limits::default()
            }),
            ..connected(EPOCH, 0)
        })
        .await;
    let reason = device
        .event("the end of the session", |event| match event {
            ClientEvent::Disconnected { reason } => Some(reason),
            _ => None,
        })
        .await;
    assert!(reason.contains("silent"), "{reason}");
    gateway.synced(0).await;
    drop(silent);
    device.stop().await;
}

/// A gateway that accepts and never greets is given up as well.
#[tokio::test]
async fn a_gateway_that_does_not_greet_is_given_up() {
    let gateway = Gateway::start().await;
    let mut config = gateway.config(Database::Memory);
    config.connect_timeout = Duration::from_millis(100);
    let device = Device::start(config);
    let mute = gateway.accept().await;
    gateway.synced(0).await;
    drop(mute);
    device.stop().await;
}

/// The server lost its store: everything is read again, and what is known is not shown again.
#[tokio::test]
async fn another_epoch_starts_the_stream_anew() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let mut session = gateway.synced(0).await;
    session.send(push_of(1)).await;
    session.stored(1).await;
    drop(session);
    let (mut session, hello) = gateway.greet_with(connected(EPOCH + 1, 2)).await;
    assert_eq!(hello.cursor.map(|cursor| cursor.epoch), Some(EPOCH));
    assert_eq!(
        session.sync().await,
        v1::Cursor {
            epoch: EPOCH + 1,
            user_seq: 0
        }
    );
    device
        .event("the reset", |event| (event == ClientEvent::CursorReset).then_some(()))
        .await;
    // The new store numbers from 1 again; the old message comes again under another number.
    let new = push(1, v1::event::Kind::Message(message_of("bob", 8, 1)));
    let known = push(2, v1::event::Kind::Message(message_of("bob", 1, 2)));
    session.end_of_backlog(vec![new, known], 2).await;
    let ack = session.stored(2).await;
    assert_eq!(ack.epoch, EPOCH + 1);
    assert_eq!(device.shown(1).await, ["message 8"]);
    assert_eq!(device.handle.diagnostics().await.expect("runs").duplicates, 1);
    device.stop().await;
}

#[tokio::test]
async fn a_cursor_reset_reads_again_from_the_floor() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let (mut session, _) = gateway.greet(10, 10).await;
    session.sync().await;
    session
        .send(v1::CursorReset {
            epoch: EPOCH + 5,
            head_seq: 4,
            floor_seq: 2,
        })
        .await;
    assert_eq!(
        session.sync().await,
        v1::Cursor {
            epoch: EPOCH + 5,
            user_seq: 2
        }
    );
    session.end_of_backlog(vec![push_of(3), push_of(4)], 4).await;
    assert_eq!(device.shown(2).await, ["message 3", "message 4"]);
    device.stop().await;
}

#[tokio::test]
async fn after_a_truncation_the_rest_is_shown_and_the_loss_told() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let (mut session, _) = gateway.greet(1, 101).await;
    session.sync().await;
    session
        .send(v1::Truncated {
            floor_seq: 99,
            unread: 42,
        })
        .await;
    session.end_of_backlog(vec![push_of(100), push_of(101)], 101).await;
    let told = device
        .event("the truncation", |event| match event {
            ClientEvent::Truncated { floor_seq, unread } => Some((floor_seq, unread)),
            _ => None,
        })
        .await;
    assert_eq!(told, (99, 42));
    assert_eq!(device.shown(2).await, ["message 100", "message 101"]);
    session.stored(101).await;
    device.stop().await;
}

/// What is committed is acknowledged before the client goes.
#[tokio::test]
async fn closing_says_what_was_stored() {
    let gateway = Gateway::start().await;
    let mut config = gateway.config(Database::Memory);
    config.ack_coalesce = Duration::from_secs(60);
    let mut device = Device::start(config);
    let mut session = gateway.synced(0).await;
    session.send(push_of(1)).await;
    device.shown(1).await;
    let (_, ack) = tokio::join!(device.handle.close(), session.stored(1));
    assert_eq!(ack.stored, 1);
}
