//! The contract suite on a real broker.
//!
//! Needs a running stack: `cargo xtask stack up`, then `TIDINGS_TEST_STACK=target/stack/default/stack.json`. Each case has
//! topics and groups of its own, under a prefix.

#![cfg(feature = "kafka")]

mod contract;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use contract::{Ground, Process, Scripted, contract_cases, out, produce, quick, until};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use tidings_bus::catalogue::{Durability, PartitionCounts};
use tidings_bus::kafka::{KafkaBus, KafkaConfig};
use tidings_bus::runtime::spawn_handler;
use tidings_bus::{Bus, Catalogue, ConsumerGroup};
use tidings_domain::Topic;
use tidings_domain::clock::{Clock, SystemClock};
use tokio::runtime::Handle;

fn bootstrap() -> String {
    const REMEDY: &str = "start a stack with `cargo xtask stack up` and set TIDINGS_TEST_STACK to its stack.json";
    let path = std::env::var_os("TIDINGS_TEST_STACK").unwrap_or_else(|| panic!("no TIDINGS_TEST_STACK: {REMEDY}"));
    // A relative path is meant from the workspace, where people type it; tests run in the package.
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}; {REMEDY}", path.display()));
    let stack: serde_json::Value = serde_json::from_str(&text).expect("stack.json is JSON");
    let bootstrap = stack["kafka"]["bootstrap"].as_str();
    bootstrap
        .unwrap_or_else(|| panic!("{} names no brokers; {REMEDY}", path.display()))
        .to_owned()
}

async fn ground() -> Ground {
    static CASES: AtomicU32 = AtomicU32::new(0);
    let case = CASES.fetch_add(1, Ordering::Relaxed);
    // Unique among runs against one broker, and among cases of a run.
    let prefix = format!("contract-{}-{}-{case}", std::process::id(), SystemClock.now().get());
    let config = KafkaConfig::new(bootstrap().split(','));
    let catalogue = Catalogue::with_prefix(&prefix, Durability::Single, PartitionCounts::DEV);
    let bus = KafkaBus::new(config, catalogue, Arc::new(SystemClock)).expect("a bus");
    bus.apply_topics().await.expect("topics");
    let names = bus.catalogue().topics().iter().map(|spec| spec.name.clone()).collect();
    Ground {
        bus: Arc::new(bus),
        _keep: Box::new(Topics(names)),
    }
}

/// The topics of a case, deleted with it.
struct Topics(Vec<String>);

impl Drop for Topics {
    fn drop(&mut self) {
        let names: Vec<&str> = self.0.iter().map(String::as_str).collect();
        let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
            .set("bootstrap.servers", bootstrap())
            .create()
            .expect("an admin client");
        let deleted = tokio::task::block_in_place(|| {
            Handle::current().block_on(admin.delete_topics(&names, &AdminOptions::new()))
        });
        // A case that fails is told about itself, not about what it left behind.
        if !std::thread::panicking() {
            let deleted = deleted.expect("an answer");
            assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
        }
    }
}

contract_cases!(ground);

/// A second member joins while the first works: it gets partitions only after the first has finished and committed what it
/// had begun, so nothing is lost and nothing handled twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_is_drained_before_another_member_takes_over() {
    const GROUP: ConsumerGroup = ConsumerGroup::StorageConsumer;
    const RECORDS: u32 = 4000;
    let ground = ground().await;
    let (first, second) = (Process::new(&ground), Process::new(&ground));
    let one = Scripted::done();
    let two = Scripted::done();
    let first_member = spawn_handler(&first.runtime, GROUP, one.clone(), quick()).expect("a thread");
    until("first member has partitions", || first_member.ready()).await;
    let records = |from: u32, to: u32| {
        (from..to)
            .map(|n| out(Topic::History, n % 4, &format!("k{n}"), n.to_string()))
            .collect::<Vec<_>>()
    };
    produce(&ground, records(0, RECORDS / 2)).await;
    let second_member = spawn_handler(&second.runtime, GROUP, two.clone(), quick()).expect("a thread");
    let mut produced = RECORDS / 2;
    // Records keep coming until the second member takes part.
    while two.count() == 0 || produced < RECORDS {
        produce(&ground, records(produced, produced + 100)).await;
        produced += 100;
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(produced < 100 * RECORDS, "the second member never got a record");
    }
    until("all handled", || one.count() + two.count() >= produced as usize).await;
    first.stop(&first_member).await;
    second.stop(&second_member).await;
    let mut times: HashMap<(u32, u64), u32> = HashMap::new();
    for record in one.seen().iter().chain(&two.seen()) {
        *times.entry((record.partition, record.offset)).or_insert(0) += 1;
    }
    assert_eq!(times.len(), produced as usize, "none lost");
    let twice = times.values().filter(|times| **times > 1).count();
    assert_eq!(twice, 0, "none twice");
}
