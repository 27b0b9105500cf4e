//! The contract suite on the embedded adapter.
//!
//! Left out: the drain of a revocation with two members. The embedded log has one member per group by design (one
//! process under a file lock), so no other member can take partitions; a revocation is provoked by the adapter's faults.

#![cfg(feature = "embedded")]

mod contract;

use std::sync::Arc;

use contract::{Ground, Process, Scripted, contract_cases, out, produce, quick, until};
use tidings_bus::catalogue::{Durability, PartitionCounts};
use tidings_bus::embedded::{EmbeddedBus, Faults};
use tidings_bus::runtime::spawn_handler;
use tidings_bus::{Catalogue, ConsumerGroup};
use tidings_domain::Topic;
use tidings_domain::clock::SystemClock;
use tidings_embedded::{Database, Options};

fn open() -> (Ground, Faults) {
    let directory = tempfile::tempdir().expect("a directory");
    let database = Database::open(directory.path(), Options::default()).expect("a database");
    let faults = Faults::new();
    let catalogue = Catalogue::new(Durability::Single, PartitionCounts::DEV);
    let bus =
        EmbeddedBus::open_with_faults(&database, catalogue, Arc::new(SystemClock), faults.clone()).expect("a bus");
    let ground = Ground {
        bus: Arc::new(bus),
        _keep: Box::new((database, directory)),
    };
    (ground, faults)
}

async fn ground() -> Ground {
    open().0
}

contract_cases!(ground);

#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_is_drained_and_nothing_is_handled_twice() {
    const GROUP: ConsumerGroup = ConsumerGroup::StorageConsumer;
    let (ground, faults) = open();
    let process = Process::new(&ground);
    let handler = Scripted::done();
    let consumer = spawn_handler(&process.runtime, GROUP, handler.clone(), quick()).expect("a thread");
    for round in 0..5 {
        let records = (0..200)
            .map(|n| out(Topic::History, n % 4, "k", format!("{round}/{n}")))
            .collect();
        produce(&ground, records).await;
        faults.revoke_next(false);
        let expected = (round + 1) * 200;
        until("all handled", || handler.count() >= expected).await;
    }
    process.stop(&consumer).await;
    assert_eq!(handler.count(), 1000, "each once");
}
