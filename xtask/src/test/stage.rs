//! One stage of the test run: a heading, a command whose output is shown, logged and read, and a time.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use xtask::{console, workspace};

/// For the whole run, where nobody watches it: CI ends a job after 40 minutes, and a stage that hangs must end while
/// there is still time to say so.
const RUN_DEADLINE: Duration = Duration::from_secs(36 * 60);

/// Where the logs of the stages are.
pub(crate) fn log_directory() -> PathBuf {
    workspace::target().join("test-logs")
}

/// Runs `work` under a heading; says how long it took and how it ended.
pub(crate) fn under_heading(name: &str, work: impl FnOnce() -> Result<bool>) -> Result<bool> {
    console::say(format!("=== {name}"));
    let began = Instant::now();
    let passed = work()?;
    let took = console::seconds(began.elapsed());
    console::say(format!(
        "=== {name}: {} after {took}",
        if passed { "ok" } else { "FAILED" }
    ));
    Ok(passed)
}

/// Runs a cargo `command` with its output shown, written to the stage's log, and given to `each_line`. True if it succeeded.
///
/// On a terminal the command stays in the foreground group, so that Ctrl-C reaches it; elsewhere it has a group of its
/// own, which is killed when the run's deadline passes.
pub(crate) fn run_command(name: &str, command: &mut Command, mut each_line: impl FnMut(&str)) -> Result<bool> {
    let path = log_directory().join(format!("{name}.log"));
    let mut log = File::create(&path).with_context(|| format!("making {}", path.display()))?;
    let interactive =
        std::io::stdin().is_terminal() || std::io::stdout().is_terminal() || std::io::stderr().is_terminal();
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    if !interactive {
        command.process_group(0);
    }
    // One pipe for both, so that lines stay in the order in which they were written.
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    // The command keeps the writing ends open in this process until then.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let group = Pid::from_raw(i32::try_from(child.id()).context("a pid")?);
    let (ended, end) = mpsc::sync_channel::<()>(1);
    let watchdog = thread::spawn(move || {
        let left = RUN_DEADLINE.saturating_sub(console::elapsed());
        let late = end.recv_timeout(left) == Err(RecvTimeoutError::Timeout);
        if late && !interactive {
            console::say(format!("no end after {}: killing it", console::seconds(RUN_DEADLINE)));
            if let Err(error) = killpg(group, Signal::SIGKILL) {
                console::say(format!("killing process group {group}: {error}"));
            }
        }
    });
    let mut lines = BufReader::new(reader);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        log.write_all(&line)?;
        std::io::stdout().write_all(&line)?;
        each_line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    let status = child.wait()?;
    drop(ended);
    // It only waits for what was just dropped; a panic in it has been printed.
    let _ = watchdog.join();
    if !status.success() {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        console::say(format!(
            "`cargo {}` failed ({status}); its output is in {}",
            arguments.join(" "),
            path.display()
        ));
    }
    Ok(status.success())
}

/// Makes an empty directory for the logs of this run.
pub(crate) fn clear_logs() -> Result<()> {
    let directory = log_directory();
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    Ok(())
}
