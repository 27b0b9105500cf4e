//! Contract of [`HotWindow`].

use bytes::Bytes;
use tidings_domain::Uid;
use tidings_storage::port::{HotRead, HotWindow};

use crate::names::uid;

pub(crate) async fn run(window: &impl HotWindow) {
    events_are_read_from_the_cursor_on(window).await;
    known_events_are_ignored(window).await;
    a_hole_starts_the_window_anew(window).await;
    only_the_newest_are_kept(window).await;
    bodies_come_back_as_they_were(window).await;
}

fn event(user: &Uid, seq: u64) -> (Uid, u64, Bytes) {
    (user.clone(), seq, Bytes::from(format!("event {seq}")))
}

fn expected(seqs: impl IntoIterator<Item = u64>, hi: u64) -> HotRead {
    let events = seqs.into_iter().map(|seq| (seq, Bytes::from(format!("event {seq}"))));
    HotRead {
        events: events.collect(),
        hi,
    }
}

async fn append(window: &impl HotWindow, user: &Uid, seqs: impl IntoIterator<Item = u64>) {
    let events: Vec<_> = seqs.into_iter().map(|seq| event(user, seq)).collect();
    window.append(&events).await.expect("appended");
}

async fn events_are_read_from_the_cursor_on(window: &impl HotWindow) {
    let user = uid("hot");
    assert_eq!(window.read(&user, 0, 10).await, Ok(HotRead::default()));
    append(window, &user, 5..=9).await;
    assert_eq!(window.read(&user, 4, 10).await, Ok(expected(5..=9, 9)));
    assert_eq!(window.read(&user, 6, 2).await, Ok(expected(7..=8, 9)));
    assert_eq!(window.read(&user, 3, 10).await, Ok(expected([], 9)), "4 is not held");
    assert_eq!(window.read(&user, 9, 10).await, Ok(expected([], 9)), "nothing is above");
    assert_eq!(window.read(&user, 50, 10).await, Ok(expected([], 9)));
    assert_eq!(window.read(&uid("hot-nobody"), 0, 10).await, Ok(HotRead::default()));
    window.append(&[]).await.expect("nothing to append");
}

async fn known_events_are_ignored(window: &impl HotWindow) {
    let user = uid("again");
    append(window, &user, 1..=3).await;
    append(window, &user, 1..=3).await;
    append(window, &user, [2]).await;
    append(window, &user, 3..=5).await;
    assert_eq!(window.read(&user, 0, 10).await, Ok(expected(1..=5, 5)));
}

async fn a_hole_starts_the_window_anew(window: &impl HotWindow) {
    let user = uid("hole");
    append(window, &user, 1..=3).await;
    append(window, &user, 6..=7).await;
    assert_eq!(window.read(&user, 5, 10).await, Ok(expected(6..=7, 7)));
    assert_eq!(window.read(&user, 0, 10).await, Ok(expected([], 7)));
    // Also within one call.
    append(window, &user, [8, 20, 21]).await;
    assert_eq!(window.read(&user, 19, 10).await, Ok(expected(20..=21, 21)));
    assert_eq!(window.read(&user, 7, 10).await, Ok(expected([], 21)));
}

async fn only_the_newest_are_kept(window: &impl HotWindow) {
    let user = uid("trim");
    append(window, &user, 1..=2000).await;
    let read = window.read(&user, 0, 10).await.expect("read");
    assert_eq!(read, expected([], 2000), "the oldest are gone");
    let read = window.read(&user, 2000 - 512, 1000).await;
    assert_eq!(read, Ok(expected(2000 - 511..=2000, 2000)), "and 512 are there");
    append(window, &user, [2001]).await;
    assert_eq!(window.read(&user, 1999, 10).await, Ok(expected(2000..=2001, 2001)));
}

async fn bodies_come_back_as_they_were(window: &impl HotWindow) {
    let user = uid("hot-body");
    let bodies = [
        Bytes::new(),
        Bytes::from_static(b"a\0\xff"),
        Bytes::from(vec![3; 512 * 1024]),
    ];
    let events: Vec<_> = (1..)
        .zip(bodies.clone())
        .map(|(seq, body)| (user.clone(), seq, body))
        .collect();
    // Two users in one call.
    let mut both = events.clone();
    both.push(event(&uid("hot-body2"), 1));
    window.append(&both).await.expect("appended");
    let read = window.read(&user, 0, 10).await.expect("read");
    assert_eq!(read.events, (1..).zip(bodies).collect::<Vec<_>>());
    assert_eq!(window.read(&uid("hot-body2"), 0, 9).await, Ok(expected([1], 1)));
}
