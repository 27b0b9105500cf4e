//! `fold_skip`.

use async_trait::async_trait;
use tidings_domain::Topic;

use super::keys::Key;
use super::values::Value;
use super::{EmbeddedStore, decode};
use crate::Error;
use crate::port::{FoldSkip, RuntimeStore};

fn partition_key(topic: Topic, partition: u32) -> Key {
    Key::default().u8(topic.number()).u32(partition)
}

#[async_trait]
impl RuntimeStore for EmbeddedStore {
    async fn fold_skips(&self, topic: Topic, partition: u32) -> Result<Vec<FoldSkip>, Error> {
        const OPERATION: &str = "fold_skips";
        let mut skips = Vec::new();
        self.tables()
            .fold_skip
            .scan(OPERATION, partition_key(topic, partition).range(), |_, value| {
                skips.push(decode(OPERATION, value)?);
                Ok(true)
            })?;
        Ok(skips)
    }

    async fn write_fold_skip(&self, topic: Topic, partition: u32, skip: &FoldSkip) -> Result<(), Error> {
        let key = partition_key(topic, partition).u64(skip.offset).finish();
        self.insert_all("write_fold_skip", [(&self.tables().fold_skip, key, skip.encode())])
    }
}
