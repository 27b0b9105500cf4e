//! Topics: creates what is missing, compares what is there, changes nothing that exists.
//!
//! Each difference is a sentence with topic, setting, expected and actual value: the operator decides, since a changed
//! partition count would break the order of keys and a changed retention may lose records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, OwnedResourceSpecifier, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tidings_domain::Topic;

use super::config::KafkaConfig;
use super::error::{bus_error, code_error};
use super::logging::client_log;
use super::off_thread::OffThread;
use crate::Error;
use crate::catalogue::{Catalogue, TopicSpec};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// A new topic is known to all brokers after a moment.
const VISIBLE_WITHIN: Duration = Duration::from_secs(15);
const VISIBLE_POLL: Duration = Duration::from_millis(100);
const CREATING: &str = "creating topics";
const CHECKING: &str = "checking topics";

type Admin = Arc<OffThread<AdminClient<Context>>>;

struct Context;

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        client_log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(%error, reason, "topics");
    }
}

/// What the cluster says of a topic.
struct Actual {
    partitions: usize,
    /// The smallest of all partitions.
    replication_factor: usize,
}

pub(super) async fn check(config: &KafkaConfig, catalogue: &Catalogue, topics: &[Topic]) -> Result<Vec<String>, Error> {
    let admin = connect(config)?;
    let specs: Vec<&TopicSpec> = topics.iter().map(|topic| catalogue.spec(*topic)).collect();
    differences(&admin, &specs).await
}

pub(super) async fn apply(config: &KafkaConfig, catalogue: &Catalogue) -> Result<Vec<String>, Error> {
    let admin = connect(config)?;
    let there = existing(&admin).await?;
    let missing: Vec<&TopicSpec> = catalogue
        .topics()
        .iter()
        .filter(|spec| !there.contains_key(&spec.name))
        .collect();
    let mut done = create(&admin, &missing).await?;
    wait_until_visible(&admin, &missing).await?;
    let specs: Vec<&TopicSpec> = catalogue.topics().iter().collect();
    let differences = differences(&admin, &specs).await?;
    done.extend(
        differences
            .into_iter()
            .map(|difference| format!("not changed: {difference}")),
    );
    Ok(done)
}

fn connect(config: &KafkaConfig) -> Result<Admin, Error> {
    let client = AdminClient::from_config_and_context(&config.admin_client(), Context)
        .map_err(|error| bus_error("opening an admin client", &error))?;
    Ok(Arc::new(OffThread::new("admin client", client)))
}

/// All topics of the cluster; asking for single ones could create them.
async fn existing(admin: &Admin) -> Result<BTreeMap<String, Actual>, Error> {
    let admin = Arc::clone(admin);
    tokio::task::spawn_blocking(move || {
        let metadata = admin
            .inner()
            .fetch_metadata(None, REQUEST_TIMEOUT)
            .map_err(|error| bus_error(CHECKING, &error))?;
        Ok(metadata
            .topics()
            .iter()
            .map(|topic| {
                let partitions = topic.partitions();
                let replicas = partitions.iter().map(|partition| partition.replicas().len());
                let actual = Actual {
                    partitions: partitions.len(),
                    replication_factor: replicas.min().unwrap_or(0),
                };
                (topic.name().to_owned(), actual)
            })
            .collect())
    })
    .await
    .map_err(|error| Error::Unavailable {
        operation: CHECKING,
        reason: error.to_string(),
    })?
}

async fn create(admin: &Admin, missing: &[&TopicSpec]) -> Result<Vec<String>, Error> {
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let topics: Vec<NewTopic<'_>> = missing.iter().map(|spec| new_topic(spec)).collect();
    let results = admin
        .create_topics(&topics, &options())
        .await
        .map_err(|error| bus_error(CREATING, &error))?;
    let mut done = Vec::new();
    for result in results {
        match result {
            Ok(name) => done.push(format!("created {name}")),
            // Someone else applies at the same time; the comparison that follows looks at the result.
            Err((name, RDKafkaErrorCode::TopicAlreadyExists)) => done.push(format!("{name} was created by another")),
            Err((name, code)) => return Err(code_error(CREATING, code, format!("{name}: {code}"))),
        }
    }
    Ok(done)
}

