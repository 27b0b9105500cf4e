//! Completion in any order, with failures of every kind, and what must hold all the same.

use proptest::prelude::*;

use super::*;
use crate::handler::Cause;
use crate::runtime::testing::record;

const AT: Millis = Millis(7);

fn window() -> Window {
    Window::new(HandlerConfig::default(), BackoffPolicy::STORE, 1)
}

fn filled(keys: &[&str]) -> Window {
    let mut window = window();
    for (offset, key) in (10u64..).zip(keys) {
        window.add(record(0, offset, key));
    }
    window
}

fn later(own: bool) -> Outcome {
    Outcome::RetryLater(Cause {
        error_class: "test",
        detail: String::new(),
        dependency_down: !own,
    })
}

fn reject() -> Outcome {
    Outcome::Reject(Rejection {
        error_class: "decode",
        detail: String::new(),
        stage: "decode",
    })
}

fn offsets(batch: &[LogRecord]) -> Vec<u64> {
    batch.iter().map(|record| record.offset).collect()
}

/// Ends every back-off.
fn far(now: Instant) -> Instant {
    now + Duration::from_secs(60)
}

fn complete(window: &mut Window, now: Instant, outcomes: Vec<Outcome>) -> Completed {
    window.complete(outcomes, now, AT, |_| false)
}

#[test]
fn one_that_waits_holds_the_commit_and_its_key_but_no_other_key() {
    let now = Instant::now();
    let mut window = filled(&["a", "b", "a", "c"]);
    assert_eq!(offsets(&window.take_ready(now)), [10, 11, 12, 13]);
    let outcomes = vec![later(false), Outcome::Done, Outcome::Done, Outcome::Done];
    let completed = complete(&mut window, now, outcomes);
    assert_eq!(completed.settled, 2, "the second of key a is given again");
    assert_eq!(window.committable(), None);
    assert!(window.take_ready(now).is_empty());
    assert!(window.next_due(now).is_some());
    window.add(record(0, 14, "a"));
    window.add(record(0, 15, "b"));
    assert_eq!(offsets(&window.take_ready(now)), [15]);
    complete(&mut window, now, vec![Outcome::Done]);
    assert_eq!(offsets(&window.take_ready(far(now))), [10, 12, 14]);
    complete(&mut window, now, vec![Outcome::Done; 3]);
    assert_eq!(window.committable(), Some(16));
    assert!(window.is_empty());
}

#[test]
fn own_failures_are_counted_and_those_of_a_dependency_are_not() {
    let mut now = Instant::now();
    let mut window = filled(&["a"]);
    for _ in 0..20 {
        window.take_ready(now);
        assert!(complete(&mut window, now, vec![later(false)]).rejected.is_empty());
        now = far(now);
    }
    for attempt in 1..=5u32 {
        assert_eq!(window.take_ready(now).len(), 1);
        let completed = complete(&mut window, now, vec![later(true)]);
        if attempt < 5 {
            assert_eq!(completed.retried, ["test"]);
        } else {
            assert_eq!(completed.rejected[0].attempts.count, 5);
            assert_eq!(completed.rejected[0].rejection.error_class, "test");
        }
        now = far(now);
    }
    assert_eq!(window.committable(), None, "settled only once dlq has confirmed it");
    assert!(window.take_ready(now).is_empty());
    window.written(10);
    assert_eq!(window.committable(), Some(11));
}

#[test]
fn back_off_grows_and_ends_with_success() {
    let now = Instant::now();
    let mut window = filled(&["a", "a"]);
    let mut delays = Vec::new();
    let mut at = now;
    for _ in 0..3 {
        assert_eq!(offsets(&window.take_ready(at)), [10, 11]);
        complete(&mut window, at, vec![later(false), Outcome::Done]);
        let due = window.next_due(at).unwrap();
        delays.push(due - at);
        at = due;
    }
    assert!(delays[0] >= Duration::from_secs(1) && delays.is_sorted(), "{delays:?}");
    window.take_ready(at);
    complete(&mut window, at, vec![Outcome::Done, later(false)]);
    assert!(
        window.next_due(at).unwrap() - at < Duration::from_secs(2),
        "from the beginning"
    );
}

