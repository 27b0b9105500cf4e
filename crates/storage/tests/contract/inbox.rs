//! Contract of [`InboxStore`] and [`InboxReader`].

use std::collections::BTreeMap;

use bytes::Bytes;
use tidings_domain::state::{Checkpoint, ConvMark, DeviceOpen, DeviceRegister, InboxHead, InboxRow, UserConvRegister};
use tidings_domain::{SourcePartition, SourcePosition, Topic, Uid};
use tidings_storage::port::{CheckpointWrites, InboxReader, InboxStore};

use crate::fixtures::{conversation, now, off};
use crate::names::{device, uid};

pub(crate) async fn run(store: &(impl InboxStore + InboxReader)) {
    a_checkpoint_never_goes_back(store).await;
    rows_cross_bucket_borders(store).await;
    rows_come_back_as_they_were(store).await;
    the_newest_row_is_found_over_bucket_borders(store).await;
    the_floor_is_below_the_oldest_row(store).await;
    a_row_is_found_by_its_offset(store).await;
    registers_never_go_back(store).await;
    the_lowest_dead_letter_intent_wins(store).await;
    devices_open(store).await;
    let epoch = store.cursor_epoch().await.expect("minted");
    assert_eq!(store.cursor_epoch().await, Ok(epoch));
}

/// Row `seq` comes from inbox offset `10 * seq`.
fn row(seq: u64) -> InboxRow {
    InboxRow {
        seq,
        off: off(10 * seq),
        src: Some((
            SourcePartition {
                topic: Topic::Ingress,
                partition: 3,
            },
            SourcePosition {
                pos: off(1000 + seq),
                idx: 1,
            },
        )),
        append_time: now(),
        event: Bytes::from(format!("event {seq}")),
    }
}

async fn write_rows(store: &impl InboxStore, user: &Uid, seqs: impl IntoIterator<Item = u64>) {
    let rows: Vec<_> = seqs.into_iter().map(|seq| (user.clone(), row(seq))).collect();
    store.write_rows(&rows).await.expect("written");
}

async fn write_head(store: &impl InboxStore, user: &Uid, seq: u64) {
    let head = InboxHead {
        seq,
        off: off(10 * seq),
    };
    let writes = CheckpointWrites {
        heads: vec![(user.clone(), head)],
        ..CheckpointWrites::default()
    };
    store.write_registers(&writes).await.expect("written");
}

async fn numbers(store: &impl InboxReader, user: &Uid, after: u64, limit: usize) -> Vec<u64> {
    let rows = store.rows_after(user, after, limit).await.expect("read");
    rows.iter().map(|row| row.seq).collect()
}

async fn a_checkpoint_never_goes_back(store: &impl InboxStore) {
    let checkpoint = |next_offset| Checkpoint {
        fold_version: 1,
        next_offset,
        folded: BTreeMap::from([(
            SourcePartition {
                topic: Topic::Inbox,
                partition: 2,
            },
            SourcePosition::first(off(next_offset)),
        )]),
    };
    assert_eq!(store.checkpoint(7).await, Ok(None));
    let write = async |offset| {
        let written = store.write_checkpoint(7, &checkpoint(offset), off(offset)).await;
        written.expect("written");
    };
    write(100).await;
    write(50).await;
    assert_eq!(store.checkpoint(7).await, Ok(Some(checkpoint(100))));
    write(100).await;
    write(101).await;
    assert_eq!(store.checkpoint(7).await, Ok(Some(checkpoint(101))));
    assert_eq!(store.checkpoint(8).await, Ok(None));
}

async fn rows_cross_bucket_borders(store: &(impl InboxStore + InboxReader)) {
    let user = uid("rows");
    assert_eq!(numbers(store, &user, 0, 10).await, Vec::<u64>::new());
    // Given in any order; a call may hold several users.
    write_rows(store, &user, (1..=4100).rev()).await;
    write_rows(store, &uid("rows2"), [1]).await;
    write_head(store, &user, 4100).await;
    assert_eq!(numbers(store, &user, 0, 3).await, [1, 2, 3]);
    assert_eq!(numbers(store, &user, 4094, 3).await, [4095, 4096, 4097]);
    assert_eq!(numbers(store, &user, 4095, 100).await, [4096, 4097, 4098, 4099, 4100]);
    assert_eq!(numbers(store, &user, 4096, 1).await, [4097]);
    assert_eq!(numbers(store, &user, 0, 0).await, Vec::<u64>::new());
    assert_eq!(numbers(store, &user, 4100, 10).await, Vec::<u64>::new());
    assert_eq!(numbers(store, &user, u64::MAX, 10).await, Vec::<u64>::new());
    let all: Vec<u64> = (1..=4100).collect();
    assert_eq!(numbers(store, &user, 0, 10_000).await, all);
}

