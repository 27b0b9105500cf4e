use rand::SeedableRng;
use rand::rngs::SmallRng;
use tidings_domain::Uid;

use super::*;

const WALL: Millis = Millis(1_790_000_000_000);
const ROOM: usize = 100;

fn settings() -> OutboxSettings {
    let seconds = Duration::from_secs;
    OutboxSettings {
        ack_timeouts: [seconds(3), seconds(6), seconds(12)],
        resend_delays: [1, 3, 7, 15, 30].map(seconds).to_vec(),
        resend_jitter: 0.5,
        resend_horizon: seconds(24 * 3600),
        max_unacked: 16,
        max_sends_per_second: 1_000,
    }
}

fn conversation(with: &str) -> Conversation {
    Conversation::direct(&Uid::parse("alice").expect("valid"), &Uid::parse(with).expect("valid"))
}

fn msg_id(n: u8) -> MsgId {
    MsgId::mint(WALL, [n; 10])
}

fn entry(n: u8, with: &str) -> Entry {
    Entry {
        local_id: i64::from(n),
        conversation: conversation(with),
        msg_id: msg_id(n),
        content_type: "text".to_owned(),
        body: Bytes::from_static(b"x"),
        first_send_time: WALL,
        since: WALL,
        retry_count: 0,
        tried: false,
        renewals: 0,
    }
}

/// A clock, an outbox and what was sent.
struct Bench {
    outbox: Outbox,
    now: Instant,
    wall: Millis,
    rng: SmallRng,
}

impl Bench {
    fn new(settings: OutboxSettings, entries: Vec<Entry>) -> Self {
        let mut outbox = Outbox::new(settings, entries);
        outbox.connected();
        Self {
            outbox,
            now: Instant::now(),
            wall: WALL,
            rng: SmallRng::seed_from_u64(7),
        }
    }

    fn wait(&mut self, by: Duration) {
        self.now += by;
        self.wall = self.wall.plus(by);
    }

    /// (first random byte of the id, lane_seq, retry_count) of what goes out now, and the failed ones.
    fn due(&mut self) -> (Vec<(u8, u64, u32)>, Vec<u8>) {
        let due = self.outbox.due(self.now, self.wall, ROOM, &mut self.rng);
        (
            due.send
                .iter()
                .map(|out| (out.frame.msg_id[15], out.frame.lane_seq, out.frame.retry_count))
                .collect(),
            due.failed.iter().map(|entry| entry.msg_id.as_bytes()[15]).collect(),
        )
    }

    fn sent(&mut self) -> Vec<(u8, u64, u32)> {
        let (sent, failed) = self.due();
        assert!(failed.is_empty());
        sent
    }

    fn answer(&mut self, n: u8, code: v1::Code, expected_lane_seq: u64) -> Answer {
        let ack = v1::MsgAck {
            code: code as i32,
            retryable: code.is_retryable(),
            expected_lane_seq,
            ..v1::MsgAck::default()
        };
        self.outbox.acknowledged(msg_id(n), &ack, self.now, &mut self.rng)
    }

    /// Runs until the next deadline.
    fn next(&mut self) -> Duration {
        let at = self.outbox.next_deadline(self.now).expect("something is to be done");
        let wait = at - self.now;
        self.wait(wait);
        wait
    }
}

#[test]
fn lanes_count_per_conversation_and_send_ahead() {
    let mut bench = Bench::new(settings(), vec![entry(1, "bob"), entry(2, "carol"), entry(3, "bob")]);
    assert_eq!(bench.sent(), [(1, 1, 0), (2, 1, 0), (3, 2, 0)]);
    assert!(bench.sent().is_empty());
    assert!(matches!(bench.answer(1, v1::Code::Ok, 0), Answer::Sent(e) if e.msg_id == msg_id(1)));
    assert_eq!(
        bench.answer(1, v1::Code::Ok, 0),
        Answer::Nothing,
        "a second ACK changes nothing"
    );
    assert_eq!(bench.outbox.len(), 2);
}

