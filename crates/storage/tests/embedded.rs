//! The contract suites on the embedded adapter.

#[path = "contract/dead_letters.rs"]
mod dead_letters;
#[path = "contract/fixtures.rs"]
mod fixtures;
#[path = "contract/history.rs"]
mod history;
#[path = "contract/hot_window.rs"]
mod hot_window;
#[path = "contract/inbox.rs"]
mod inbox;
#[path = "contract/names.rs"]
mod names;
#[path = "contract/router.rs"]
mod router;
#[path = "contract/routes.rs"]
mod routes;
#[path = "contract/runtime.rs"]
mod runtime;

use std::sync::Arc;

use tempfile::TempDir;
use tidings_domain::clock::{Clock as _, ManualClock, Millis};
use tidings_embedded::{Database, Options};
use tidings_storage::embedded::{EmbeddedStore, LocalHotWindow, LocalRoutes};
use tidings_storage::port::{InboxReader as _, RouteKey, Routes as _};

fn store() -> (TempDir, EmbeddedStore) {
    let directory = tempfile::tempdir().expect("a directory");
    let database = Database::open(directory.path(), Options::default()).expect("opened");
    let store = EmbeddedStore::open(&database, 42).expect("opened");
    (directory, store)
}

#[tokio::test]
async fn router_store() {
    let (_directory, store) = store();
    router::run(&store).await;
}

#[tokio::test]
async fn history_store() {
    let (_directory, store) = store();
    history::run(&store).await;
}

#[tokio::test]
async fn inbox_store() {
    let (_directory, store) = store();
    inbox::run(&store).await;
}

#[tokio::test]
async fn dead_letter_store() {
    let (_directory, store) = store();
    dead_letters::run(&store).await;
}

#[tokio::test]
async fn runtime_store() {
    let (_directory, store) = store();
    runtime::run(&store).await;
}

#[tokio::test]
async fn local_routes() {
    let clock = ManualClock::at(Millis(1_700_000_000_000));
    let registry = LocalRoutes::new(Arc::new(clock.clone()));
    routes::run(&registry, async |time| clock.advance(time)).await;
}

#[tokio::test]
async fn a_login_after_the_clock_stepped_back_is_still_the_later_one() {
    let clock = ManualClock::at(Millis(1_700_000_000_000));
    let registry = LocalRoutes::new(Arc::new(clock.clone()));
    let key = RouteKey {
        uid: names::uid("a"),
        device: names::device("phone"),
    };
    let lease = std::time::Duration::from_secs(90);
    let first = registry.register(&key, "gw", 1, 1, lease).await.expect("registered");
    clock.set(Millis(clock.now().get() - 3_600_000));
    let second = registry.register(&key, "gw", 1, 2, lease).await.expect("registered");
    assert!(second.epoch > first.epoch);
    assert_eq!(second.replaced.map(|route| route.connection_id), Some(1));
}

#[tokio::test]
async fn local_hot_window() {
    hot_window::run(&LocalHotWindow::default()).await;
}

#[tokio::test]
async fn a_directory_keeps_its_cursor_epoch_and_its_rows() {
    let directory = tempfile::tempdir().expect("a directory");
    for fresh_epoch in [7, 8] {
        let database = Database::open(directory.path(), Options::default()).expect("opened");
        let store = EmbeddedStore::open(&database, fresh_epoch).expect("opened");
        assert_eq!(store.cursor_epoch().await, Ok(7));
        let open = tidings_domain::state::DeviceOpen {
            start_cursor: 3,
            opened_at: fixtures::now(),
        };
        let user = names::uid("a");
        let phone = names::device("phone");
        if fresh_epoch == 7 {
            store.write_device_open(&user, &phone, open).await.expect("written");
        }
        let read = store.device_open(&user, &phone).await.expect("read");
        assert_eq!(read.map(|open| open.start_cursor), Some(3));
    }
}
