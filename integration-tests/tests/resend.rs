//! req:A5, B01: a resend is safe. The link ACK may be lost, two gateways may get the same send at once: one `conv_seq`,
//! shown once. The same msg_id with another content is an explicit conflict.

use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use tidings_domain::{ContentHash, Conversation};
use tidings_integration_tests::cluster::{Cluster, ClusterOptions};
use tidings_integration_tests::dev::Dev;
use tidings_integration_tests::fault_proxy::{Cut, Direction, Fault, FaultProxy, address_of};
use tidings_integration_tests::load::session::Hello;
use tidings_integration_tests::load::user::{hello, mint, text, uid};
use tidings_integration_tests::load::{Session, reader};
use tidings_integration_tests::seed;
use tidings_integration_tests::system::System;
use tidings_proto::v1;

/// B01.
async fn a_lost_ack(system: &dyn System, run: &str, rng: &mut StdRng) -> Result<()> {
    let (alice, bob) = (uid(run, "alice")?, uid(run, "bob")?);
    let conversation = Conversation::direct(&alice, &bob);
    let (mut b1, _) = Session::open(&hello(system, 0, &bob, "phone")?).await?;
    let direct = hello(system, 0, &alice, "phone")?;
    let gateway = address_of(direct.gateway.trim_start_matches("ws://"))?;
    let proxy = FaultProxy::start(gateway).await?;
    let proxied = Hello {
        gateway: format!("ws://{}", proxy.address()),
        ..direct
    };

    let (mut a1, connected) = Session::open(&proxied).await?;
    proxy.set(Direction::ToClient, Fault::Drop);
    let msg_id = mint(rng);
    let mut action = text(&conversation, 1, msg_id, "hello");
    a1.act(action.clone()).await?;
    let (_, first) = b1.message(msg_id).await?;
    assert_eq!((first.conv_seq, &first.body[..]), (1, &b"hello"[..]));
    proxy.cut(Cut::Rst);
    assert!(a1.next().await.is_err(), "the session is gone");
    proxy.set(Direction::ToClient, Fault::None);

    let again = Hello {
        cursor: Some(v1::Cursor {
            epoch: connected.epoch,
            user_seq: connected.cursor,
        }),
        ..proxied
    };
    let (mut a1, _) = Session::open(&again).await?;
    for retry in 1..=3 {
        action.retry_count = retry;
        let ack = a1.act_and_wait(action.clone()).await?;
        assert_eq!(ack.code, v1::Code::Ok as i32, "resend {retry}: {ack:?}");
    }
    a1.sync(connected.epoch, connected.cursor).await?;
    let (_, echo) = a1.message(msg_id).await?;
    assert_eq!(echo.conv_seq, 1);

    // A message behind the resends: when it is there, they have been folded.
    let last = mint(rng);
    let ack = a1.act_and_wait(text(&conversation, 2, last, "last")).await?;
    assert_eq!(ack.code, v1::Code::Ok as i32, "{ack:?}");
    let mut seen_again = 0;
    let (_, message) = b1
        .event("the last message", |user_seq, kind| {
            let v1::event::Kind::Message(message) = kind else {
                return None;
            };
            seen_again += u32::from(message.msg_id == msg_id.as_bytes().as_slice());
            (message.msg_id == last.as_bytes().as_slice()).then_some((user_seq, message))
        })
        .await?;
    assert_eq!(message.conv_seq, 2);
    assert_eq!(seen_again, 0, "nothing but the first copy had a number");
    let history = reader::read_history(&system.gateway_urls()[0], &system.token(&bob)?, &conversation).await?;
    let numbers: Vec<_> = history.iter().map(|entry| (entry.conv_seq, entry.key.msg_id)).collect();
    assert_eq!(numbers, vec![(1, msg_id), (2, last)]);
    Ok(())
}

