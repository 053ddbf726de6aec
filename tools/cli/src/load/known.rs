//! Telling rows that are new from rows that replace another.
//!
//! A key above every other one is new, and nothing is read for it: where the input is in order and the keyspace was empty, as where a
//! scan is loaded into a new store, that goes for every row. Only this process writes while it has the store, so it is enough to
//! have looked for the greatest key once.

use std::collections::HashSet;

use anyhow::Result;
use percolite::{Keyspace, Store};

use super::pairs::Pair;

/// What is known of the keyspace.
pub struct Known {
    greatest: Option<Vec<u8>>,
}

/// What is to be known of a transaction's rows.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// Each is new if it is not there.
    pub keys: Vec<&'a [u8]>,
    /// Rows that replace another of the same transaction.
    pub doubled: u64,
}

impl Known {
    pub fn of(store: &Store, keyspace: &Keyspace) -> Result<Self> {
        let greatest = store.snapshot()?.range(keyspace, ..).next_back().transpose()?;
        Ok(Self { greatest: greatest.map(|(key, _)| key) })
    }

    /// Sorts the rows of the next transaction, all of which are going to be there.
    pub fn sort<'a>(&mut self, rows: &'a [Pair]) -> Asked<'a> {
        let mut asked = Asked { keys: Vec::new(), doubled: 0 };
        let (mut ascending, mut others) = (Vec::<&[u8]>::new(), HashSet::new());
        for (key, _) in rows {
            let key = key.as_slice();
            if ascending.last().copied().or(self.greatest.as_deref()).is_none_or(|greatest| key > greatest) {
                ascending.push(key);
            } else if ascending.binary_search(&key).is_ok() || !others.insert(key) {
                asked.doubled += 1;
            } else {
                asked.keys.push(key);
            }
        }
        if let Some(greatest) = ascending.last() {
            self.greatest = Some(greatest.to_vec());
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn new_rows_and_replaced_ones_are_counted_exactly(
            before in prop::collection::btree_set("[a-d]{1,2}", 0..6),
            transactions in prop::collection::vec(prop::collection::vec("[a-d]{1,2}", 0..8), 0..5),
        ) {
            let store = Store::in_memory().unwrap();
            let keyspace = store.keyspace("rows").unwrap();
            store.transact(|txn| before.iter().try_for_each(|key| txn.put(&keyspace, key, ""))).unwrap();
            let mut known = Known::of(&store, &keyspace).unwrap();
            let mut there: BTreeSet<String> = before;
            for keys in transactions {
                let rows: Vec<Pair> = keys.iter().map(|key| (key.clone().into_bytes(), vec![])).collect();
                let replaced = keys.into_iter().filter(|key| !there.insert(key.clone())).count() as u64;
                prop_assert_eq!(super::super::put(&store, &keyspace, &rows, &mut known).unwrap(), replaced);
            }
        }
    }

    #[test]
    fn nothing_is_read_for_keys_above_all_others() {
        let store = Store::in_memory().unwrap();
        let keyspace = store.keyspace("rows").unwrap();
        let mut known = Known::of(&store, &keyspace).unwrap();
        let rows: Vec<Pair> = ["a", "b", "c", "b", "a0", "a0"].map(|key| (key.into(), vec![])).into();
        assert_eq!(known.sort(&rows), Asked { keys: vec![b"a0"], doubled: 2 });
        assert_eq!(known.sort(&rows[2..3]), Asked { keys: vec![b"c"], doubled: 0 });
    }
}
