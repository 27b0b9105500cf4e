//! The Java the servers run on: 17, the one version that both Kafka 4 and Cassandra 5 support.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::process;

/// The major version both servers support.
const MAJOR: u32 = 17;

/// The `java` program of version 17: from `JAVA_HOME`, else from `PATH`, else from where Linux distributions put it.
pub fn find() -> Result<PathBuf> {
    let mut candidates: Vec<PathBuf> = Vec::new();
    candidates.extend(std::env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin/java")));
    candidates.extend(process::which("java"));
    if let Ok(entries) = std::fs::read_dir("/usr/lib/jvm") {
        candidates.extend(entries.filter_map(|entry| Some(entry.ok()?.path().join("bin/java"))));
    }
    let mut seen = Vec::new();
    for candidate in candidates {
        match major_version(&candidate) {
            Some(MAJOR) => return Ok(candidate),
            Some(other) => seen.push(format!("{} is Java {other}", candidate.display())),
            None => {}
        }
    }
    bail!(
        "no Java {MAJOR} found ({}); run `cargo xtask setup --for test`, or point JAVA_HOME to one",
        if seen.is_empty() {
            "no `java` in PATH, JAVA_HOME, /usr/lib/jvm".to_owned()
        } else {
            seen.join(", ")
        }
    )
}

fn major_version(java: &Path) -> Option<u32> {
    let output = Command::new(java).arg("-version").output().ok()?;
    parse_major(&String::from_utf8_lossy(&output.stderr))
}

/// Reads the major version from what `java -version` prints.
fn parse_major(text: &str) -> Option<u32> {
    let version = text
        .lines()
        .find_map(|line| line.split_once("version \"")?.1.split('"').next())?;
    let mut numbers = version.split(['.', '-', '_']);
    let first: u32 = numbers.next()?.parse().ok()?;
    // Java 8 and before called themselves 1.8.
    if first == 1 {
        numbers.next()?.parse().ok()
    } else {
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_versions_are_read() {
        assert_eq!(
            parse_major("openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime"),
            Some(17)
        );
        assert_eq!(parse_major("openjdk version \"21-ea\" 2023-09-19"), Some(21));
        assert_eq!(
            parse_major("Picked up JAVA_TOOL_OPTIONS: -Xmx1g\njava version \"1.8.0_412\""),
            Some(8)
        );
        assert_eq!(parse_major("command not found"), None);
    }
}
