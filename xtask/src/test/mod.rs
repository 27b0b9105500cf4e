//! `cargo xtask test`: everything CI checks, in stages, with one summary line at the end.
//!
//! A failed stage does not hide the others: lints, dependency rules and tests are all reported (only tests of code that
//! does not build are left out). The stack of the run is removed at the end, also when the run is interrupted or
//! killed: a guard process waits for the end of this one (see [`guard`]).

mod report;
mod stage;

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;
use xtask::stack::{Options, Stack};
use xtask::{console, process, workspace};

use self::report::Report;
use crate::dependency_rules;
use crate::setup::{self, Purpose};

/// The name of the stack that a test run starts and removes.
const STACK_NAME: &str = "test";
/// The package whose test targets are the end-to-end tests.
const END_TO_END_PACKAGE: &str = "tidings-integration-tests";

/// A part of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Only {
    /// Formatting, clippy and the dependency rules.
    Lint,
    /// Tests inside of the crates (`--lib --bins`).
    Unit,
    /// The crates' `tests/` on the real stack.
    Stack,
    /// The end-to-end tests on the real stack.
    E2e,
}

/// Runs the stages; true if all passed. `filters` go to the test binaries.
pub(crate) fn run(only: Option<Only>, filters: &[String]) -> Result<bool> {
    stage::clear_logs()?;
    let lock = File::create(stage::log_directory().join("lock"))?;
    if lock.try_lock().is_err() {
        bail!("another `cargo xtask test` runs in this work tree");
    }
    let mut report = Report::default();
    let outcome = run_stages(only, filters, &mut report);
    report.close();
    if let Err(error) = outcome {
        console::say(format!("error: {error:#}"));
        report.fail(format!(
            "test run: {}",
            error.to_string().lines().next().unwrap_or_default()
        ));
    }

    for failure in &report.failures {
        console::print(format!("failed: {failure}"));
    }
    console::print(format!(
        "test summary: {} passed, {} failed, {} skipped in {}",
        report.passed,
        report.failed,
        report.skipped,
        console::seconds(console::elapsed())
    ));
    Ok(report.failed == 0)
}

fn run_stages(only: Option<Only>, filters: &[String], report: &mut Report) -> Result<()> {
    let lint = matches!(only, None | Some(Only::Lint));
    let tests = !matches!(only, Some(Only::Lint));
    let with_stack = matches!(only, None | Some(Only::Stack | Only::E2e));

    stage::under_heading("setup", || setup::run(Purpose::Test).map(|()| true))?;
    if lint {
        command_stage(report, "fmt", workspace::cargo().args(["fmt", "--all", "--check"]))?;
        let clippy = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--keep-going",
            "--",
            "-D",
            "warnings",
        ];
        command_stage(report, "clippy", workspace::cargo().args(clippy))?;
        dependency_stage(report)?;
    }
    if !tests {
        return Ok(());
    }
    let targets = targets(only)?;
    // Tests of processes start the binaries of all packages, which `cargo test` alone does not build.
    if !command_stage(report, "build", workspace::cargo().args(["build", "--workspace"]))? {
        console::say("no tests are run: the workspace does not build");
        return Ok(());
    }
    let mut command = workspace::cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]).args(targets);
    command.arg("--").args(filters);
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        command.env("RUST_BACKTRACE", "1");
    }
    if !with_stack {
        return test_stage(report, &mut command);
    }

    let guard = start_guard()?;
    stage::under_heading("stack", || {
        // A run begins with an empty stack, whatever an earlier one left.
        Stack::down(STACK_NAME, false)?;
        let stack = Stack::start(&Options::named(STACK_NAME))?;
        command.envs(stack.env()).env("TIDINGS_TEST_STACK", stack.stack_json());
        Ok(true)
    })?;
    let outcome = test_stage(report, &mut command);
    keep_stack_logs()?;
    stage::under_heading("stack down", || Stack::down(STACK_NAME, false).map(|()| true))?;
    end_guard(guard)?;
    outcome
}

fn command_stage(report: &mut Report, name: &str, command: &mut Command) -> Result<bool> {
    let passed = stage::under_heading(name, || stage::run_command(name, command, |_line| {}))?;
    if !passed {
        report.fail(format!("stage {name}"));
    }
    Ok(passed)
}

fn test_stage(report: &mut Report, command: &mut Command) -> Result<()> {
    let failed_before = report.failed;
    let passed = stage::under_heading("test", || stage::run_command("test", command, |line| report.read(line)))?;
    report.close();
    if !passed && report.failed == failed_before {
        report.fail("stage test (no test failed: it did not build, or was killed)".to_owned());
    }
    Ok(())
}