/// B07 in part: never dropped silently, never taken for the first.
async fn a_conflict(system: &dyn System, run: &str, rng: &mut StdRng) -> Result<()> {
    let (alice, bob) = (uid(run, "carol")?, uid(run, "dave")?);
    let conversation = Conversation::direct(&alice, &bob);
    let (mut a1, _) = Session::open(&hello(system, 0, &alice, "phone")?).await?;
    let (mut b1, _) = Session::open(&hello(system, 0, &bob, "phone")?).await?;
    let msg_id = mint(rng);
    a1.act_and_wait(text(&conversation, 1, msg_id, "first")).await?;
    let (_, echo) = a1.message(msg_id).await?;
    a1.act(text(&conversation, 2, msg_id, "second")).await?;
    let rejection = a1
        .event("the rejection", |_, kind| {
            let v1::event::Kind::Rejection(rejection) = kind else {
                return None;
            };
            Some(rejection)
        })
        .await?;
    assert_eq!(rejection.reason, v1::RejectReason::IdConflict as i32);
    assert_eq!(rejection.msg_id, msg_id.as_bytes().as_slice());
    let refused = ContentHash::from_slice(&rejection.content_hash);
    assert!(
        refused.is_some() && refused != ContentHash::from_slice(&echo.content_hash),
        "names the refused one"
    );
    let (_, message) = b1.message(msg_id).await?;
    assert_eq!(&message.body[..], b"first");
    let history = reader::read_history(&system.gateway_urls()[0], &system.token(&bob)?, &conversation).await?;
    assert_eq!(history.len(), 1);
    Ok(())
}

/// Two of the user's devices at two gateways send the same message at once.
async fn two_at_once(system: &dyn System, run: &str, rng: &mut StdRng) -> Result<()> {
    let gateways = system.gateway_urls().len();
    let (alice, bob) = (uid(run, "erin")?, uid(run, "frank")?);
    let conversation = Conversation::direct(&alice, &bob);
    let (mut a1, _) = Session::open(&hello(system, 0, &alice, "phone")?).await?;
    let (mut a2, _) = Session::open(&hello(system, 1 % gateways, &alice, "laptop")?).await?;
    let (mut b1, connected) = Session::open(&hello(system, 0, &bob, "phone")?).await?;
    for round in 1..=20 {
        let msg_id = mint(rng);
        let action = text(&conversation, round, msg_id, "twice");
        let (first, second) = tokio::join!(a1.act_and_wait(action.clone()), a2.act_and_wait(action));
        for ack in [first?, second?] {
            assert_eq!(ack.code, v1::Code::Ok as i32, "{ack:?}");
        }
        let (user_seq, message) = b1.message(msg_id).await?;
        assert_eq!(
            (user_seq, message.conv_seq),
            (round, round),
            "every message has one number"
        );
        // Without it the push window closes.
        b1.acknowledge(connected.epoch, user_seq).await?;
    }
    let nothing_more = b1
        .wait_for("a second copy", Duration::from_secs(1), |frame| {
            let v1::server_frame::Frame::Push(push) = frame else {
                return None;
            };
            (push.user_seq > 20).then_some(push)
        })
        .await;
    assert!(nothing_more.is_err(), "{nothing_more:?}");
    let stream = reader::read_stream(&system.gateway_urls()[0], &system.token(&bob)?).await?;
    assert_eq!(stream.len(), 20, "{stream:?}");
    Ok(())
}

async fn all(system: &dyn System, run: &str, rng: &mut StdRng) -> Result<()> {
    a_lost_ack(system, run, rng).await.context("a lost ACK")?;
    a_conflict(system, run, rng).await.context("a conflict")?;
    two_at_once(system, run, rng).await.context("two at once")
}

#[tokio::test(flavor = "multi_thread")]
async fn resends_on_the_stack() -> Result<()> {
    let mut rng = seed::generator("resends_on_the_stack");
    let cluster = Cluster::start(ClusterOptions::new("resend_stack").gateways(2)).await?;
    let run = cluster.name().to_owned();
    all(&cluster, &run, &mut rng).await
}

#[tokio::test(flavor = "multi_thread")]
async fn resends_in_one_process() -> Result<()> {
    let mut rng = seed::generator("resends_in_one_process");
    let dev = Dev::start("resend_dev").await?;
    all(&dev, "run", &mut rng).await
}
