//! Where things are: the root of the work tree and what lies below it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The root of the work tree this tool was built from.
pub fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Build output; stacks, jars and test logs live below it, so that removing it removes all of them.
pub fn target() -> PathBuf {
    root().join("target")
}

/// The cargo that runs this tool (so that a toolchain override holds for what it calls, too).
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The answer of `cargo metadata` for the workspace; `args` are added.
pub fn cargo_metadata(args: &[&str]) -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--format-version", "1"])
        .args(args)
        .output()
        .context("running `cargo metadata`")?;
    if !output.status.success() {
        bail!(
            "`cargo metadata` failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).context("reading the answer of `cargo metadata`")
}
