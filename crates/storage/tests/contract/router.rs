//! Contract of [`RouterStore`].

use tidings_domain::state::{ConvHead, Intent, MemberInterval, Outcome, RejectReason};
use tidings_domain::{Action, ContentHash, Conversation, DedupKey, OpId};
use tidings_storage::port::RouterStore;

use crate::fixtures::{conversation, msg_id, now, off};
use crate::names::uid;

pub(crate) async fn run(store: &impl RouterStore) {
    intents_are_upserted_and_found_by_the_whole_key(store).await;
    a_head_never_goes_back(store).await;
    intervals_end_once_and_stay_ended(store).await;
    answers_come_in_the_order_of_the_request(store).await;
}

async fn intents_are_upserted_and_found_by_the_whole_key(store: &impl RouterStore) {
    let key = DedupKey {
        conversation: conversation("int-a", "int-b"),
        sender: uid("int-a"),
        msg_id: msg_id(1),
        action: Action::Send,
        op_id: None,
    };
    let edit = DedupKey {
        action: Action::Edit,
        op_id: Some(OpId::mint(now(), [2; 10])),
        ..key.clone()
    };
    let other_sender = DedupKey {
        sender: uid("int-b"),
        ..key.clone()
    };
    let accepted = Intent {
        outcome: Outcome::Accepted {
            conv_seq: 7,
            countable_seq: 5,
        },
        content_hash: ContentHash([9; 16]),
        off: off(70),
        append_time: now(),
    };
    let rejected = Intent {
        outcome: Outcome::Rejected(RejectReason::NotMember),
        off: off(71),
        ..accepted
    };
    let keys = [key.clone(), edit.clone(), other_sender.clone()];
    assert_eq!(store.intents(&keys).await, Ok(vec![None, None, None]));
    let writes = [(key, accepted), (edit, rejected)];
    // A refold writes the same cells again.
    for _ in 0..2 {
        store.write_intents(&writes).await.expect("written");
        assert_eq!(
            store.intents(&keys).await,
            Ok(vec![Some(accepted), Some(rejected), None])
        );
    }
}

async fn a_head_never_goes_back(store: &impl RouterStore) {
    let conv = conversation("head-a", "head-b");
    let convs = [conv.clone()];
    let head = |head, countable, applied| ConvHead {
        head,
        countable,
        applied: off(applied),
    };
    assert_eq!(store.conv_heads(&convs).await, Ok(vec![None]));
    let write = async |value| store.write_conv_heads(&[(conv.clone(), value)]).await.expect("written");
    write(head(10, 8, 100)).await;
    write(head(9, 7, 90)).await;
    assert_eq!(
        store.conv_heads(&convs).await,
        Ok(vec![Some(head(10, 8, 100))]),
        "a late lower write loses"
    );
    write(head(10, 7, 99)).await;
    assert_eq!(
        store.conv_heads(&convs).await,
        Ok(vec![Some(head(10, 8, 100))]),
        "of equals the larger stays"
    );
    write(head(10, 9, 101)).await;
    assert_eq!(
        store.conv_heads(&convs).await,
        Ok(vec![Some(head(10, 9, 101))]),
        "in whatever order they come"
    );
    write(head(11, 9, 110)).await;
    assert_eq!(store.conv_heads(&convs).await, Ok(vec![Some(head(11, 9, 110))]));
    // Several values of one register in one call.
    let heads = [13, 15, 14].map(|seq| (conv.clone(), head(seq, 9, seq * 10)));
    store.write_conv_heads(&heads).await.expect("written");
    assert_eq!(store.conv_heads(&convs).await, Ok(vec![Some(head(15, 9, 150))]));
}

async fn intervals_end_once_and_stay_ended(store: &impl RouterStore) {
    let group = Conversation::parse(&format!("g:{}", msg_id(3))).expect("a group");
    let interval = |name: &str, join_seq, leave_seq| MemberInterval {
        uid: uid(name),
        join_seq,
        leave_seq,
    };
    let joins = [
        interval("mem-a", 1, None),
        interval("mem-b", 1, None),
        interval("mem-b", 9, None),
    ];
    let write = async |intervals: &[MemberInterval]| {
        let writes: Vec<_> = intervals.iter().map(|one| (group.clone(), one.clone())).collect();
        store.write_members(&writes).await.expect("written");
    };
    write(&joins).await;
    write(&[interval("mem-b", 1, Some(5))]).await;
    let ended = vec![
        interval("mem-a", 1, None),
        interval("mem-b", 1, Some(5)),
        interval("mem-b", 9, None),
    ];
    assert_eq!(
        store.members(std::slice::from_ref(&group)).await,
        Ok(vec![ended.clone()])
    );
    // A refold writes the joins again: the leave stays.
    write(&joins).await;
    let stranger = conversation("mem-a", "mem-b");
    assert_eq!(
        store.members(&[stranger, group.clone()]).await,
        Ok(vec![Vec::new(), ended])
    );
}

async fn answers_come_in_the_order_of_the_request(store: &impl RouterStore) {
    let convs: Vec<_> = (0..300)
        .map(|n| conversation("order-a", &format!("order-b{n}")))
        .collect();
    let heads: Vec<_> = (0u64..)
        .zip(&convs)
        .map(|(n, conv)| {
            let head = ConvHead {
                head: n + 1,
                countable: n,
                applied: off(n),
            };
            (conv.clone(), head)
        })
        .collect();
    store.write_conv_heads(&heads).await.expect("written");
    let read = store.conv_heads(&convs).await.expect("read");
    let expected: Vec<_> = heads.into_iter().map(|(_, head)| Some(head)).collect();
    assert_eq!(read, expected);
    assert_eq!(
        store.intents(&[]).await,
        Ok(Vec::new()),
        "an empty request has an empty answer"
    );
    store.write_intents(&[]).await.expect("nothing to write");
}
