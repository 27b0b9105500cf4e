//! How each kind of node is configured and which command starts it. The texts are templates in `deploy/stack/`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{Node, State, jars, java};
use crate::{process, workspace};

/// What is needed to start one node: its files are written, the command is ready to be spawned.
pub(super) struct Prepared {
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
}

/// Writes the node's configuration below `directory`, makes its data directory ready and says how to start it.
/// Does no harm to data that is there.
pub(super) fn prepare(state: &State, node: Node, directory: &Path) -> Result<Prepared> {
    let data = directory.join("data");
    fs::create_dir_all(&data).with_context(|| format!("making {}", data.display()))?;
    match node {
        Node::Kafka(node_id) => prepare_kafka(state, node_id, directory, &data),
        Node::Cassandra(number) => prepare_cassandra(state, number, directory, &data),
        Node::Redis => prepare_redis(state, directory, &data),
    }
}

fn prepare_kafka(state: &State, node_id: u32, directory: &Path, data: &Path) -> Result<Prepared> {
    let broker = state.broker(node_id)?;
    let brokers = &state.kafka.brokers;
    let voters: Vec<String> = brokers
        .iter()
        .map(|broker| format!("{}@127.0.0.1:{}", broker.node_id, broker.controller_port))
        .collect();
    // With three of each, two in sync: as in production, one broker may be lost.
    let (replication_factor, min_insync_replicas) = if brokers.len() >= 3 { (3, 2) } else { (1, 1) };
    let (fault_listener, fault_advertised) = match broker.fault_listener {
        Some(listener) => (
            format!(",FAULT://127.0.0.1:{}", listener.port),
            format!(",FAULT://127.0.0.1:{}", listener.advertised_port),
        ),
        None => (String::new(), String::new()),
    };
    let configuration = write_from_template(
        "kafka/server.properties",
        directory,
        &[
            ("node_id", node_id.to_string()),
            ("voters", voters.join(",")),
            ("port", broker.port.to_string()),
            ("controller_port", broker.controller_port.to_string()),
            ("fault_listener", fault_listener),
            ("fault_advertised", fault_advertised),
            ("data", text_of(data)?),
            ("replication_factor", replication_factor.to_string()),
            ("min_insync_replicas", min_insync_replicas.to_string()),
        ],
    )?;
    let java = java::find()?;
    let classpath = text_of(&jars::ensure("kafka")?.join("*"))?;

    if !data.join("meta.properties").is_file() {
        let output = Command::new(&java)
            .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .arg(format!(
                "-Dlog4j2.configurationFile={}",
                deploy("kafka/log4j2.properties").display()
            ))
            .args([
                "-cp",
                &classpath,
                "kafka.tools.StorageTool",
                "format",
                "--cluster-id",
                &state.kafka.cluster_id,
            ])
            .arg("--config")
            .arg(&configuration)
            .stdin(Stdio::null())
            .output()
            .context("running Kafka's storage tool")?;
        if !output.status.success() {
            bail!(
                "formatting {} failed ({}):\n{}{}",
                data.display(),
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    let args = vec![
        format!("@{}", deploy("kafka/jvm.options").display()).into(),
        format!(
            "-Dlog4j2.configurationFile={}",
            deploy("kafka/log4j2.properties").display()
        )
        .into(),
        "-cp".into(),
        classpath.into(),
        "kafka.Kafka".into(),
        configuration.into(),
    ];
    Ok(Prepared { program: java, args })
}

fn prepare_cassandra(state: &State, number: u32, directory: &Path, data: &Path) -> Result<Prepared> {
    let node = state.cql_node(number)?;
    // Every node is a seed, so that each can start while the others are down.
    let seeds: Vec<String> = state
        .cql
        .nodes
        .iter()
        .map(|node| format!("{}:{}", node.address, node.storage_port))
        .collect();
    let configuration = write_from_template(
        "cassandra/cassandra.yaml",
        directory,
        &[
            ("data", text_of(data)?),
            ("seeds", seeds.join(",")),
            ("address", node.address.to_string()),
            ("port", node.port.to_string()),
            ("storage_port", node.storage_port.to_string()),
            ("ssl_storage_port", node.ssl_storage_port.to_string()),
        ],
    )?;
    let jars = jars::ensure("cassandra")?;
    let agent = file_with_prefix(&jars, "jamm-")?;
    let args = vec![
        format!("@{}", deploy("cassandra/jvm.options").display()).into(),
        format!("-javaagent:{}", agent.display()).into(),
        format!("-Dcassandra.config=file://{}", configuration.display()).into(),
        format!("-Dcassandra.storagedir={}", data.display()).into(),
        format!(
            "-Dlogback.configurationFile=file://{}",
            deploy("cassandra/logback.xml").display()
        )
        .into(),
        "-cp".into(),
        text_of(&jars.join("*"))?.into(),
        "org.apache.cassandra.service.CassandraDaemon".into(),
    ];
    Ok(Prepared {
        program: java::find()?,
        args,
    })
}

fn prepare_redis(state: &State, directory: &Path, data: &Path) -> Result<Prepared> {
    let configuration = write_from_template(
        "redis/redis.conf",
        directory,
        &[("port", state.redis.port.to_string()), ("data", text_of(data)?)],
    )?;
    let Some(program) = process::which("redis-server") else {
        bail!("`redis-server` is not installed; run `cargo xtask setup --for test`");
    };
    Ok(Prepared {
        program,
        args: vec![configuration.into()],
    })
}

/// A file of `deploy/stack/`.
fn deploy(name: &str) -> PathBuf {
    workspace::root().join("deploy/stack").join(name)
}

fn write_from_template(template: &str, directory: &Path, values: &[(&str, String)]) -> Result<PathBuf> {
    let source = deploy(template);
    let text = fs::read_to_string(&source).with_context(|| format!("reading {}", source.display()))?;
    let rendered = render(&text, values).with_context(|| format!("filling in {}", source.display()))?;
    let path = directory.join(source.file_name().context("a template has a name")?);
    fs::write(&path, rendered).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// Puts values in the place of `{{name}}` outside of comment lines. A name without a value and a value without a
/// place are errors: either is a template and a program that have drifted apart.
fn render(template: &str, values: &[(&str, String)]) -> Result<String> {
    let mut rendered = String::with_capacity(template.len());
    for line in template.lines() {
        let mut line = line.to_owned();
        if !line.starts_with('#') {
            for (name, value) in values {
                line = line.replace(&format!("{{{{{name}}}}}"), value);
            }
            if line.contains("{{") {
                bail!("no value for `{line}`");
            }
        }
        rendered.push_str(&line);
        rendered.push('\n');
    }
    for (name, _) in values {
        if !template.contains(&format!("{{{{{name}}}}}")) {
            bail!("no place for `{name}`");
        }
    }
    Ok(rendered)
}

fn file_with_prefix(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        })
        .with_context(|| {
            format!(
                "no {prefix}*.jar in {}; remove that directory to fetch it again",
                directory.display()
            )
        })
}

fn text_of(path: &Path) -> Result<String> {
    path.to_str()
        .map(str::to_owned)
        .with_context(|| format!("{} is not valid UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::Options;

    #[test]
    fn templates_are_filled_in_completely() {
        let values = [("port", "9092".to_owned())];
        assert_eq!(
            render("# {{name}} stays\na={{port}}", &values).unwrap(),
            "# {{name}} stays\na=9092\n"
        );
        assert!(render("a={{port}} b={{other}}", &values).is_err());
        assert!(render("a=1", &values).is_err());
    }

    #[test]
    fn redis_configuration_names_its_port_and_directory() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::plan(&Options::named("unit")).unwrap();
        let data = directory.path().join("data");
        let path = write_from_template(
            "redis/redis.conf",
            directory.path(),
            &[
                ("port", state.redis.port.to_string()),
                ("data", text_of(&data).unwrap()),
            ],
        )
        .unwrap();
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains(&format!("\nport {}\n", state.redis.port)));
        assert!(text.contains(&format!("\ndir {}\n", data.display())));
    }
}
