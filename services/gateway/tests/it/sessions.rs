//! Who may connect, and how sessions begin and end.

use std::time::Duration;

use tidings_domain::clock::Clock;
use tidings_gateway::encoding::Encoding;
use tidings_proto::v1::{self, Code};
use tidings_storage::port::{RouteKey, Routes};
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::http::StatusCode;

use crate::support::device::{Device, connect, token, token_with};
use crate::support::neighbours::EPOCH;
use crate::support::{ADDRESS, NOW, SECRET, World, eventually, text};

#[tokio::test]
async fn a_session_opens_the_device_and_registers_its_route_before_connected() {
    let world = World::start().await;
    world.inbox.set_head("ann", 41);
    let device = Device::open(&world, "ann", "phone").await;
    let connected = &device.connected;
    assert_eq!(
        (
            connected.epoch,
            connected.cursor,
            connected.head_seq,
            connected.uid.as_str()
        ),
        (EPOCH, 0, 41, "ann")
    );
    assert_eq!(connected.server_time, NOW.get());
    let limits = connected.limits.expect("limits");
    assert_eq!(
        (limits.max_body_bytes, limits.ping_interval_ms, limits.idle_timeout_ms),
        (65_536, 25_000, 60_000)
    );
    let opened = world.inbox.opened();
    assert_eq!(
        (
            opened[0].viewer_uid.as_str(),
            opened[0].device_id.as_str(),
            opened[0].fresh
        ),
        ("ann", "phone", true)
    );
    assert_eq!(world.routed("ann").await, ["phone"]);
    assert_eq!(world.metric("tidings_sessions"), 1.0);
    drop(device);
    eventually("the route is gone", async || world.routed("ann").await.is_empty()).await;
    eventually("the session is gone", async || world.metric("tidings_sessions") == 0.0).await;
}

#[tokio::test]
async fn both_subprotocols_and_none_are_spoken() {
    let world = World::start().await;
    for encoding in [None, Some(Encoding::Proto), Some(Encoding::Json)] {
        let mut device = Device::dial(&world, encoding, &[]).await.expect("a connection");
        device.send(connect("ann", "phone")).await;
        device.expect_connected().await;
        device.send(text(1, "bob", 1, "hi")).await;
        assert_eq!(device.ack().await.code(), Code::Ok);
    }
    let refused = Device::dial(&world, None, &[("sec-websocket-protocol", "mqtt")]).await;
    assert_eq!(status(refused), StatusCode::BAD_REQUEST);
}

fn status(result: Result<Device, Error>) -> StatusCode {
    match result {
        Err(Error::Http(response)) => response.status(),
        Err(other) => panic!("wanted an HTTP refusal, got {other}"),
        Ok(_) => panic!("wanted an HTTP refusal, got a connection"),
    }
}

#[tokio::test]
async fn a_token_comes_by_header_or_in_the_first_frame() {
    let world = World::start().await;
    let bearer = format!("Bearer {}", token("ann", 60));
    let mut device = Device::dial(&world, None, &[("authorization", &bearer)])
        .await
        .expect("a connection");
    let mut without = connect("ann", "phone");
    without.token.clear();
    device.send(without.clone()).await;
    assert_eq!(device.expect_connected().await.uid, "ann");

    for wrong in [
        format!("Bearer {}", token("ann", -1)),
        format!(
            "Bearer {}",
            token_with("other", &serde_json::json!({"sub": "ann", "exp": 9_999_999_999i64}))
        ),
        "Basic abc".to_owned(),
        "Bearer abc".to_owned(),
    ] {
        let refused = Device::dial(&world, None, &[("authorization", &wrong)]).await;
        assert_eq!(status(refused), StatusCode::UNAUTHORIZED, "{wrong}");
    }

    let expired = v1::Connect {
        token: token("ann", 0),
        ..without.clone()
    };
    let of_nobody = v1::Connect {
        token: token_with(SECRET, &serde_json::json!({"sub": "a b", "exp": 9_999_999_999i64})),
        ..without.clone()
    };
    for wrong in [without, expired, of_nobody] {
        let mut device = Device::dial(&world, None, &[]).await.expect("a connection");
        device.send(wrong).await;
        let (closing, close_code) = device.closed().await;
        assert_eq!(
            (closing.code(), close_code),
            (Code::Unauthenticated, 4009),
            "{closing:?}"
        );
        assert!(!closing.reason.is_empty());
    }
}

#[tokio::test]
async fn anonymous_is_for_development_on_one_machine() {
    let world = World::start().await;
    let refused = Device::dial_path(&world, "/v1/connect?uid=ann", None, &[]).await;
    assert_eq!(status(refused), StatusCode::UNAUTHORIZED);
    let world = World::with(|config| config.anonymous = true).await;
    let mut device = Device::dial_path(&world, "/v1/connect?uid=ann", None, &[])
        .await
        .expect("a connection");
    let mut first = connect("ann", "phone");
    first.token.clear();
    device.send(first).await;
    assert_eq!(device.expect_connected().await.uid, "ann");
}

