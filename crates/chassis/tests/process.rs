//! A whole process from command line to exit code: this binary starts itself as a small service and looks at what it
//! prints and how it exits.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidings_chassis::{Context, Running, ServiceMain, Validate};

/// Set in the processes that are to be the service.
const AS_SERVICE: &str = "CHASSIS_TEST_AS_SERVICE";
const SOON: Duration = Duration::from_secs(30);

#[derive(serde::Deserialize)]
struct Config {
    demo: Demo,
}

#[derive(serde::Deserialize)]
struct Demo {
    fail: bool,
    hang: bool,
    window_records: u32,
}

impl Validate for Config {
    fn validate(&self) -> Vec<String> {
        if self.demo.window_records == 0 {
            vec!["demo.window_records must be larger than 0".to_owned()]
        } else {
            vec![]
        }
    }
}

struct Service;

impl ServiceMain for Service {
    const NAME: &'static str = "demo";
    const DEFAULTS: &'static str = "[demo]\nfail = false\nhang = false\nwindow_records = 8\n";
    type Config = Config;

    async fn start(self, context: Context, config: Config) -> anyhow::Result<Running> {
        let shutdown = context.tasks.shutdown.clone();
        context.tasks.spawn("worker", async move {
            anyhow::ensure!(!config.demo.fail, "told to fail");
            shutdown.cancelled().await;
            if config.demo.hang {
                std::future::pending::<()>().await;
            }
            Ok(())
        });
        Ok(Running::new())
    }
}

fn main() -> ExitCode {
    if std::env::var_os(AS_SERVICE).is_some() {
        return tidings_chassis::main(Service);
    }
    let cases: [(&str, fn()); 6] = [
        ("bad configuration exits 64 with every problem", bad_configuration),
        ("usage errors exit 64", bad_usage),
        ("check and print", check_and_print),
        ("SIGTERM ends cleanly", clean_end),
        ("a failing task exits 1", failing_task),
        ("a second signal ends a hanging process", second_signal),
    ];
    for (name, case) in cases {
        case();
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

fn service(args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.env(AS_SERVICE, "1").args(args).envs(env.iter().copied());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn finish(child: Child) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().expect("process ends");
    (
        status.code(),
        String::from_utf8(stdout).unwrap(),
        String::from_utf8(stderr).unwrap(),
    )
}

fn run(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    finish(service(args, env).spawn().expect("starts"))
}

/// Starts the service and waits until it is ready.
fn ready(env: &[(&str, &str)]) -> Child {
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let child = service(&[], env)
        .env("TIDINGS__ADMIN__LISTEN", addr.to_string())
        .spawn()
        .expect("starts");
    let deadline = Instant::now() + SOON;
    while !is_ready(addr) {
        assert!(Instant::now() < deadline, "the service becomes ready");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn is_ready(addr: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(addr) else {
        return false;
    };
    let mut answer = String::new();
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.starts_with("HTTP/1.1 200")
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

fn bad_configuration() {
    let env = [("TIDINGS__DEMO__WINDOW_RECRODS", "1"), ("TIDINGS__DEMO__FAIL", "maybe")];
    let (code, stdout, stderr) = run(&[], &env);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stdout.is_empty(), "{stdout}");
    for part in [
        "2 problem(s)",
        "did you mean `demo.window_records`?",
        "`demo.fail` must be true or false, got `maybe`",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let (code, _, stderr) = run(&["--check-config"], &[("TIDINGS__DEMO__WINDOW_RECORDS", "0")]);
    assert_eq!(code, Some(64));
    assert!(stderr.contains("demo.window_records must be larger than 0"), "{stderr}");
    let (code, _, stderr) = run(&["--config", "/no/such/file.toml"], &[]);
    assert_eq!(code, Some(64));
    assert!(stderr.contains("/no/such/file.toml: cannot be read"), "{stderr}");
}

fn bad_usage() {
    let (code, _, stderr) = run(&["--confg", "x"], &[]);
    assert_eq!(code, Some(64));
    assert!(stderr.contains("Usage: tidings-demo"), "{stderr}");
    let (code, stdout, _) = run(&["--version"], &[]);
    assert_eq!(
        (code, stdout.trim()),
        (Some(0), concat!("tidings-demo ", env!("CARGO_PKG_VERSION")))
    );
}

fn check_and_print() {
    let (code, stdout, stderr) = run(&["--check-config"], &[]);
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    let env = [
        ("TIDINGS__REDIS__URL", "redis://u:hunter2@cache/0"),
        ("TIDINGS__INTERNAL__SHARED_TOKEN", "hunter2"),
    ];
    let (code, stdout, stderr) = run(&["--print-config"], &env);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        !stdout.contains("hunter2") && stdout.contains("window_records = 8"),
        "{stdout}"
    );
}

fn clean_end() {
    let child = ready(&[("TIDINGS__REDIS__URL", "redis://u:hunter2@cache/0")]);
    signal(&child, Signal::SIGTERM);
    let (code, stdout, stderr) = finish(child);
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert!(
        stderr.lines().all(|line| line.starts_with('{') && line.ends_with('}')),
        "one object a line: {stderr}"
    );
    assert!(
        stderr.contains("\"signal\":\"SIGTERM\"") && stderr.contains(env!("CARGO_PKG_VERSION")),
        "{stderr}"
    );
    assert!(!stderr.contains("hunter2"), "{stderr}");
}

fn failing_task() {
    let env = [
        ("TIDINGS__DEMO__FAIL", "true"),
        ("TIDINGS__ADMIN__LISTEN", "127.0.0.1:0"),
    ];
    let (code, _, stderr) = run(&[], &env);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("told to fail"), "{stderr}");
}

fn second_signal() {
    let child = ready(&[
        ("TIDINGS__DEMO__HANG", "true"),
        ("TIDINGS__SHUTDOWN__DEADLINE_MS", "600000"),
    ]);
    signal(&child, Signal::SIGTERM);
    signal(&child, Signal::SIGINT);
    let (code, _, stderr) = finish(child);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("\"left\":\"worker\""), "{stderr}");
}
