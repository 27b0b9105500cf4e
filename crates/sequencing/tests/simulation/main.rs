//! A small simulator around the real folds: logs, a store whose writes land late or never, producers that lose records in
//! the middle, owners that crash and overlap. What comes out is compared with a naive fold that sees every record once.
//!
//! The checker with replicas, quorums and broken variants of the rules is another program; it drives the same folds.

mod clients;
mod cost;
mod inbox_rules;
mod owners;
mod records;
mod reference;
mod router_rules;
mod store;
mod tape;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use tidings_domain::state::{InboxHead, Outcome};
use tidings_proto::record::Push;

use clients::Clients;
use owners::{End, Shared};
use reference::Counts;
use tape::Tape;
use world::{INBOX_PARTITIONS, INGRESS_PARTITIONS, World};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Router,
    Inbox,
}

struct Owner {
    stage: Stage,
    partition: u32,
    run: usize,
    future: Pin<Box<dyn Future<Output = Result<(), End>>>>,
}

struct Simulation {
    world: Shared,
    owners: Vec<Owner>,
    clients: Clients,
}

impl Simulation {
    fn new(tape: Tape, faults: bool) -> Self {
        Self {
            world: Rc::new(RefCell::new(World::new(tape, faults))),
            owners: Vec::new(),
            clients: Clients::default(),
        }
    }

    fn partitions() -> impl Iterator<Item = (Stage, u32)> {
        let routers = (0..INGRESS_PARTITIONS).map(|p| (Stage::Router, p));
        routers.chain((0..INBOX_PARTITIONS).map(|q| (Stage::Inbox, q)))
    }

    fn spawn(&mut self, stage: Stage, partition: u32) {
        let run = {
            let mut world = self.world.borrow_mut();
            world.runs.push(world::Run::default());
            world.runs.len() - 1
        };
        let world = Rc::clone(&self.world);
        let future: Pin<Box<dyn Future<Output = Result<(), End>>>> = match stage {
            Stage::Router => Box::pin(owners::router(world, run, partition)),
            Stage::Inbox => Box::pin(owners::inbox(world, run, partition)),
        };
        self.owners.push(Owner {
            stage,
            partition,
            run,
            future,
        });
    }

    fn spawn_missing(&mut self) {
        for (stage, partition) in Self::partitions() {
            if !self.owners.iter().any(|o| (o.stage, o.partition) == (stage, partition)) {
                self.spawn(stage, partition);
            }
        }
    }

    fn end(&mut self, at: usize) {
        let owner = self.owners.swap_remove(at);
        self.world.borrow_mut().end(owner.run);
    }

    fn poll(&mut self, at: usize) {
        let mut context = Context::from_waker(Waker::noop());
        match self.owners[at].future.as_mut().poll(&mut context) {
            Poll::Pending => {}
            Poll::Ready(Ok(()) | Err(End::Failed)) => self.end(at),
            Poll::Ready(Err(End::Stopped(stop))) => {
                let owner = &self.owners[at];
                panic!("{:?} {} stopped: {stop}", owner.stage, owner.partition);
            }
        }
    }

    fn pick(&self, among: usize) -> usize {
        self.world.borrow_mut().tape.pick(among)
    }

    /// Follows the tape to its end.
    fn run(&mut self) {
        let faults = self.world.borrow().faults;
        while !self.world.borrow().tape.is_over() {
            self.spawn_missing();
            match self.pick(20) {
                0..=8 => {
                    let at = self.pick(self.owners.len());
                    self.poll(at);
                }
                9..=11 => {
                    self.world.borrow_mut().apply_one();
                }
                12..=14 => {
                    self.world.borrow_mut().deliver_one();
                }
                15..=16 => self.clients.act(&mut self.world.borrow_mut()),
                17 => self.clients.report(&mut self.world.borrow_mut()),
                18 if faults && self.pick(3) == 1 => {
                    let at = self.pick(self.owners.len());
                    self.end(at);
                }
                19 if faults && self.pick(3) == 1 && self.owners.len() < 8 => {
                    let all: Vec<_> = Self::partitions().collect();
                    let (stage, partition) = all[self.pick(all.len())];
                    self.spawn(stage, partition);
                }
                _ => {}
            }
        }
    }

    /// One owner per partition, no more faults, until everything is folded and committed.
    fn drain(&mut self) {
        while !self.owners.is_empty() {
            self.end(0);
        }
        self.world.borrow_mut().draining = true;
        self.world.borrow_mut().settle_the_dead();
        self.finish();
    }

    fn finish(&mut self) {
        self.spawn_missing();
        for _ in 0..200_000 {
            for at in 0..self.owners.len() {
                self.poll(at);
            }
            self.world.borrow_mut().settle_the_dead();
            if self.is_done() {
                return;
            }
        }
        panic!("the folds do not come to rest");
    }

    fn is_done(&self) -> bool {
        let world = self.world.borrow();
        let committed = (0..INGRESS_PARTITIONS).all(|p| {
            let end = world.ingress[p as usize].len() as u64;
            end == world.commits.get(&p).map_or(0, |(offset, _)| *offset)
        });
        let checkpointed = (0..INBOX_PARTITIONS).all(|q| {
            let end = world.inbox[q as usize].len() as u64;
            end == world.store.checkpoints.get(&q).map_or(0, |(c, _)| c.next_offset)
        });
        committed && checkpointed
    }

