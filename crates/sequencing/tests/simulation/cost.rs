//! What a message costs on the hot path, by counting (sequencing.md section 7, item 6).

use bytes::Bytes;
use tidings_domain::Topic;
use tidings_domain::clock::Millis;
use tidings_sequencing::LogEntry;
use tidings_sequencing::inbox::{self, InboxFold};
use tidings_sequencing::router::{self, RouterFold, Start};

use crate::records::{device_state, entry, linked, one_partition, send, state};
use crate::store::{Store, Write};
use crate::world::EPOCH;

const BATCH: u64 = 50;
const BATCHES: u64 = 20;

/// Drives stage 1 over batches of SENDs in two conversations; calls `each` with (batch, reads, plan, checkpoint).
fn route(mut each: impl FnMut(u64, usize, &router::RouterPlan, usize)) -> Vec<Bytes> {
    let mut store = Store::default();
    let start = Start {
        offset: 7,
        w: Some(Millis(0)),
    };
    let mut fold = RouterFold::new(one_partition(), 0, start, Millis(0));
    let mut values = Vec::new();
    for batch in 0..BATCHES {
        // 100 ms between batches; the first one is past W + margin.
        let time = 1_000 + 100 * i64::try_from(batch).expect("small");
        let entries: Vec<LogEntry> = (0..BATCH)
            .map(|i| {
                let n = batch * BATCH + i;
                let conversation = ["d:a:b", "d:b:c"][usize::from(n % 2 == 1)];
                let mut message = send(conversation, "b", 0, time, "hello");
                let mut random = [0; 10];
                random[2..].copy_from_slice(&n.to_be_bytes());
                message.msg_id = tidings_domain::MsgId::mint(Millis(time), random);
                entry(7 + n, time, message.encode())
            })
            .collect();
        let mut reads = 0;
        while let Some(asked) = fold.next_reads(&entries, Millis(time)).expect("no stop") {
            reads += match &asked {
                router::Reads::ConvHeads(keys) | router::Reads::Members(keys) => keys.len(),
                router::Reads::Intents(keys) => keys.len(),
            };
            fold.load(store.answer_router(&asked)).expect("as asked");
        }
        let plan = fold.decide(&entries).expect("no stop");
        for (key, intent) in &plan.intents {
            store.apply(Write::Intent(key.clone(), *intent));
        }
        values.extend(
            plan.outputs
                .iter()
                .filter(|o| o.topic == Topic::Inbox)
                .map(|o| o.value.clone()),
        );
        let heads = fold.checkpoint().expect("folded").conv_heads.len();
        fold.checkpoint_committed();
        each(batch, reads, &plan, heads);
    }
    values
}

#[test]
fn stage_1_costs_one_intent_write_and_no_read() {
    route(|batch, reads, plan, heads| {
        assert_eq!(
            reads,
            if batch == 0 { 2 } else { 0 },
            "one head per conversation, at first touch"
        );
        assert_eq!(plan.intents.len() as u64, BATCH);
        assert_eq!(plan.stats.accepted, BATCH);
        assert!(plan.members.is_empty());
        assert_eq!(plan.outputs.len() as u64, 2 * BATCH, "history and one inbox partition");
        assert_eq!(heads, 2, "one head per conversation and checkpoint");
    });
}

#[test]
fn stage_2_costs_one_row_per_recipient_and_no_read() {
    let values = route(|_, _, _, _| {});
    let mut store = Store::default();
    let mut fold = InboxFold::new(one_partition(), EPOCH, 0, None).expect("this version");
    let mut sent = 0;
    for (batch, values) in (0u64..).zip(values.chunks(usize::try_from(BATCH).expect("small"))) {
        // A batch of messages, then a device state between the links of their chain.
        let mut entries: Vec<LogEntry> = values
            .iter()
            .map(|value| {
                let (src, prev) = (sent, u64::checked_sub(sent, 1));
                sent += 1;
                linked(entry(src + batch, 1_000, value.clone()), src, prev)
            })
            .collect();
        entries.push(device_state(sent + batch, state("a", 1, &[("d:a:b", 1)], &[])));
        let mut reads = 0;
        while let Some(asked) = fold.next_reads(&entries, Millis(1_000)).expect("no stop") {
            reads += match &asked {
                inbox::Reads::DlqIntents(keys) => keys.len(),
                inbox::Reads::InboxHeads(keys) => keys.len(),
                inbox::Reads::FindRows(keys) => keys.len(),
                inbox::Reads::DeviceRegisters(keys) => keys.len(),
                inbox::Reads::UserConvRegisters(keys) => keys.len(),
            };
            fold.load(store.answer_inbox(0, &asked)).expect("as asked");
        }
        let plan = fold.decide(&entries).expect("no stop");
        for (uid, row) in &plan.rows {
            store.apply(Write::Row(uid.clone(), row.clone()));
        }
        // First touch: 3 heads, 4 pairs of user and conversation, 1 device.
        assert_eq!(reads, if batch == 0 { 8 } else { 0 });
        assert_eq!(plan.rows.len() as u64, 2 * BATCH);
        assert_eq!(plan.pushes.len() as u64, BATCH);
        let checkpoint = fold.checkpoint().expect("folded");
        assert_eq!(checkpoint.heads.len(), 3, "one head per user and checkpoint");
        assert_eq!(checkpoint.user_convs.len(), 4);
        assert_eq!(checkpoint.devices.len(), 1);
        fold.checkpoint_committed();
    }
}