fn dependency_stage(report: &mut Report) -> Result<()> {
    let passed = stage::under_heading("dependency rules", || {
        let violations = dependency_rules::violations(&workspace::cargo_metadata(&[])?)?;
        for violation in &violations {
            console::say(violation);
        }
        Ok(violations.is_empty())
    })?;
    if !passed {
        report.fail("stage dependency rules".to_owned());
    }
    if process::which("cargo-deny").is_some() {
        command_stage(report, "deny", workspace::cargo().args(["deny", "check", "bans"]))?;
    }
    Ok(())
}

/// The arguments that choose the test targets. Always of the whole workspace: another set of packages would mean
/// another set of features, and building everything again.
fn targets(only: Option<Only>) -> Result<Vec<String>> {
    let end_to_end = match only {
        None => return Ok(Vec::new()),
        Some(Only::Lint | Only::Unit) => return Ok(vec!["--lib".to_owned(), "--bins".to_owned()]),
        Some(Only::Stack) => false,
        Some(Only::E2e) => true,
    };
    let by_package = test_targets(&workspace::cargo_metadata(&["--no-deps"])?)?;
    let chosen: Vec<String> = by_package
        .iter()
        .filter(|(package, _)| (package.as_str() == END_TO_END_PACKAGE) == end_to_end)
        .flat_map(|(_, targets)| targets)
        .flat_map(|target| ["--test".to_owned(), target.clone()])
        .collect();
    if chosen.is_empty() {
        bail!("there are no such tests yet");
    }
    Ok(chosen)
}

/// The names of the `tests/` targets by package.
fn test_targets(metadata: &Value) -> Result<BTreeMap<String, Vec<String>>> {
    let packages = metadata["packages"]
        .as_array()
        .context("`cargo metadata` lists packages")?;
    let mut by_package = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().context("a package has a name")?;
        let targets = package["targets"].as_array().context("a package has targets")?;
        let tests: Vec<String> = targets
            .iter()
            .filter(|target| {
                target["kind"]
                    .as_array()
                    .is_some_and(|kinds| kinds.contains(&Value::from("test")))
            })
            .filter_map(|target| Some(target["name"].as_str()?.to_owned()))
            .collect();
        by_package.insert(name.to_owned(), tests);
    }
    Ok(by_package)
}

/// Copies the logs of the nodes to those of the run: a failed test is often explained there.
fn keep_stack_logs() -> Result<()> {
    let Some(stack) = Stack::find(STACK_NAME)? else {
        return Ok(());
    };
    for node in stack.state().nodes() {
        let log = stack.log(node);
        if log.is_file() {
            std::fs::copy(&log, stage::log_directory().join(format!("stack-{node}.log")))
                .with_context(|| format!("copying {}", log.display()))?;
        }
    }
    Ok(())
}

/// Starts a process in a session of its own that holds the other end of a pipe: when this process ends, in whatever
/// way, the pipe is closed and the guard removes the stack.
fn start_guard() -> Result<std::process::Child> {
    let log = File::create(stage::log_directory().join("stack-guard.log"))?;
    // By the link in /proc, not by path: the build that follows may put another program in its place.
    process::detached(format!("/proc/{}/exe", std::process::id()))
        .arg("stack-guard")
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("starting the guard of the stack")
}

fn end_guard(mut guard: std::process::Child) -> Result<()> {
    drop(guard.stdin.take());
    let status = guard.wait()?;
    if !status.success() {
        bail!(
            "the guard of the stack failed ({status}); see {}",
            stage::log_directory().join("stack-guard.log").display()
        );
    }
    Ok(())
}

/// The guard: waits for the end of the test run and removes its stack if the run did not.
pub(crate) fn guard() -> Result<()> {
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).context("waiting for the end of the test run")?;
    Stack::down(STACK_NAME, false)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn test_targets_are_found_by_package() {
        let metadata = json!({"packages": [
            {"name": "tidings-bus", "targets": [
                {"kind": ["lib"], "name": "tidings_bus"}, {"kind": ["test"], "name": "contract"}]},
            {"name": "tidings-domain", "targets": [{"kind": ["lib"], "name": "tidings_domain"}]},
        ]});
        let found = test_targets(&metadata).unwrap();
        assert_eq!(found["tidings-bus"], vec!["contract"]);
        assert_eq!(found["tidings-domain"], Vec::<String>::new());
    }
}