#[test]
fn at_most_the_window_is_unacknowledged_and_the_rate_is_bounded() {
    let mut bench = Bench::new(settings(), (1..=40).map(|n| entry(n, "bob")).collect());
    assert_eq!(bench.sent().len(), 16);
    bench.answer(1, v1::Code::Ok, 0);
    assert_eq!(bench.sent(), [(17, 17, 0)]);

    let slow = OutboxSettings {
        max_sends_per_second: 4,
        ..settings()
    };
    let mut bench = Bench::new(slow, (1..=10).map(|n| entry(n, "bob")).collect());
    assert_eq!(bench.sent().len(), 4);
    assert_eq!(bench.next(), Duration::from_millis(250));
    assert_eq!(bench.sent().len(), 1);
}

/// req:A3: six tries, then FAILED after 113 to 141 s.
#[test]
fn the_ladder_has_the_required_length() {
    for (jitter, seconds) in [(0.0, 113.0..=113.0), (0.5, 113.0..=141.0)] {
        let mut bench = Bench::new(
            OutboxSettings {
                resend_jitter: jitter,
                ..settings()
            },
            vec![entry(1, "bob")],
        );
        let start = bench.now;
        let mut retry_counts = Vec::new();
        let failed_after = loop {
            let (sent, failed) = bench.due();
            retry_counts.extend(sent.iter().map(|(_, _, retry_count)| *retry_count));
            assert!(
                sent.iter().all(|(_, lane_seq, _)| *lane_seq == 1),
                "a resend keeps its number"
            );
            if failed == [1] {
                break (bench.now - start).as_secs_f64();
            }
            bench.next();
        };
        assert_eq!(retry_counts, [0, 1, 2, 3, 4, 5]);
        assert!(seconds.contains(&failed_after), "{failed_after}");
        assert_eq!(bench.outbox.len(), 0);
    }
}

#[test]
fn timeouts_and_delays_are_those_of_the_ladder() {
    let mut bench = Bench::new(
        OutboxSettings {
            resend_jitter: 0.0,
            ..settings()
        },
        vec![entry(1, "bob")],
    );
    let mut waits = Vec::new();
    loop {
        let (_, failed) = bench.due();
        if !failed.is_empty() {
            break;
        }
        waits.push(bench.next().as_secs());
    }
    assert_eq!(waits, [3, 1, 6, 3, 12, 7, 12, 15, 12, 30, 12]);
}

/// req:C2: the lane goes back to the oldest unacknowledged and sends everything again in order.
#[test]
fn a_lane_goes_back_as_a_whole_and_others_go_on() {
    let mut bench = Bench::new(
        settings(),
        vec![entry(1, "bob"), entry(2, "bob"), entry(3, "bob"), entry(4, "carol")],
    );
    assert_eq!(bench.sent().len(), 4);
    bench.answer(1, v1::Code::Ok, 0);
    assert_eq!(bench.answer(2, v1::Code::Unconfirmed, 0), Answer::Nothing);
    // What was sent behind it is refused too, and does not send the lane back once more.
    assert_eq!(bench.answer(3, v1::Code::LaneOutOfOrder, 2), Answer::Nothing);
    bench.outbox.push(entry(5, "bob"));
    bench.outbox.push(entry(6, "carol"));
    assert_eq!(bench.sent(), [(6, 2, 0)], "the other lane is not held");
    let wait = bench.next();
    assert!(
        (Duration::from_secs(1)..=Duration::from_millis(1_500)).contains(&wait),
        "{wait:?}"
    );
    assert_eq!(bench.sent(), [(2, 2, 1), (3, 3, 1), (5, 4, 0)]);
}

#[test]
fn the_server_may_ask_for_a_longer_delay() {
    let mut bench = Bench::new(settings(), vec![entry(1, "bob")]);
    bench.sent();
    let ack = v1::MsgAck {
        code: v1::Code::Overloaded as i32,
        retryable: true,
        retry_after_ms: 20_000,
        ..v1::MsgAck::default()
    };
    bench.outbox.acknowledged(msg_id(1), &ack, bench.now, &mut bench.rng);
    assert_eq!(bench.next(), Duration::from_secs(20));
}

