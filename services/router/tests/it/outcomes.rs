//! What the router makes of each kind of record.

use bytes::Bytes;
use tidings_bus::dead_letter::{self, text as header};
use tidings_domain::{Action, ContentHash, Topic};
use tidings_proto::v1::{self, RejectReason};

use crate::support::{World, messages, now, rejections, send, streams, text};

#[tokio::test]
async fn a_text_becomes_one_history_record_and_one_event_for_each_of_the_two() {
    let world = World::start();
    let action = text("alice", "bob", 1);
    world.send(&action).await;
    let history = world.until_history(1).await;
    let expected = v1::Message {
        conversation: "d:alice:bob".to_owned(),
        conv_seq: 1,
        countable_seq: 1,
        sender: "alice".to_owned(),
        device: "phone".to_owned(),
        msg_id: Bytes::copy_from_slice(action.msg_id.as_bytes()),
        action: v1::Action::Send as i32,
        append_time: now(&world),
        content_type: "text".to_owned(),
        body: action.body.clone(),
        content_hash: Bytes::copy_from_slice(action.content_hash.as_bytes()),
        first_send_time: action.first_send_time.get(),
        ..v1::Message::default()
    };
    assert_eq!(history, std::slice::from_ref(&expected));
    let embedded = world.stop().await;
    let event = v1::event::Kind::Message(expected);
    let streams = streams(&embedded);
    assert_eq!(streams.len(), 2);
    assert_eq!(streams["alice"], std::slice::from_ref(&event));
    assert_eq!(streams["bob"], std::slice::from_ref(&event));
    for record in embedded.records(Topic::History) {
        assert_eq!(record.key.as_deref(), Some(&b"d:alice:bob"[..]));
        let link = record.link().expect("sound").expect("linked to its source");
        assert_eq!((link.src.pos.offset(), link.prev), (0, None));
    }
}

#[tokio::test]
async fn numbers_are_contiguous_per_conversation() {
    let world = World::start();
    for n in 1..=20 {
        world.send(&text("alice", "bob", n)).await;
        world.send(&text("bob", "carol", 100 + n)).await;
    }
    world.until_history(40).await;
    let streams = streams(&world.stop().await);
    let expected = |from: u8| -> Vec<(u64, Bytes)> {
        (1..=20)
            .map(|n| (u64::from(n), Bytes::from(format!("text {}", from + n))))
            .collect()
    };
    assert_eq!(messages(&streams["alice"]), expected(0));
    assert_eq!(messages(&streams["carol"]), expected(100));
    assert_eq!(streams["bob"].len(), 40);
}

#[tokio::test]
async fn a_text_to_oneself_is_one_event() {
    let world = World::start();
    world.send(&text("alice", "alice", 1)).await;
    world.until_history(1).await;
    let streams = streams(&world.stop().await);
    assert_eq!(streams.len(), 1);
    assert_eq!(messages(&streams["alice"]).len(), 1);
}

#[tokio::test]
async fn the_same_key_with_another_content_is_rejected_to_the_sender_with_its_hash() {
    let world = World::start();
    let first = text("alice", "bob", 1);
    let mut other = first.clone();
    other.content_hash = ContentHash([0xee; 16]);
    other.body = Bytes::from_static(b"other");
    other.device = tidings_domain::DeviceId::parse("tablet").expect("a device");
    world.send(&first).await;
    world.send(&other).await;
    world.send(&text("alice", "bob", 2)).await;
    world.until_history(2).await;
    assert_eq!(world.decided("Conflict"), 1);
    let streams = streams(&world.stop().await);
    let bodies = [(1, Bytes::from_static(b"text 1")), (2, Bytes::from_static(b"text 2"))];
    assert_eq!(
        messages(&streams["alice"]),
        bodies,
        "the first stays, the number is not used up"
    );
    assert_eq!(messages(&streams["bob"]), bodies);
    assert_eq!(
        rejections(&streams["alice"]),
        [v1::Rejection {
            conversation: "d:alice:bob".to_owned(),
            msg_id: Bytes::copy_from_slice(first.msg_id.as_bytes()),
            op_id: Bytes::new(),
            action: v1::Action::Send as i32,
            content_hash: Bytes::from_static(&[0xee; 16]),
            device: "tablet".to_owned(),
            reason: RejectReason::IdConflict as i32,
        }]
    );
    assert_eq!(rejections(&streams["bob"]), []);
}

#[tokio::test]
async fn what_is_not_supported_or_not_allowed_is_rejected_and_uses_no_number() {
    let world = World::start();
    let mut recall = text("alice", "bob", 1);
    recall.action = Action::Recall;
    recall.target = Some(tidings_proto::record::Target {
        sender: recall.sender.clone(),
        msg_id: recall.msg_id,
    });
    let mut stranger = text("alice", "bob", 2);
    stranger.sender = crate::support::uid("mallory");
    for action in [&recall, &stranger] {
        world.send(action).await;
    }
    world.send(&text("alice", "bob", 3)).await;
    world.until_history(1).await;
    let streams = streams(&world.stop().await);
    let reasons = |uid: &str| -> Vec<RejectReason> {
        let stream = streams.get(uid).map_or(&[][..], Vec::as_slice);
        rejections(stream).iter().map(v1::Rejection::reason).collect()
    };
    assert_eq!(reasons("alice"), [RejectReason::Unsupported]);
    assert_eq!(reasons("mallory"), [RejectReason::NotMember]);
    assert_eq!(reasons("bob"), []);
    assert_eq!(messages(&streams["bob"]), [(1, Bytes::from_static(b"text 3"))]);
    assert_eq!(messages(&streams["mallory"]), []);
}

#[tokio::test]
async fn what_cannot_be_decoded_goes_to_dlq_as_it_is_and_the_next_record_is_handled() {
    let world = World::start();
    let garbage = Bytes::from_static(b"\xff\xfe\x00 no protobuf");
    let at = world.raw("d:alice:bob", Some(garbage.clone())).await;
    let null = world.raw("d:alice:bob", None).await;
    send(&world.embedded, &text("alice", "bob", 1)).await;
    assert_eq!(world.until_history(1).await[0].conv_seq, 1);
    let embedded = world.stop().await;
    let dead = embedded.records(Topic::Dlq);
    assert_eq!(dead.len(), 2);
    for (record, offset, value) in [(&dead[0], at, Some(garbage)), (&dead[1], null, None)] {
        assert_eq!(record.value, value, "the bytes are kept");
        assert_eq!(record.key.as_deref(), Some(&b"d:alice:bob"[..]));
        let of = |name| header(&record.headers, name).unwrap_or_default();
        assert_eq!(of(dead_letter::ERROR_CLASS), "decode");
        assert!(!of(dead_letter::ERROR_DETAIL).is_empty());
        assert_eq!(of(dead_letter::ORIG_TOPIC), "ingress");
        assert_eq!(of(dead_letter::ORIG_OFFSET), offset.to_string());
        assert_eq!(of(dead_letter::ORIG_GROUP), "tidings.router");
        let id = of(dead_letter::DLQ_ID);
        assert!(
            id.starts_with("ingress/") && id.ends_with(&format!("/{offset}/tidings.router")),
            "{id}"
        );
    }
}