    /// Everything is as if each record had been folded once.
    fn check(&self) {
        let world = self.world.borrow();
        let reference = &world.reference;
        let store = &world.store;
        reference.assert_all_accepted();
        assert_eq!(world.dead_letters, reference.dead_letters, "dead letters");

        assert_eq!(store.intents.len(), reference.outcomes.len(), "one intent per key");
        for (key, (outcome, hash, off)) in &reference.outcomes {
            let intent = &store.intents[key];
            assert_eq!(
                (intent.outcome, intent.content_hash, intent.off),
                (*outcome, *hash, *off)
            );
        }
        for (conversation, head) in &reference.conv_heads {
            let numbers: Vec<u64> = reference
                .outcomes
                .iter()
                .filter(|(key, _)| key.conversation == *conversation)
                .filter_map(|(_, (outcome, ..))| match outcome {
                    Outcome::Accepted { conv_seq, .. } => Some(*conv_seq),
                    Outcome::Rejected(_) => None,
                })
                .collect();
            assert_eq!(numbers.len() as u64, *head, "one number per accepted key");
            assert_eq!(store.conv_heads[conversation].head, *head);
        }

        let rows: usize = reference.rows.values().map(Vec::len).sum();
        assert_eq!(store.rows.len(), rows, "one row per event and recipient");
        let mut pushed = BTreeMap::new();
        for output in &world.pushes {
            let push = Push::decode(Some(&output.value)).expect("a push");
            for target in push.targets {
                let event = pushed.entry(target).or_insert_with(|| push.event.clone());
                assert_eq!(*event, push.event, "one number, two events");
            }
        }
        assert_eq!(pushed.len(), rows, "every row is pushed");
        for (uid, expected) in &reference.rows {
            for (seq, row) in (1u64..).zip(expected) {
                let stored = &store.rows[&(uid.clone(), seq)];
                assert_eq!((stored.off, stored.src, &stored.event), (row.off, row.src, &row.event));
                assert_eq!(pushed[&(uid.clone(), seq)], row.event);
            }
            let head = InboxHead {
                seq: expected.len() as u64,
                off: expected.last().expect("not empty").off,
            };
            assert_eq!(store.inbox_heads[uid], head);
        }

        for ((uid, conversation), marks) in &reference.marks {
            let register = &store.user_convs[&(uid.clone(), conversation.clone())];
            assert_eq!(register.appended, marks.appended);
            assert_eq!(
                (register.delivered, register.read.conv_seq),
                (marks.delivered, marks.read)
            );
            assert_eq!(register.read.countable_seq, marks.read, "in a 1:1 everything counts");
        }
        assert_eq!(store.user_convs.len(), reference.marks.len());
        assert_eq!(store.devices.len(), reference.stored.len());
        for ((uid, device), register) in &store.devices {
            let expected = reference.stored[&(uid.clone(), device.as_str().to_owned())];
            assert_eq!((register.delivered, register.stored), expected);
        }
    }

    /// Folds everything again from the first record over the finished store: nothing may change.
    fn refold(&mut self) {
        self.owners.clear();
        {
            let mut world = self.world.borrow_mut();
            world.commits.clear();
            world.store.checkpoints.clear();
        }
        self.finish();
    }
}

fn simulate(tape: Tape, faults: bool) -> Counts {
    let mut simulation = Simulation::new(tape, faults);
    simulation.run();
    simulation.drain();
    simulation.check();
    simulation.refold();
    simulation.check();
    simulation.world.borrow().reference.counts
}

/// Without faults there is no re-emission and no gap: the folds agree with the naive fold record by record.
#[test]
fn a_single_owner_equals_the_naive_fold() {
    for seed in 0..60 {
        let counts = simulate(Tape::seeded(seed, 4_000), false);
        assert_eq!(counts.gaps, 0);
    }
}

/// Crashes at any step, overlapping owners, losses in the middle, unfenced commits, starts without W.
#[test]
fn seeded_schedules_with_faults_hold() {
    let mut total = Counts::default();
    for seed in 0..400 {
        let counts = simulate(Tape::seeded(seed, 3_000), true);
        total.accepted += counts.accepted;
        total.duplicates += counts.duplicates;
        total.conflicts += counts.conflicts;
        total.rejected += counts.rejected;
        total.reemissions += counts.reemissions;
        total.gaps += counts.gaps;
        total.undecodable += counts.undecodable;
        total.receipts += counts.receipts;
        total.replays += counts.replays;
        total.repeated_replays += counts.repeated_replays;
    }
    let Counts {
        accepted,
        duplicates,
        conflicts,
        rejected,
        reemissions,
        gaps,
        undecodable,
        receipts,
        replays,
        repeated_replays,
    } = total;
    let met = [
        accepted,
        duplicates,
        conflicts,
        rejected,
        reemissions,
        gaps,
        undecodable,
        receipts,
        replays,
        repeated_replays,
    ];
    assert!(met.iter().all(|n| *n >= 50), "something was hardly tried: {total:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// As above, with schedules that shrink.
    #[test]
    fn schedules_with_faults_hold(choices in proptest::collection::vec(any::<u16>(), 0..2_500)) {
        simulate(Tape::new(choices), true);
    }
}