async fn rows_come_back_as_they_were(store: &(impl InboxStore + InboxReader)) {
    let user = uid("whole");
    let large: Vec<u8> = (0u8..=255).cycle().take(512 * 1024).collect();
    let replayed = InboxRow { src: None, ..row(2) };
    let empty = InboxRow {
        event: Bytes::new(),
        ..row(3)
    };
    let nul = InboxRow {
        event: Bytes::from_static(b"\0\0x\0"),
        ..row(4)
    };
    let big = |seq| InboxRow {
        event: Bytes::from(large.clone()),
        ..row(seq)
    };
    let rows = vec![row(1), replayed, empty, nul, big(5), big(6), big(7)];
    let writes: Vec<_> = rows.iter().map(|row| (user.clone(), row.clone())).collect();
    for _ in 0..2 {
        store.write_rows(&writes).await.expect("written");
        assert_eq!(store.rows_after(&user, 0, 100).await, Ok(rows.clone()));
    }
}

async fn the_newest_row_is_found_over_bucket_borders(store: &(impl InboxStore + InboxReader)) {
    let user = uid("newest");
    assert_eq!(store.newest_row(&user, 0).await, Ok(0));
    assert_eq!(store.newest_row(&user, 9).await, Ok(9), "never below what is known");
    write_rows(store, &user, 1..=3).await;
    assert_eq!(store.newest_row(&user, 0).await, Ok(3));
    write_rows(store, &user, 4..=4095).await;
    assert_eq!(store.newest_row(&user, 1).await, Ok(4095));
    write_rows(store, &user, [4096]).await;
    for from in [0, 4094, 4095, 4096] {
        assert_eq!(store.newest_row(&user, from).await, Ok(4096), "from {from}");
    }
    write_rows(store, &user, 4097..=8193).await;
    for from in [0, 4095, 4096, 8191, 8193] {
        assert_eq!(store.newest_row(&user, from).await, Ok(8193), "from {from}");
    }
    assert_eq!(store.newest_row(&user, 9000).await, Ok(9000));
}

async fn the_floor_is_below_the_oldest_row(store: &(impl InboxStore + InboxReader)) {
    let whole = uid("floor-whole");
    assert_eq!(store.floor(&whole).await, Ok(0), "a stream that never was is whole");
    write_rows(store, &whole, 1..=3).await;
    assert_eq!(store.floor(&whole).await, Ok(0));

    // What a stream looks like whose oldest rows have expired.
    let cut = uid("floor-cut");
    write_rows(store, &cut, 9000..=9003).await;
    write_head(store, &cut, 9003).await;
    assert_eq!(store.floor(&cut).await, Ok(8999));
    assert_eq!(numbers(store, &cut, 0, 10).await, [9000, 9001, 9002, 9003]);
    assert_eq!(numbers(store, &cut, 8999, 2).await, [9000, 9001]);

    let in_first = uid("floor-first");
    write_rows(store, &in_first, 100..=102).await;
    assert_eq!(store.floor(&in_first).await, Ok(99));

    let beyond_head = uid("floor-beyond");
    write_rows(store, &beyond_head, [8192]).await;
    write_head(store, &beyond_head, 8191).await;
    assert_eq!(store.floor(&beyond_head).await, Ok(8191));

    let gone = uid("floor-gone");
    write_head(store, &gone, 5000).await;
    assert_eq!(store.floor(&gone).await, Ok(5000), "everything is gone");
    assert_eq!(numbers(store, &gone, 0, 10).await, Vec::<u64>::new());
}

async fn a_row_is_found_by_its_offset(store: &(impl InboxStore + InboxReader)) {
    let user = uid("find");
    write_rows(store, &user, 3900..=4100).await;
    let cases = [
        (41_000, 4100, Some(4100)),
        (40_970, 4100, Some(4097)),
        (40_960, 4100, Some(4096)),
        (40_950, 4100, Some(4095)),
        (39_000, 4100, Some(3900)),
        (40_950, 4095, Some(4095)),
        // Above the bound.
        (40_970, 4096, None),
        // No such offset; expired.
        (40_965, 4100, None),
        (10, 4100, None),
    ];
    let wanted: Vec<_> = cases
        .iter()
        .map(|(at, bound, _)| (user.clone(), off(*at), *bound))
        .collect();
    let expected: Vec<_> = cases.iter().map(|(_, _, found)| *found).collect();
    assert_eq!(store.find_rows(&wanted).await, Ok(expected));
    assert_eq!(
        store.find_rows(&[(uid("find-nobody"), off(1), 5)]).await,
        Ok(vec![None])
    );
}

