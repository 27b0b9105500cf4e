//! Processes that outlive their starter, addressed by pid and by what they are.
//!
//! The guarantee: a signal goes only to a process whose command line names the directory it was started for (its
//! *marker*). A pid alone says nothing: after a reboot or a crash it may belong to somebody else.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(20);
/// A process that is just replaced by another program, or ends, has no command line for some microseconds.
const EXEC_LOOKS: usize = 20;
const EXEC_PAUSE: Duration = Duration::from_millis(5);
/// After KILL the kernel needs no more than this, short of a process stuck in the kernel.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// True if `pid` runs and its command line contains `marker`.
pub fn is_running(pid: u32, marker: &str) -> bool {
    for _ in 0..EXEC_LOOKS {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            return false;
        };
        if state_of(&stat) == Some('Z') {
            reap(pid);
            return false;
        }
        let Ok(command_line) = fs::read(format!("/proc/{pid}/cmdline")) else {
            return false;
        };
        if !command_line.is_empty() {
            return contains(&command_line, marker);
        }
        // Between two programs (`setsid` becoming the server) or ending: neither lasts.
        thread::sleep(EXEC_PAUSE);
    }
    false
}

/// The processes whose command line contains `marker` and whose program is one of `programs`. Finds what a starter
/// left behind that died before it could write the pid down.
pub fn find(marker: &str, programs: &[&str]) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| contains(&line, marker) && programs.contains(&program_of(&line).as_str()))
        })
        .collect();
    pids.sort_unstable();
    pids
}

/// Sends `signal` to `pid` if it is the process of `marker`; false if there is no such process.
pub fn signal(pid: u32, marker: &str, signal: Signal) -> Result<bool> {
    if !is_running(pid, marker) {
        return Ok(false);
    }
    match kill(nix_pid(pid)?, signal) {
        Ok(()) => Ok(true),
        Err(Errno::ESRCH) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("sending {signal} to process {pid}")),
    }
}

/// Stops the process of `marker`: `first`, and KILL when it still runs after `grace`. Returns when it is gone.
pub fn stop(pid: u32, marker: &str, first: Signal, grace: Duration) -> Result<()> {
    for (next, patience) in [(first, grace), (Signal::SIGKILL, KILL_GRACE)] {
        if !signal(pid, marker, next)? {
            return Ok(());
        }
        if wait_until_gone(pid, marker, patience) {
            return Ok(());
        }
    }
    bail!("process {pid} ({marker}) still runs {KILL_GRACE:?} after KILL; look at /proc/{pid}/stack as root")
}

fn wait_until_gone(pid: u32, marker: &str, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        if is_gone(pid, marker) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(POLL);
    }
}

/// True if the process of `marker` has given back all it held. A killed process is a zombie as soon as its first
/// thread has ended; its ports are free only when the last one has.
fn is_gone(pid: u32, marker: &str) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    if state_of(&stat) == Some('Z') {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        reap(pid);
        return threads <= 1;
    }
    !is_running(pid, marker)
}

/// Resident memory of a process in bytes.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    kibibytes_field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

/// Memory the machine can still give, in bytes.
pub fn available_bytes() -> Option<u64> {
    kibibytes_field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// A command that starts `program` in a session of its own, so that it survives its starter and its terminal.
/// `setsid` replaces itself by the program, so the pid of the child is the pid of the program.
pub fn detached(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setsid");
    command.arg(program);
    command
}

/// The full path of `program` in `PATH`.
pub fn which(program: &str) -> Option<std::path::PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

fn nix_pid(pid: u32) -> Result<Pid> {
    // 0 and negative numbers address whole process groups.
    match i32::try_from(pid) {
        Ok(pid) if pid > 1 => Ok(Pid::from_raw(pid)),
        Ok(_) | Err(_) => bail!("{pid} is not the pid of a process of ours"),
    }
}

/// Takes the exit status of a dead child, so that it does not stay a zombie while its starter lives on.
fn reap(pid: u32) {
    if let Ok(pid) = nix_pid(pid) {
        // ECHILD: somebody else's child, and theirs to reap.
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
    }
}

/// The state letter of `/proc/<pid>/stat`. The program's name before it is in parentheses and may contain any.
fn state_of(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn contains(command_line: &[u8], marker: &str) -> bool {
    !marker.is_empty() && String::from_utf8_lossy(command_line).contains(marker)
}

fn program_of(command_line: &[u8]) -> String {
    let first = command_line.split(|&byte| byte == 0).next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    Path::new(first.as_ref())
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn kibibytes_field(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that runs until it is stopped, with `marker` on its command line.
    fn sleeper(marker: &str) -> u32 {
        Command::new("sh")
            .args(["-c", "while :; do sleep 60; done", marker])
            .spawn()
            .unwrap()
            .id()
    }

    #[test]
    fn state_is_read_behind_a_name_with_parentheses() {
        assert_eq!(state_of("12 (a) b) R 1 12 12"), Some('R'));
        assert_eq!(state_of("12 (java) Z 1 12 12"), Some('Z'));
        assert_eq!(state_of("nonsense"), None);
    }

    #[test]
    fn memory_fields_are_kibibytes() {
        assert_eq!(
            kibibytes_field("VmHWM:\t 9 kB\nVmRSS:\t  358400 kB\n", "VmRSS:"),
            Some(358_400 * 1024)
        );
        assert_eq!(kibibytes_field("VmHWM:\t 9 kB\n", "VmRSS:"), None);
    }

    #[test]
    fn program_is_the_file_name_of_the_first_argument() {
        assert_eq!(program_of(b"/usr/bin/java\0-Xmx1g\0"), "java");
        assert_eq!(program_of(b""), "");
    }

    #[test]
    fn another_process_with_the_pid_is_neither_seen_nor_stopped() {
        let marker = "/stack/process-test-one/kafka-1/";
        let pid = sleeper(marker);
        assert!(is_running(pid, marker));
        assert!(!is_running(pid, "/stack/process-test-other/kafka-1/"));
        assert!(!is_running(pid, ""));
        stop(
            pid,
            "/stack/process-test-other/kafka-1/",
            Signal::SIGKILL,
            Duration::ZERO,
        )
        .unwrap();
        assert!(is_running(pid, marker));

        assert_eq!(find(marker, &["sh"]), vec![pid]);
        assert_eq!(find(marker, &["java"]), Vec::<u32>::new());

        stop(pid, marker, Signal::SIGTERM, Duration::from_secs(5)).unwrap();
        assert!(!is_running(pid, marker));
        assert!(!signal(pid, marker, Signal::SIGTERM).unwrap());
    }

    #[test]
    fn a_process_that_ignores_term_is_killed() {
        let marker = "/stack/process-test-stubborn/redis/";
        let pid = Command::new("sh")
            .args(["-c", "trap '' TERM; while :; do sleep 1; done", marker])
            .spawn()
            .unwrap()
            .id();
        stop(pid, marker, Signal::SIGTERM, Duration::from_millis(100)).unwrap();
        assert!(!is_running(pid, marker));
    }

    #[test]
    fn process_groups_are_no_pids() {
        assert!(nix_pid(0).is_err());
        assert!(nix_pid(1).is_err());
        assert!(nix_pid(u32::MAX).is_err());
    }
}
