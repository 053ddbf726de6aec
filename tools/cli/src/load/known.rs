//! Telling rows that are new from rows that replace another, for little: reading each row before it is written would double the time
//! of a load in random order.
//!
//! A key above every other one is new, and nothing is read for it. That goes for every row where the input is in order and the
//! keyspace was empty, as where a scan is loaded into a new store. Of the others each is read at first. Once as many were read as
//! would have taken to read all keys in order, that is done, and from then on they are known: as hashes of 128 bits, two of which
//! are the same by chance with a probability of 1 in 10^25. Where there are too many keys to keep, reading goes on.
//!
//! Only this process writes while it has the store, so what was true once stays so but for its own writes.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher, RandomState};
use std::ops::ControlFlow;

use anyhow::Result;
use percolite::engine::storage::Column;
use percolite::{Keyspace, Store};

use super::pairs::Pair;

/// The most keys that are kept. More would make the table grow beyond 75 MB.
pub const KEPT_MAX: usize = 3_600_000;
/// Reading a row by its key takes about as long as reading so many in order.
const IN_ORDER: u64 = 32;

/// What is known of the keyspace.
pub struct Known {
    greatest: Option<Vec<u8>>,
    kept: Option<Keys>,
    kept_max: usize,
    /// Rows that were read by their keys, and how many that have to be before it is considered to read all in order.
    read: u64,
    read_enough: u64,
}

/// All keys of the keyspace.
struct Keys {
    hashes: HashSet<u128, BuildHasherDefault<Half>>,
    seeds: [RandomState; 2],
}

/// What is to be known of a transaction's rows.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// Each replaces another if it is there.
    pub keys: Vec<&'a [u8]>,
    /// Rows that replace another: of the same transaction, or one that is known.
    pub replaced: u64,
}

impl Known {
    /// With room for so many keys at most.
    pub fn of(store: &Store, keyspace: &Keyspace, kept_max: usize) -> Result<Self> {
        let greatest = store.snapshot()?.range(keyspace, ..).next_back().transpose()?.map(|(key, _)| key);
        Ok(Self { greatest, kept: None, kept_max, read: 0, read_enough: 1 })
    }

    /// Sorts the rows of the next transaction, all of which are going to be there. Those before are in the store.
    pub fn sort<'a>(&mut self, store: &Store, keyspace: &Keyspace, rows: &'a [Pair]) -> Result<Asked<'a>> {
        if self.kept.is_none() && self.read >= self.read_enough {
            self.read_enough = self.read.saturating_mul(2);
            self.keep(store, keyspace)?;
        }
        let asked = match &mut self.kept {
            Some(kept) => Asked { keys: Vec::new(), replaced: kept.insert(rows) },
            None => self.sort_unknown(rows),
        };
        // Followed in either case: where there come to be too many keys it is needed again.
        let greatest = rows.iter().map(|(key, _)| key).max();
        if greatest > self.greatest.as_ref() {
            self.greatest = greatest.cloned();
        }
        self.read += asked.keys.len() as u64;
        if self.kept.as_ref().is_some_and(|kept| kept.hashes.len() > self.kept_max) {
            self.kept = None;
            self.read_enough = u64::MAX;
        }
        Ok(asked)
    }

    fn sort_unknown<'a>(&self, rows: &'a [Pair]) -> Asked<'a> {
        let mut asked = Asked { keys: Vec::new(), replaced: 0 };
        let (mut ascending, mut others) = (Vec::<&[u8]>::new(), HashSet::new());
        for (key, _) in rows {
            let key = key.as_slice();
            if ascending.last().copied().or(self.greatest.as_deref()).is_none_or(|greatest| key > greatest) {
                ascending.push(key);
            } else if ascending.binary_search(&key).is_ok() || !others.insert(key) {
                asked.replaced += 1;
            } else {
                asked.keys.push(key);
            }
        }
        asked
    }

    /// Reads all keys, if that pays and there is room.
    fn keep(&mut self, store: &Store, keyspace: &Keyspace) -> Result<()> {
        // An engine that cannot tell is one in memory.
        let columns = store.engine_stats().map_or_else(|_| Vec::new(), |figures| figures.columns);
        let about =
            columns.iter().find(|column| column.column == Column::Write).map_or(0, |column| column.estimated_keys);
        if about > self.read.saturating_mul(IN_ORDER) || about > self.kept_max as u64 {
            return Ok(());
        }
        let mut kept = Keys { hashes: HashSet::default(), seeds: [RandomState::new(), RandomState::new()] };
        let all = store.snapshot()?.range(keyspace, ..).visit(|key, _| {
            kept.hashes.insert(kept_hash(&kept.seeds, key));
            if kept.hashes.len() > self.kept_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.kept = all.is_continue().then_some(kept);
        Ok(())
    }
}

/// What is a hash already needs no other.
#[derive(Default)]
struct Half(u64);

impl Hasher for Half {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    #[expect(clippy::cast_possible_truncation, reason = "half of it")]
    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

fn kept_hash(seeds: &[RandomState; 2], key: &[u8]) -> u128 {
    let [high, low] = seeds.each_ref().map(|seed| u128::from(seed.hash_one(key)));
    high << 64 | low
}

impl Keys {
    /// The answer is how many were there already, or came twice.
    fn insert(&mut self, rows: &[Pair]) -> u64 {
        let known = rows.iter().filter(|(key, _)| !self.hashes.insert(kept_hash(&self.seeds, key)));
        known.count() as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn new_rows_and_replaced_ones_are_counted_exactly(
            before in prop::collection::btree_set("[a-d]{1,2}", 0..6),
            transactions in prop::collection::vec(prop::collection::vec("[a-d]{1,2}", 0..8), 0..12),
            kept_max in 0_usize..20,
        ) {
            let store = Store::in_memory().unwrap();
            let keyspace = store.keyspace("rows").unwrap();
            store.transact(|txn| before.iter().try_for_each(|key| txn.put(&keyspace, key, ""))).unwrap();
            let mut known = Known::of(&store, &keyspace, kept_max).unwrap();
            let mut there: BTreeSet<String> = before;
            for keys in transactions {
                let rows: Vec<Pair> = keys.iter().map(|key| (key.clone().into_bytes(), vec![])).collect();
                let replaced = keys.into_iter().filter(|key| !there.insert(key.clone())).count() as u64;
                prop_assert_eq!(super::super::put(&store, &keyspace, &rows, &mut known).unwrap(), replaced);
            }
        }
    }

    #[test]
    fn nothing_is_read_for_keys_above_all_others_nor_for_those_that_are_known() {
        let store = Store::in_memory().unwrap();
        let keyspace = store.keyspace("rows").unwrap();
        let mut known = Known::of(&store, &keyspace, 10).unwrap();
        let rows: Vec<Pair> = ["a", "b", "c", "b", "a0", "a0"].map(|key| (key.into(), vec![])).into();
        let sorted = known.sort(&store, &keyspace, &rows).unwrap();
        assert_eq!(sorted, Asked { keys: vec![b"a0"], replaced: 2 });
        store.transact(|txn| rows.iter().try_for_each(|(key, value)| txn.put(&keyspace, key, value))).unwrap();
        let rows: Vec<Pair> = ["d", "a", "a1"].map(|key| (key.into(), vec![])).into();
        let sorted = known.sort(&store, &keyspace, &rows).unwrap();
        assert_eq!(sorted, Asked { keys: vec![], replaced: 1 });
    }
}
