use std::io::Write;
use std::time::Duration;

use serde::Deserialize;

use super::*;

const DEFAULTS: &str = r#"
[demo]
window_records = 32
timeout_ms = 250
ratio = 0.5
enabled = true
name = "demo"
tags = ["a", "b"]
api_token = ""
upstream_url = ""

[demo.nested]
depth = 1

[removed]
"demo.window" = "use demo.window_records"
"#;

#[derive(Debug, Deserialize)]
struct Config {
    demo: Demo,
    kafka: KafkaConfig,
}

#[derive(Debug, Deserialize)]
struct Demo {
    window_records: u32,
    #[serde(rename = "timeout_ms", with = "duration::millis")]
    timeout: Duration,
    ratio: f64,
    enabled: bool,
    name: String,
    tags: Vec<String>,
    nested: Nested,
}

#[derive(Debug, Deserialize)]
struct Nested {
    depth: u8,
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

fn env(pairs: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    pairs.into_iter()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// The problems of a file and an environment as texts.
fn problems(file_text: &str, pairs: &[(&str, &str)]) -> Vec<String> {
    let file = file(file_text);
    let error = load_and_validate::<Config>(DEFAULTS, Some(file.path()), env(pairs)).expect_err("must be refused");
    error.problems.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn one_problem(file_text: &str, pairs: &[(&str, &str)], parts: &[&str]) {
    let problems = problems(file_text, pairs);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    for part in parts {
        assert!(problems[0].contains(part), "`{part}` not in `{}`", problems[0]);
    }
}

#[test]
fn defaults_alone_are_valid() {
    let (config, shared, _) = load_and_validate::<Config>(DEFAULTS, None, env(&[])).unwrap();
    assert_eq!(config.demo.timeout, Duration::from_millis(250));
    assert_eq!(config.kafka.bootstrap_servers, ["localhost:9092"]);
    assert_eq!(
        shared.limits,
        crate::Limits::default(),
        "the embedded defaults are the decided values"
    );
    assert_eq!(shared.kafka.topic_profile, TopicProfile::Replicated);
}

#[test]
fn the_environment_wins_over_the_file_and_is_typed_by_the_default() {
    let file = file("[demo]\nwindow_records = 1\nname = \"file\"\nratio = 2\n");
    let pairs = [
        ("TIDINGS__DEMO__WINDOW_RECORDS", "64"),
        ("TIDINGS__DEMO__TIMEOUT_MS", "7"),
        ("TIDINGS__DEMO__ENABLED", "false"),
        ("TIDINGS__DEMO__TAGS", "x, y ,,z"),
        ("TIDINGS__DEMO__NESTED__DEPTH", "9"),
        ("TIDINGS__KAFKA__BOOTSTRAP_SERVERS", "k1:9092,k2:9092"),
        ("TIDINGS_CONFIG", "/not/looked/at"),
        ("TIDINGS_GATEWAY_PORT", "tcp://10.0.0.1:8080"),
        ("PATH", "/bin"),
    ];
    let config: Config = load(DEFAULTS, Some(file.path()), env(&pairs)).unwrap();
    let demo = config.demo;
    assert_eq!(
        (demo.window_records, demo.timeout, demo.enabled),
        (64, Duration::from_millis(7), false)
    );
    assert_eq!(demo.tags, ["x", "y", "z"]);
    assert_eq!((demo.name.as_str(), demo.ratio, demo.nested.depth), ("file", 2.0, 9));
    assert_eq!(config.kafka.bootstrap_servers, ["k1:9092", "k2:9092"]);
}

#[test]
fn unknown_keys_are_refused_with_path_and_nearest_key() {
    one_problem(
        "[demo]\nwindow_recrods = 1",
        &[],
        &["`demo.window_recrods`", "did you mean `demo.window_records`?"],
    );
    one_problem(
        "[kafak]\nbootstrap_servers = []",
        &[],
        &["`kafak.bootstrap_servers`", "`kafka.bootstrap_servers`"],
    );
    one_problem(
        "[demo]\nbootstrap_servers = []",
        &[],
        &["`demo.bootstrap_servers`", "`kafka.bootstrap_servers`"],
    );
    one_problem(
        "[demo.nested]\ndeph = 2",
        &[],
        &["`demo.nested.deph`", "`demo.nested.depth`"],
    );
    one_problem(
        "",
        &[("TIDINGS__DEMO__TIMEOUT", "1")],
        &[
            "environment variable TIDINGS__DEMO__TIMEOUT",
            "`demo.timeout`",
            "`demo.timeout_ms`",
        ],
    );
    one_problem(
        "",
        &[("TIDINGS__QQQQQQQQQQQQQQQQQQQQQQQQQQQQQ", "1")],
        &["unknown key `qqqq"],
    );
    one_problem("[zzzzzzzzzzzzzzzzzzzzz]", &[], &["unknown key `zzzz"]);
}

#[test]
fn removed_keys_say_what_replaced_them() {
    one_problem(
        "[demo]\nwindow = 1",
        &[],
        &["`demo.window` was removed", "use demo.window_records"],
    );
    one_problem(
        "",
        &[("TIDINGS__DEMO__WINDOW", "1")],
        &["`demo.window` was removed", "use demo.window_records"],
    );
    one_problem("[removed]\nx = 1", &[], &["unknown key `removed.x`"]);
}

#[test]
fn wrong_types_name_key_got_and_wanted() {
    one_problem(
        "[demo]\nwindow_records = \"many\"",
        &[],
        &["`demo.window_records`", "an integer", "a string `many`"],
    );
    one_problem("[demo]\nwindow_records = 1.5", &[], &["must be an integer", "1.5"]);
    one_problem(
        "[demo]\nenabled = 1",
        &[],
        &["`demo.enabled`", "true or false", "an integer `1`"],
    );
    one_problem(
        "[demo]\ntags = [1]",
        &[],
        &["`demo.tags`", "a list of strings", "a list"],
    );
    one_problem("[demo]\ntags = \"a\"", &[], &["a list of strings", "a string `a`"]);
    one_problem("[demo]\nname = { x = 1 }", &[], &["`demo.name`", "got a section"]);
    one_problem("demo = 3", &[], &["`demo` must be a section"]);
    one_problem("[demo]\nratio = inf", &[], &["a finite float"]);
    one_problem(
        "",
        &[("TIDINGS__DEMO__RATIO", "half")],
        &["TIDINGS__DEMO__RATIO", "a finite float", "`half`"],
    );
    one_problem("", &[("TIDINGS__DEMO__RATIO", "NaN")], &["a finite float"]);
    one_problem("", &[("TIDINGS__DEMO__ENABLED", "yes")], &["true or false", "`yes`"]);
    one_problem("", &[("TIDINGS__DEMO__WINDOW_RECORDS", "")], &["an integer", "``"]);
    one_problem(
        "",
        &[("TIDINGS__DEMO__NESTED", "1")],
        &["`demo.nested` must be a section"],
    );
}

#[test]
fn negative_durations_and_counts_are_refused() {
    one_problem(
        "[demo]\ntimeout_ms = -1",
        &[],
        &["`demo.timeout_ms` must not be negative, got -1"],
    );
    one_problem(
        "",
        &[("TIDINGS__LIMITS__LIMIT_D", "-6")],
        &["`limits.limit_d` must not be negative, got -6"],
    );
}

#[test]
fn values_out_of_range_and_unknown_choices_name_the_key() {
    one_problem("[demo.nested]\ndepth = 300", &[], &["300", "depth"]);
    one_problem("[kafka]\ntopic_profile = \"triple\"", &[], &["triple", "topic_profile"]);
    one_problem("[log]\nformat = \"xml\"", &[], &["xml", "format"]);
    one_problem(
        "[log]\nfilter = \"tidings=loudly\"",
        &[],
        &["log.filter", "tidings=loudly"],
    );
}

#[test]
fn all_problems_of_all_layers_come_together() {
    let problems = problems(
        "[demo]\nwindow_recrods = 1\nenabled = \"on\"\ntimeout_ms = -5\nwindow = 3\n[redis]\nurll = \"\"\n",
        &[
            ("TIDINGS__CQL__REPLICATION_FACTOR", "three"),
            ("TIDINGS__NO__SUCH", "1"),
        ],
    );
    assert_eq!(problems.len(), 7, "{problems:#?}");
}

#[test]
fn relations_are_checked_for_shared_sections_and_the_services_own() {
    let problems = problems(
        "[demo]\nwindow_records = 0\n[kafka]\nbootstrap_servers = []\n[limits]\nlimit_d = 7\nmsg_id_max_age_d = 33\n",
        &[("TIDINGS__REDIS__URL", "http://user:hunter2@cache")],
    );
    assert_eq!(problems.len(), 5, "{problems:#?}");
    for part in [
        "kafka.bootstrap_servers must name at least one",
        "limits.limit_d (7) must be less than the 7 days that records of the log last",
        "limits.msg_id_max_age_d (33) + limits.limit_d (7) must be less than the 40 days that intents of the router last",
        "demo.window_records",
        "redis.url must start with",
    ] {
        assert!(
            problems.iter().any(|problem| problem.contains(part)),
            "{part}: {problems:#?}"
        );
    }
    assert!(
        !problems.iter().any(|problem| problem.contains("hunter2")),
        "{problems:#?}"
    );
}

#[test]
fn relations_of_the_other_sections() {
    one_problem(
        "[shutdown]\ndeadline_ms = 10",
        &[],
        &["shutdown.deadline_ms (10) must be at least 1000"],
    );
    one_problem(
        "[internal]\nshared_token = \"two words\"",
        &[],
        &["internal.shared_token must be visible ASCII"],
    );
    one_problem(
        "[kafka]\nsecurity_protocol = \"sasl_ssl\"",
        &[],
        &["kafka.sasl_username", "kafka.sasl_password"],
    );
    one_problem(
        "[kafka]\nmax_poll_interval_ms = 1000",
        &[],
        &["max_poll_interval_ms (1000)", "session_timeout_ms (30000)"],
    );
    one_problem(
        "[kafka]\nbootstrap_servers = [\"k1\"]",
        &[],
        &["kafka.bootstrap_servers must be host:port, got `k1`"],
    );
    one_problem("[cql]\nkeyspace = \"x; drop\"", &[], &["cql.keyspace", "x; drop"]);
    one_problem("[cql]\nusername = \"reader\"", &[], &["cql.username and cql.password"]);
    one_problem(
        "[internal]\nadvertise_addr = \"me\"",
        &[],
        &["internal.advertise_addr", "`me`"],
    );
    one_problem(
        "[internal]\nresponse_timeout_ms = 100",
        &[],
        &["response_timeout_ms (100)", "connect_timeout_ms (2000)"],
    );
}

#[test]
fn an_unreadable_file_and_bad_syntax_are_told_without_quoting_the_line() {
    let error = load::<Config>(DEFAULTS, Some(Path::new("/no/such/file.toml")), env(&[])).unwrap_err();
    assert!(
        error.to_string().contains("/no/such/file.toml: cannot be read"),
        "{error}"
    );
    let problems = problems("[demo]\nname = \"x\"\napi_token = hunter2\n", &[]);
    assert!(problems[0].contains("line 3"), "{problems:?}");
    assert!(!problems[0].contains("hunter2"), "{problems:?}");
}

#[test]
fn secrets_are_hidden_wherever_they_could_be_printed() {
    let pairs = [
        ("TIDINGS__DEMO__API_TOKEN", "hunter2"),
        ("TIDINGS__INTERNAL__SHARED_TOKEN", "hunter2"),
        ("TIDINGS__CQL__USERNAME", "reader"),
        ("TIDINGS__CQL__PASSWORD", "hunter2"),
        ("TIDINGS__REDIS__URL", "rediss://user:hunter2@cache:6379/1"),
        ("TIDINGS__DEMO__UPSTREAM_URL", "https://hunter2@host/path"),
    ];
    let (_, shared, merged) = load_and_validate::<Config>(DEFAULTS, None, env(&pairs)).unwrap();
    for text in [merged.redacted(), format!("{merged:?}"), format!("{shared:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
    let printed = merged.redacted();
    assert!(printed.contains("rediss://***@cache:6379/1"), "{printed}");
    assert!(printed.contains("api_token = \"***\""), "{printed}");
    assert!(
        printed.contains("sasl_password = \"\""),
        "unset stays visible as unset: {printed}"
    );
    assert_eq!(shared.internal.shared_token.expose(), Some("hunter2"));
    one_problem(
        "[cql]\npassword = 12345",
        &[],
        &["`cql.password` must be a string", "an integer ***"],
    );
}

#[test]
fn user_information_is_hidden_also_when_the_password_is_odd() {
    assert_eq!(redact_url("redis://u:p@ss@host/0"), "redis://***@host/0");
    assert_eq!(redact_url("redis://u:p/ss@host/0"), "redis://***@host/0");
    assert_eq!(redact_url("redis://host/0"), "redis://host/0");
    assert_eq!(redact_url("no url at a@b"), "no url at a@b");
}

#[test]
fn a_service_cannot_change_the_type_of_a_shared_key() {
    let error = load::<toml::Table>("[kafka]\nbootstrap_servers = 3", None, env(&[])).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("built-in defaults: key `kafka.bootstrap_servers`"),
        "{error}"
    );
}

#[test]
fn several_services_in_one_process_share_one_configuration() {
    let defaults = [
        DEFAULTS,
        "[other]\nsize_bytes = 4\n[removed]\n\"other.size\" = \"use other.size_bytes\"\n",
    ];
    let pairs = [
        ("TIDINGS__DEMO__WINDOW_RECORDS", "5"),
        ("TIDINGS__OTHER__SIZE_BYTES", "6"),
    ];
    let merged = merge_all(&defaults, None, env(&pairs)).unwrap();
    assert_eq!(merged.parse::<Config>().unwrap().demo.window_records, 5);
    assert!(merged.redacted().contains("size_bytes = 6"));
    let error = merge_all(&defaults, None, env(&[("TIDINGS__OTHER__SIZE", "6")])).unwrap_err();
    assert!(error.to_string().contains("use other.size_bytes"), "{error}");
}
