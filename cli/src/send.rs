//! `tidings send`: one message, and how far it came.

use std::time::Duration;

use tidings_client::{ClientEvent, Database, MessageState};
use tidings_domain::Uid;

use crate::device::Login;

/// `tidings send`
#[derive(Debug, clap::Args)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    login: Login,
    /// The recipient.
    #[arg(long)]
    to: String,
    /// Name of this device.
    #[arg(long, default_value = "cli-send")]
    device: String,
    /// Wait until the message is sent (link ACK), stored (echo) or delivered.
    #[arg(long, value_enum, default_value_t = Until::Sent)]
    until: Until,
    /// Give up after this time.
    #[arg(long, default_value_t = 30)]
    timeout_s: u64,
    /// What to say.
    text: String,
}

/// How far to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Until {
    Sent,
    Stored,
    Delivered,
}

impl Until {
    fn reached_by(self, state: MessageState) -> bool {
        let rank = |state| match state {
            MessageState::Sending | MessageState::Failed | MessageState::Rejected => 0,
            MessageState::Sent => 1,
            MessageState::Stored => 2,
            MessageState::Delivered | MessageState::Read => 3,
        };
        let wanted = match self {
            Self::Sent => 1,
            Self::Stored => 2,
            Self::Delivered => 3,
        };
        rank(state) >= wanted
    }
}

/// Sends and waits.
pub(crate) async fn run(args: SendArgs) -> anyhow::Result<()> {
    let to = Uid::parse(&args.to)?;
    let access = args.login.access()?;
    // A device of its own with its database in memory: this command waits for the answer and keeps nothing.
    let (client, mut events, running) = tidings_client::spawn(access.client(&args.device, Database::Memory)?)?;
    let sent = client.send(to, "text", args.text).await?;
    let wait = async {
        while let Some(event) = events.next().await {
            match event {
                ClientEvent::StateChanged {
                    msg_id, state, refusal, ..
                } if msg_id == sent => {
                    println!("{msg_id} {}", format!("{state:?}").to_lowercase());
                    anyhow::ensure!(
                        !matches!(state, MessageState::Failed | MessageState::Rejected),
                        "not accepted: {refusal:?}"
                    );
                    if args.until.reached_by(state) {
                        return Ok(());
                    }
                }
                ClientEvent::Disconnected { reason } => eprintln!("disconnected: {reason}"),
                ClientEvent::Shown(_)
                | ClientEvent::StateChanged { .. }
                | ClientEvent::Renewed { .. }
                | ClientEvent::ReadSync { .. }
                | ClientEvent::Connected { .. }
                | ClientEvent::Synced { .. }
                | ClientEvent::CursorReset
                | ClientEvent::Truncated { .. }
                | ClientEvent::Missed(_) => {}
            }
        }
        anyhow::bail!("the client ended before the message was {:?}", args.until)
    };
    let result = tokio::time::timeout(Duration::from_secs(args.timeout_s), wait).await;
    client.close().await;
    running.await??;
    match result {
        Ok(result) => result,
        Err(_) => anyhow::bail!("{sent} is not {:?} after {} s", args.until, args.timeout_s),
    }
}
