//! Merging the layers, with the defaults as the schema.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::error::{ConfigError, Origin, Problem};
use super::redact::{HIDDEN, is_secret, redact_url, redacted};

/// Prefix of the environment variables that are configuration. Others, such as `TIDINGS_CONFIG` or the ones the
/// platform makes for a service named `tidings-…`, are not looked at.
pub const ENV_PREFIX: &str = "TIDINGS__";

/// The defaults of the sections every service shares.
pub const SHARED_DEFAULTS: &str = include_str!("../config.default.toml");

/// The table of the defaults that is not configuration but the list of former keys.
const REMOVED: &str = "removed";

/// Names this much alike (0 to 1) are worth a suggestion.
const SUGGESTION_MIN: f64 = 0.5;

/// Endings of integer keys that can only be counted from zero.
const COUNTED: [&str; 9] = ["_ms", "_us", "_s", "_m", "_h", "_d", "_bytes", "_records", "_count"];

/// The merged, checked table.
#[derive(Clone, PartialEq)]
pub struct Merged {
    table: Table,
}

impl std::fmt::Debug for Merged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Merged").field(&redacted(&self.table)).finish()
    }
}

impl Merged {
    /// Reads the table as `T`; sections that `T` does not name are left out.
    ///
    /// # Errors
    /// The first value `T` cannot take, as one [`Problem::Value`].
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        self.table.clone().try_into().map_err(|error: toml::de::Error| {
            // `Display` names the path of the key but never its value beyond the parser's "unknown variant" text.
            ConfigError {
                problems: vec![Problem::Value(error.to_string().trim_end().replace('\n', " "))],
            }
        })
    }

    /// The whole configuration as TOML, secrets hidden.
    pub fn redacted(&self) -> String {
        // A table that came from TOML text always goes back to it.
        toml::to_string_pretty(&redacted(&self.table)).unwrap_or_else(|error| format!("# cannot be printed: {error}\n"))
    }
}

/// Merges shared defaults, service defaults, file and environment.
///
/// # Errors
/// Every problem found in any layer.
pub fn merge(
    defaults_toml: &str,
    file: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Merged, ConfigError> {
    merge_all(&[defaults_toml], file, env)
}

/// [`merge`] for several services in one process, each of which then reads its part with [`Merged::parse`]. Where two
/// services change the default of the same shared key, the later one wins.
///
/// # Errors
/// Every problem found in any layer.
pub fn merge_all(
    defaults_tomls: &[&str],
    file: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Merged, ConfigError> {
    let mut problems = Vec::new();
    let mut schema = parse_layer(SHARED_DEFAULTS, &Origin::Defaults, &mut problems);
    let mut removed = take_removed(&mut schema);
    for defaults in defaults_tomls {
        let mut service = parse_layer(defaults, &Origin::Defaults, &mut problems);
        removed.extend(take_removed(&mut service));
        // The service declares new keys and changes values of shared ones, but not their types.
        add_defaults(&mut schema, service, "", &mut problems);
    }

    let mut table = schema.clone();
    let keys = leaves(&schema);
    let mut overlay = Overlay {
        keys: &keys,
        removed: &removed,
        problems: &mut problems,
    };
    if let Some(path) = file {
        let origin = Origin::File(path.to_owned());
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let layer = parse_layer(&text, &origin, overlay.problems);
                overlay.table(&mut table, layer, "", &origin);
            }
            Err(error) => overlay.problems.push(Problem::Unreadable {
                origin,
                cause: error.to_string(),
            }),
        }
    }
    // Sorted, so that the problems come in the same order every time.
    let env: BTreeMap<String, String> = env.filter(|(name, _)| name.starts_with(ENV_PREFIX)).collect();
    for (name, text) in env {
        overlay.env(&mut table, name, &text);
    }
    if problems.is_empty() {
        Ok(Merged { table })
    } else {
        Err(ConfigError { problems })
    }
}

fn parse_layer(text: &str, origin: &Origin, problems: &mut Vec<Problem>) -> Table {
    text.parse::<Table>().unwrap_or_else(|error| {
        // Not the error's `Display`: that quotes the line, which may hold a secret.
        let line = error
            .span()
            .map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        problems.push(Problem::Syntax {
            origin: origin.clone(),
            line,
            message: error.message().to_owned(),
        });
        Table::new()
    })
}

fn take_removed(table: &mut Table) -> BTreeMap<String, String> {
    let Some(Value::Table(removed)) = table.remove(REMOVED) else {
        return BTreeMap::new();
    };
    let text = |key: String| {
        let message = lookup(&removed, &key)
            .and_then(Value::as_str)
            .unwrap_or("see the release notes")
            .to_owned();
        (key, message)
    };
    leaves(&removed).into_iter().map(text).collect()
}

/// The value at a dotted path; a key that itself holds dots (quoted in TOML) is found too.
fn lookup<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    if let Some(value) = table.get(path) {
        return Some(value);
    }
    let (section, rest) = path.split_once('.')?;
    lookup(table.get(section)?.as_table()?, rest)
}

fn lookup_mut<'a>(table: &'a mut Table, path: &str) -> Option<&'a mut Value> {
    match path.split_once('.') {
        None => table.get_mut(path),
        Some((section, rest)) => lookup_mut(table.get_mut(section)?.as_table_mut()?, rest),
    }
}

