//! The receiver's half: order, gaps, dedup, ACKs after the commit, sync.

use std::time::Duration;

use tidings_client::{ClientEvent, Database};
use tidings_proto::v1;

use crate::gateway::{Device, EPOCH, Gateway, conversation, message_of, push, push_of};

fn page(events: Vec<v1::Push>, head: u64) -> v1::SyncPage {
    v1::SyncPage {
        next_user_seq: events.last().map_or(0, |push| push.user_seq),
        events,
        has_more: true,
        end_of_backlog: false,
        head_seq: head,
    }
}

fn bodies(numbers: impl Iterator<Item = u64>) -> Vec<String> {
    numbers.map(|n| format!("message {n}")).collect()
}

/// Scenario B29: a live push beyond the backlog neither is shown nor moves the cursor, also over a restart.
#[tokio::test]
async fn a_live_message_before_the_catch_up_opens_no_hole() {
    let dir = tempfile::tempdir().expect("a directory");
    let database = Database::File(dir.path().join("client.db"));
    let gateway = Gateway::start().await;
    let device = Device::start(gateway.config(database.clone()));
    let (mut session, hello) = gateway.greet(10, 60).await;
    assert!(hello.fresh && hello.cursor.is_none());
    assert_eq!(
        session.sync().await,
        v1::Cursor {
            epoch: EPOCH,
            user_seq: 10
        }
    );
    session.send(push_of(61)).await;
    // The client has taken the push when its diagnostics say so; then it dies.
    loop {
        let diagnostics = device.handle.diagnostics().await.expect("runs");
        assert_eq!(diagnostics.cursor, 10);
        if diagnostics.waiting == 1 {
            break;
        }
        tokio::task::yield_now().await;
    }
    device.run.abort();
    assert!(device.run.await.is_err_and(|error| error.is_cancelled()));

    let mut device = Device::start(gateway.config(database));
    let (mut session, hello) = gateway.greet(10, 61).await;
    assert_eq!(
        hello.cursor,
        Some(v1::Cursor {
            epoch: EPOCH,
            user_seq: 10
        })
    );
    session.send(push_of(61)).await;
    session.sync().await;
    session.send(page((11..=40).map(push_of).collect(), 61)).await;
    session.end_of_backlog((41..=61).map(push_of).collect(), 61).await;
    assert_eq!(device.shown(51).await, bodies(11..=61));
    assert_eq!(session.stored(61).await.delivered, 61);
    device.stop().await;
}

/// Scenario B33: a push that comes again is shown once, and its ACK is repeated.
#[tokio::test]
async fn a_repeated_push_repeats_the_ack_and_nothing_else() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let mut session = gateway.synced(0).await;
    session.send(push_of(1)).await;
    session.stored(1).await;
    session.send(push_of(1)).await;
    let repeated = session.stored(1).await;
    assert_eq!((repeated.epoch, repeated.stored), (EPOCH, 1));
    session.send(push_of(2)).await;
    assert_eq!(device.shown(2).await, bodies(1..=2), "the repetition is not shown");
    assert_eq!(device.handle.diagnostics().await.expect("runs").duplicates, 1);
    device.stop().await;
}

#[tokio::test]
async fn a_gap_is_pulled_and_a_short_one_closes_by_itself() {
    let gateway = Gateway::start().await;
    let mut config = gateway.config(Database::Memory);
    // Longer than three frames take on a busy machine.
    config.gap_patience = Duration::from_millis(700);
    let mut device = Device::start(config);
    let mut session = gateway.synced(0).await;
    // Out of order, but complete.
    for n in [2, 3, 1] {
        session.send(push_of(n)).await;
    }
    assert_eq!(device.shown(3).await, bodies(1..=3));
    // Number 4 is lost on the way.
    session.send(push_of(5)).await;
    let cursor = session.sync().await;
    assert_eq!(cursor.user_seq, 3);
    session.end_of_backlog(vec![push_of(4), push_of(5)], 5).await;
    assert_eq!(device.shown(2).await, bodies(4..=5));
    device.stop().await;
}

/// req:C5: a head in the heartbeat or in a notice that did not come is pulled at once.
#[tokio::test]
async fn a_head_ahead_is_pulled() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let mut session = gateway.synced(0).await;
    session
        .send(v1::Pong {
            head_seq: 1,
            ..v1::Pong::default()
        })
        .await;
    assert_eq!(session.sync().await.user_seq, 0);
    session.end_of_backlog(vec![push_of(1)], 1).await;
    device.shown(1).await;
    session.send(v1::Head { head_seq: 2 }).await;
    assert_eq!(session.sync().await.user_seq, 1);
    session.end_of_backlog(vec![push_of(2)], 2).await;
    device.shown(1).await;
    device.stop().await;
}

