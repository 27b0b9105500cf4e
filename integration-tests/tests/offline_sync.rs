//! req:C3, req:C4, req:B5: an offline device pulls what it missed, page by page, until the end is told; every device of
//! the receiver has its own cursor and gets each message once.

use std::time::Duration;

use anyhow::Result;
use rand::Rng;
use rand::rngs::StdRng;
use tidings_domain::{Conversation, DeviceId};
use tidings_integration_tests::cluster::{Cluster, ClusterOptions};
use tidings_integration_tests::dev::Dev;
use tidings_integration_tests::load::client::{Client, ClientOptions};
use tidings_integration_tests::load::user::{FRAME_DEADLINE, hello, uid};
use tidings_integration_tests::load::{Session, gather_evidence};
use tidings_integration_tests::oracle::{DeviceKey, Ledger, Outcome, SharedLedger, check};
use tidings_integration_tests::system::System;
use tidings_integration_tests::{seed, wait};
use tidings_proto::v1;

const MESSAGES: usize = 250;
const PAGE: usize = 100;

async fn offline_devices_pull(system: &dyn System, run: &str, rng: &mut StdRng) -> Result<()> {
    let (alice, bob) = (uid(run, "alice")?, uid(run, "bob")?);
    let conversation = Conversation::direct(&alice, &bob);
    let ledger = Ledger::shared();
    let client = |uid: &_, device: &str, rng: &mut StdRng| -> Result<Client> {
        Ok(Client::start(ClientOptions {
            device: DeviceKey {
                uid: Clone::clone(uid),
                device: DeviceId::parse(device)?,
            },
            token: system.token(uid)?,
            gateways: system.gateway_urls(),
            first_gateway: 0,
            seed: rng.next_u64(),
            ping_interval: Duration::from_secs(5),
            ledger: SharedLedger::clone(&ledger),
        }))
    };
    let sender = client(&alice, "phone", rng)?;
    let laptop = client(&bob, "laptop", rng)?;
    wait::until_true("both to be connected", FRAME_DEADLINE, || {
        sender.sessions() == 1 && laptop.sessions() == 1
    })
    .await?;
    laptop.set_online(false);
    // Known to the server, then away.
    let phone = hello(system, 0, &bob, "phone")?;
    let (session, connected) = Session::open(&phone).await?;
    session.close().await?;
    for number in 0..MESSAGES {
        sender.press(&bob, &format!("message {number}")).await?;
    }
    wait::until_true("all to be acknowledged", Duration::from_secs(40), || {
        ledger.lock().count(Outcome::Acknowledged) == MESSAGES
    })
    .await?;

    // Behind the last ACK the fold still works; the sender's own echo tells when it is done.
    wait::until_true("all echoes", FRAME_DEADLINE, || sender.cursor() >= 250).await?;
    let mut known = phone.clone();
    known.cursor = Some(v1::Cursor {
        epoch: connected.epoch,
        user_seq: 0,
    });
    let (mut session, connected) = Session::open(&known).await?;
    assert_eq!(connected.head_seq, 250);
    session.sync(connected.epoch, 0).await?;
    let mut pages = Vec::new();
    let mut texts = Vec::new();
    loop {
        let page = session
            .wait_for("a page", FRAME_DEADLINE, |frame| {
                let v1::server_frame::Frame::SyncPage(page) = frame else {
                    return None;
                };
                Some(page)
            })
            .await?;
        assert_ne!(page.has_more, page.end_of_backlog);
        pages.push(page.events.len());
        for push in &page.events {
            assert_eq!(
                push.user_seq,
                u64::try_from(texts.len() + 1)?,
                "nothing missing, nothing twice"
            );
            let Some(v1::event::Kind::Message(message)) = push.event.as_ref().and_then(|event| event.kind.as_ref())
            else {
                panic!("{push:?} is no message");
            };
            assert_eq!(message.conv_seq, push.user_seq);
            texts.push(String::from_utf8_lossy(&message.body).into_owned());
        }
        assert_eq!(page.next_user_seq, u64::try_from(texts.len())?);
        if page.end_of_backlog {
            assert_eq!(page.head_seq, 250);
            break;
        }
    }
    assert!(pages.iter().all(|events| *events <= PAGE), "{pages:?}");
    assert!(pages.len() >= 3, "{pages:?}");
    let sent: Vec<String> = (0..MESSAGES).map(|number| format!("message {number}")).collect();
    assert_eq!(texts, sent, "in the order of pressing");

    // B5: delivered, although it came by pull, as soon as one device has stored it.
    let stored = v1::Ack {
        epoch: connected.epoch,
        delivered: 250,
        stored: 250,
        convs: vec![v1::AckConv {
            conversation: conversation.as_str().to_owned(),
            conv_seq: 250,
        }],
    };
    session.send(v1::client_frame::Frame::Ack(stored)).await?;
    wait::until_true("the receipt", FRAME_DEADLINE, || sender.cursor() >= 251).await?;

    // A device that comes back stands where it stored, whatever the other one did.
    laptop.set_online(true);
    wait::until_true("the laptop to have all", FRAME_DEADLINE, || laptop.cursor() == 250).await?;
    gather_evidence(system, &ledger).await?;
    let report = check(&ledger.lock());
    println!("offline: {}", report.figures);
    report.verdict()?;
    // The phone was read frame by frame above.
    assert_eq!(report.figures.delivered, 2 * MESSAGES);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn offline_devices_pull_on_the_stack() -> Result<()> {
    let mut rng = seed::generator("offline_devices_pull_on_the_stack");
    let cluster = Cluster::start(ClusterOptions::new("offline_sync_stack")).await?;
    let run = cluster.name().to_owned();
    offline_devices_pull(&cluster, &run, &mut rng).await
}

#[tokio::test(flavor = "multi_thread")]
async fn offline_devices_pull_in_one_process() -> Result<()> {
    let mut rng = seed::generator("offline_devices_pull_in_one_process");
    let dev = Dev::start("offline_sync_dev").await?;
    offline_devices_pull(&dev, "run", &mut rng).await
}
