//! Contract of [`RuntimeStore`].

use tidings_domain::Topic;
use tidings_storage::port::{FoldSkip, RuntimeStore};

use crate::fixtures::now;

pub(crate) async fn run(store: &impl RuntimeStore) {
    let skip = |offset| FoldSkip {
        offset,
        reason: "the body cannot be read: \u{e9}\0".to_owned(),
        who: "operator".to_owned(),
        time: now(),
    };
    assert_eq!(store.fold_skips(Topic::Ingress, 3).await, Ok(Vec::new()));
    let skips = [skip(9), skip(300), skip(5)];
    for skip in &skips {
        store.write_fold_skip(Topic::Ingress, 3, skip).await.expect("written");
        store
            .write_fold_skip(Topic::Ingress, 3, skip)
            .await
            .expect("written again");
    }
    let [nine, three_hundred, five] = skips;
    assert_eq!(
        store.fold_skips(Topic::Ingress, 3).await,
        Ok(vec![five, nine, three_hundred])
    );
    assert_eq!(store.fold_skips(Topic::Inbox, 3).await, Ok(Vec::new()));
    assert_eq!(store.fold_skips(Topic::Ingress, 4).await, Ok(Vec::new()));
}
