//! `tidings dlq`: what could not be handled.

use std::path::PathBuf;

use anyhow::Context as _;
use tidings_chassis::config::{Secret, Shared};
use tidings_chassis::grpc;
use tidings_domain::clock::{Clock, Millis, SystemClock};
use tidings_proto::v1::dead_letters_client::DeadLettersClient;
use tidings_proto::v1::{DeadLetter, ListDeadLettersRequest};

/// `tidings dlq ...`
#[derive(Debug, clap::Subcommand)]
pub(crate) enum DlqCommand {
    /// Lists dead letters.
    Ls(ListArgs),
}

/// `tidings dlq ls`
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Internal address of a dead-letter-compensator.
    #[arg(long, env = "TIDINGS_COMPENSATOR", default_value = "127.0.0.1:9090")]
    compensator: String,
    /// Ask the `tidings dev` that uses this directory.
    #[arg(long, conflicts_with = "compensator")]
    data_dir: Option<PathBuf>,
    /// Token of the internal listener (`internal.shared_token`).
    #[arg(
        long,
        env = "TIDINGS__INTERNAL__SHARED_TOKEN",
        hide_env_values = true,
        default_value = ""
    )]
    token: String,
    /// Only of this error class.
    #[arg(long, default_value = "")]
    class: String,
    /// Only of this origin topic: ingress, history, inbox, push, trace.
    #[arg(long, default_value = "")]
    topic: String,
    /// Only in this state: new, replaying, resolved, parked, dropped.
    #[arg(long, default_value = "")]
    state: String,
    /// Most entries to show.
    #[arg(long, default_value_t = 100)]
    limit: u32,
    /// Show keys and values, which may hold what users wrote.
    #[arg(long)]
    with_value: bool,
    /// One JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs a `dlq` command.
pub(crate) async fn run(command: DlqCommand) -> anyhow::Result<()> {
    match command {
        DlqCommand::Ls(args) => list(args).await,
    }
}

async fn list(args: ListArgs) -> anyhow::Result<()> {
    let (address, token) = match &args.data_dir {
        Some(data_dir) => {
            let instance = crate::dev::Instance::load(data_dir)?;
            (instance.internal, instance.internal_token)
        }
        None => (args.compensator.clone(), args.token.clone()),
    };
    let mut internal = Shared::defaults().internal;
    internal.shared_token = Secret::new(token);
    let mut client = DeadLettersClient::new(grpc::connect_one(&internal, &address)?);
    let mut after_id = String::new();
    let mut shown = 0;
    let now = SystemClock.now();
    if !args.json {
        println!(
            "{:<9} {:<22} {:>8} {:>8} {:>9}  ID",
            "STATE", "CLASS", "AGE", "ATTEMPTS", "BYTES"
        );
    }
    while shown < args.limit {
        let request = ListDeadLettersRequest {
            error_class: args.class.clone(),
            topic: args.topic.clone(),
            state: args.state.clone(),
            limit: args.limit - shown,
            after_id,
            with_value: args.with_value,
        };
        let page = client
            .list(request)
            .await
            .map_err(|status| anyhow::anyhow!("{}", status.message().to_owned()))
            .with_context(|| format!("the dead-letter-compensator at {address} did not answer"))?
            .into_inner();
        shown += u32::try_from(page.entries.len()).unwrap_or(u32::MAX);
        for entry in &page.entries {
            if args.json {
                print_json(entry)?;
            } else {
                print_row(entry, now, args.with_value);
            }
        }
        if page.next_after_id.is_empty() {
            break;
        }
        after_id = page.next_after_id;
    }
    if !args.json {
        println!("{shown} shown");
    }
    Ok(())
}

fn print_row(entry: &DeadLetter, now: Millis, with_value: bool) {
    let age = now.since(Millis(entry.first_failed_at)).as_secs();
    let age = match age {
        0..=119 => format!("{age}s"),
        120..=7199 => format!("{}m", age / 60),
        7200..=172_799 => format!("{}h", age / 3600),
        _ => format!("{}d", age / 86_400),
    };
    let bytes = if entry.value_is_null {
        "null".to_owned()
    } else {
        entry.value_bytes.to_string()
    };
    println!(
        "{:<9} {:<22} {:>8} {:>8} {:>9}  {}",
        entry.state, entry.error_class, age, entry.attempts, bytes, entry.dlq_id
    );
    if !entry.error_detail.is_empty() {
        println!("          {}", entry.error_detail);
    }
    if with_value {
        println!("          key {}", String::from_utf8_lossy(&entry.key).escape_debug());
        println!("          value {}", hex(&entry.value));
    }
}

fn print_json(entry: &DeadLetter) -> anyhow::Result<()> {
    let object = serde_json::json!({
        "dlq_id": entry.dlq_id,
        "topic": entry.topic,
        "partition": entry.partition,
        "offset": entry.offset.to_string(),
        "consumer_group": entry.consumer_group,
        "error_class": entry.error_class,
        "error_detail": entry.error_detail,
        "attempts": entry.attempts,
        "first_failed_at": entry.first_failed_at,
        "last_failed_at": entry.last_failed_at,
        "state": entry.state,
        "replay_count": entry.replay_count,
        "value_bytes": entry.value_bytes,
        "value_is_null": entry.value_is_null,
        "key_hex": hex(&entry.key),
        "value_hex": hex(&entry.value),
    });
    println!("{}", serde_json::to_string(&object)?);
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