#[test]
fn a_panic_is_blamed_on_the_record_that_panics_alone() {
    let mut now = Instant::now();
    let mut window = filled(&["a", "b", "c"]);
    window.take_ready(now);
    assert!(window.panicked("boom", now, AT).rejected.is_empty());
    now = far(now);
    let mut rejected = Vec::new();
    let mut batches = 0;
    while rejected.is_empty() {
        let batch = window.take_ready(now);
        if batch.is_empty() {
            now = far(now);
            continue;
        }
        assert_eq!(batch.len(), 1, "one by one");
        batches += 1;
        let completed = if batch[0].offset == 11 {
            window.panicked("boom", now, AT)
        } else {
            complete(&mut window, now, vec![Outcome::Done])
        };
        rejected.extend(completed.rejected);
    }
    assert_eq!(rejected[0].record.offset, 11);
    assert_eq!(rejected[0].attempts.count, 5);
    assert_eq!(batches, 2 + 4, "each innocent once, the guilty one four times more");
    window.written(11);
    assert_eq!(window.committable(), Some(13));
}

#[test]
fn the_last_attempt_before_blame_is_made_alone() {
    let mut now = Instant::now();
    let mut window = filled(&["a", "b"]);
    for _ in 0..4 {
        window.take_ready(now);
        complete(&mut window, now, vec![later(true), later(true)]);
        now = far(now);
    }
    assert_eq!(window.take_ready(now).len(), 2);
    assert!(
        window.panicked("boom", now, AT).rejected.is_empty(),
        "either may be guilty"
    );
    now = far(now);
    assert_eq!(offsets(&window.take_ready(now)), [10]);
    assert_eq!(window.panicked("boom", now, AT).rejected.len(), 1);
    assert_eq!(offsets(&window.take_ready(now)), [11]);
    assert_eq!(complete(&mut window, now, vec![Outcome::Done]).settled, 1);
}

#[test]
fn records_without_a_key_do_not_wait_for_each_other() {
    let now = Instant::now();
    let mut window = filled(&["", "", ""]);
    assert_eq!(window.take_ready(now).len(), 3);
    complete(&mut window, now, vec![later(false), Outcome::Done, reject()]);
    window.written(12);
    assert!(window.take_ready(now).is_empty());
    assert_eq!(offsets(&window.take_ready(far(now))), [10]);
    complete(&mut window, now, vec![Outcome::Done]);
    assert_eq!(window.committable(), Some(13));
}

#[test]
fn a_handler_that_answers_too_little_or_too_much_settles_nothing_by_it() {
    let now = Instant::now();
    let mut window = filled(&["a", "b"]);
    window.take_ready(now);
    assert_eq!(complete(&mut window, now, vec![Outcome::Done]).retried, ["no_outcome"]);
    assert_eq!(window.committable(), Some(11));
    window.take_ready(far(now));
    complete(&mut window, now, vec![Outcome::Done, Outcome::Done]);
    assert_eq!(window.committable(), Some(12));
}

#[test]
fn room_ends_at_records_bytes_and_span() {
    let limits = |records, bytes, span| HandlerConfig {
        window_records: records,
        window_bytes: bytes,
        window_span: span,
        ..HandlerConfig::default()
    };
    let with = |limits: HandlerConfig| {
        let mut window = Window::new(limits, BackoffPolicy::STORE, 1);
        window.add(record(0, 100, "key"));
        window.add(record(0, 200, "key"));
        window.room()
    };
    assert_eq!(with(limits(3, 1000, 1000)), 1);
    assert_eq!(with(limits(3, 12, 1000)), 0, "two records of 6 bytes");
    assert_eq!(with(limits(3, 1000, 100)), 0);
}

