//! `fold_skip`.

use async_trait::async_trait;
use tidings_domain::Topic;
use tidings_domain::clock::Millis;

use super::columns::{bigint, number, tinyint};
use super::session::{read_all, write};
use super::{CqlStore, errors};
use crate::Error;
use crate::port::{FoldSkip, RuntimeStore};

#[async_trait]
impl RuntimeStore for CqlStore {
    async fn fold_skips(&self, topic: Topic, partition: u32) -> Result<Vec<FoldSkip>, Error> {
        const OPERATION: &str = "fold_skips";
        let values = (tinyint(topic.number()), i64::from(partition));
        let rows: Vec<(i64, String, String, i64)> =
            read_all(&self.session, OPERATION, &self.statements.fold_skips, values).await?;
        rows.into_iter()
            .map(|(offset, reason, who, time)| {
                Ok(FoldSkip {
                    offset: number("record_offset", offset)?,
                    reason,
                    who,
                    time: Millis(time),
                })
            })
            .collect::<Result<_, _>>()
            .map_err(|error| errors::damaged(OPERATION, error))
    }

    async fn write_fold_skip(&self, topic: Topic, partition: u32, skip: &FoldSkip) -> Result<(), Error> {
        let values = (
            tinyint(topic.number()),
            i64::from(partition),
            bigint(skip.offset),
            skip.reason.as_str(),
            skip.who.as_str(),
            skip.time.get(),
        );
        write(
            &self.session,
            "write_fold_skip",
            &self.statements.write_fold_skip,
            values,
        )
        .await
    }
}