fn new_topic(spec: &TopicSpec) -> NewTopic<'_> {
    let mut topic = NewTopic::new(
        &spec.name,
        i32::try_from(spec.partitions).unwrap_or(i32::MAX),
        TopicReplication::Fixed(i32::try_from(spec.replication_factor).unwrap_or(i32::MAX)),
    );
    for (name, value) in &spec.settings {
        topic = topic.set(name, value);
    }
    topic
}

async fn wait_until_visible(admin: &Admin, created: &[&TopicSpec]) -> Result<(), Error> {
    let until = Instant::now() + VISIBLE_WITHIN;
    loop {
        let there = existing(admin).await?;
        let absent = created.iter().find(|spec| {
            there
                .get(&spec.name)
                .is_none_or(|actual| actual.partitions < spec.partitions as usize)
        });
        let Some(absent) = absent else {
            return Ok(());
        };
        if Instant::now() >= until {
            return Err(Error::Unavailable {
                operation: CREATING,
                reason: format!(
                    "{} was created and is not visible after {VISIBLE_WITHIN:?}",
                    absent.name
                ),
            });
        }
        tokio::time::sleep(VISIBLE_POLL).await;
    }
}

async fn differences(admin: &Admin, specs: &[&TopicSpec]) -> Result<Vec<String>, Error> {
    let there = existing(admin).await?;
    let mut found = Vec::new();
    let mut present = Vec::new();
    for spec in specs {
        match there.get(&spec.name) {
            None => found.push(format!("{}: the topic is missing", spec.name)),
            Some(actual) => {
                compare_layout(spec, actual, &mut found);
                present.push(*spec);
            }
        }
    }
    if present.is_empty() {
        return Ok(found);
    }
    let asked: Vec<ResourceSpecifier<'_>> = present
        .iter()
        .map(|spec| ResourceSpecifier::Topic(&spec.name))
        .collect();
    let answers = admin
        .describe_configs(&asked, &options())
        .await
        .map_err(|error| bus_error(CHECKING, &error))?;
    let mut settings = BTreeMap::new();
    for answer in answers {
        let answer = answer.map_err(|code| code_error(CHECKING, code, format!("describing settings: {code}")))?;
        if let OwnedResourceSpecifier::Topic(name) = &answer.specifier {
            settings.insert(name.clone(), answer);
        }
    }
    for spec in present {
        match settings.get(&spec.name) {
            Some(actual) => compare_settings(spec, actual, &mut found),
            None => found.push(format!("{}: the broker did not tell its settings", spec.name)),
        }
    }
    Ok(found)
}

fn compare_layout(spec: &TopicSpec, actual: &Actual, found: &mut Vec<String>) {
    let pairs = [
        ("partitions", spec.partitions, actual.partitions),
        ("replication factor", spec.replication_factor, actual.replication_factor),
    ];
    for (what, expected, actual) in pairs {
        if expected as usize != actual {
            found.push(difference(&spec.name, what, &expected.to_string(), &actual.to_string()));
        }
    }
}

fn compare_settings(spec: &TopicSpec, actual: &ConfigResource, found: &mut Vec<String>) {
    for (name, expected) in &spec.settings {
        let actual = actual.get(name).and_then(|entry| entry.value.as_deref());
        if actual != Some(expected.as_str()) {
            found.push(difference(&spec.name, name, expected, actual.unwrap_or("not told")));
        }
    }
}

fn difference(topic: &str, what: &str, expected: &str, actual: &str) -> String {
    format!("{topic}: {what} should be {expected}, is {actual}")
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(REQUEST_TIMEOUT))
        .operation_timeout(Some(REQUEST_TIMEOUT))
}
