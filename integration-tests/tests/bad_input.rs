//! req:E1, B99: what cannot be decoded is told and set aside, end to end, and what comes after it is handled.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use rand::rngs::StdRng;
use tidings_domain::{Conversation, Topic};
use tidings_integration_tests::cluster::{Cluster, ClusterOptions};
use tidings_integration_tests::dev::Dev;
use tidings_integration_tests::load::Session;
use tidings_integration_tests::load::user::{FRAME_DEADLINE, hello, mint, text, uid};
use tidings_integration_tests::records::RecordWriter;
use tidings_integration_tests::system::System;
use tidings_integration_tests::{seed, wait};
use tidings_proto::v1;
use tidings_proto::v1::server_frame::Frame;

/// Values that are no record of any topic: nothing, empty, random bytes, a field of a wrong type.
const UNDECODABLE: [(&str, Option<&[u8]>); 4] = [
    ("no value", None),
    ("an empty value", Some(b"")),
    ("random bytes", Some(b"\xff\x91\x02\x77\xc3\x00\xfe\x15")),
    // Field 1 as a group that never ends.
    ("a broken field", Some(b"\x0b\x08\x01")),
];

#[tokio::test(flavor = "multi_thread")]
async fn undecodable_records_end_in_dlq_and_the_next_record_is_handled() -> Result<()> {
    let mut rng = seed::generator("undecodable_records_end_in_dlq");
    let cluster = Cluster::start(ClusterOptions::new("bad_input_records")).await?;
    let (alice, bob) = (uid(cluster.name(), "alice")?, uid(cluster.name(), "bob")?);
    let conversation = Conversation::direct(&alice, &bob);
    let catalogue = cluster.catalogue();
    let writer = RecordWriter::new(&cluster.bootstrap(), catalogue.clone())?;
    let (mut a1, _) = Session::open(&hello(&cluster, 0, &alice, "phone")?).await?;
    let (mut b1, _) = Session::open(&hello(&cluster, 0, &bob, "phone")?).await?;

    // Into the very partitions that the next good message takes through all topics.
    let mut written = Vec::new();
    for (topic, key) in [
        (Topic::Ingress, conversation.as_str()),
        (Topic::History, conversation.as_str()),
        (Topic::Inbox, bob.as_str()),
        (Topic::Push, bob.as_str()),
    ] {
        let partition = catalogue.partition(topic, key.as_bytes());
        for (what, value) in UNDECODABLE {
            let confirmed = writer.write(topic, partition, key.as_bytes(), value).await?;
            let offset = confirmed.offset.context("the offset of a bad record")?;
            written.push((topic, partition, offset, what, value));
        }
    }
    let msg_id = mint(&mut rng);
    let ack = a1.act_and_wait(text(&conversation, 1, msg_id, "good")).await?;
    assert_eq!(ack.code, v1::Code::Ok as i32, "{ack:?}");
    let (user_seq, message) = b1.message(msg_id).await?;
    assert_eq!((user_seq, message.conv_seq), (1, 1));
    let token = cluster.token(&bob)?;
    wait::until("the message in the history", Duration::from_secs(20), || async {
        let gateway = &cluster.gateway_urls()[0];
        let history = tidings_integration_tests::load::reader::read_history(gateway, &token, &conversation).await?;
        Ok((history.len() == 1).then_some(()))
    })
    .await?;

    let expected = written.len();
    let letters = wait::until(&format!("{expected} dead letters"), Duration::from_secs(30), || async {
        let letters = cluster.dead_letters().await?;
        Ok((letters.len() >= expected).then_some(letters))
    })
    .await?;
    assert_eq!(letters.len(), expected, "each once: {letters:#?}");
    for (topic, partition, offset, what, value) in written {
        let id = format!("{}/{partition}/{offset}/", topic.short_name());
        let letter = letters
            .iter()
            .find(|letter| letter["dlq_id"].as_str().is_some_and(|found| found.starts_with(&id)))
            .with_context(|| format!("no dead letter {id} ({what}): {letters:#?}"))?;
        assert!(
            letter["error_class"].as_str().is_some_and(|class| !class.is_empty()),
            "{letter}"
        );
        assert!(
            letter["error_detail"].as_str().is_some_and(|detail| !detail.is_empty()),
            "{letter}"
        );
        let raw: String = value
            .unwrap_or_default()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            letter["value_hex"].as_str().unwrap_or_default(),
            raw,
            "{what}: {letter}"
        );
        assert_eq!(letter["value_is_null"].as_bool(), Some(value.is_none()), "{letter}");
    }
    Ok(())
}

