//! What devices report: receipts, read positions, cursors; and where a device starts.

use tidings_domain::state::{ConvMark, DeviceRegister};
use tidings_proto::record::DeviceState;
use tidings_proto::v1::{self, event};
use tidings_storage::port::{InboxReader, InboxStore};
use tidings_testing::eventually;
use tonic::Code;

use crate::support::{World, conversation, device, stream, user};

async fn state(world: &World, uid: &str, delivered: u64, stored: u64) -> DeviceState {
    DeviceState {
        uid: user(uid),
        device: device("phone"),
        epoch: world.epoch().await,
        delivered,
        stored,
        convs: Vec::new(),
        reads: Vec::new(),
    }
}

impl World {
    async fn until_states(&self, count: f64) {
        self.until_metric("tidings_inbox_device_states_total", count).await;
    }

    async fn until_register(&self, uid: &str, expected: (u64, u64)) {
        eventually(&format!("register {expected:?} of {uid}"), async || {
            self.register(uid)
                .await
                .map(|register| (register.delivered, register.stored))
                == Some(expected)
        })
        .await;
    }

    async fn register(&self, uid: &str) -> Option<DeviceRegister> {
        let register = self.embedded.store.device_register(&user(uid), &device("phone")).await;
        register.expect("a register")
    }
}

/// Everything of a stream but its messages.
async fn receipts(world: &World, uid: &str) -> Vec<event::Kind> {
    let events = stream(&world.embedded, uid).await;
    events
        .into_iter()
        .map(|(_, kind)| kind)
        .filter(|kind| !matches!(kind, event::Kind::Message(_)))
        .collect()
}

fn receipt(uid: &str, delivered: u64, read: u64) -> event::Kind {
    event::Kind::Receipt(v1::Receipt {
        conversation: "d:alice:bob".to_owned(),
        uid: uid.to_owned(),
        delivered,
        read,
    })
}

fn read_sync(conversation: &str, read: u64) -> event::Kind {
    event::Kind::ReadSync(v1::ReadSync {
        conversation: conversation.to_owned(),
        read,
    })
}

#[tokio::test]
async fn delivered_and_read_become_receipts_to_the_peer_and_a_read_sync_to_oneself() {
    let mut world = World::start().await;
    let conv = conversation("alice", "bob");
    for conv_seq in 1..=3 {
        world.message("alice", "bob", conv_seq).await;
        world.message("bob", "alice", conv_seq).await;
    }
    world.until_rows("alice", 3).await;
    world.until_rows("bob", 3).await;

    let mut report = state(&world, "bob", 3, 2).await;
    report.convs = vec![(conv.clone(), 2)];
    world.device_state(&report).await;
    world.until_rows("alice", 4).await;
    assert_eq!(receipts(&world, "alice").await, [receipt("bob", 2, 0)]);

    report.reads = vec![(conv.clone(), 1)];
    world.device_state(&report).await;
    world.until_rows("alice", 5).await;
    world.until_rows("bob", 4).await;

    // Repeated, older and empty ones say nothing new; more than was appended is cut to what was.
    world.device_state(&report).await;
    world.device_state(&state(&world, "bob", 0, 0).await).await;
    report.convs = vec![(conv.clone(), 1)];
    report.reads = Vec::new();
    world.device_state(&report).await;
    report.convs = vec![(conv.clone(), 99)];
    report.reads = vec![(conv.clone(), 99)];
    world.device_state(&report).await;
    world.until_states(6.0).await;
    // Whatever they emitted lies before this.
    world.message("alice", "bob", 4).await;
    world.message("bob", "alice", 4).await;
    world.until_rows("alice", 7).await;
    world.until_rows("bob", 6).await;
    let all = [receipt("bob", 2, 0), receipt("bob", 0, 1), receipt("bob", 3, 3)];
    assert_eq!(receipts(&world, "alice").await, all);
    let syncs = [read_sync("d:alice:bob", 1), read_sync("d:alice:bob", 3)];
    assert_eq!(receipts(&world, "bob").await, syncs);
    assert_eq!(world.service.metric("tidings_inbox_receipts_total"), 5.0);
    let (embedded, _) = world.stop().await;
    let registers = embedded
        .store
        .user_conv_registers(&[(user("bob"), conv)])
        .await
        .expect("registers");
    let register = registers[0].expect("a register");
    let at = |conv_seq| ConvMark {
        conv_seq,
        countable_seq: conv_seq,
    };
    assert_eq!(
        (register.appended, register.delivered, register.read),
        (at(4), 3, at(3))
    );
    assert_eq!(
        stream(&embedded, "alice").await.len(),
        7,
        "receipts of a restart's refold are none"
    );
}

