//! `dead_letter`.

use std::collections::HashSet;

use async_trait::async_trait;

use super::keys::Key;
use super::values::Value;
use super::{EmbeddedStore, decode};
use crate::Error;
use crate::port::{DeadLetterFilter, DeadLetterRow, DeadLetterState, DeadLetterStore};

fn id_key(dlq_id: &str) -> Vec<u8> {
    Key::default().text(dlq_id).finish()
}

impl EmbeddedStore {
    fn take_in_all(&self, rows: &[DeadLetterRow]) -> Result<Vec<bool>, Error> {
        const OPERATION: &str = "take_in";
        let table = &self.tables().dead_letter;
        let _writing = self.inner.dead_letters.lock();
        let mut taken = HashSet::new();
        let mut fresh = Vec::with_capacity(rows.len());
        for row in rows {
            let known = !taken.insert(row.dlq_id.as_str()) || table.get(OPERATION, &id_key(&row.dlq_id))?.is_some();
            fresh.push(!known);
        }
        let new_rows = rows.iter().zip(&fresh).filter(|(_, fresh)| **fresh);
        self.insert_all(
            OPERATION,
            new_rows.map(|(row, _)| (table, id_key(&row.dlq_id), row.encode())),
        )?;
        Ok(fresh)
    }

    fn list_blocking(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetterRow>, Error> {
        const OPERATION: &str = "list";
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        let from = match &filter.after_id {
            Some(after) => {
                let mut first_after = id_key(after);
                first_after.push(0);
                first_after
            }
            None => Vec::new(),
        };
        // Ids are text, so every key is below this one.
        let range = (from, vec![u8::MAX]);
        self.tables().dead_letter.scan(OPERATION, range, |_, value| {
            let row: DeadLetterRow = decode(OPERATION, value)?;
            if filter.admits(&row.error_class, row.topic, row.state) {
                found.push(row);
            }
            Ok(found.len() < limit)
        })?;
        Ok(found)
    }
}

#[async_trait]
impl DeadLetterStore for EmbeddedStore {
    async fn take_in(&self, rows: &[DeadLetterRow]) -> Vec<Result<bool, Error>> {
        match self.take_in_all(rows) {
            Ok(fresh) => fresh.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); rows.len()],
        }
    }

    async fn set_state(&self, dlq_id: &str, state: DeadLetterState) -> Result<bool, Error> {
        const OPERATION: &str = "set_state";
        let table = &self.tables().dead_letter;
        let key = id_key(dlq_id);
        let _writing = self.inner.dead_letters.lock();
        let Some(mut row) = table.get_value::<DeadLetterRow>(OPERATION, &key)? else {
            return Ok(false);
        };
        row.state = state;
        self.insert_all(OPERATION, [(table, key, row.encode())])?;
        Ok(true)
    }

    async fn get(&self, dlq_id: &str) -> Result<Option<DeadLetterRow>, Error> {
        self.tables().dead_letter.get_value("get", &id_key(dlq_id))
    }

    async fn list(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetterRow>, Error> {
        let store = self.clone();
        let filter = filter.clone();
        // A filter that admits little scans much.
        let listing = tokio::task::spawn_blocking(move || store.list_blocking(&filter, limit));
        listing.await.map_err(|error| Error::Unavailable {
            operation: "list",
            reason: error.to_string(),
        })?
    }
}
