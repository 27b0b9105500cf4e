//! The servers' jars, fetched once by Maven from the pinned `pom.xml` files.
//!
//! A set of jars is complete when its marker, written last, holds the very `pom.xml` it was fetched for.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{console, process, workspace};

const MARKER: &str = ".complete";
/// Networks fail; a wrong version fails every time.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(3);

/// The directory with the jars of `part` (a directory of `deploy/stack/`), fetched if they are not there yet.
pub(super) fn ensure(part: &str) -> Result<PathBuf> {
    let pom = workspace::root().join("deploy/stack").join(part).join("pom.xml");
    let wanted = fs::read_to_string(&pom).with_context(|| format!("reading {}", pom.display()))?;
    let directory = workspace::target().join("stack/lib").join(part);
    if is_complete(&directory, &wanted) {
        return Ok(directory);
    }
    let parent = workspace::target().join("stack/lib");
    fs::create_dir_all(&parent)?;
    let lock = File::create(parent.join(".lock"))?;
    lock.lock().context("waiting for another fetch of jars")?;
    if is_complete(&directory, &wanted) {
        return Ok(directory);
    }

    let started = Instant::now();
    console::say(format!("{part}: fetching jars with Maven (once)"));
    let partial = parent.join(format!("{part}.partial"));
    for attempt in 1..=ATTEMPTS {
        remove_directory(&partial)?;
        match fetch(&pom, &partial) {
            Ok(()) => break,
            Err(error) if attempt < ATTEMPTS => {
                console::say(format!("{part}: attempt {attempt} of {ATTEMPTS} failed: {error:#}"));
                thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
    let count = fs::read_dir(&partial)?.count();
    fs::write(partial.join(MARKER), &wanted)?;
    remove_directory(&directory)?;
    fs::rename(&partial, &directory)?;
    console::say(format!(
        "{part}: {count} jars after {}",
        console::seconds(started.elapsed())
    ));
    Ok(directory)
}

fn is_complete(directory: &Path, wanted: &str) -> bool {
    fs::read_to_string(directory.join(MARKER)).is_ok_and(|pom| pom == wanted)
}

fn fetch(pom: &Path, into: &Path) -> Result<()> {
    let Some(maven) = process::which("mvn") else {
        bail!("`mvn` is not installed; run `cargo xtask setup --for test`");
    };
    let output = Command::new(maven)
        .args(["--batch-mode", "--quiet", "--strict-checksums", "-f"])
        .arg(pom)
        .arg(format!("-DoutputDirectory={}", into.display()))
        .args(["-DincludeScope=runtime", "dependency:copy-dependencies"])
        .stdin(Stdio::null())
        .output()
        .context("running `mvn`")?;
    if !output.status.success() {
        bail!(
            "Maven failed ({}). Is the Maven repository reachable (proxy or mirror belong in ~/.m2/settings.xml)?\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Removes a directory tree that may not be there.
pub(super) fn remove_directory(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("removing {}", directory.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jars_are_complete_only_for_the_pom_they_were_fetched_for() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!is_complete(directory.path(), "kafka 1"));
        fs::write(directory.path().join(MARKER), "kafka 1").unwrap();
        assert!(is_complete(directory.path(), "kafka 1"));
        assert!(!is_complete(directory.path(), "kafka 2"));
    }

    #[test]
    fn removing_nothing_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        remove_directory(&directory.path().join("absent")).unwrap();
    }
}