/// What the model's handler does with one record at one time.
#[derive(Debug, Clone, Copy)]
enum Move {
    Done,
    Dependency,
    Own,
    Reject,
    Panic,
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => Just(Move::Done),
        1 => Just(Move::Dependency),
        2 => Just(Move::Own),
        1 => Just(Move::Reject),
        1 => Just(Move::Panic),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn never_commits_past_the_first_unsettled_and_keeps_the_order_of_keys(
        gaps in prop::collection::vec(1..4u64, 1..40),
        keys in prop::collection::vec(0..4usize, 40),
        plan in prop::collection::vec(moves(), 1..200),
        confirm in prop::collection::vec(any::<bool>(), 1..50),
    ) {
        const KEYS: [&str; 4] = ["", "a", "b", "c"];
        let mut window = Window::new(
            HandlerConfig { batch_records: 5, ..HandlerConfig::default() },
            BackoffPolicy::STORE,
            3,
        );
        // The truth, kept apart from the window.
        let mut unsettled: Vec<(u64, usize)> = Vec::new();
        let mut offset = 0;
        for (gap, key) in gaps.iter().zip(&keys) {
            offset += gap;
            window.add(record(0, offset, KEYS[*key]));
            unsettled.push((offset, *key));
        }
        let (last, mut now) = (offset, Instant::now());
        let mut plan = plan.into_iter().chain(std::iter::repeat(Move::Done));
        let mut confirm = confirm.into_iter().chain(std::iter::repeat(true));
        let mut writing: Vec<u64> = Vec::new();
        let mut rounds = 0;
        while !unsettled.is_empty() {
            rounds += 1;
            prop_assert!(rounds < 5000, "no progress");
            let batch = window.take_ready(now);
            if batch.is_empty() {
                now = far(now);
            }
            for (at, record) in batch.iter().enumerate() {
                // Every earlier one of its key is settled, being written, or before it in this batch.
                let key = unsettled.iter().find(|(offset, _)| *offset == record.offset).expect("not settled").1;
                for (earlier, _) in unsettled.iter().filter(|(o, k)| key != 0 && *k == key && *o < record.offset) {
                    prop_assert!(batch[..at].iter().any(|record| record.offset == *earlier), "{earlier} waits");
                }
            }
            let mut settle = Vec::new();
            if !batch.is_empty() {
                let decided: Vec<Move> = batch.iter().map(|_| plan.next().unwrap()).collect();
                let completed = if decided.iter().any(|m| matches!(m, Move::Panic)) {
                    window.panicked("boom", now, AT)
                } else {
                    let outcomes = decided.iter().map(|m| match m {
                        Move::Done => Outcome::Done,
                        Move::Own => later(true),
                        Move::Dependency | Move::Panic => later(false),
                        Move::Reject => reject(),
                    }).collect();
                    let mut waiting = Vec::new();
                    for (record, m) in batch.iter().zip(&decided) {
                        let waits = record.key.is_some() && waiting.contains(&record.key);
                        match m {
                            Move::Done if !waits => settle.push(record.offset),
                            Move::Done | Move::Reject | Move::Panic => {}
                            Move::Own | Move::Dependency => waiting.push(record.key.clone()),
                        }
                    }
                    complete(&mut window, now, outcomes)
                };
                writing.extend(completed.rejected.iter().map(|rejected| rejected.record.offset));
                // A record whose last attempt failed is given up, so its key does not wait: more may be settled.
                prop_assert!(completed.settled >= settle.len() as u64);
                if completed.settled > settle.len() as u64 {
                    settle = batch.iter().zip(&decided)
                        .filter(|(_, m)| matches!(m, Move::Done))
                        .map(|(record, _)| record.offset)
                        .filter(|offset| window.index(*offset).is_none_or(|i| matches!(window.slots[i].state, State::Settled)))
                        .collect();
                }
            }
            for offset in std::mem::take(&mut writing) {
                if confirm.next().unwrap() {
                    window.written(offset);
                    settle.push(offset);
                } else {
                    writing.push(offset);
                }
            }
            unsettled.retain(|(offset, _)| !settle.contains(offset));
            let first = unsettled.first().map_or(last + 1, |(offset, _)| *offset);
            prop_assert!(window.committable().unwrap_or(0) <= first);
        }
        prop_assert_eq!(window.committable(), Some(last + 1));
        prop_assert_eq!(window.bytes, 0);
        prop_assert!(window.pauses.is_empty());
    }
}