/// req:C5 and scenario B39: numbers that were passed over are asked for once; what history has is shown.
#[tokio::test]
async fn a_hole_in_a_conversation_is_filled_from_history() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let mut session = gateway.synced(0).await;
    let event = |user_seq, n| push(user_seq, v1::event::Kind::Message(message_of("bob", n, n)));
    session.send(event(1, 50)).await;
    session.send(event(2, 53)).await;
    let request = session.history().await;
    assert_eq!(
        (
            request.conversation.as_str(),
            request.from_conv_seq,
            request.to_conv_seq
        ),
        ("d:alice:bob", 51, 52)
    );
    session
        .send(v1::HistoryPage {
            request_id: request.request_id,
            conversation: request.conversation,
            // Number 52 is void.
            messages: vec![message_of("bob", 51, 51)],
            has_more: false,
            from_conv_seq: 51,
            to_conv_seq: 52,
        })
        .await;
    assert_eq!(device.shown(3).await, ["message 50", "message 53", "message 51"]);
    session.send(event(3, 54)).await;
    device.shown(1).await;
    let all = device.handle.messages(conversation(), 10).await.expect("reads");
    let numbers: Vec<_> = all.iter().filter_map(|message| message.conv_seq).collect();
    assert_eq!(numbers, [50, 51, 53, 54], "sorted by conv_seq");
    let diagnostics = device.handle.diagnostics().await.expect("runs");
    assert_eq!((diagnostics.holes, diagnostics.cursor), (1, 3));
    device.stop().await;
}

/// req:D4: a read report is repeated in the next session until the own stream confirms it.
#[tokio::test]
async fn a_read_report_survives_a_lost_link() {
    let gateway = Gateway::start().await;
    let device = Device::start(gateway.config(Database::Memory));
    device.handle.read(conversation(), 7).await.expect("is taken");
    device.handle.read(conversation(), 5).await.expect("changes nothing");
    let mut session = gateway.synced(0).await;
    assert_eq!(session.read().await.conv_seq, 7);
    drop(session);
    let mut session = gateway.synced(0).await;
    assert_eq!(session.read().await.conv_seq, 7);
    let confirmation = v1::ReadSync {
        conversation: conversation().into(),
        read: 7,
    };
    session.send(push(1, v1::event::Kind::ReadSync(confirmation))).await;
    session.stored(1).await;
    drop(session);
    let mut session = gateway.synced(1).await;
    device.handle.read(conversation(), 8).await.expect("is taken");
    assert_eq!(session.read().await.conv_seq, 8, "7 is confirmed");
    device.stop().await;
}

/// req:C7: an explicit "not now" is obeyed and the round done later.
#[tokio::test]
async fn a_refused_round_is_done_later() {
    let gateway = Gateway::start().await;
    let mut device = Device::start(gateway.config(Database::Memory));
    let (mut session, _) = gateway.greet(0, 1).await;
    session.sync().await;
    session
        .send(v1::Error {
            code: v1::Code::RateLimited as i32,
            retry_after_ms: 30,
            ..v1::Error::default()
        })
        .await;
    session.sync().await;
    session.end_of_backlog(vec![push_of(1)], 1).await;
    device.shown(1).await;
    device.stop().await;
}

/// req:B4: a backlog of 10,000 messages makes at most 160 ACKs.
#[tokio::test]
async fn a_long_backlog_makes_few_acks() {
    let gateway = Gateway::start().await;
    let mut config = gateway.config(Database::Memory);
    config.ack_coalesce = Duration::from_millis(100);
    config.event_buffer = 20_000;
    let mut device = Device::start(config);
    let (mut session, _) = gateway.greet(0, 10_000).await;
    session.sync().await;
    for first in (1..=10_000).step_by(100) {
        let events = (first..first + 100).map(push_of).collect();
        if first < 9_901 {
            session.send(page(events, 10_000)).await;
        } else {
            session.end_of_backlog(events, 10_000).await;
        }
    }
    session.stored(10_000).await;
    assert_eq!(device.shown(10_000).await, bodies(1..=10_000));
    assert!(session.acks.len() <= 160, "{} ACKs", session.acks.len());
    assert!(session.acks.is_sorted_by_key(|ack| ack.stored), "ACKs are cumulative");
    device.stop().await;
}

/// A reader that is slow is told so; nothing is lost, since it is in the local database.
#[tokio::test]
async fn a_slow_reader_is_told_what_it_missed() {
    let gateway = Gateway::start().await;
    let mut config = gateway.config(Database::Memory);
    config.event_buffer = 4;
    let mut device = Device::start(config);
    let mut session = gateway.synced(0).await;
    for n in 1..=50 {
        session.send(push_of(n)).await;
    }
    session.stored(50).await;
    device
        .event("the notice", |event| match event {
            ClientEvent::Missed(missed) => Some(missed),
            _ => None,
        })
        .await;
    let all = device.handle.messages(conversation(), 100).await.expect("reads");
    assert_eq!(all.len(), 50);
    device.stop().await;
}
