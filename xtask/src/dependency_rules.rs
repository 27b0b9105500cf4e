//! Which crate may depend on which store or broker: the rules of `deny.toml`, checked without cargo-deny.

use std::collections::HashMap;

use anyhow::{Context, Result};
use serde_json::Value;

/// A crate and the only ones that may depend on it directly.
pub(crate) struct Rule {
    pub(crate) dependency: &'static str,
    pub(crate) users: &'static [&'static str],
}

/// The same as `[bans] deny` in `deny.toml`.
pub(crate) const RULES: &[Rule] = &[
    Rule {
        dependency: "rdkafka",
        users: &["tidings-bus"],
    },
    Rule {
        dependency: "scylla",
        users: &["tidings-storage"],
    },
    Rule {
        dependency: "redis",
        users: &["tidings-storage"],
    },
    Rule {
        dependency: "fjall",
        users: &["tidings-embedded"],
    },
];

/// What in `metadata` (the answer of `cargo metadata` with dependencies) breaks the rules, in words.
pub(crate) fn violations(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"]
        .as_array()
        .context("`cargo metadata` lists packages")?;
    let names: HashMap<&str, &str> = packages
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package["name"].as_str()?)))
        .collect();
    let nodes = metadata["resolve"]["nodes"]
        .as_array()
        .context("`cargo metadata` lists dependencies")?;

    let mut found = Vec::new();
    for rule in RULES {
        let mut used = false;
        for node in nodes {
            let user = node["id"]
                .as_str()
                .and_then(|id| names.get(id))
                .copied()
                .unwrap_or_default();
            let depends = node["deps"].as_array().is_some_and(|dependencies| {
                dependencies
                    .iter()
                    .any(|dependency| dependency["pkg"].as_str().and_then(|id| names.get(id)) == Some(&rule.dependency))
            });
            used |= depends;
            if depends && !rule.users.contains(&user) {
                found.push(format!(
                    "{user} depends on {}, which is for {} only",
                    rule.dependency,
                    rule.users.join(", ")
                ));
            }
        }
        if !used {
            found.push(format!(
                "nothing depends on {}: the rule about it guards nothing",
                rule.dependency
            ));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(edges: &[(&str, &str)]) -> Value {
        let mut names: Vec<&str> = edges
            .iter()
            .flat_map(|&(user, dependency)| [user, dependency])
            .collect();
        names.sort_unstable();
        names.dedup();
        let packages: Vec<Value> = names
            .iter()
            .map(|name| json!({"id": format!("{name} 1"), "name": name}))
            .collect();
        let nodes: Vec<Value> = names
            .iter()
            .map(|name| {
                let dependencies: Vec<Value> = edges
                    .iter()
                    .filter(|(user, _)| user == name)
                    .map(|(_, dependency)| json!({"pkg": format!("{dependency} 1")}))
                    .collect();
                json!({"id": format!("{name} 1"), "deps": dependencies})
            })
            .collect();
        json!({"packages": packages, "resolve": {"nodes": nodes}})
    }

    const ALLOWED: [(&str, &str); 4] = [
        ("tidings-bus", "rdkafka"),
        ("tidings-storage", "scylla"),
        ("tidings-storage", "redis"),
        ("tidings-embedded", "fjall"),
    ];

    #[test]
    fn the_allowed_dependencies_pass() {
        assert_eq!(violations(&metadata(&ALLOWED)).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn another_user_is_named() {
        let mut edges = ALLOWED.to_vec();
        edges.push(("tidings-gateway", "redis"));
        let found = violations(&metadata(&edges)).unwrap();
        assert_eq!(
            found,
            vec!["tidings-gateway depends on redis, which is for tidings-storage only"]
        );
    }

    #[test]
    fn a_rule_that_guards_nothing_is_named() {
        let found = violations(&metadata(&ALLOWED[..3])).unwrap();
        assert_eq!(
            found,
            vec!["nothing depends on fjall: the rule about it guards nothing"]
        );
    }

    #[test]
    fn deny_toml_has_the_same_rules() {
        let deny = std::fs::read_to_string(xtask::workspace::root().join("deny.toml")).unwrap();
        for rule in RULES {
            let line = format!("{{ crate = {:?}, wrappers = {:?} }},", rule.dependency, rule.users);
            assert!(deny.contains(&line), "deny.toml lacks {line}");
        }
        assert_eq!(deny.matches("wrappers = ").count(), RULES.len());
    }
}
