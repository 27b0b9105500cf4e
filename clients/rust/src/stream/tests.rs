use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::*;

fn settings() -> StreamSettings {
    StreamSettings {
        gap_patience: Duration::from_millis(500),
        max_waiting: 10,
        max_buffered: 50,
        sync_burst: 3,
        sync_interval: Duration::from_secs(2),
        sync_timeout: Duration::from_secs(10),
        pull_interval: (Duration::from_secs(180), Duration::from_secs(300)),
    }
}

fn push(user_seq: u64) -> v1::Push {
    v1::Push {
        user_seq,
        event: Some(v1::Event {
            kind: Some(v1::event::Kind::ReadSync(v1::ReadSync::default())),
        }),
    }
}

struct Bench {
    stream: Stream,
    now: Instant,
    rng: SmallRng,
}

impl Bench {
    /// Connected at cursor 10 with the first round done.
    fn synced() -> Self {
        let mut bench = Self {
            stream: Stream::new(settings(), v1::Cursor { epoch: 1, user_seq: 10 }),
            now: Instant::now(),
            rng: SmallRng::seed_from_u64(1),
        };
        bench.stream.connected(10, bench.now, &mut bench.rng);
        assert!(bench.stream.start_round(bench.now), "sync on connect");
        bench.stream.page(true, 10, bench.now, &mut bench.rng);
        bench
    }

    fn arrive(&mut self, user_seq: u64) -> Arrival {
        self.stream.arrive(push(user_seq), self.now)
    }

    fn ready(&mut self) -> Vec<u64> {
        self.stream
            .take_ready(100)
            .iter()
            .map(|arrived| arrived.user_seq)
            .collect()
    }
}

#[test]
fn events_come_out_in_order_and_once() {
    let mut bench = Bench::synced();
    assert_eq!(bench.arrive(10), Arrival::Duplicate);
    assert_eq!(bench.arrive(12), Arrival::New);
    assert_eq!(bench.arrive(12), Arrival::Ignored);
    assert_eq!(bench.ready(), [0u64; 0]);
    assert_eq!(bench.arrive(11), Arrival::New);
    assert_eq!(bench.ready(), [11, 12]);
    assert_eq!(bench.arrive(11), Arrival::Duplicate);
    assert_eq!(bench.stream.received(), 12);
}

/// Scenarios B29 and B33: the cursor is what was committed, whatever came.
#[test]
fn the_cursor_follows_the_commits_alone() {
    let mut bench = Bench::synced();
    bench.arrive(61);
    assert_eq!(bench.stream.cursor().user_seq, 10);
    bench.stream.committed(61);
    assert_eq!(bench.stream.cursor().user_seq, 10, "never past a gap");
    bench.arrive(11);
    bench.ready();
    assert_eq!(bench.stream.cursor().user_seq, 10);
    bench.stream.committed(11);
    assert_eq!(bench.stream.cursor().user_seq, 11);
}

#[test]
fn a_gap_is_pulled_after_its_patience() {
    let mut bench = Bench::synced();
    bench.arrive(12);
    assert!(!bench.stream.start_round(bench.now));
    assert_eq!(
        bench.stream.next_deadline(bench.now),
        Some(bench.now + Duration::from_millis(500))
    );
    bench.now += Duration::from_millis(500);
    assert!(bench.stream.start_round(bench.now));
    assert!(!bench.stream.start_round(bench.now), "one round at a time");
}

#[test]
fn a_gap_that_closes_by_itself_is_not_pulled() {
    let mut bench = Bench::synced();
    bench.arrive(12);
    bench.arrive(11);
    bench.ready();
    bench.now += Duration::from_secs(5);
    assert!(!bench.stream.start_round(bench.now));
}

#[test]
fn more_than_ten_waiting_are_pulled_at_once() {
    let mut bench = Bench::synced();
    for user_seq in 12..=21 {
        bench.arrive(user_seq);
    }
    assert!(!bench.stream.start_round(bench.now));
    bench.arrive(22);
    assert!(bench.stream.start_round(bench.now));
}

