//! Folds: checkpoints, producer errors, restarts, stops.

use super::*;

/// Counts records, emits each with the run's number, and remembers what it was told.
struct Counting {
    world: Arc<World>,
    run: usize,
    next: u64,
    applied: bool,
}

#[derive(Default)]
struct World {
    runs: AtomicUsize,
    starts: Mutex<Vec<AssignedPartition>>,
    begin_at: Mutex<Option<u64>>,
    fail_applies: Mutex<Vec<FoldError>>,
    panic_once: Mutex<bool>,
    hang_in_begin: Mutex<bool>,
    /// Checkpoints without waiting for reports: sets the flag and returns when the metric counts a fault.
    careless: Mutex<Option<(Arc<AtomicBool>, Metrics)>>,
    applied: Mutex<Vec<u64>>,
}

struct Factory(Arc<World>);

impl FoldFactory for Factory {
    fn new_run(&self, _: u32) -> Box<dyn Fold> {
        Box::new(Counting {
            world: Arc::clone(&self.0),
            run: self.0.runs.fetch_add(1, Ordering::SeqCst) + 1,
            next: 0,
            applied: false,
        })
    }
}

#[async_trait]
impl Fold for Counting {
    async fn begin(&mut self, assigned: &AssignedPartition) -> Result<FoldStart, FoldError> {
        let committed = assigned.committed.as_ref();
        self.world.starts.lock().push(assigned.clone());
        let hang = *self.world.hang_in_begin.lock();
        if hang {
            std::future::pending::<()>().await;
        }
        let offset = self.world.begin_at.lock().unwrap_or(committed.map_or(0, |c| c.offset));
        self.next = offset;
        Ok(FoldStart { offset })
    }

    async fn apply(&mut self, batch: &[LogRecord], emitter: &mut dyn Emitter) -> Result<(), FoldError> {
        if std::mem::take(&mut *self.world.panic_once.lock()) {
            panic!("ordered by the test");
        }
        if let Some(error) = self.world.fail_applies.lock().pop() {
            return Err(error);
        }
        for record in batch {
            emitter
                .emit(OutRecord {
                    topic: Topic::Inbox,
                    partition: record.partition,
                    key: record.key.clone(),
                    value: Some(Bytes::from(format!("{}:{}", self.run, record.offset))),
                    headers: Headers::new(),
                })
                .await?;
            self.next = record.offset + 1;
            self.applied = true;
            self.world.applied.lock().push(record.offset);
        }
        Ok(())
    }

    async fn checkpoint(&mut self, emitter: &mut dyn Emitter) -> Result<Option<FoldCommit>, FoldError> {
        let careless = self.world.careless.lock().take();
        match careless {
            // Without yielding: the fault comes while the run is in here.
            Some((flag, metrics)) => {
                flag.store(true, Ordering::SeqCst);
                let labels = KindLabels { kind: "failed" };
                let deadline = std::time::Instant::now() + DEADLINE;
                while metrics.fold_ack_faults.get_or_create(&labels).get() == 0 {
                    assert!(std::time::Instant::now() < deadline, "the fault comes");
                    std::thread::yield_now();
                }
            }
            None => emitter.settled().await?,
        }
        let applied = std::mem::take(&mut self.applied);
        Ok(applied.then(|| FoldCommit {
            offset: self.next,
            metadata: format!("run {} at {}", self.run, self.next),
        }))
    }
}

fn spawn_counting(runtime: &Runtime, config: RuntimeConfig) -> (Arc<World>, ConsumerHandle) {
    let world = Arc::new(World::default());
    let consumer = spawn_fold(runtime, FOLDS, Arc::new(Factory(Arc::clone(&world))), config).unwrap();
    (world, consumer)
}

fn restarts(runtime: &Runtime, cause: &'static str) -> u64 {
    let labels = CauseLabels {
        group: FOLDS.name(),
        cause,
    };
    runtime.metrics.fold_restarts.get_or_create(&labels).get()
}

