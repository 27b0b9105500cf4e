//! Reads what `cargo test` prints and keeps count over all test binaries.

/// The counts over everything that was read, and the names of what failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) failures: Vec<String>,
    /// The test binary (or the crate of the doc tests) whose output is being read.
    binary: String,
    /// A binary that began to run tests and did not end yet.
    unfinished: bool,
}

impl Report {
    /// Takes one line, which may carry colour codes.
    pub(crate) fn read(&mut self, line: &str) {
        let line = without_colours(line);
        let text = line.trim();
        if let Some(binary) = running_binary(text).or_else(|| text.strip_prefix("Doc-tests ").map(doc_tests)) {
            self.close();
            self.binary = binary;
        } else if text.starts_with("running ") && (text.ends_with(" tests") || text.ends_with(" test")) {
            self.unfinished = true;
        } else if let Some(counts) = text.strip_prefix("test result: ") {
            self.unfinished = false;
            self.passed += count(counts, "passed");
            self.failed += count(counts, "failed");
            self.skipped += count(counts, "ignored");
        } else if let Some(name) = text
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(format!("{}: {name}", self.binary));
        }
    }

    /// Says that nothing more comes: a binary that began and gave no result has crashed, which is a failure.
    pub(crate) fn close(&mut self) {
        if std::mem::take(&mut self.unfinished) {
            self.fail(format!(
                "{}: ended without a result (crashed or was killed)",
                self.binary
            ));
        }
    }

    /// Counts something that failed besides the tests themselves.
    pub(crate) fn fail(&mut self, what: String) {
        self.failed += 1;
        self.failures.push(what);
    }
}

/// The name of the binary in `Running tests/order.rs (target/debug/deps/order-0123456789abcdef)`.
fn running_binary(text: &str) -> Option<String> {
    let path = text.strip_prefix("Running ")?.rsplit_once('(')?.1.strip_suffix(')')?;
    let file = path.rsplit('/').next()?;
    Some(file.rsplit_once('-').map_or(file, |(name, _hash)| name).to_owned())
}

fn doc_tests(krate: &str) -> String {
    format!("doc tests of {krate}")
}

/// The number before `word` in `ok. 3 passed; 0 failed; 0 ignored; ...`.
fn count(counts: &str, word: &str) -> u64 {
    counts
        .split([';', '.'])
        .find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
        .unwrap_or(0)
}

fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            // An escape sequence ends with its first letter.
            characters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(character);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Report {
        let mut report = Report::default();
        text.lines().for_each(|line| report.read(line));
        report.close();
        report
    }

    #[test]
    fn counts_are_summed_over_binaries() {
        let report = read(
            "\
\u{1b}[1m\u{1b}[92m     Running\u{1b}[0m unittests src/lib.rs (target/debug/deps/tidings_bus-0123456789abcdef)

running 2 tests
test lane::keeps_order ... ok
test lane::waits ... ignored

test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/order.rs (/tree/target/debug/deps/order-fedcba9876543210)

running 3 tests
test one ... ok
test two ... FAILED
test three - should panic ... FAILED

failures:
    two
    three - should panic

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out; finished in 1.50s
   Doc-tests tidings_bus

running 1 test
test crates/bus/src/lib.rs - Lane (line 12) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.21s
",
        );
        assert_eq!((report.passed, report.failed, report.skipped), (3, 2, 1));
        assert_eq!(report.failures, vec!["order: two", "order: three - should panic"]);
    }

    #[test]
    fn a_crashed_binary_is_a_failure() {
        let report = read(
            "\
     Running tests/first.rs (target/debug/deps/first-00)
running 2 tests
test one ... ok
error: test failed, to rerun pass `-p x --test first`
     Running tests/second.rs (target/debug/deps/second-00)
running 1 test
",
        );
        assert_eq!((report.passed, report.failed), (0, 2));
        assert!(report.failures[0].starts_with("first: ended without a result"));
        assert!(report.failures[1].starts_with("second: ended without a result"));
    }

    #[test]
    fn output_of_tests_is_not_counted() {
        let report = read("thread 'x' panicked at 3 failed\nrunning late\ntest the water\n");
        assert_eq!(report, Report::default());
    }
}
