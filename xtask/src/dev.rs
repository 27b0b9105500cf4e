//! `cargo xtask dev`: from a clone to the running single-process mode with one command.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};
use xtask::{console, workspace};

use crate::setup::{self, Purpose};

/// Sets up, builds and becomes `tidings dev`; returns only if that fails.
pub(crate) fn run(release: bool, arguments: &[String]) -> Result<()> {
    setup::run(Purpose::Dev)?;
    console::say("building (the first time takes a few minutes)");
    let mut build = workspace::cargo();
    build.args(["build", "-p", "tidings-cli", "--no-default-features"]);
    if release {
        build.arg("--release");
    }
    let status = build.status().context("running `cargo build`")?;
    if !status.success() {
        bail!("the build failed; cargo said why above");
    }
    let binary = workspace::target()
        .join(if release { "release" } else { "debug" })
        .join("tidings");
    let error = Command::new(&binary).arg("dev").args(arguments).exec();
    Err(error).with_context(|| format!("starting {}", binary.display()))
}