/// What a device may send wrongly; each is refused by name and the session lives on.
async fn bad_frames(system: &dyn System, run: &str, rng: &mut StdRng) -> Result<()> {
    let (alice, bob) = (uid(run, "alice")?, uid(run, "bob")?);
    let conversation = Conversation::direct(&alice, &bob);
    let (mut a1, connected) = Session::open(&hello(system, 0, &alice, "phone")?).await?;
    let limit = connected.limits.context("limits")?.max_body_bytes;

    for (what, bytes, code) in [
        ("random bytes", &b"\xff\xff\xff"[..], v1::Code::MalformedFrame),
        ("an empty frame", b"", v1::Code::UnknownFrame),
    ] {
        a1.send_bytes(Bytes::from_static(bytes)).await?;
        let error = a1
            .wait_for(what, FRAME_DEADLINE, |frame| {
                let Frame::Error(error) = frame else { return None };
                Some(error)
            })
            .await?;
        assert_eq!(error.code, code as i32, "{what}: {error:?}");
    }

    type Change = Box<dyn Fn(&mut v1::UserAction)>;
    let too_large = usize::try_from(limit)? + 1;
    let changes: [(&str, v1::Code, Change); 5] = [
        (
            "an empty text",
            v1::Code::InvalidArgument,
            Box::new(|action| action.body = Bytes::new()),
        ),
        (
            "text that is not UTF-8",
            v1::Code::InvalidArgument,
            Box::new(|action| action.body = Bytes::from_static(b"\xc3\x28")),
        ),
        (
            "a body that is too large",
            v1::Code::PayloadTooLarge,
            Box::new(move |action| action.body = vec![b'x'; too_large].into()),
        ),
        (
            "a malformed conversation",
            v1::Code::InvalidArgument,
            Box::new(|action| action.conversation = "d:b:a".to_owned()),
        ),
        (
            "a conversation of others",
            v1::Code::Forbidden,
            Box::new(|action| action.conversation = "d:x:y".to_owned()),
        ),
    ];
    for (what, code, change) in changes {
        let mut action = text(&conversation, 1, mint(rng), "text");
        change(&mut action);
        let ack = a1.act_and_wait(action).await?;
        assert_eq!(ack.code, code as i32, "{what}: {ack:?}");
        assert!(!ack.retryable, "{what}: {ack:?}");
        if code == v1::Code::PayloadTooLarge {
            assert_eq!(ack.limit, u64::from(limit));
        }
    }

    // NUL and any UTF-8 come through as they are, in the same session.
    let (mut b1, _) = Session::open(&hello(system, 0, &bob, "phone")?).await?;
    let odd = "\0 ünï¢ode 🦀 \u{202e}";
    let mut lane_seq = 1;
    let ack = loop {
        let ack = a1.act_and_wait(text(&conversation, lane_seq, mint(rng), odd)).await?;
        if ack.code != v1::Code::LaneOutOfOrder as i32 {
            break ack;
        }
        // Whether a refused frame takes its number is the gateway's to say.
        lane_seq = ack.expected_lane_seq;
    };
    assert_eq!(ack.code, v1::Code::Ok as i32, "{ack:?}");
    let message = b1
        .event("the odd text", |_, kind| {
            let v1::event::Kind::Message(message) = kind else {
                return None;
            };
            Some(message)
        })
        .await?;
    assert_eq!((message.conv_seq, &message.body[..]), (1, odd.as_bytes()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_frames_on_the_stack() -> Result<()> {
    let mut rng = seed::generator("bad_frames_on_the_stack");
    let cluster = Cluster::start(ClusterOptions::new("bad_input_frames")).await?;
    let run = cluster.name().to_owned();
    bad_frames(&cluster, &run, &mut rng).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_frames_in_one_process() -> Result<()> {
    let mut rng = seed::generator("bad_frames_in_one_process");
    let dev = Dev::start("bad_input_dev").await?;
    bad_frames(&dev, "run", &mut rng).await
}