#[tokio::test]
async fn a_conversation_with_oneself_gives_no_receipt() {
    let mut world = World::start().await;
    let conv = conversation("alice", "alice");
    world.message("alice", "alice", 1).await;
    world.until_rows("alice", 1).await;
    let mut report = state(&world, "alice", 1, 1).await;
    report.convs = vec![(conv.clone(), 1)];
    report.reads = vec![(conv, 1)];
    world.device_state(&report).await;
    world.until_states(1.0).await;
    world.message("alice", "alice", 2).await;
    world.until_rows("alice", 3).await;
    assert_eq!(
        receipts(&world, "alice").await,
        [read_sync("d:alice:alice", 1)],
        "the other devices learn of the reading, nobody of the delivery"
    );
}

#[tokio::test]
async fn a_device_is_never_ahead_of_the_stream_and_never_goes_back() {
    let mut world = World::start().await;
    for conv_seq in 1..=3 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.until_rows("alice", 3).await;
    world.device_state(&state(&world, "alice", 2, 1).await).await;
    world.until_register("alice", (2, 1)).await;
    world.device_state(&state(&world, "alice", 900, 800).await).await;
    world.until_register("alice", (3, 3)).await;
    world.device_state(&state(&world, "alice", 1, 1).await).await;
    let mut foreign = state(&world, "alice", 0, 0).await;
    foreign.epoch += 1;
    world.device_state(&foreign).await;
    let before = world.register("alice").await.expect("a register").off;
    eventually("the last report is written", async || {
        world
            .register("alice")
            .await
            .is_some_and(|register| register.off > before)
    })
    .await;
    world.until_register("alice", (3, 3)).await;
}

#[tokio::test]
async fn reports_of_another_store_say_nothing() {
    let mut world = World::start().await;
    let conv = conversation("alice", "bob");
    world.message("bob", "alice", 1).await;
    world.until_rows("bob", 1).await;
    let mut foreign = state(&world, "bob", 1, 1).await;
    foreign.epoch += 1;
    foreign.convs = vec![(conv, 1)];
    world.device_state(&foreign).await;
    world.message("bob", "alice", 2).await;
    world.until_rows("bob", 2).await;
    let (embedded, _) = world.stop().await;
    assert_eq!(stream(&embedded, "alice").await, []);
    let register = embedded.store.device_register(&user("bob"), &device("phone")).await;
    assert_eq!(register, Ok(None));
}

#[tokio::test]
async fn receipts_are_emitted_once_through_a_kill() {
    for call in ["write_registers", "write_checkpoint"] {
        let mut world = World::start().await;
        let conv = conversation("alice", "bob");
        world.message("bob", "alice", 1).await;
        world.until_rows("bob", 1).await;
        let mut world = world.restarted().await;
        world.fold.always(call, tidings_testing::Fault::Hang);
        let mut report = state(&world, "bob", 1, 1).await;
        report.convs = vec![(conv, 1)];
        world.device_state(&report).await;
        eventually("it hangs", async || world.fold.struck() >= 1).await;
        let mut after = World::on(world.embedded.image()).await;
        after.until_rows("alice", 1).await;
        after.feeder.begin_again_at(50);
        after.message("alice", "bob", 1).await;
        after.until_rows("alice", 2).await;
        assert_eq!(receipts(&after, "alice").await, [receipt("bob", 1, 0)], "{call}");
        let (embedded, _) = after.stop().await;
        assert_eq!(stream(&embedded, "alice").await.len(), 2, "{call}");
        world.feeder.begin_again_at(0);
    }
}