/// Being offline spends no try; a new session numbers from 1 and sends at once, in order.
#[test]
fn a_new_session_starts_the_lanes_anew() {
    let mut bench = Bench::new(settings(), vec![entry(1, "bob"), entry(2, "bob")]);
    bench.sent();
    bench.answer(1, v1::Code::Ok, 0);
    bench.outbox.push(entry(3, "bob"));
    bench.outbox.disconnected();
    bench.wait(Duration::from_secs(3_600));
    assert_eq!(bench.due(), (vec![], vec![]));
    assert_eq!(bench.outbox.next_deadline(bench.now), None);
    bench.outbox.connected();
    assert_eq!(bench.sent(), [(2, 1, 1), (3, 2, 0)]);
}

/// What an earlier process may have sent is a resend.
#[test]
fn after_a_restart_everything_is_a_resend() {
    let mut bench = Bench::new(
        settings(),
        vec![Entry {
            tried: true,
            retry_count: 2,
            ..entry(1, "bob")
        }],
    );
    assert_eq!(bench.sent(), [(1, 1, 3)]);
}

/// req:A3: no automatic resend 24 h after the first send.
#[test]
fn the_horizon_ends_everything() {
    let mut bench = Bench::new(settings(), vec![entry(1, "bob")]);
    bench.outbox.disconnected();
    bench.wait(Duration::from_secs(24 * 3600));
    bench.outbox.connected();
    assert_eq!(bench.sent().len(), 1);
    bench.wait(Duration::from_secs(1));
    assert_eq!(bench.due(), (vec![], vec![1]));
}

/// A failed message is passed over; if the gateway never got it, it expects its number.
#[test]
fn the_lane_is_renumbered_when_the_gateway_expects_less() {
    let mut bench = Bench::new(
        OutboxSettings {
            resend_delays: vec![],
            ..settings()
        },
        vec![entry(1, "bob"), entry(2, "bob"), entry(3, "bob")],
    );
    bench.sent();
    bench.wait(Duration::from_secs(3));
    assert_eq!(bench.due(), (vec![(2, 2, 1), (3, 3, 1)], vec![1]));
    assert_eq!(bench.answer(2, v1::Code::LaneOutOfOrder, 1), Answer::Nothing);
    assert_eq!(
        bench.sent(),
        [(2, 1, 2), (3, 2, 2)],
        "at once, from the number expected"
    );
    // The late refusal of the earlier try changes nothing.
    assert_eq!(bench.answer(3, v1::Code::LaneOutOfOrder, 1), Answer::Nothing);
    assert!(bench.sent().is_empty());
}

#[test]
fn a_permanent_refusal_takes_one_message_out() {
    let mut bench = Bench::new(settings(), vec![entry(1, "bob"), entry(2, "bob")]);
    bench.sent();
    assert!(matches!(
        bench.answer(1, v1::Code::Forbidden, 0),
        Answer::Refused { doubt: Doubt::None, .. }
    ));
    assert!(matches!(bench.answer(2, v1::Code::Ok, 0), Answer::Sent(_)));
}

/// architecture.md section 4: a new id only if every try was refused for its id.
#[test]
fn a_new_id_needs_that_every_try_was_refused_for_its_id() {
    let mut bench = Bench::new(settings(), vec![entry(1, "bob")]);
    bench.sent();
    assert!(matches!(
        bench.answer(1, v1::Code::InvalidMsgId, 0),
        Answer::Refused {
            doubt: Doubt::IdOnly,
            ..
        }
    ));
    // After a try whose outcome is not known, never.
    let mut bench = Bench::new(settings(), vec![entry(1, "bob")]);
    bench.sent();
    bench.outbox.disconnected();
    bench.outbox.connected();
    bench.sent();
    assert!(matches!(
        bench.answer(1, v1::Code::MsgIdExpired, 0),
        Answer::Refused {
            doubt: Doubt::EarlierTry,
            ..
        }
    ));
}

#[test]
fn a_code_of_a_newer_server_is_retryable_if_it_says_so() {
    for retryable in [true, false] {
        let mut bench = Bench::new(settings(), vec![entry(1, "bob")]);
        bench.sent();
        let ack = v1::MsgAck {
            code: 50,
            retryable,
            ..v1::MsgAck::default()
        };
        let answer = bench.outbox.acknowledged(msg_id(1), &ack, bench.now, &mut bench.rng);
        assert_eq!(answer == Answer::Nothing, retryable);
    }
}
