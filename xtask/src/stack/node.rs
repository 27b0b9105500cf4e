//! The nodes of a stack and how a user names them.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

/// One node of a stack. Written as `kafka-1`, `cassandra-1`, `redis`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// The broker (and controller) with this node id, from 1.
    Kafka(u32),
    /// The Cassandra node with this number, from 1; it listens on `127.0.0.<number>`.
    Cassandra(u32),
    /// The one Redis.
    Redis,
}

impl fmt::Display for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kafka(id) => write!(formatter, "kafka-{id}"),
            Self::Cassandra(number) => write!(formatter, "cassandra-{number}"),
            Self::Redis => write!(formatter, "redis"),
        }
    }
}

/// One node or all nodes of a part, as a user names them: `kafka`, `kafka-2`, `cassandra`, `redis`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    part: Part,
    number: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Kafka,
    Cassandra,
    Redis,
}

impl FromStr for Selection {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (part, number) = match text.split_once('-') {
            Some((part, number)) => (
                part,
                Some(number.parse().with_context(|| format!("`{number}` is no number"))?),
            ),
            None => (text, None),
        };
        let part = match part {
            "kafka" => Part::Kafka,
            "cassandra" => Part::Cassandra,
            "redis" if number.is_none() => Part::Redis,
            other => bail!("`{other}` is none of kafka, kafka-<id>, cassandra, cassandra-<number>, redis"),
        };
        Ok(Self { part, number })
    }
}

impl Selection {
    /// True if `node` is meant.
    pub fn contains(&self, node: Node) -> bool {
        let (part, number) = match node {
            Node::Kafka(id) => (Part::Kafka, id),
            Node::Cassandra(number) => (Part::Cassandra, number),
            Node::Redis => (Part::Redis, 1),
        };
        self.part == part && self.number.is_none_or(|wanted| wanted == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_name_nodes() {
        let all: Selection = "kafka".parse().unwrap();
        assert!(all.contains(Node::Kafka(1)) && all.contains(Node::Kafka(3)) && !all.contains(Node::Redis));
        let one: Selection = "kafka-2".parse().unwrap();
        assert!(one.contains(Node::Kafka(2)) && !one.contains(Node::Kafka(1)) && !one.contains(Node::Cassandra(2)));
        assert!("redis".parse::<Selection>().unwrap().contains(Node::Redis));
        for wrong in ["", "kafka-", "kafka-x", "redis-1", "postgres"] {
            assert!(wrong.parse::<Selection>().is_err(), "{wrong}");
        }
    }
}
