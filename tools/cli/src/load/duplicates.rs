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

use super::reader::Pair;

/// The most keys that are kept. More would make the table grow beyond 75 MB.
pub const MAX_TRACKED_KEYS: usize = 3_600_000;
/// Reading a row by its key takes about as long as reading so many in order.
const SCAN_COST_RATIO: u64 = 32;

/// What is known of the keyspace.
pub struct DuplicateDetector {
    greatest: Option<Vec<u8>>,
    tracked: Option<TrackedKeys>,
    max_tracked: usize,
    /// Rows that were read by their keys, and how many that have to be before it is considered to read all in order.
    point_reads: u64,
    scan_after_reads: u64,
}

/// All keys of the keyspace.
struct TrackedKeys {
    hashes: HashSet<u128, BuildHasherDefault<IdentityHasher>>,
    seeds: [RandomState; 2],
}

/// What is to be known of a transaction's rows.
#[derive(Debug, PartialEq, Eq)]
pub struct Lookups<'a> {
    /// Each replaces another if it is there.
    pub keys: Vec<&'a [u8]>,
    /// Rows that replace another: of the same transaction, or one that is known.
    pub replaced: u64,
}

impl DuplicateDetector {
    /// With room for so many keys at most.
    pub fn of(store: &Store, keyspace: &Keyspace, kept_max: usize) -> Result<Self> {
        let greatest = store.snapshot()?.range(keyspace, ..).next_back().transpose()?.map(|(key, _)| key);
        Ok(Self { greatest, tracked: None, max_tracked: kept_max, point_reads: 0, scan_after_reads: 1 })
    }

    /// Sorts the rows of the next transaction, all of which are going to be there. Those before are in the store.
    pub fn classify<'a>(&mut self, store: &Store, keyspace: &Keyspace, rows: &'a [Pair]) -> Result<Lookups<'a>> {
        if self.tracked.is_none() && self.point_reads >= self.scan_after_reads {
            self.scan_after_reads = self.point_reads.saturating_mul(2);
            self.track_all_keys(store, keyspace)?;
        }
        let asked = match &mut self.tracked {
            Some(kept) => Lookups { keys: Vec::new(), replaced: kept.insert(rows) },
            None => self.classify_untracked(rows),
        };
        // Followed in either case: where there come to be too many keys it is needed again.
        let greatest = rows.iter().map(|(key, _)| key).max();
        if greatest > self.greatest.as_ref() {
            self.greatest = greatest.cloned();
        }
        self.point_reads += asked.keys.len() as u64;
        if self.tracked.as_ref().is_some_and(|kept| kept.hashes.len() > self.max_tracked) {
            self.tracked = None;
            self.scan_after_reads = u64::MAX;
        }
        Ok(asked)
    }

    fn classify_untracked<'a>(&self, rows: &'a [Pair]) -> Lookups<'a> {
        let mut asked = Lookups { keys: Vec::new(), replaced: 0 };
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
    fn track_all_keys(&mut self, store: &Store, keyspace: &Keyspace) -> Result<()> {
        // An engine that cannot tell is one in memory.
        let columns = store.engine_stats().map_or_else(|_| Vec::new(), |figures| figures.columns);
        let about =
            columns.iter().find(|column| column.column == Column::Write).map_or(0, |column| column.estimated_keys);
        if about > self.point_reads.saturating_mul(SCAN_COST_RATIO) || about > self.max_tracked as u64 {
            return Ok(());
        }
        let mut kept = TrackedKeys { hashes: HashSet::default(), seeds: [RandomState::new(), RandomState::new()] };
        let all = store.snapshot()?.range(keyspace, ..).visit(|key, _| {
            kept.hashes.insert(key_hash(&kept.seeds, key));
            if kept.hashes.len() > self.max_tracked { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.tracked = all.is_continue().then_some(kept);
        Ok(())
    }
}

/// What is a hash already needs no other.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
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

fn key_hash(seeds: &[RandomState; 2], key: &[u8]) -> u128 {
    let [high, low] = seeds.each_ref().map(|seed| u128::from(seed.hash_one(key)));
    high << 64 | low
}

impl TrackedKeys {
    /// The answer is how many were there already, or came twice.
    fn insert(&mut self, rows: &[Pair]) -> u64 {
        let known = rows.iter().filter(|(key, _)| !self.hashes.insert(key_hash(&self.seeds, key)));
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
            let mut known = DuplicateDetector::of(&store, &keyspace, kept_max).unwrap();
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
        let mut known = DuplicateDetector::of(&store, &keyspace, 10).unwrap();
        let rows: Vec<Pair> = ["a", "b", "c", "b", "a0", "a0"].map(|key| (key.into(), vec![])).into();
        let sorted = known.classify(&store, &keyspace, &rows).unwrap();
        assert_eq!(sorted, Lookups { keys: vec![b"a0"], replaced: 2 });
        store.transact(|txn| rows.iter().try_for_each(|(key, value)| txn.put(&keyspace, key, value))).unwrap();
        let rows: Vec<Pair> = ["d", "a", "a1"].map(|key| (key.into(), vec![])).into();
        let sorted = known.classify(&store, &keyspace, &rows).unwrap();
        assert_eq!(sorted, Lookups { keys: vec![], replaced: 1 });
    }
}