#[tokio::test]
async fn a_wrong_first_frame_is_answered_and_another_may_come() {
    let world = World::start().await;
    let mut device = Device::dial(&world, None, &[]).await.expect("a connection");
    device.send(v1::Ping { client_time: 1 }).await;
    let error = device.error().await;
    assert_eq!((error.code(), error.field.as_str()), (Code::InvalidArgument, "frame"));
    device.send(connect("ann", "my phone")).await;
    let error = device.error().await;
    assert_eq!(
        (error.code(), error.field.as_str()),
        (Code::InvalidArgument, "device_id")
    );
    device.send_bytes(vec![0xff]).await;
    assert_eq!(device.error().await.code(), Code::MalformedFrame);
    device.send(connect("ann", "phone")).await;
    device.expect_connected().await;
}

#[tokio::test]
async fn a_silent_connection_ends() {
    let world = World::with(|config| {
        config.connect_timeout = Duration::from_millis(100);
        config.ping_interval = Duration::from_millis(100);
        config.idle_timeout = Duration::from_millis(300);
    })
    .await;
    let mut device = Device::dial(&world, None, &[]).await.expect("a connection");
    assert_eq!(device.closed().await.0.code(), Code::IdleTimeout);
    let mut device = Device::open(&world, "ann", "phone").await;
    let (closing, close_code) = device.closed().await;
    assert_eq!((closing.code(), close_code), (Code::IdleTimeout, 4067));
    eventually("the route is gone", async || world.routed("ann").await.is_empty()).await;
}

#[tokio::test]
async fn without_the_inbox_no_session_opens() {
    let world = World::start().await;
    world.inbox.set_down(true);
    let mut device = Device::dial(&world, None, &[]).await.expect("a connection");
    device.send(connect("ann", "phone")).await;
    assert_eq!(device.closed().await.0.code(), Code::Unavailable);
    assert_eq!(world.routed("ann").await, Vec::<String>::new());
}

/// Scenario B23: the later login wins, the earlier one is told that it is over; scenario B25: one session is left.
#[tokio::test]
async fn a_later_login_of_the_device_replaces_the_earlier() {
    let world = World::start().await;
    let mut first = Device::open(&world, "ann", "phone").await;
    let mut other = Device::open(&world, "ann", "tablet").await;
    for _ in 0..5 {
        let second = Device::open(&world, "ann", "phone").await;
        let (closing, close_code) = first.closed().await;
        assert_eq!((closing.code(), close_code), (Code::Replaced, 4064));
        first = second;
    }
    other.ping().await;
    first.ping().await;
    eventually("two sessions", async || world.metric("tidings_sessions") == 2.0).await;
    // Scenario B19: the end of the earlier ones has not taken the route of the last.
    let mut routed = world.routed("ann").await;
    routed.sort();
    assert_eq!(routed, ["phone", "tablet"]);
    let outcomes = world
        .push("ann", 1, crate::support::event("bob", "x", "ann", 1, "hi"))
        .await;
    assert_eq!(outcomes.len(), 2);
}

/// A later login at another gateway: the heartbeat finds it. A route that only lapsed is registered again.
#[tokio::test]
async fn the_heartbeat_tells_a_replaced_route_from_a_lapsed_one() {
    let world = World::with(|config| {
        config.route_heartbeat = Duration::from_millis(20);
    })
    .await;
    let mut lapsed = Device::open(&world, "ann", "phone").await;
    let mut replaced = Device::open(&world, "bob", "phone").await;
    world.clock.advance(Duration::from_secs(91));
    eventually("the lapsed route is back", async || {
        world.routed("ann").await == ["phone"]
    })
    .await;
    lapsed.ping().await;
    let key = RouteKey {
        uid: "bob".parse().expect("a uid"),
        device: "phone".parse().expect("a device"),
    };
    world
        .routes
        .register(&key, "other.gateway:9090", 1, 1, Duration::from_secs(90))
        .await
        .expect("registered");
    let (closing, _) = replaced.closed().await;
    assert_eq!(closing.code(), Code::Replaced);
    let found = world.routes.lookup(&[key.uid]).await.expect("a look-up");
    assert_eq!(found[0][0].1.gateway, "other.gateway:9090", "scenario B19");
    assert_ne!(found[0][0].1.gateway, ADDRESS);
}

