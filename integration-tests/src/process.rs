//! A real binary of the suite as a child process.
//!
//! It writes to a log of its own, keeps its ports and configuration over restarts, and never outlives the test: the
//! process group is killed when the [`Process`] is dropped (also by a panic), and the kernel kills it when the test
//! itself is killed. For the latter all children are started by one thread that lives as long as the test process,
//! because the kernel ties them to the thread that started them.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::time::Instant;

use crate::{http, wait};

/// From start to ready on a busy machine of two cores.
pub const READY_DEADLINE: Duration = Duration::from_secs(60);
/// Longer than the services' own shutdown deadline.
const TERM_DEADLINE: Duration = Duration::from_secs(30);
/// Lines of the log shown with an error.
const LOG_TAIL: usize = 25;

/// How to start a process.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Shown in errors; the log's name.
    pub name: String,
    /// The binary.
    pub program: PathBuf,
    /// Arguments.
    pub args: Vec<String>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
    /// Where the log goes.
    pub log_directory: PathBuf,
    /// Where `/readyz` is.
    pub admin: SocketAddr,
}

/// A child process, running or not.
#[derive(Debug)]
pub struct Process {
    spec: Spec,
    child: Option<Child>,
}

impl Process {
    /// Starts it; see [`Process::wait_ready`].
    pub fn start(spec: Spec) -> Result<Self> {
        let mut process = Self { spec, child: None };
        process.start_again()?;
        Ok(process)
    }

    /// Starts it again with the same ports and configuration.
    pub fn start_again(&mut self) -> Result<()> {
        if self.is_running()? {
            bail!("{} runs", self.spec.name);
        }
        let log = File::options().create(true).append(true).open(self.log())?;
        // Ended with its starter by the kernel, should the starter have no chance to do it.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&self.spec.program)
            .args(&self.spec.args)
            .envs(self.spec.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        let child = spawn(command)
            .with_context(|| format!("starting {} by `setpriv` (util-linux)", self.spec.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Where `/readyz`, `/livez` and `/metrics` are.
    pub fn admin(&self) -> SocketAddr {
        self.spec.admin
    }

    /// The file with everything it printed, over all its starts.
    pub fn log(&self) -> PathBuf {
        self.spec.log_directory.join(format!("{}.log", self.spec.name))
    }

    /// The pid, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Waits until `/readyz` answers 200. Fails at once if the process ends.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let end = Instant::now() + READY_DEADLINE;
        let mut said = String::new();
        loop {
            match http::get(self.spec.admin, "/readyz").await {
                Ok((200, _)) => return Ok(()),
                Ok((_, body)) => said = body,
                // Not listening yet, or frozen: told by the deadline.
                Err(error) if said.is_empty() => said = format!("{error:#}"),
                Err(_) => {}
            }
            if let Some(status) = self.exit_status()? {
                bail!("{} ended while starting: {status}\n{}", self.spec.name, self.log_tail());
            }
            if Instant::now() >= end {
                bail!(
                    "{} is not ready after {READY_DEADLINE:?}: {said}\n{}",
                    self.spec.name,
                    self.log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// KILL, now.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        killpg(group(&child)?, Signal::SIGKILL).with_context(|| format!("killing {}", self.spec.name))?;
        let status = child.wait()?;
        if status.signal() != Some(Signal::SIGKILL as i32) {
            bail!("{} had ended by itself: {status}\n{}", self.spec.name, self.log_tail());
        }
        Ok(())
    }

    /// TERM, and waits for the end.
    pub async fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let name = self.spec.name.clone();
        let status = wait::until(&format!("{name} to end after TERM"), TERM_DEADLINE, || {
            let status = self.exit_status();
            async move { status }
        })
        .await?;
        self.child = None;
        Ok(status)
    }

    /// Stops it where it is; it keeps its connections and answers nothing.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// How it ended, if it did.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?),
            None => bail!("{} is not started", self.spec.name),
        }
    }

    /// Whether it was started and has not ended.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(match &mut self.child {
            Some(child) => child.try_wait()?.is_none(),
            None => false,
        })
    }

