//! The admin port: `/livez`, `/readyz`, `/metrics`.
//!
//! It is bound before any work begins and answers until everything else has stopped, so that an operator sees the
//! process start and drain. It is plain HTTP/1 for probes and scrapers and must not be reachable from outside.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tidings_resilience::{Classify, ErrorClass};
use tidings_telemetry::metrics::{OPENMETRICS_CONTENT_TYPE, Registry};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::tasks::Supervisor;

/// Why the admin port is not there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be bound.
    #[error("admin port cannot listen on {addr}: {source}")]
    Bind {
        /// The configured address.
        addr: SocketAddr,
        /// What the system answered.
        source: std::io::Error,
    },
    /// The server ended by itself.
    #[error("admin server ended: {0}")]
    Ended(String),
}

impl Classify for Error {
    fn class(&self) -> ErrorClass {
        match self {
            Error::Bind { .. } | Error::Ended(_) => ErrorClass::Permanent,
        }
    }
}

/// What the endpoints show.
#[derive(Clone, Debug)]
struct Shown {
    registry: Registry,
    readiness: Readiness,
    tasks: Supervisor,
    metrics: Metrics,
}

/// The running admin server.
#[derive(Debug)]
pub struct AdminServer {
    addr: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

impl AdminServer {
    /// Binds `addr` and starts to answer. Registers the metrics of the process.
    ///
    /// # Errors
    /// [`Error::Bind`].
    pub async fn start(
        addr: SocketAddr,
        service: &str,
        registry: Registry,
        readiness: Readiness,
        tasks: Supervisor,
    ) -> Result<Self, Error> {
        let bind = |source| Error::Bind { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(bind)?;
        let addr = listener.local_addr().map_err(bind)?;
        let metrics = Metrics::register(&registry, service);
        let shown = Arc::new(Shown {
            registry,
            readiness,
            tasks,
            metrics,
        });
        let router = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics_text))
            .with_state(shown);
        let stop = CancellationToken::new();
        let serve = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        // Not under the supervisor: it outlives the supervised tasks. The run loop watches it with `ended`.
        let task = tokio::spawn(async move { serve.await });
        Ok(Self { addr, stop, task })
    }

    /// The bound address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits for the server to end, which it does only when something is wrong.
    pub async fn ended(&mut self) -> Error {
        match (&mut self.task).await {
            Ok(Ok(())) => Error::Ended("without an error".to_owned()),
            Ok(Err(error)) => Error::Ended(error.to_string()),
            Err(error) => Error::Ended(error.to_string()),
        }
    }

    /// Stops answering and waits for requests under way, at most until `deadline`; a client that hangs on longer is left
    /// to the end of the process.
    pub async fn stop(mut self, deadline: Instant) {
        self.stop.cancel();
        if tokio::time::timeout_at(deadline, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

async fn livez(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    let failures = shown.tasks.failures();
    if failures.is_empty() {
        return (StatusCode::OK, "alive\n".to_owned());
    }
    let lines = failures.iter().map(|failure| format!("{failure}\n"));
    (
        StatusCode::SERVICE_UNAVAILABLE,
        std::iter::once("not alive\n".to_owned()).chain(lines).collect(),
    )
}

async fn readyz(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    let status = if shown.readiness.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, shown.readiness.report())
}

async fn metrics_text(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    shown.metrics.refresh(&shown.tasks, &shown.readiness);
    (
        [(header::CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE)],
        shown.registry.encode(),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    /// Status code, head and body of a GET.
    pub(crate) async fn get(addr: SocketAddr, path: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), head.to_lowercase(), body.to_owned())
    }

    async fn server(readiness: &Readiness, tasks: &Supervisor) -> AdminServer {
        let any = "127.0.0.1:0".parse().unwrap();
        AdminServer::start(any, "demo", Registry::new(), readiness.clone(), tasks.clone())
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn readyz_lists_the_gates_and_follows_them() {
        let (readiness, tasks) = (Readiness::new(), Supervisor::new());
        let gate = readiness.gate("bus");
        let admin = server(&readiness, &tasks).await;
        gate.close("no partition assigned");
        let (status, _, body) = get(admin.addr(), "/readyz").await;
        assert_eq!(
            (status, body.contains("closed bus: no partition assigned")),
            (503, true),
            "{body}"
        );
        gate.open();
        let (status, _, body) = get(admin.addr(), "/readyz").await;
        assert_eq!((status, body.as_str()), (200, "ready\nopen   bus\n"));
        readiness.begin_shutdown();
        assert_eq!(get(admin.addr(), "/readyz").await.0, 503);
    }

    #[tokio::test]
    async fn livez_fails_when_a_task_has_died() {
        let (readiness, tasks) = (Readiness::new(), Supervisor::new());
        let admin = server(&readiness, &tasks).await;
        assert_eq!(get(admin.addr(), "/livez").await.0, 200);
        tasks.spawn("fold", async { anyhow::bail!("position outside the log") });
        tokio::time::timeout(Duration::from_secs(10), tasks.failed())
            .await
            .unwrap();
        let (status, _, body) = get(admin.addr(), "/livez").await;
        assert_eq!(status, 503);
        assert!(body.contains("task fold failed: position outside the log"), "{body}");
    }

    #[tokio::test]
    async fn metrics_are_openmetrics_and_tell_of_the_process() {
        let (readiness, tasks) = (Readiness::new(), Supervisor::new());
        let admin = server(&readiness, &tasks).await;
        let (status, head, body) = get(admin.addr(), "/metrics").await;
        assert_eq!(status, 200);
        assert!(
            head.contains("content-type: application/openmetrics-text; version=1.0.0"),
            "{head}"
        );
        assert!(body.ends_with("# EOF\n"), "{body}");
        assert!(body.contains("service=\"demo\""), "{body}");
        for name in [
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
            "process_threads ",
            "process_open_fds ",
        ] {
            let line = body
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap_or_else(|| panic!("no {name}: {body}"));
            let value: f64 = line[name.len()..].parse().unwrap();
            assert!(value > 0.0, "{line}");
        }
    }

    #[tokio::test]
    async fn stops_by_the_deadline_although_a_client_hangs_on() {
        let (readiness, tasks) = (Readiness::new(), Supervisor::new());
        let admin = server(&readiness, &tasks).await;
        let addr = admin.addr();
        let mut idle = TcpStream::connect(addr).await.unwrap();
        idle.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
        let begun = Instant::now();
        admin.stop(begun + Duration::from_millis(100)).await;
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert!(TcpStream::connect(addr).await.is_err(), "no new connections");
        drop(idle);
    }

    #[tokio::test]
    async fn an_address_in_use_is_named() {
        let (readiness, tasks) = (Readiness::new(), Supervisor::new());
        let admin = server(&readiness, &tasks).await;
        let error = AdminServer::start(admin.addr(), "demo", Registry::new(), readiness, tasks)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(&admin.addr().to_string()), "{error}");
    }
}
