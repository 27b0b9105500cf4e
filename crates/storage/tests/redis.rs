//! The contract suites on the Redis adapter, on a real server. Each test has a key prefix of its own.

#[path = "contract/hot_window.rs"]
mod hot_window;
#[path = "contract/names.rs"]
mod names;
#[path = "contract/routes.rs"]
mod routes;
#[path = "contract/stack.rs"]
mod stack;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidings_storage::Error;
use tidings_storage::port::{HotRead, HotWindow as _, RouteKey, Routes as _};
use tidings_storage::redis::{RedisConfig, RedisConnection, RedisHotWindow, RedisRoutes};

const DEADLINE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

fn config() -> RedisConfig {
    let description = stack::description();
    RedisConfig {
        url: description["redis"]["url"].as_str().expect("a url").to_owned(),
        key_prefix: format!("{}:", stack::unique_name("t")),
    }
}

fn connection() -> RedisConnection {
    RedisConnection::open(&config()).expect("opened")
}

#[tokio::test]
async fn redis_routes() {
    let registry = RedisRoutes::new(connection());
    let clock = RedisRoutes::new(connection());
    routes::run(&registry, async |time| {
        // A probe with the same lease, registered now, ends later than what was registered before.
        let probe = RouteKey {
            uid: names::uid("probe"),
            device: names::device("probe"),
        };
        clock.register(&probe, "gw", 1, 1, time).await.expect("registered");
        let started = Instant::now();
        while !clock.lookup(std::slice::from_ref(&probe.uid)).await.expect("read")[0].is_empty() {
            assert!(started.elapsed() < DEADLINE, "the lease of the probe does not end");
            tokio::time::sleep(POLL).await;
        }
    })
    .await;
}

#[tokio::test]
async fn redis_hot_window() {
    hot_window::run(&RedisHotWindow::new(connection())).await;
}

#[tokio::test]
async fn a_window_that_lost_one_of_its_keys_starts_anew() {
    let config = config();
    let window = RedisHotWindow::new(RedisConnection::open(&config).expect("opened"));
    let client = redis::Client::open(config.url.as_str()).expect("a client");
    let mut raw = client.get_multiplexed_async_connection().await.expect("connected");
    let user = names::uid("evicted");
    let event = |seq| (user.clone(), seq, Bytes::from_static(b"x"));
    for family in ["ib", "ibm"] {
        window.append(&[event(1), event(2), event(3)]).await.expect("appended");
        let key = format!("{}{family}:{{evicted}}", config.key_prefix);
        let removed: u64 = redis::cmd("DEL")
            .arg(&key)
            .query_async(&mut raw)
            .await
            .expect("deleted");
        assert_eq!(removed, 1, "{key} was there");
        window.append(&[event(4)]).await.expect("appended");
        let read = async |after| window.read(&user, after, 10).await.expect("read");
        assert_eq!(read(0).await.events, Vec::new(), "without {family}");
        assert_eq!(
            read(3).await.events,
            vec![(4, Bytes::from_static(b"x"))],
            "without {family}"
        );
        let both = [
            key,
            format!("{}ib:{{evicted}}", config.key_prefix),
            format!("{}ibm:{{evicted}}", config.key_prefix),
        ];
        let _: u64 = redis::cmd("DEL")
            .arg(&both)
            .query_async(&mut raw)
            .await
            .expect("deleted");
    }
}

#[tokio::test]
async fn a_flushed_script_cache_is_filled_again() {
    let config = config();
    let window = RedisHotWindow::new(RedisConnection::open(&config).expect("opened"));
    let client = redis::Client::open(config.url.as_str()).expect("a client");
    let mut raw = client.get_multiplexed_async_connection().await.expect("connected");
    let user = names::uid("scripts");
    for seq in 1..=3 {
        let _: String = redis::cmd("SCRIPT")
            .arg("FLUSH")
            .query_async(&mut raw)
            .await
            .expect("flushed");
        window
            .append(&[(user.clone(), seq, Bytes::new())])
            .await
            .expect("appended");
    }
    assert_eq!(window.read(&user, 0, 10).await.expect("read").events.len(), 3);
}

/// A Redis of the test's own, to be killed.
struct Server(Child);

impl Server {
    fn start(port: u16) -> Self {
        let child = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed (`cargo xtask setup --for test`)");
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; both calls only fail then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_dead_redis_answers_fast_and_heals_by_itself() {
    let port = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("bound")
        .port();
    let config = RedisConfig {
        url: format!("redis://127.0.0.1:{port}"),
        key_prefix: String::new(),
    };
    // Scenario B109; the process starts before Redis does.
    let window = RedisHotWindow::new(RedisConnection::open(&config).expect("opened"));
    let user = names::uid("heal");
    for _ in 0..3 {
        for _ in 0..3 {
            let started = Instant::now();
            let error = window.read(&user, 0, 1).await.expect_err("Redis is down");
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            assert!(started.elapsed() <= Duration::from_secs(1), "{:?}", started.elapsed());
        }
        let _server = Server::start(port);
        let started = Instant::now();
        while window.read(&user, 0, 1).await != Ok(HotRead::default()) {
            assert!(started.elapsed() < DEADLINE, "not recovered");
            tokio::time::sleep(POLL).await;
        }
    }
}

#[tokio::test]
async fn a_silent_peer_is_left_for_a_new_connection() {
    // Accepts and never answers, like a host that vanished: the first connection hangs, the next must not be the same.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let config = RedisConfig {
        url: format!("redis://127.0.0.1:{port}"),
        key_prefix: String::new(),
    };
    let window = RedisHotWindow::new(RedisConnection::open(&config).expect("opened"));
    let user = names::uid("silent");
    let accepted = tokio::spawn(async move { (listener.accept().await, listener.accept().await) });
    let started = Instant::now();
    while !accepted.is_finished() {
        let call = Instant::now();
        let error = window.read(&user, 0, 1).await.expect_err("it never answers");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(call.elapsed() <= Duration::from_secs(1), "{:?}", call.elapsed());
        assert!(started.elapsed() < DEADLINE, "no second connection");
    }
    let (first, second) = accepted.await.expect("accepted");
    assert!(first.is_ok() && second.is_ok());
}