/// Two logins of one device register at once, the later one first: its route must be there in the end.
#[tokio::test]
async fn the_route_of_the_later_login_survives_a_late_registration_of_the_earlier() {
    let world = World::start().await;
    let mut earlier = Device::dial(&world, None, &[]).await.expect("a connection");
    let open_gate = world.routes.delay_next();
    earlier.send(connect("ann", "phone")).await;
    eventually("the earlier registers", async || world.routes.is_delaying()).await;
    let mut later = Device::open(&world, "ann", "phone").await;
    let connection_id = async || {
        let found = world
            .routes
            .lookup(&["ann".parse().expect("a uid")])
            .await
            .expect("a look-up");
        found[0].first().map(|(_, route)| route.connection_id)
    };
    let of_later = connection_id().await;
    open_gate.send(()).expect("the registration waits");
    earlier.expect_connected().await;
    assert_eq!(earlier.closed().await.0.code(), Code::Replaced);
    drop(earlier);
    eventually("the later login's route is back", async || {
        connection_id().await == of_later
    })
    .await;
    later.ping().await;
}

/// Without the registry sessions open and go on; their routes come when it is back.
#[tokio::test]
async fn without_the_registry_sessions_go_on() {
    let world = World::with(|config| config.route_heartbeat = Duration::from_millis(20)).await;
    world.routes.set_down(true);
    let mut device = Device::open(&world, "ann", "phone").await;
    device.send(text(1, "bob", 1, "hi")).await;
    assert_eq!(device.ack().await.code(), Code::Ok);
    assert_eq!(world.routed("ann").await, Vec::<String>::new());
    // push-fanout asks every gateway.
    let outcomes = world
        .push("ann", 1, crate::support::event("bob", "x", "ann", 1, "hi"))
        .await;
    assert_eq!(outcomes, [v1::DeliverOutcome::HandedOver]);
    device.pushed().await;
    world.routes.set_down(false);
    eventually("the route is registered", async || {
        world.routed("ann").await == ["phone"]
    })
    .await;
    assert!(world.metric("tidings_route_errors_total") > 0.0);
}

/// Scenario B117: an explicit end at expiry, pending sends answered; a newer token in time goes on.
#[tokio::test]
async fn a_session_ends_with_its_token_unless_a_newer_one_comes() {
    let world = World::start().await;
    world.log.hold(tidings_domain::Topic::Ingress);
    let exp_s = |ms: i64| (world.clock.now().get() + ms) as f64 / 1000.0;
    let short = |ms| token_with(SECRET, &serde_json::json!({"sub": "ann", "exp": exp_s(ms)}));
    let mut ending = Device::open_as(
        &world,
        Encoding::Proto,
        v1::Connect {
            token: short(400),
            ..connect("ann", "a")
        },
    )
    .await;
    let mut renewed = Device::open_as(
        &world,
        Encoding::Proto,
        v1::Connect {
            token: short(400),
            ..connect("ann", "b")
        },
    )
    .await;
    renewed.send(connect("ann", "b")).await;
    renewed.expect_connected().await;
    ending.send(text(1, "bob", 1, "hi")).await;
    let ack = ending.ack().await;
    assert_eq!((ack.code(), ack.retryable), (Code::Unconfirmed, true));
    let (closing, _) = ending.closed().await;
    assert_eq!(closing.code(), Code::Unauthenticated);
    renewed.ping().await;
    // A token of somebody else is no renewal.
    renewed.send(connect("bob", "b")).await;
    assert_eq!(renewed.closed().await.0.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn sessions_are_limited() {
    let world = World::with(|config| config.max_sessions = 1).await;
    let _first = Device::open(&world, "ann", "phone").await;
    let refused = Device::dial(&world, None, &[]).await;
    assert_eq!(status(refused), StatusCode::SERVICE_UNAVAILABLE);
}

/// req:I2: a service account sends and has no stream.
#[tokio::test]
async fn a_service_account_has_no_stream() {
    let world = World::start().await;
    let token = token_with(
        SECRET,
        &serde_json::json!({"sub": "bot", "exp": 9_999_999_999i64, "role": "service"}),
    );
    let mut bot = Device::open_as(
        &world,
        Encoding::Json,
        v1::Connect {
            token,
            ..connect("bot", "server")
        },
    )
    .await;
    assert!(world.inbox.opened().is_empty());
    bot.send(text(1, "bob", 1, "hi")).await;
    assert_eq!(bot.ack().await.code(), Code::Ok);
    let role = world.log.actions()[0].sender_role;
    assert_eq!(role, tidings_proto::record::SenderRole::Service);
    bot.send(v1::Sync {
        cursor: Some(v1::Cursor::default()),
    })
    .await;
    assert_eq!(bot.error().await.code(), Code::Unsupported);
}

#[tokio::test]
async fn ready_means_producer_topics_inbox_and_port() {
    let world = World::start().await;
    tokio::time::timeout(crate::support::DEADLINE, world.context.readiness.wait_ready())
        .await
        .unwrap_or_else(|_| panic!("{}", world.context.readiness.report()));
    let report = world.context.readiness.report();
    for gate in ["producer", "topics", "inbox", "public listener"] {
        assert!(report.contains(&format!("open   {gate}")), "{report}");
    }
}
