//! Contract of [`Routes`].

use std::time::Duration;

use tidings_storage::port::{Route, RouteKey, Routes};

use crate::names::{device, uid};

/// Far longer than the suite takes.
const LEASE: Duration = Duration::from_secs(90);
const SHORT: Duration = Duration::from_millis(200);

/// `after` waits until at least this long has passed on the registry's clock.
pub(crate) async fn run(routes: &impl Routes, after: impl AsyncFn(Duration)) {
    the_later_login_wins(routes).await;
    only_its_own_connection_removes_a_route(routes).await;
    a_lease_ends_unless_it_is_extended(routes, after).await;
}

fn key(user: &str, name: &str) -> RouteKey {
    RouteKey {
        uid: uid(user),
        device: device(name),
    }
}

fn route(gateway: &str, connection_id: u64, epoch: u64) -> Route {
    Route {
        gateway: gateway.to_owned(),
        boot_id: u64::MAX,
        connection_id,
        epoch,
    }
}

async fn the_later_login_wins(routes: &impl Routes) {
    let phone = key("take", "phone");
    assert_eq!(
        routes.lookup(std::slice::from_ref(&phone.uid)).await,
        Ok(vec![Vec::new()])
    );
    let first = routes
        .register(&phone, "[::1]:9090", u64::MAX, 1, LEASE)
        .await
        .expect("registered");
    assert_eq!(first.replaced, None);
    let tablet = key("take", "tablet");
    let other = routes
        .register(&tablet, "gw-1:9090", u64::MAX, 2, LEASE)
        .await
        .expect("registered");
    assert_eq!(other.replaced, None, "another device is not replaced");
    let second = routes
        .register(&phone, "gw-2:9090", u64::MAX, 3, LEASE)
        .await
        .expect("registered");
    assert_eq!(second.replaced, Some(route("[::1]:9090", 1, first.epoch)));
    assert!(second.epoch > first.epoch);

    let mut found = routes
        .lookup(&[uid("take-nobody"), phone.uid.clone()])
        .await
        .expect("read");
    found[1].sort_by(|a, b| a.0.cmp(&b.0));
    let expected = vec![
        (device("phone"), route("gw-2:9090", 3, second.epoch)),
        (device("tablet"), route("gw-1:9090", 2, other.epoch)),
    ];
    assert_eq!(found, vec![Vec::new(), expected]);

    // The replaced connection learns it by its next heartbeat.
    let beats = [
        (phone.clone(), route("[::1]:9090", 1, first.epoch)),
        (phone, route("gw-2:9090", 3, second.epoch)),
        (tablet, route("gw-1:9090", 2, other.epoch)),
        (key("take", "watch"), route("gw-1:9090", 4, 1)),
    ];
    assert_eq!(
        routes.heartbeat(&beats, LEASE).await,
        Ok(vec![false, true, true, false])
    );
    assert_eq!(routes.heartbeat(&[], LEASE).await, Ok(Vec::new()));
}

async fn only_its_own_connection_removes_a_route(routes: &impl Routes) {
    let phone = key("remove", "phone");
    let register = async |boot, connection| {
        let registered = routes.register(&phone, "gw", boot, connection, LEASE).await;
        registered.expect("registered");
    };
    register(1, 10).await;
    register(2, 10).await;
    // Scenario B19: the old gateway notices late that its connection is dead.
    assert_eq!(routes.unregister(&phone, 1, 10).await, Ok(false));
    assert_eq!(routes.unregister(&phone, 2, 11).await, Ok(false));
    let live = async || {
        let found = routes.lookup(std::slice::from_ref(&phone.uid)).await.expect("read");
        found[0].len()
    };
    assert_eq!(live().await, 1);
    assert_eq!(routes.unregister(&phone, 2, 10).await, Ok(true));
    assert_eq!(live().await, 0);
    assert_eq!(routes.unregister(&phone, 2, 10).await, Ok(false));
}

async fn a_lease_ends_unless_it_is_extended(routes: &impl Routes, after: impl AsyncFn(Duration)) {
    let kept = key("lease", "kept");
    let lost = key("lease", "lost");
    let keep = routes
        .register(&kept, "gw", u64::MAX, 1, SHORT)
        .await
        .expect("registered");
    let lose = routes
        .register(&lost, "gw", u64::MAX, 2, SHORT)
        .await
        .expect("registered");
    let beats = [(kept.clone(), route("gw", 1, keep.epoch))];
    assert_eq!(routes.heartbeat(&beats, LEASE).await, Ok(vec![true]));
    after(SHORT).await;
    let found = routes.lookup(std::slice::from_ref(&kept.uid)).await.expect("read");
    assert_eq!(found, vec![vec![(device("kept"), route("gw", 1, keep.epoch))]]);
    // A heartbeat does not bring an ended lease back: the user may be elsewhere by now.
    let late = [(lost.clone(), route("gw", 2, lose.epoch))];
    assert_eq!(routes.heartbeat(&late, LEASE).await, Ok(vec![false]));
    let again = routes
        .register(&lost, "gw", u64::MAX, 3, LEASE)
        .await
        .expect("registered");
    assert_eq!(again.replaced, None, "an ended lease is no route to replace");
    assert!(again.epoch > lose.epoch);
}
