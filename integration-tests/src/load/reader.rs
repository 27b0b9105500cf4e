//! Reads whole streams and histories after a run, as the servers tell them: the oracle's evidence.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use tidings_domain::{Conversation, Uid};
use tidings_proto::v1;
use tokio::time::Instant;

use super::session::{Hello, Session};
use super::stream::{key_of, kind_of};
use crate::oracle::{Entry, HistoryEntry, Ledger, SharedLedger};
use crate::system::System;

/// The device that reads; it shows nothing.
const AUDITOR: &str = "auditor";
/// Readers at work at the same time.
const READERS: usize = 16;
/// For one frame.
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);
/// A refused round is asked for again until then.
const ROUND_DEADLINE: Duration = Duration::from_secs(60);

/// Reads the stream of every user and the history of every conversation of the ledger, and adds them to it.
pub async fn gather_evidence(system: &dyn System, ledger: &SharedLedger) -> Result<()> {
    let (uids, conversations) = ledger.lock().subjects();
    let gateways = system.gateway_urls();
    let reads = uids.into_iter().enumerate().map(|(at, uid)| {
        let gateway = gateways[at % gateways.len()].clone();
        let mine: Vec<Conversation> = conversations
            .iter()
            .filter(|(_, reader)| *reader == uid)
            .map(|(conversation, _)| conversation.clone())
            .collect();
        let token = system.token(&uid);
        let ledger = Arc::clone(ledger);
        async move {
            let token = token?;
            let entries = read_stream(&gateway, &token)
                .await
                .with_context(|| format!("reading the stream of {uid}"))?;
            ledger.lock().stream(uid, entries);
            for conversation in mine {
                let entries = read_history(&gateway, &token, &conversation)
                    .await
                    .with_context(|| format!("reading the history of {conversation}"))?;
                ledger.lock().history(conversation, entries);
            }
            anyhow::Ok(())
        }
    });
    stream::iter(reads)
        .buffer_unordered(READERS)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

/// The whole stream of the token's user: a device with cursor 0 pulls until the end marker (req:C3: a cursor behind the
/// server's record is honoured).
pub async fn read_stream(gateway: &str, token: &str) -> Result<Vec<Entry>> {
    let mut hello = Hello {
        gateway: gateway.to_owned(),
        token: token.to_owned(),
        device: AUDITOR.to_owned(),
        cursor: None,
    };
    let (mut session, connected) = Session::open(&hello).await?;
    let cursor = v1::Cursor {
        epoch: connected.epoch,
        user_seq: 0,
    };
    hello.cursor = Some(cursor);
    session
        .send(v1::client_frame::Frame::Sync(v1::Sync { cursor: Some(cursor) }))
        .await?;
    let mut entries: Vec<Entry> = Vec::new();
    let end = Instant::now() + ROUND_DEADLINE;
    loop {
        ensure!(Instant::now() < end, "no end marker within {ROUND_DEADLINE:?}");
        let frame = session.wait_for("a page", ANSWER_DEADLINE, Some).await?;
        match frame {
            v1::server_frame::Frame::SyncPage(page) => {
                for push in page.events {
                    let event = push.event.context("an event is missing")?;
                    entries.push(Entry {
                        user_seq: push.user_seq,
                        event: kind_of(&event),
                    });
                }
                if page.end_of_backlog {
                    return Ok(entries);
                }
                // The storage ACK opens the window for further pages.
                let stored = page.next_user_seq;
                let ack = v1::Ack {
                    epoch: connected.epoch,
                    delivered: stored,
                    stored,
                    convs: Vec::new(),
                };
                session.send(v1::client_frame::Frame::Ack(ack)).await?;
            }
            v1::server_frame::Frame::Error(error) if error.retry_after_ms > 0 => {
                tokio::time::sleep(Duration::from_millis(u64::from(error.retry_after_ms))).await;
                entries.clear();
                session
                    .send(v1::client_frame::Frame::Sync(v1::Sync { cursor: Some(cursor) }))
                    .await?;
            }
            v1::server_frame::Frame::CursorReset(reset) => bail!("cursor 0 was reset: {reset:?}"),
            v1::server_frame::Frame::Truncated(truncated) => bail!("the stream is truncated: {truncated:?}"),
            v1::server_frame::Frame::Error(error) => bail!("the round was refused: {error:?}"),
            v1::server_frame::Frame::Closing(closing) => bail!("the gateway closes: {closing:?}"),
            // Other frames are for a device that lives.
            v1::server_frame::Frame::Connected(_)
            | v1::server_frame::Frame::MsgAck(_)
            | v1::server_frame::Frame::Push(_)
            | v1::server_frame::Frame::Head(_)
            | v1::server_frame::Frame::Pong(_)
            | v1::server_frame::Frame::HistoryPage(_) => {}
        }
    }
}

/// The whole history of a conversation, as the token's user may see it.
pub async fn read_history(gateway: &str, token: &str, conversation: &Conversation) -> Result<Vec<HistoryEntry>> {
    let hello = Hello {
        gateway: gateway.to_owned(),
        token: token.to_owned(),
        device: AUDITOR.to_owned(),
        cursor: None,
    };
    let (mut session, _) = Session::open(&hello).await?;
    let mut entries = Vec::new();
    let mut from = 1;
    for request_id in 1.. {
        let request = v1::HistoryRequest {
            request_id,
            conversation: conversation.as_str().to_owned(),
            from_conv_seq: from,
            to_conv_seq: 0,
            limit: 0,
        };
        session.send(v1::client_frame::Frame::History(request)).await?;
        let page = session
            .wait_for("a page of history", ANSWER_DEADLINE, |frame| {
                if let v1::server_frame::Frame::HistoryPage(page) = frame {
                    return (page.request_id == request_id).then_some(Ok(page));
                }
                if let v1::server_frame::Frame::Error(error) = frame {
                    return Some(Err(anyhow::anyhow!("history was refused: {error:?}")));
                }
                None
            })
            .await??;
        for message in &page.messages {
            if message.action == v1::Action::Send as i32 {
                entries.push(HistoryEntry {
                    conv_seq: message.conv_seq,
                    key: key_of(message).context("a message without ids")?,
                    body: Ledger::body_hash(&message.body),
                });
            }
        }
        if !page.has_more {
            break;
        }
        from = page.to_conv_seq + 1;
    }
    Ok(entries)
}

/// The numbers a user's stream reaches now.
pub async fn head(gateway: &str, token: &str, uid: &Uid) -> Result<u64> {
    let hello = Hello {
        gateway: gateway.to_owned(),
        token: token.to_owned(),
        device: AUDITOR.to_owned(),
        cursor: None,
    };
    let (_, connected) = Session::open(&hello)
        .await
        .with_context(|| format!("asking for the head of {uid}"))?;
    Ok(connected.head_seq)
}