async fn registers_never_go_back(store: &(impl InboxStore + InboxReader)) {
    let user = uid("reg");
    let phone = device("phone");
    let conv = conversation("reg", "reg-other");
    let at = |offset: u64| CheckpointWrites {
        devices: vec![(
            (user.clone(), phone.clone()),
            DeviceRegister {
                delivered: offset + 2,
                stored: offset + 1,
                off: off(offset),
            },
        )],
        user_convs: vec![(
            (user.clone(), conv.clone()),
            UserConvRegister {
                appended: ConvMark {
                    conv_seq: offset + 5,
                    countable_seq: offset + 4,
                },
                delivered: offset + 3,
                read: ConvMark {
                    conv_seq: offset + 2,
                    countable_seq: offset + 1,
                },
                off: off(offset),
            },
        )],
        heads: vec![(
            user.clone(),
            InboxHead {
                seq: offset,
                off: off(offset),
            },
        )],
    };
    let expect = async |offset: u64| {
        let expected = at(offset);
        let users = [user.clone(), uid("reg-nobody")];
        assert_eq!(
            store.inbox_heads(&users).await,
            Ok(vec![Some(expected.heads[0].1), None])
        );
        assert_eq!(store.heads(&users).await, Ok(vec![offset, 0]));
        let devices = [(user.clone(), device("tablet")), (user.clone(), phone.clone())];
        assert_eq!(
            store.device_registers(&devices).await,
            Ok(vec![None, Some(expected.devices[0].1)])
        );
        assert_eq!(
            store.device_register(&user, &phone).await,
            Ok(Some(expected.devices[0].1))
        );
        let convs = [(user.clone(), conv.clone())];
        assert_eq!(
            store.user_conv_registers(&convs).await,
            Ok(vec![Some(expected.user_convs[0].1)])
        );
        assert_eq!(
            store.user_convs(&user).await,
            Ok(vec![(conv.clone(), expected.user_convs[0].1)])
        );
    };
    store.write_registers(&at(100)).await.expect("written");
    expect(100).await;
    store.write_registers(&at(40)).await.expect("written");
    expect(100).await;
    // Same timestamp, smaller values: the larger stay.
    let mut equal = at(100);
    equal.devices[0].1.delivered = 1;
    equal.user_convs[0].1.appended.conv_seq = 1;
    equal.heads[0].1.off = off(1);
    store.write_registers(&equal).await.expect("written");
    expect(100).await;
    store.write_registers(&at(101)).await.expect("written");
    expect(101).await;
    assert_eq!(store.user_convs(&uid("reg-nobody")).await, Ok(Vec::new()));
}

async fn the_lowest_dead_letter_intent_wins(store: &impl InboxStore) {
    let ids = ["inbox/1/5/g".to_owned(), "inbox/1/6/g".to_owned()];
    assert_eq!(store.dlq_intents(1, &ids).await, Ok(vec![None, None]));
    for offset in [50, 70, 30, 60] {
        let intent = (ids[0].clone(), off(offset));
        store.write_dlq_intents(1, &[intent]).await.expect("written");
    }
    assert_eq!(store.dlq_intents(1, &ids).await, Ok(vec![Some(off(30)), None]));
    assert_eq!(
        store.dlq_intents(2, &ids).await,
        Ok(vec![None, None]),
        "partitions are apart"
    );
    let both = [(ids[1].clone(), off(9)), (ids[1].clone(), off(8))];
    store.write_dlq_intents(1, &both).await.expect("written");
    assert_eq!(store.dlq_intents(1, &ids).await, Ok(vec![Some(off(30)), Some(off(8))]));
}

async fn devices_open(store: &impl InboxReader) {
    let user = uid("open");
    let phone = device("phone");
    assert_eq!(store.has_devices(&user).await, Ok(false));
    assert_eq!(store.device_open(&user, &phone).await, Ok(None));
    assert_eq!(store.device_register(&user, &phone).await, Ok(None));
    let first = DeviceOpen {
        start_cursor: 0,
        opened_at: now(),
    };
    let fresh = DeviceOpen {
        start_cursor: 41,
        ..first
    };
    store.write_device_open(&user, &phone, first).await.expect("written");
    assert_eq!(store.device_open(&user, &phone).await, Ok(Some(first)));
    store.write_device_open(&user, &phone, fresh).await.expect("written");
    assert_eq!(
        store.device_open(&user, &phone).await,
        Ok(Some(fresh)),
        "the last opening counts"
    );
    assert_eq!(store.has_devices(&user).await, Ok(true));
    assert_eq!(store.has_devices(&uid("ope")).await, Ok(false), "a name is no prefix");
}
