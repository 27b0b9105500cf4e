//! The runtime on a log in memory: what cannot be provoked on a real one, or not quickly. The rest is in the contract
//! suite.

mod folds;
mod handlers;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use tidings_domain::Topic;
use tidings_domain::clock::SystemClock;
use tidings_proto::v1::DlqResolved;
use tidings_resilience::BackoffPolicy;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::testing::{FakeBus, Fault};
use super::*;
use crate::acks::AckFault;
use crate::dead_letter::{self, Rejection};
use crate::fold::{Emitter, Fold, FoldCommit, FoldError, FoldStart};
use crate::handler::{Cause, Outcome};
use crate::metrics::{CauseLabels, KindLabels, group_labels, partition_labels};
use crate::producer::ProduceError;
use crate::source::{AssignedPartition, CommitMode, SourceEvent};
use crate::{Error, Headers, LogRecord, OutRecord};

const DEADLINE: Duration = Duration::from_secs(20);
const HANDLERS: ConsumerGroup = ConsumerGroup::StorageConsumer;
const FOLDS: ConsumerGroup = ConsumerGroup::Router;

struct Setup {
    bus: FakeBus,
    runtime: Runtime,
}

fn setup() -> Setup {
    let bus = FakeBus::new();
    let runtime = Runtime::new(
        Arc::new(bus.clone()),
        Arc::new(SystemClock),
        Metrics::default(),
        Handle::current(),
        CancellationToken::new(),
    );
    Setup { bus, runtime }
}

fn quick() -> RuntimeConfig {
    RuntimeConfig {
        poll_timeout: Duration::from_millis(5),
        drain_deadline: Duration::from_millis(300),
        backoff: BackoffPolicy::new(Duration::from_millis(10), Duration::from_millis(50), 2.0, 0.5),
        fold: FoldConfig {
            idle_checkpoint: Duration::from_millis(5),
            ..FoldConfig::default()
        },
        handler: HandlerConfig {
            commit_interval: Duration::from_millis(10),
            ..HandlerConfig::default()
        },
        ..RuntimeConfig::default()
    }
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, wait).await.is_ok(), "in time: {what}");
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("in time: {what}"))
}
