use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{Ready, ready};
use http::{Request, Response};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::{Service, ServiceExt};

use super::connect::connect_with;
use super::*;
use crate::config::{InternalConfig, Secret, Shared};
use crate::tasks::Supervisor;

const SOON: Duration = Duration::from_secs(20);

/// Answers every call with its name in a header.
#[derive(Clone)]
struct Named(&'static str);

impl NamedService for Named {
    const NAME: &'static str = "test.Named";
}

impl Service<Request<Body>> for Named {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: Request<Body>) -> Self::Future {
        let response = Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "0")
            .header("x-name", self.0)
            .body(Body::empty())
            .unwrap();
        ready(Ok(response))
    }
}

fn config(token: &str) -> InternalConfig {
    InternalConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        shared_token: Secret::new(token),
        resolve_interval: Duration::from_millis(20),
        ..Shared::defaults().internal
    }
}

async fn server(tasks: &Supervisor, config: &InternalConfig, name: &'static str) -> SocketAddr {
    serve_internal(tasks, config, Routes::new(Named(name))).await.unwrap()
}

/// The name of the server that answered, or the status of the failed call.
async fn call(channel: &Channel) -> Result<String, Status> {
    let request = Request::builder()
        .method("POST")
        .uri("/test.Named/Get")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::empty())
        .unwrap();
    let response = channel
        .clone()
        .oneshot(request)
        .await
        .map_err(|error| Status::from_error(error.into()))?;
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(response.headers()["x-name"].to_str().unwrap().to_owned()),
    }
}

/// Calls until `done` says so of the names that answered in the last 40 calls.
async fn names_until(channel: &Channel, done: impl Fn(&BTreeSet<String>) -> bool) {
    let poll = async {
        loop {
            let mut names = BTreeSet::new();
            for _ in 0..40 {
                names.insert(call(channel).await.unwrap_or_else(|status| status.code().to_string()));
            }
            if done(&names) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, poll)
        .await
        .expect("the condition holds in time");
}

#[tokio::test]
async fn the_token_travels_and_a_wrong_or_missing_one_is_refused() {
    let tasks = Supervisor::new();
    let addr = server(&tasks, &config("right"), "a").await.to_string();
    assert_eq!(call(&connect_one(&config("right"), &addr).unwrap()).await.unwrap(), "a");
    for wrong in ["", "wrong"] {
        let status = call(&connect_one(&config(wrong), &addr).unwrap()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    }
}

#[tokio::test]
async fn a_balanced_channel_follows_the_name_service() {
    let tasks = Supervisor::new();
    let config = config("right");
    let (a, b) = (server(&tasks, &config, "a").await, server(&tasks, &config, "b").await);
    let answer: Arc<Mutex<Option<Vec<SocketAddr>>>> = Arc::new(Mutex::new(Some(vec![a])));
    let lookup = {
        let answer = Arc::clone(&answer);
        move |_| {
            ready(
                answer
                    .lock()
                    .unwrap()
                    .clone()
                    .ok_or_else(|| std::io::ErrorKind::NotFound.into()),
            )
        }
    };
    let channel = connect_with(&tasks, &config, &["inbox:9090".to_owned()], lookup).unwrap();
    let only = |name: &str| BTreeSet::from([name.to_owned()]);
    names_until(&channel, |names| *names == only("a")).await;
    *answer.lock().unwrap() = Some(vec![a, b]);
    names_until(&channel, |names| names.len() == 2).await;
    *answer.lock().unwrap() = Some(vec![b]);
    names_until(&channel, |names| *names == only("b")).await;
    // A failing name service takes nothing away.
    *answer.lock().unwrap() = None;
    for _ in 0..10 {
        tokio::time::sleep(config.resolve_interval).await;
        assert_eq!(call(&channel).await.unwrap(), "b");
    }
}

#[tokio::test]
async fn real_names_are_resolved() {
    let tasks = Supervisor::new();
    let config = config("");
    let addr = server(&tasks, &config, "a").await;
    let channel = connect(&tasks, &config, &[format!("localhost:{}", addr.port())]).unwrap();
    // `localhost` may also give an IPv6 address on which nobody listens.
    names_until(&channel, |names| names.contains("a")).await;
}

#[tokio::test]
async fn a_target_may_come_later() {
    let tasks = Supervisor::new();
    let mut config = config("");
    config.listen = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let channel = connect_one(&config, &config.listen.to_string()).unwrap();
    assert_eq!(call(&channel).await.unwrap_err().code(), Code::Unavailable);
    server(&tasks, &config, "late").await;
    names_until(&channel, |names| names.contains("late")).await;
}

#[tokio::test]
async fn a_call_without_any_address_ends_in_time() {
    let tasks = Supervisor::new();
    let config = InternalConfig {
        response_timeout: Duration::from_millis(50),
        ..config("")
    };
    let lookup = |_| ready(Err(std::io::ErrorKind::NotFound.into()));
    let channel = connect_with(&tasks, &config, &["nowhere:9090".to_owned()], lookup).unwrap();
    let status = tokio::time::timeout(SOON, call(&channel)).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().contains("nowhere:9090 gave no answer in 50 ms"),
        "{status:?}"
    );
}

#[tokio::test]
async fn the_resolver_ends_with_its_channel() {
    let tasks = Supervisor::new();
    let channel = connect_with(&tasks, &config(""), &["nowhere:9090".to_owned()], |_| {
        ready(Ok(Vec::new()))
    })
    .unwrap();
    assert_eq!(tasks.running(), ["resolve nowhere:9090"]);
    drop(channel);
    assert_eq!(
        tasks.join_all(tokio::time::Instant::now() + SOON).await,
        Vec::<String>::new()
    );
    assert_eq!(tasks.failures(), []);
}

#[tokio::test]
async fn the_listener_ends_when_intake_ends() {
    let tasks = Supervisor::new();
    let config = config("");
    let addr = server(&tasks, &config, "a").await;
    let channel = connect_one(&config, &addr.to_string()).unwrap();
    assert_eq!(call(&channel).await.unwrap(), "a");
    tasks.intake.cancel();
    assert_eq!(
        tasks.join_all(tokio::time::Instant::now() + SOON).await,
        Vec::<String>::new()
    );
    assert_eq!(tasks.failures(), []);
}

#[tokio::test]
async fn bad_targets_are_refused() {
    let tasks = Supervisor::new();
    assert!(matches!(connect(&tasks, &config(""), &[]), Err(Error::NoTarget)));
    for bad in [
        "host",
        "host:",
        ":9090",
        "http://host:1",
        "host:1/path",
        "a b:1",
        "user@host:1",
        "host:99999",
    ] {
        assert!(
            matches!(connect_one(&config(""), bad), Err(Error::BadTarget { .. })),
            "{bad}"
        );
    }
    for good in ["host:1", "127.0.0.1:9090", "[::1]:9090", "inbox.tidings.svc:9090"] {
        assert!(connect_one(&config(""), good).is_ok(), "{good}");
    }
    assert!(matches!(
        connect_one(&config("a\u{7f}b"), "host:1"),
        Err(Error::BadToken)
    ));
}
