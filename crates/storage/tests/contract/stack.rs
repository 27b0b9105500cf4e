//! The stack of real servers that a test run brings along.

use serde_json::Value;

/// `stack.json` of the running stack.
///
/// # Panics
/// Without a stack: these tests never pass by not running.
pub(crate) fn description() -> Value {
    const REMEDY: &str = "start a stack with `cargo xtask stack up --name test` and set \
        TIDINGS_TEST_STACK=target/stack/test/stack.json (an absolute path), or run `cargo xtask test`";
    let path =
        std::env::var_os("TIDINGS_TEST_STACK").unwrap_or_else(|| panic!("TIDINGS_TEST_STACK is not set: {REMEDY}"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{} cannot be read ({error}): {REMEDY}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{} is damaged ({error}): {REMEDY}", path.display()))
}

/// A name no other test has: of letters, digits and `_`.
pub(crate) fn unique_name(prefix: &str) -> String {
    format!("{prefix}_{}", uuid::Uuid::new_v4().simple())
}