    /// Keeps what it says of itself now beside its log.
    pub async fn keep_state(&self) -> Result<()> {
        let mut state = String::new();
        for path in ["/readyz", "/livez", "/metrics"] {
            match http::get(self.spec.admin, path).await {
                Ok((status, body)) => state.push_str(&format!("{path}: {status}\n{body}\n")),
                Err(error) => state.push_str(&format!("{path}: {error:#}\n")),
            }
        }
        let path = self.spec.log_directory.join(format!("{}.state", self.spec.name));
        std::fs::write(&path, state).with_context(|| format!("writing {}", path.display()))
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let path = self.log();
        // Without a log there is nothing to add to the error that is being reported.
        let text = std::fs::read(&path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_TAIL)..];
        format!("the end of {}:\n  | {}", path.display(), tail.join("\n  | "))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let child = self
            .child
            .as_ref()
            .with_context(|| format!("{} is not started", self.spec.name))?;
        kill(group(child)?, signal).with_context(|| format!("sending {signal} to {}", self.spec.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // ESRCH: it has ended; there is nobody to report any other error to.
            if let Ok(group) = group(&child) {
                let _ = killpg(group, Signal::SIGKILL);
            }
            let _ = child.wait();
        }
    }
}

fn group(child: &Child) -> Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(child.id()).context("a pid")?))
}

/// The binary `name` beside the test that runs.
pub fn binary(name: &str) -> Result<PathBuf> {
    let directory = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => PathBuf::from(target).join("debug"),
        None => profile_directory()?,
    };
    let path = directory.join(name);
    if !path.is_file() {
        bail!("there is no {}; run `cargo build --workspace`", path.display());
    }
    Ok(path)
}

/// `target/<profile>`, where the test's own `deps/` is.
fn profile_directory() -> Result<PathBuf> {
    let test = std::env::current_exe().context("finding the test binary")?;
    let directory = test.parent().and_then(Path::parent);
    Ok(directory
        .context("a test binary lies in target/<profile>/deps")?
        .to_owned())
}

/// Runs the command line tool to its end and gives what it printed.
pub async fn run_tidings(args: &[&str], env: &[(String, String)]) -> Result<String> {
    let mut command = Command::new(binary("tidings")?);
    command
        .args(args)
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .context("waiting for `tidings`")?
        .context("running `tidings`")?;
    if !output.status.success() {
        bail!(
            "`tidings {}` failed ({}):\n{}{}",
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// An empty directory for the logs of a test.
pub fn log_directory(test: &str) -> Result<PathBuf> {
    let directory = xtask::workspace::target().join("test-logs").join(test);
    match std::fs::remove_dir_all(&directory) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("removing {}", directory.display())),
    }
    std::fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    Ok(directory)
}

type Order = (Command, SyncSender<std::io::Result<Child>>);

/// Starts a child from the thread that lives as long as this process.
fn spawn(command: Command) -> Result<Child> {
    static STARTER: OnceLock<SyncSender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, taken) = sync_channel::<Order>(1);
        thread::spawn(move || {
            for (mut command, answer) in taken {
                // The one who asked may have been cancelled: then the child is not wanted.
                if let Err(unwanted) = answer.send(command.spawn())
                    && let Ok(mut child) = unwanted.0
                {
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        });
        orders
    });
    let (answer, child) = sync_channel(1);
    starter
        .send((command, answer))
        .map_err(|_| anyhow!("the thread that starts processes is gone"))?;
    Ok(child.recv().context("the thread that starts processes is gone")??)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(directory: &Path, script: &str) -> Process {
        Process::start(Spec {
            name: "shell".to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: Vec::new(),
            log_directory: directory.to_owned(),
            // Nobody listens there.
            admin: ([127, 0, 0, 1], 1).into(),
        })
        .unwrap()
    }

    fn lives(pid: u32) -> bool {
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), None).is_ok()
    }

    #[test]
    fn nothing_survives_a_panic() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let caught = std::panic::catch_unwind(|| {
            let process = shell(&path, "sleep 600 & echo $! > grandchild; wait");
            std::panic::panic_any(process.pid().unwrap());
        });
        let pid = *caught.unwrap_err().downcast::<u32>().unwrap();
        assert!(!lives(pid));
    }

    #[tokio::test]
    async fn a_process_that_ends_while_starting_is_told_with_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = shell(directory.path(), "echo no such topic; exit 64");
        let error = process.wait_ready().await.unwrap_err().to_string();
        assert!(
            error.contains("exit status: 64") && error.contains("no such topic"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn term_kill_and_start_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = shell(
            directory.path(),
            "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done",
        );
        assert!(process.start_again().is_err());
        let log = process.log();
        wait::until_true("the script to be up", Duration::from_secs(10), || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains("up"))
        })
        .await
        .unwrap();
        assert!(process.terminate().await.unwrap().success());
        process.start_again().unwrap();
        let pid = process.pid().unwrap();
        process.kill().unwrap();
        assert!(!lives(pid));
        process.start_again().unwrap();
    }

    #[test]
    fn a_missing_binary_names_the_remedy() {
        let error = binary("tidings-nonsense").unwrap_err().to_string();
        assert!(error.contains("cargo build --workspace"), "{error}");
    }
}
