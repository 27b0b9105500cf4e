//! Opens the real adapters from the shared configuration: Kafka, CQL, Redis.
//!
//! A dependency that is absent at start is waited for: the service is not ready meanwhile and /readyz says why
//! (req:E4). What an operator must mend (missing topics, other settings, a missing table) is named again and again
//! until it is mended.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tidings_bus::catalogue::{Durability, PartitionCounts};
use tidings_bus::kafka::{GroupProtocol as BusGroupProtocol, KafkaBus, KafkaConfig as BusKafkaConfig};
use tidings_bus::{Bus, Catalogue};
use tidings_domain::Topic;
use tidings_domain::clock::{SharedClock, SystemClock};
use tidings_resilience::{Backoff, BackoffPolicy};
use tidings_storage::cql::{CqlConfig as StoreCqlConfig, CqlStore, schema};
use tidings_storage::redis::{RedisConfig as StoreRedisConfig, RedisConnection, RedisHotWindow, RedisRoutes};

use crate::config::Shared;
use crate::config::{CqlConfig, GroupProtocol, KafkaConfig, RedisConfig, SecurityProtocol, TopicProfile};
use crate::run::Context;

/// Between two looks at a dependency that is not there.
const WAIT: BackoffPolicy = BackoffPolicy::new(Duration::from_millis(250), Duration::from_secs(5), 2.0, 0.3);

/// The clock of a process.
#[must_use]
pub fn clock() -> SharedClock {
    Arc::new(SystemClock)
}

/// A random number for what must differ between processes.
#[must_use]
pub fn random_u64() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

/// The topics as configured.
#[must_use]
pub fn catalogue(config: &KafkaConfig) -> Catalogue {
    let (durability, counts) = match config.topic_profile {
        TopicProfile::Single => (Durability::Single, PartitionCounts::DEV),
        TopicProfile::Replicated => (Durability::Replicated, PartitionCounts::CLUSTER),
    };
    let configured = |value: u32, default: u32| if value == 0 { default } else { value };
    let counts = PartitionCounts {
        main: configured(config.main_partitions, counts.main),
        side: configured(config.side_partitions, counts.side),
    };
    Catalogue::with_prefix(&config.topic_prefix, durability, counts)
}

fn kafka_config(config: &KafkaConfig) -> BusKafkaConfig {
    let mut kafka = BusKafkaConfig::new(config.bootstrap_servers.clone());
    kafka.group_protocol = match config.group_protocol {
        GroupProtocol::Classic => BusGroupProtocol::Classic,
        GroupProtocol::Consumer => BusGroupProtocol::Consumer,
    };
    kafka.session_timeout = config.session_timeout;
    kafka.max_poll_interval = config.max_poll_interval;
    let mut set = |name: &str, value: &str| {
        kafka.properties.insert(name.to_owned(), value.to_owned());
    };
    match config.security_protocol {
        SecurityProtocol::Plaintext => {}
        SecurityProtocol::Ssl => set("security.protocol", "ssl"),
        protocol @ (SecurityProtocol::SaslPlaintext | SecurityProtocol::SaslSsl) => {
            set("security.protocol", protocol.as_str());
            set("sasl.mechanism", &config.sasl_mechanism);
            set("sasl.username", &config.sasl_username);
            set("sasl.password", config.sasl_password.expose().unwrap_or_default());
        }
    }
    if !config.ssl_ca_file.is_empty() {
        set("ssl.ca.location", &config.ssl_ca_file);
    }
    kafka
}

fn cql_config(config: &CqlConfig) -> StoreCqlConfig {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    StoreCqlConfig {
        contact_points: config.contact_points.clone(),
        keyspace: config.keyspace.clone(),
        replication: BTreeMap::from([("replication_factor".to_owned(), config.replication_factor)]),
        local_datacenter: some(&config.local_datacenter),
        username: some(&config.username),
        password: config.password.expose().map(str::to_owned),
        ..StoreCqlConfig::default()
    }
}

