//! What the tool tells its user: one plain line per step with the seconds since it began, so that a log reads like a
//! terminal and a slow step is seen at once.

use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn began() -> Instant {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    *BEGAN.get_or_init(Instant::now)
}

/// Starts the clock of the lines' time stamps; the first line does it otherwise.
pub fn start_clock() {
    began();
}

/// Time since the tool began.
pub fn elapsed() -> Duration {
    began().elapsed()
}

/// Prints one line of progress to standard error (standard output is for results).
pub fn say(line: impl AsRef<str>) {
    let mut stderr = std::io::stderr().lock();
    // A closed terminal must not end a stack start half way, and there is nobody left to tell.
    let _ = writeln!(stderr, "[{:6.1}s] {}", elapsed().as_secs_f64(), line.as_ref());
}

/// Prints one line of a result to standard output. Whoever closed it early (`| head`) has seen enough.
pub fn print(line: impl AsRef<str>) {
    let _ = writeln!(std::io::stdout().lock(), "{}", line.as_ref());
}

/// `1.2 s`, or `3 min 05 s` from a minute on.
pub fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    if whole < 60 {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

/// Bytes as MiB.
pub fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes / (1024 * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_read_well() {
        assert_eq!(seconds(Duration::from_millis(2_340)), "2.3 s");
        assert_eq!(seconds(Duration::from_secs(185)), "3 min 05 s");
        assert_eq!(mebibytes(950 * 1024 * 1024 + 5), "950 MiB");
    }
}
