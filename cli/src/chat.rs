//! `tidings chat`: a device in the terminal, with its messages in a local file.
//!
//! Lines from standard input are sent to the peer; what arrives is printed once, also over restarts: the local database
//! remembers what was shown.

use std::path::PathBuf;

use anyhow::Context as _;
use tidings_client::{ClientEvent, Handle, MessageState, StoredMessage};
use tidings_domain::{Conversation, Uid};
use tokio::sync::mpsc;

use crate::device::{Login, local_databases};

/// Lines read ahead of the client.
const LINES: usize = 64;

/// `tidings chat`
#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    login: Login,
    /// Whom to talk to; without it the chat only listens, until `/to UID`.
    #[arg(long)]
    to: Option<String>,
    /// Name of this device; each has its own messages and cursor.
    #[arg(long, default_value = "terminal")]
    device: String,
    /// File of this device's messages; by default under ~/.local/share/tidings.
    #[arg(long)]
    database: Option<PathBuf>,
    /// Messages of the conversation to show at the start.
    #[arg(long, default_value_t = 20)]
    backlog: u32,
}

/// Runs the chat until the end of input or `/quit`.
pub(crate) async fn run(args: ChatArgs) -> anyhow::Result<()> {
    let access = args.login.access()?;
    let me = access.uid.clone();
    let mut peer = args.to.as_deref().map(Uid::parse).transpose()?;
    let database = match args.database {
        Some(file) => file,
        None => {
            let dir = local_databases()?;
            std::fs::create_dir_all(&dir).with_context(|| format!("{} cannot be made", dir.display()))?;
            dir.join(format!("{me}.{}.sqlite", args.device))
        }
    };
    eprintln!("messages of this device: {}", database.display());
    let (client, mut events, running) = tidings_client::spawn(access.client(&args.device, database.into())?)?;
    if let Some(peer) = &peer {
        show_backlog(&client, &me, peer, args.backlog).await?;
    }
    let mut lines = input();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(event) => show(&me, event),
                None => return Ok(running.await??),
            },
            line = lines.recv() => match line.as_deref().map(str::trim) {
                None | Some("/quit") => break,
                Some("") => {}
                Some(line) => match line.strip_prefix("/to ") {
                    Some(uid) => match Uid::parse(uid.trim()) {
                        Ok(uid) => {
                            show_backlog(&client, &me, &uid, args.backlog).await?;
                            peer = Some(uid);
                        }
                        Err(error) => eprintln!("{error}"),
                    },
                    None => match &peer {
                        Some(peer) => {
                            client.send(peer.clone(), "text", line.to_owned()).await?;
                        }
                        None => eprintln!("say /to UID first"),
                    },
                },
            },
        }
    }
    client.close().await;
    Ok(running.await??)
}

/// Standard input, line by line. Reading blocks, so a thread does it; it ends with the input or the process.
fn input() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(LINES);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

async fn show_backlog(client: &Handle, me: &Uid, peer: &Uid, limit: u32) -> anyhow::Result<()> {
    let conversation = Conversation::direct(me, peer);
    for message in client.messages(conversation, limit).await? {
        print_message(me, &message);
    }
    Ok(())
}

fn show(me: &Uid, event: ClientEvent) {
    match event {
        ClientEvent::Shown(message) => print_message(me, &message),
        ClientEvent::StateChanged {
            state: MessageState::Sending | MessageState::Sent,
            ..
        } => {}
        ClientEvent::StateChanged { state, refusal, .. } => match state {
            MessageState::Delivered => println!("      ✓✓ delivered"),
            MessageState::Read => println!("      ✓✓ read"),
            MessageState::Failed => println!("      ✗ failed"),
            MessageState::Rejected => println!("      ✗ refused: {refusal:?}"),
            MessageState::Sending | MessageState::Sent | MessageState::Stored => {}
        },
        ClientEvent::Connected { .. } => eprintln!("connected"),
        ClientEvent::Disconnected { reason } => eprintln!("disconnected: {reason}"),
        ClientEvent::Truncated { unread, .. } => eprintln!("{unread} older messages are no longer kept"),
        ClientEvent::CursorReset => eprintln!("the server starts this device anew"),
        ClientEvent::Missed(count) => eprintln!("{count} events not shown here; they are in the database"),
        ClientEvent::Renewed { .. } | ClientEvent::ReadSync { .. } | ClientEvent::Synced { .. } => {}
    }
}

fn print_message(me: &Uid, message: &StoredMessage) {
    let text = String::from_utf8_lossy(&message.body);
    let who = if message.sender == *me {
        "me"
    } else {
        message.sender.as_str()
    };
    let number = message.conv_seq.map_or_else(|| "…".to_owned(), |seq| format!("#{seq}"));
    // Control characters of a peer must not steer this terminal.
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    println!("{number:>5} {who}: {text}");
}