/// The connection is made at first use, so a Redis that is down is no reason to wait.
fn redis(config: &RedisConfig) -> anyhow::Result<RedisConnection> {
    // The adapter puts a prefix right before the family of keys.
    let config = StoreRedisConfig {
        url: config.url.clone(),
        key_prefix: format!("{}:", config.key_prefix),
    };
    Ok(RedisConnection::open(&config)?)
}

/// The log, without looking whether it is there.
///
/// # Errors
/// Settings that the client does not take.
pub fn open_bus(shared: &Shared) -> anyhow::Result<Arc<KafkaBus>> {
    let bus = KafkaBus::new(kafka_config(&shared.kafka), catalogue(&shared.kafka), clock())?;
    Ok(Arc::new(bus))
}

/// The log, once its topics are there and as the catalogue says. Measures the broker's time from then on.
///
/// # Errors
/// Settings that the client does not take.
pub async fn bus(context: &Context) -> anyhow::Result<Arc<dyn Bus>> {
    let bus = open_bus(&context.shared)?;
    wait_for(context, "kafka", || async {
        let differences = bus.check_topics(&Topic::ALL).await.map_err(|error| error.to_string())?;
        if differences.is_empty() {
            Ok(())
        } else {
            Err(format!("{} (run `tidings topics apply`)", differences.join("; ")))
        }
    })
    .await;
    bus.spawn_time_probe(&tokio::runtime::Handle::current(), context.tasks.shutdown.clone())?;
    Ok(bus)
}

/// The CQL store, once it answers and its schema is whole.
pub async fn store(context: &Context) -> CqlStore {
    let config = cql_config(&context.shared.cql);
    wait_for(context, "cql", || async {
        CqlStore::connect(&config).await.map_err(|error| error.to_string())
    })
    .await
}

/// Creates what is missing of keyspace and tables. `fresh_cursor_epoch` is a random number that becomes the cursor epoch
/// of a new keyspace; an old one keeps its own.
///
/// # Errors
/// The store does not answer or refuses.
pub async fn apply_schema(shared: &Shared, fresh_cursor_epoch: u64) -> anyhow::Result<()> {
    let config = cql_config(&shared.cql);
    schema::apply(&config, fresh_cursor_epoch)
        .await
        .with_context(|| format!("keyspace {} could not be set up", config.keyspace))
}

/// Routes in Redis.
///
/// # Errors
/// A URL that the client does not take.
pub fn routes(shared: &Shared) -> anyhow::Result<Arc<RedisRoutes>> {
    Ok(Arc::new(RedisRoutes::new(redis(&shared.redis)?)))
}

/// The hot window in Redis, of the streams with this cursor epoch: a window that outlived the store it was filled from
/// must not be taken for the new one's.
///
/// # Errors
/// A URL that the client does not take.
pub fn hot_window(shared: &Shared, cursor_epoch: u64) -> anyhow::Result<Arc<RedisHotWindow>> {
    let mut config = shared.redis.clone();
    config.key_prefix = format!("{}:{cursor_epoch:016x}", config.key_prefix);
    Ok(Arc::new(RedisHotWindow::new(redis(&config)?)))
}

/// Tries until it works; the gate `name` says meanwhile what is wrong. Ends with the start it is part of.
async fn wait_for<T, F, Fut>(context: &Context, name: &str, mut attempt: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let gate = context.readiness.gate(name);
    gate.close("not looked at yet");
    let mut backoff = Backoff::new(WAIT, u64::from(std::process::id()));
    loop {
        match attempt().await {
            Ok(value) => {
                gate.open();
                return value;
            }
            Err(reason) => {
                let delay = backoff.next_delay();
                log_waiting(name, &reason, backoff.attempts());
                gate.close(reason);
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// Loud at first and then now and then, not on every try.
fn log_waiting(name: &str, reason: &impl Display, attempts: u32) {
    if attempts.is_power_of_two() {
        tracing::warn!(dependency = name, %reason, attempts, "waiting for a dependency");
    }
}