#[tokio::test]
async fn the_first_device_starts_at_the_floor_and_later_fresh_ones_at_the_head() {
    let mut world = World::start().await;
    for conv_seq in 1..=3 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.until_rows("alice", 3).await;
    let epoch = world.epoch().await;
    let phone = world.open("alice", "phone", true).await.expect("opened");
    assert_eq!((phone.epoch, phone.cursor, phone.head_seq), (epoch, 0, 3));
    let tablet = world.open("alice", "tablet", true).await.expect("opened");
    assert_eq!((tablet.cursor, tablet.head_seq), (3, 3));
    // A device that says it has data, but that nobody knows, starts like a fresh one.
    let unknown = world.open("alice", "watch", false).await.expect("opened");
    assert_eq!(unknown.cursor, 3);
    world.message("alice", "bob", 4).await;
    world.until_rows("alice", 4).await;
    let again = world.open("alice", "tablet", false).await.expect("opened");
    assert_eq!(
        (again.cursor, again.head_seq),
        (3, 4),
        "where it started, it has stored nothing"
    );
}

/// The answer to a first `Open` can be lost: the device is still fresh and asks again. What it was promised is owed.
#[tokio::test]
async fn a_first_open_that_is_repeated_skips_nothing() {
    let mut world = World::start().await;
    for conv_seq in 1..=3 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.until_rows("alice", 3).await;
    for _ in 0..2 {
        let opened = world.open("alice", "phone", true).await.expect("opened");
        assert_eq!((opened.cursor, opened.head_seq), (0, 3));
    }
    // Once it has stored something, an empty database means that it was lost: such a device starts at the head.
    world.device_state(&state(&world, "alice", 2, 2).await).await;
    world.until_register("alice", (2, 2)).await;
    let reinstalled = world.open("alice", "phone", true).await.expect("opened");
    assert_eq!(reinstalled.cursor, 3);
}

#[tokio::test]
async fn a_known_device_goes_on_where_it_stored_and_not_where_it_received() {
    let mut world = World::start().await;
    for conv_seq in 1..=5 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.until_rows("alice", 5).await;
    world.open("alice", "phone", true).await.expect("opened");
    world.device_state(&state(&world, "alice", 5, 2).await).await;
    world.until_register("alice", (5, 2)).await;
    let known = world.open("alice", "phone", false).await.expect("opened");
    assert_eq!((known.cursor, known.head_seq), (2, 5));
    let world = world.restarted().await;
    let known = world.open("alice", "phone", false).await.expect("opened");
    assert_eq!(known.cursor, 2, "also after a restart");
    // The same id on a new install: old reports say nothing about its empty store.
    let fresh = world.open("alice", "phone", true).await.expect("opened");
    assert_eq!(fresh.cursor, 5);
    let known = world.open("alice", "phone", false).await.expect("opened");
    assert_eq!(known.cursor, 5);
}

#[tokio::test]
async fn an_open_that_is_not_durable_is_a_status() {
    let world = World::start().await;
    for call in ["write_device_open", "device_open", "has_devices", "heads"] {
        world.reader.next(call, tidings_testing::Fault::Before, 1);
        let failed = world.open("alice", "phone", true).await.expect_err("fails");
        assert_eq!(failed.code(), Code::Unavailable, "{call}");
    }
    assert_eq!(world.embedded.store.has_devices(&user("alice")).await, Ok(false));
    let malformed = world.open("al ice", "phone", true).await.expect_err("refused");
    assert_eq!(malformed.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn heads_come_in_the_order_asked_for() {
    let mut world = World::start().await;
    for conv_seq in 1..=3 {
        world.message("alice", "bob", conv_seq).await;
    }
    world.message("bob", "alice", 1).await;
    world.until_rows("alice", 3).await;
    world.until_rows("bob", 1).await;
    let world = world.restarted().await;
    let heads = world.heads(&["bob", "nobody", "alice", "bob"]).await.expect("heads");
    assert_eq!(heads, [1, 0, 3, 1]);
    world.reader.next("heads", tidings_testing::Fault::Before, 1);
    assert_eq!(
        world.heads(&["bob"]).await.expect_err("fails").code(),
        Code::Unavailable
    );
    let many = vec!["alice"; 1001];
    let refused = world.heads(&many).await.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
}