/// Full paths of all values that are not tables.
fn leaves(table: &Table) -> Vec<String> {
    fn walk(table: &Table, path: &str, found: &mut Vec<String>) {
        for (key, value) in table {
            let path = join(path, key);
            match value.as_table() {
                Some(inner) => walk(inner, &path, found),
                None => found.push(path),
            }
        }
    }
    let mut found = Vec::new();
    walk(table, "", &mut found);
    found
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn add_defaults(schema: &mut Table, service: Table, path: &str, problems: &mut Vec<Problem>) {
    for (key, value) in service {
        let path = join(path, &key);
        match (schema.get_mut(&key), value) {
            (Some(Value::Table(known)), Value::Table(more)) => add_defaults(known, more, &path, problems),
            (Some(known), value) => match fit(known, value, &path, &Origin::Defaults) {
                Ok(value) => *known = value,
                Err(problem) => problems.push(problem),
            },
            (None, value) => {
                schema.insert(key, value);
            }
        }
    }
}

/// One layer being laid over the table.
struct Overlay<'a> {
    keys: &'a [String],
    removed: &'a BTreeMap<String, String>,
    problems: &'a mut Vec<Problem>,
}

impl Overlay<'_> {
    fn table(&mut self, base: &mut Table, layer: Table, path: &str, origin: &Origin) {
        for (key, value) in layer {
            let path = join(path, &key);
            match (base.get_mut(&key), value) {
                (Some(Value::Table(known)), Value::Table(more)) => self.table(known, more, &path, origin),
                (Some(known), value) => self.set(known, value, &path, origin),
                (None, Value::Table(unknown)) if !unknown.is_empty() && !self.removed.contains_key(&path) => {
                    for leaf in leaves(&unknown) {
                        self.unknown(join(&path, &leaf), origin.clone());
                    }
                }
                (None, _) => self.unknown(path, origin.clone()),
            }
        }
    }

    fn env(&mut self, table: &mut Table, name: String, text: &str) {
        let key = name[ENV_PREFIX.len()..].to_lowercase().replace("__", ".");
        let origin = Origin::Env(name);
        match lookup_mut(table, &key) {
            None => self.unknown(key, origin),
            Some(known) => match typed(known, text) {
                Some(value) => self.set(known, value, &key, &origin),
                None => {
                    let got = if is_secret(&key) {
                        HIDDEN.to_owned()
                    } else {
                        format!("`{text}`")
                    };
                    let wanted = type_name(known);
                    self.problems.push(Problem::WrongType {
                        origin,
                        key,
                        wanted,
                        got,
                    });
                }
            },
        }
    }

    fn set(&mut self, known: &mut Value, value: Value, key: &str, origin: &Origin) {
        match fit(known, value, key, origin) {
            Ok(value) => *known = value,
            Err(problem) => self.problems.push(problem),
        }
    }

    fn unknown(&mut self, key: String, origin: Origin) {
        let problem = match self.removed.get(&key) {
            Some(instead) => Problem::RemovedKey {
                origin,
                key,
                instead: instead.clone(),
            },
            None => Problem::UnknownKey {
                nearest: nearest(&key, self.keys),
                origin,
                key,
            },
        };
        self.problems.push(problem);
    }
}

fn nearest(key: &str, keys: &[String]) -> Option<String> {
    let name = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    keys.iter()
        .map(|candidate| {
            // The right name in the wrong section is as likely a slip as a misspelt path.
            let whole = strsim::normalized_damerau_levenshtein(key, candidate);
            let last = 0.9 * strsim::normalized_damerau_levenshtein(&name(key), &name(candidate));
            (whole.max(last), candidate)
        })
        .filter(|(alike, _)| *alike >= SUGGESTION_MIN)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate.clone())
}

/// The value if it has the type of `known` (integers widen to floats), else what is wrong with it.
fn fit(known: &Value, value: Value, key: &str, origin: &Origin) -> Result<Value, Problem> {
    let strings = |items: &[Value]| items.iter().all(Value::is_str);
    let fitted = match (known, value) {
        (Value::Float(_), Value::Integer(number)) => Ok(Value::Float(number as f64)),
        (Value::Float(_), Value::Float(number)) if !number.is_finite() => Err(Value::Float(number)),
        // An empty default list stands for strings.
        (Value::Array(known), Value::Array(items)) if strings(known) && !strings(&items) => Err(Value::Array(items)),
        (known, value) if known.same_type(&value) => Ok(value),
        (_, value) => Err(value),
    };
    match fitted {
        Ok(Value::Integer(got)) if got < 0 && COUNTED.iter().any(|unit| key.ends_with(unit)) => {
            Err(Problem::Negative {
                origin: origin.clone(),
                key: key.to_owned(),
                got,
            })
        }
        Ok(value) => Ok(value),
        Err(value) => {
            let shown = if value.is_table() || value.is_array() {
                String::new()
            } else if is_secret(key) {
                format!(" {HIDDEN}")
            } else {
                format!(" `{}`", redact_url(value.to_string().trim_matches('"')))
            };
            Err(Problem::WrongType {
                origin: origin.clone(),
                key: key.to_owned(),
                wanted: type_name(known),
                got: format!("{}{shown}", type_name(&value)),
            })
        }
    }
}

/// The text of an environment variable as the type of the default.
fn typed(known: &Value, text: &str) -> Option<Value> {
    match known {
        Value::String(_) => Some(Value::String(text.to_owned())),
        Value::Integer(_) => text.trim().parse().ok().map(Value::Integer),
        Value::Float(_) => text.trim().parse().ok().map(Value::Float),
        Value::Boolean(_) => text.trim().parse().ok().map(Value::Boolean),
        Value::Array(items) if items.iter().all(Value::is_str) => {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            Some(Value::Array(parts.map(|part| Value::String(part.to_owned())).collect()))
        }
        // A section, or a list of something else, cannot be said in one variable.
        Value::Array(_) | Value::Table(_) | Value::Datetime(_) => None,
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a finite float",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(items) if items.iter().all(Value::is_str) => "a list of strings",
        Value::Array(_) => "a list",
        Value::Table(_) => "a section",
    }
}