fn at(bus: &FakeBus, partition: u32) -> u64 {
    bus.committed(FOLDS, partition).map_or(0, |c| c.offset)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fold_commits_offset_and_metadata_of_its_checkpoints() {
    let Setup { bus, runtime } = setup();
    for n in 0..1200 {
        bus.append(Topic::Ingress, 0, Some("k"), &n.to_string());
    }
    let (world, consumer) = spawn_counting(&runtime, quick());
    until("committed", || at(&bus, 0) == 1200).await;
    assert_eq!(bus.records(Topic::Inbox, 0).len(), 1200);
    bus.append(Topic::Ingress, 0, Some("k"), "last");
    until("committed when idle", || at(&bus, 0) == 1201).await;
    runtime.stop.cancel();
    in_time("stop", consumer.stopped()).await;
    let metadata = bus.committed(FOLDS, 0).unwrap().metadata;
    assert!(metadata.ends_with("at 1201"), "{metadata}");
    assert_eq!(*world.applied.lock(), (0..=1200).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fold_drains_with_a_last_checkpoint() {
    let Setup { bus, runtime } = setup();
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    let config = RuntimeConfig {
        fold: FoldConfig {
            idle_checkpoint: Duration::from_secs(3600),
            checkpoint_interval: Duration::from_secs(3600),
            ..FoldConfig::default()
        },
        ..quick()
    };
    let (world, consumer) = spawn_counting(&runtime, config);
    until("applied", || world.applied.lock().len() == 1).await;
    assert_eq!(at(&bus, 0), 0);
    runtime.stop.cancel();
    in_time("stop", consumer.stopped()).await;
    assert_eq!(at(&bus, 0), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_error_ends_all_runs_and_each_starts_from_its_committed_position() {
    let Setup { bus, runtime } = setup();
    for partition in 0..2 {
        for n in 0..10 {
            bus.append(Topic::Ingress, partition, Some("k"), &n.to_string());
        }
    }
    let (world, consumer) = spawn_counting(&runtime, quick());
    until("committed", || at(&bus, 0) == 10 && at(&bus, 1) == 10).await;
    assert_eq!((world.runs.load(Ordering::SeqCst), bus.producers()), (2, 1));
    bus.fault(Topic::Inbox, Fault::Lose(ProduceError::Unknown("ordered".to_owned())));
    for n in 10..20 {
        bus.append(Topic::Ingress, 0, Some("k"), &n.to_string());
    }
    until("committed after", || at(&bus, 0) == 20).await;
    until("both began anew", || world.runs.load(Ordering::SeqCst) == 4).await;
    assert_eq!(bus.producers(), 2);
    assert_eq!(restarts(&runtime, "producer"), 2);
    let seeks = bus.seeks();
    assert!(seeks.contains(&(0, 10)) && seeks.contains(&(1, 10)), "{seeks:?}");
    let mut again: Vec<_> = world.starts.lock()[2..]
        .iter()
        .map(|s| (s.partition, s.committed.as_ref().unwrap().offset))
        .collect();
    again.sort_unstable();
    assert_eq!(again, [(0, 10), (1, 10)]);
    // Everything from the committed position on was emitted by the new run, in order.
    let by_new_run: Vec<String> = bus
        .records(Topic::Inbox, 0)
        .iter()
        .map(|record| String::from_utf8_lossy(record.value.as_ref().unwrap()).into_owned())
        .filter(|value| value.starts_with("3:") || value.starts_with("4:"))
        .map(|value| value[2..].to_owned())
        .collect();
    assert_eq!(by_new_run, (10..20).map(|n: u64| n.to_string()).collect::<Vec<_>>());
    assert!(consumer.alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_report_is_a_producer_error_after_the_watchdogs_time() {
    let Setup { bus, runtime } = setup();
    bus.fault(Topic::Inbox, Fault::Silence);
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    let config = RuntimeConfig {
        ack_watchdog: Duration::from_millis(100),
        ..quick()
    };
    let _fold = spawn_counting(&runtime, config);
    until("committed", || at(&bus, 0) == 1).await;
    let labels = KindLabels { kind: "silent" };
    assert_eq!(runtime.metrics.fold_ack_faults.get_or_create(&labels).get(), 1);
    assert_eq!(bus.producers(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_waited_for() {
    let Setup { bus, runtime } = setup();
    for _ in 0..5 {
        bus.fault(Topic::Inbox, Fault::Refuse(ProduceError::QueueFull));
    }
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    let (world, _consumer) = spawn_counting(&runtime, quick());
    until("committed", || at(&bus, 0) == 1).await;
    assert_eq!(world.applied.lock().len(), 1);
    assert_eq!(bus.producers(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_errors_and_panics_start_the_run_again_and_nothing_else() {
    let Setup { bus, runtime } = setup();
    let (world, consumer) = spawn_counting(&runtime, quick());
    world
        .fail_applies
        .lock()
        .push(FoldError::Transient("ordered".to_owned()));
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    until("committed", || at(&bus, 0) == 1).await;
    *world.panic_once.lock() = true;
    bus.append(Topic::Ingress, 0, Some("k"), "b");
    until("committed", || at(&bus, 0) == 2).await;
    assert_eq!((restarts(&runtime, "transient"), restarts(&runtime, "panic")), (1, 1));
    assert_eq!(
        world.runs.load(Ordering::SeqCst),
        4,
        "the other partition's run was left alone"
    );
    assert_eq!(bus.producers(), 1);
    assert!(consumer.alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_partition_stays_stopped_and_others_go_on() {
    let Setup { bus, runtime } = setup();
    let (world, consumer) = spawn_counting(&runtime, quick());
    until("began", || {
        consumer
            .status()
            .partitions
            .iter()
            .filter(|p| p.phase == Phase::Running)
            .count()
            == 2
    })
    .await;
    world.fail_applies.lock().push(FoldError::Stop {
        offset: 0,
        reason: "ordered".to_owned(),
    });
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    let labels = partition_labels(FOLDS, 0);
    let stopped = || runtime.metrics.fold_stopped_partitions.get_or_create(&labels).get() == 1;
    until("stopped", stopped).await;
    bus.append(Topic::Ingress, 1, Some("k"), "a");
    until("other committed", || at(&bus, 1) == 1).await;
    until("paused", || {
        consumer
            .status()
            .partitions
            .iter()
            .any(|p| p.paused && p.phase == Phase::Stopped)
    })
    .await;
    assert_eq!(at(&bus, 0), 0);
    assert!(consumer.alive() && consumer.ready());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fold_whose_position_is_outside_the_log_stops() {
    for begin_at in [3, 11] {
        let Setup { bus, runtime } = setup();
        for n in 0..10 {
            bus.append(Topic::Ingress, 0, Some("k"), &n.to_string());
        }
        bus.trim(Topic::Ingress, 0, 5);
        let world = Arc::new(World::default());
        *world.begin_at.lock() = Some(begin_at);
        let _consumer = spawn_fold(&runtime, FOLDS, Arc::new(Factory(Arc::clone(&world))), quick()).unwrap();
        let labels = partition_labels(FOLDS, 0);
        let stopped = || runtime.metrics.fold_stopped_partitions.get_or_create(&labels).get() == 1;
        until("stopped", stopped).await;
        assert!(world.applied.lock().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_the_fold_wraps_still_counts_as_the_producers() {
    let Setup { bus, runtime } = setup();
    let (world, _consumer) = spawn_counting(&runtime, quick());
    world.fail_applies.lock().push(FoldError::Producer(AckFault::NoOffset {
        topic: Topic::Inbox,
        partition: 0,
    }));
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    until("committed", || at(&bus, 0) == 1).await;
    assert_eq!(restarts(&runtime, "producer"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_hangs_before_it_began_does_not_hold_up_the_end() {
    let Setup { runtime, .. } = setup();
    let world = Arc::new(World::default());
    *world.hang_in_begin.lock() = true;
    let config = RuntimeConfig {
        drain_deadline: Duration::from_secs(3600),
        ..quick()
    };
    let consumer = spawn_fold(&runtime, FOLDS, Arc::new(Factory(Arc::clone(&world))), config).unwrap();
    until("asked where to begin", || world.starts.lock().len() == 2).await;
    runtime.stop.cancel();
    in_time("stop", consumer.stopped()).await;
}

/// seq:R8a: whatever a checkpoint returned, nothing is committed once a report was bad.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_during_a_checkpoint_forbids_its_commit() {
    let Setup { bus, runtime } = setup();
    let (world, _consumer) = spawn_counting(&runtime, quick());
    let flag = Arc::new(AtomicBool::new(false));
    *world.careless.lock() = Some((Arc::clone(&flag), runtime.metrics.clone()));
    bus.fault(
        Topic::Inbox,
        Fault::LoseWhen(flag, ProduceError::Unknown("ordered".to_owned())),
    );
    bus.append(Topic::Ingress, 0, Some("k"), "a");
    until("committed", || at(&bus, 0) == 1).await;
    let emitted = bus.records(Topic::Inbox, 0);
    assert_eq!(emitted.len(), 1, "by the run after the one whose output was lost");
    assert_eq!(bus.commits().len(), 1);
}
