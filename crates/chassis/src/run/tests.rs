use std::sync::Mutex;

use super::*;
use crate::admin::tests::get;
use crate::tasks::Cause;

const SOON: Duration = Duration::from_secs(20);

fn context(deadline_ms: u64) -> Context {
    let mut shared = Shared::defaults();
    // Reserved here and given back, so that the test knows the port before the process tells it.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    shared.admin.listen = free;
    shared.shutdown.deadline = Duration::from_millis(deadline_ms);
    Context::new("demo", shared)
}

#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<&'static str>>>);

impl Journal {
    fn note(&self, what: &'static str) {
        self.0.lock().unwrap().push(what);
    }

    fn read(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }
}

async fn finish(run: tokio::task::JoinHandle<Outcome>) -> Outcome {
    tokio::time::timeout(SOON, run).await.expect("ends in time").unwrap()
}

#[tokio::test]
async fn a_signal_runs_the_sequence_in_order_and_exits_zero() {
    let context = context(10_000);
    let journal = Journal::default();
    let (signals, received) = mpsc::channel(2);
    let start = {
        let (context, journal) = (context.clone(), journal.clone());
        async move {
            let (tasks, intake, shutdown) = (
                context.tasks.clone(),
                context.tasks.intake.clone(),
                context.tasks.shutdown.clone(),
            );
            let intake_ended = journal.clone();
            tasks.spawn("intake", async move {
                intake.cancelled().await;
                intake_ended.note("intake ended");
                Ok(())
            });
            let worker_ended = journal.clone();
            tasks.spawn("worker", async move {
                shutdown.cancelled().await;
                worker_ended.note("worker ended");
                Ok(())
            });
            let addr = context.shared.admin.listen;
            let first = async move {
                // Wait by condition: the intake task runs on its own.
                tokio::time::timeout(SOON, async {
                    while !journal.read().contains(&"intake ended") {
                        tokio::task::yield_now().await;
                    }
                })
                .await?;
                let (status, _, body) = get(addr, "/readyz").await;
                assert_eq!(
                    (status, body.starts_with("not ready: shutting down")),
                    (503, true),
                    "{body}"
                );
                journal.note("drained");
                Ok(())
            };
            Ok(Running::new().drain("flush", first))
        }
    };
    let run = tokio::spawn(run(context.clone(), received, start));
    tokio::time::timeout(SOON, context.readiness.wait_ready())
        .await
        .unwrap();
    assert_eq!(get(context.shared.admin.listen, "/readyz").await.0, 200);
    signals.send("SIGTERM").await.unwrap();
    let outcome = finish(run).await;
    assert_eq!(journal.read(), ["intake ended", "drained", "worker ended"]);
    assert_eq!(outcome.exit_code(), 0, "{outcome:?}");
    assert!(
        tokio::net::TcpStream::connect(context.shared.admin.listen)
            .await
            .is_err(),
        "the admin port is closed"
    );
}

#[tokio::test]
async fn a_task_that_goes_wrong_ends_the_process_with_an_error() {
    let context = context(10_000);
    let (_signals, received) = mpsc::channel(2);
    let tasks = context.tasks.clone();
    let start = async move {
        tasks.spawn("fold", async { anyhow::bail!("position outside the log") });
        Ok(Running::new())
    };
    let outcome = finish(tokio::spawn(run(context, received, start))).await;
    let Stop::TaskFailed(failure) = &outcome.stop else {
        panic!("{outcome:?}")
    };
    assert_eq!(failure.cause, Cause::Failed("position outside the log".to_owned()));
    assert_eq!(outcome.exit_code(), 1);
}

#[tokio::test]
async fn what_is_left_at_the_deadline_is_named() {
    let context = context(400);
    let (signals, received) = mpsc::channel(2);
    let tasks = context.tasks.clone();
    let start = async move {
        tasks.spawn("stuck", std::future::pending());
        Ok(Running::new()
            .drain("flush", std::future::pending())
            .drain("close", async { Ok(()) }))
    };
    let run = tokio::spawn(run(context.clone(), received, start));
    tokio::time::timeout(SOON, context.readiness.wait_ready())
        .await
        .unwrap();
    signals.send("SIGTERM").await.unwrap();
    let outcome = finish(run).await;
    assert_eq!(outcome.unfinished, ["flush", "stuck"], "{outcome:?}");
    assert_eq!(outcome.exit_code(), 75);
}

#[tokio::test]
async fn a_second_signal_exits_at_once() {
    let context = context(600_000);
    let (signals, received) = mpsc::channel(2);
    let tasks = context.tasks.clone();
    let start = async move {
        tasks.spawn("stuck", std::future::pending());
        Ok(Running::new())
    };
    let run = tokio::spawn(run(context.clone(), received, start));
    tokio::time::timeout(SOON, context.readiness.wait_ready())
        .await
        .unwrap();
    signals.send("SIGTERM").await.unwrap();
    signals.send("SIGINT").await.unwrap();
    let outcome = finish(run).await;
    assert_eq!(
        (outcome.exit_code(), outcome.unfinished.as_slice()),
        (130, ["stuck".to_owned()].as_slice())
    );
}

#[tokio::test]
async fn a_failed_start_is_an_error_and_stops_what_was_started() {
    let context = context(10_000);
    let (_signals, received) = mpsc::channel(2);
    let tasks = context.tasks.clone();
    let start = async move {
        let shutdown = tasks.shutdown.clone();
        tasks.spawn("worker", async move {
            shutdown.cancelled().await;
            Ok(())
        });
        anyhow::bail!("port is taken")
    };
    let outcome = finish(tokio::spawn(run(context.clone(), received, start))).await;
    assert!(
        matches!(&outcome.stop, Stop::StartFailed(error) if error.to_string() == "port is taken"),
        "{outcome:?}"
    );
    assert_eq!((outcome.exit_code(), context.tasks.running_count()), (1, 0));
}

#[tokio::test]
async fn a_signal_during_start_abandons_it() {
    let context = context(10_000);
    let (signals, received) = mpsc::channel(2);
    signals.send("SIGINT").await.unwrap();
    let outcome = finish(tokio::spawn(run(context, received, std::future::pending()))).await;
    assert_eq!(outcome.exit_code(), 0, "{outcome:?}");
}

#[tokio::test]
async fn an_admin_port_in_use_is_found_before_any_work() {
    let context = context(10_000);
    let _taken = std::net::TcpListener::bind(context.shared.admin.listen).unwrap();
    let (_signals, received) = mpsc::channel(2);
    let start = async { panic!("must not start") };
    let outcome = finish(tokio::spawn(run(context, received, start))).await;
    assert!(matches!(outcome.stop, Stop::AdminFailed(_)), "{outcome:?}");
    assert_eq!(outcome.exit_code(), 1);
}

#[tokio::test]
async fn services_of_one_process_share_tokens_but_not_names() {
    let context = context(10_000);
    let router = context.for_service("router");
    router.tasks.spawn("fold", std::future::pending());
    router.readiness.gate("bus");
    assert_eq!(context.tasks.running(), ["router/fold"]);
    assert!(context.readiness.report().contains("router/bus"));
    context.tasks.shutdown.cancel();
    assert!(router.tasks.intake.is_cancelled());
}

#[tokio::test]
async fn real_signals_arrive_by_name() {
    let mut signals = os_signals().unwrap();
    nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(
        tokio::time::timeout(SOON, signals.recv()).await.unwrap(),
        Some("SIGTERM")
    );
}