#[test]
fn a_head_that_did_not_come_is_pulled_at_once() {
    let mut bench = Bench::synced();
    bench.stream.head_is(10);
    assert!(!bench.stream.start_round(bench.now));
    bench.stream.head_is(11);
    assert!(bench.stream.start_round(bench.now));
}

#[test]
fn rounds_are_limited_and_a_silent_one_is_started_again() {
    let mut bench = Bench::synced();
    bench.stream.head_is(99);
    // One token went to the round on connect.
    for _ in 0..2 {
        assert!(bench.stream.start_round(bench.now));
        bench.stream.page(true, 99, bench.now, &mut bench.rng);
    }
    assert!(!bench.stream.start_round(bench.now), "the burst is spent");
    assert_eq!(
        bench.stream.next_deadline(bench.now),
        Some(bench.now + Duration::from_secs(2))
    );
    bench.now += Duration::from_secs(2);
    assert!(bench.stream.start_round(bench.now));
    // Pages keep the round alive, silence ends it.
    bench.now += Duration::from_secs(9);
    bench.stream.page(false, 99, bench.now, &mut bench.rng);
    bench.now += Duration::from_secs(9);
    assert!(!bench.stream.start_round(bench.now));
    bench.now += Duration::from_secs(1);
    assert!(bench.stream.start_round(bench.now));
}

#[test]
fn a_refused_round_waits_as_long_as_asked() {
    let mut bench = Bench::synced();
    bench.stream.head_is(99);
    assert!(bench.stream.start_round(bench.now));
    bench.stream.round_refused(Duration::from_secs(7), bench.now);
    assert_eq!(
        bench.stream.next_deadline(bench.now),
        Some(bench.now + Duration::from_secs(7))
    );
    bench.now += Duration::from_secs(7);
    assert!(bench.stream.start_round(bench.now));
}

#[test]
fn a_healthy_link_is_pulled_every_few_minutes() {
    let mut bench = Bench::synced();
    let at = bench.stream.next_deadline(bench.now).expect("a pull is planned");
    let wait = at - bench.now;
    assert!((Duration::from_secs(180)..=Duration::from_secs(300)).contains(&wait));
    assert!(!bench.stream.start_round(bench.now));
    assert!(bench.stream.start_round(at));
}

#[test]
fn the_buffer_is_bounded_and_never_keeps_out_what_is_next() {
    let mut bench = Bench::synced();
    for user_seq in 12..200 {
        bench.arrive(user_seq);
    }
    assert_eq!(bench.stream.waiting(), 50);
    assert_eq!(bench.arrive(11), Arrival::New);
    assert_eq!(bench.ready().len(), 51);
}

#[test]
fn after_a_truncation_the_stream_goes_on_above_the_floor() {
    let mut bench = Bench::synced();
    bench.arrive(50);
    bench.arrive(51);
    assert!(!bench.stream.truncated(5, bench.now), "behind what is here");
    assert!(bench.stream.truncated(50, bench.now));
    assert_eq!(bench.stream.cursor().user_seq, 50);
    assert_eq!(bench.ready(), [51]);
}

#[test]
fn a_reset_forgets_what_came_under_the_old_cursor() {
    let mut bench = Bench::synced();
    bench.arrive(12);
    bench.stream.reset(v1::Cursor { epoch: 2, user_seq: 0 });
    assert_eq!(bench.stream.cursor(), v1::Cursor { epoch: 2, user_seq: 0 });
    assert_eq!(bench.arrive(1), Arrival::New);
    assert_eq!(bench.ready(), [1]);
    assert!(bench.stream.start_round(bench.now));
}

#[test]
fn nothing_is_pulled_without_a_link() {
    let mut bench = Bench::synced();
    bench.stream.head_is(99);
    bench.stream.disconnected();
    assert!(!bench.stream.start_round(bench.now));
    assert_eq!(bench.stream.next_deadline(bench.now), None);
}
