//! A list without repetitions, in the order of first appearance: what a batch asks to be read.

use std::collections::HashSet;
use std::hash::Hash;

#[derive(Debug)]
pub(crate) struct FirstSeen<T> {
    seen: HashSet<T>,
    list: Vec<T>,
}

impl<T> Default for FirstSeen<T> {
    fn default() -> Self {
        Self {
            seen: HashSet::new(),
            list: Vec::new(),
        }
    }
}

impl<T: Hash + Eq + Clone> FirstSeen<T> {
    /// Adds `item` unless it is there; tells whether it was new.
    pub(crate) fn add(&mut self, item: T) -> bool {
        let new = self.seen.insert(item.clone());
        if new {
            self.list.push(item);
        }
        new
    }

    /// The list, if there is anything in it.
    pub(crate) fn into_list(self) -> Option<Vec<T>> {
        (!self.list.is_empty()).then_some(self.list)
    }
}
