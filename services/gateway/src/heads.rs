//! Stream heads for PONG: one batched `Inbox.Heads` for all users of this gateway, now and then.
//!
//! The head a session knows is the largest of what was pushed to it and this answer (architecture.md section 3), so a
//! device whose pushes were all lost learns within the interval that it is behind (req:C5).

use std::collections::HashMap;
use std::sync::Arc;

use tidings_domain::Uid;
use tidings_proto::rpc::Channel;
use tidings_proto::v1::HeadsRequest;
use tidings_proto::v1::inbox_client::InboxClient;

use crate::error::Error;
use crate::table::{Handle, Table};

/// Users of one call; the inbox answers at most 1,000.
const BATCH: usize = 500;

/// Refreshes the heads of all sessions. The first error ends it: the rest would fail alike.
///
/// # Errors
/// The inbox did not answer.
pub(crate) async fn refresh(table: &Table, inbox: &InboxClient<Channel>) -> Result<(), Error> {
    let mut by_uid: HashMap<Uid, Vec<Arc<Handle>>> = HashMap::new();
    for handle in table.all() {
        by_uid.entry(handle.key.uid.clone()).or_default().push(handle);
    }
    let users: Vec<(Uid, Vec<Arc<Handle>>)> = by_uid.into_iter().collect();
    for batch in users.chunks(BATCH) {
        let uids = batch.iter().map(|(uid, _)| uid.as_str().to_owned()).collect();
        let heads = ask(inbox, uids).await?;
        for ((_, handles), head) in batch.iter().zip(heads) {
            for handle in handles {
                handle.mailbox.learn_head(head);
            }
        }
    }
    Ok(())
}

/// Whether any offline-inbox replica answers.
///
/// # Errors
/// The inbox did not answer.
pub(crate) async fn probe(inbox: &InboxClient<Channel>) -> Result<(), Error> {
    ask(inbox, Vec::new()).await.map(|_| ())
}

async fn ask(inbox: &InboxClient<Channel>, uids: Vec<String>) -> Result<Vec<u64>, Error> {
    let response = inbox.clone().heads(HeadsRequest { uids }).await;
    let response = response.map_err(|status| Error::Call {
        call: "Inbox.Heads",
        status,
    })?;
    Ok(response.into_inner().head_seqs)
}
