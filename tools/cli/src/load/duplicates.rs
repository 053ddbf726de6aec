//! Counts new and replaced rows without reading every key. Reading each row before it is written
//! would double the time of a load in random order.
//!
//! - A key above all existing keys is new, so no read is necessary. If the input is sorted and the
//!   keyspace was empty, this holds for every row, for example when the output of a scan is loaded
//!   into a new store.
//! - Other keys are read one by one at first.
//! - When these point reads have cost as much as a scan of all keys, all keys are scanned once and
//!   tracked in memory, as hashes of 128 bits. The probability that any two of the hashes are equal
//!   is below 1 in 10^25.
//! - If there are too many keys to track, point reads continue.
//!
//! Only this process writes to the store during the load, so the set of keys changes only by the
//! rows that it loads.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher, RandomState};
use std::ops::ControlFlow;

use anyhow::Result;
use percolite::engine::storage::Column;
use percolite::{Keyspace, Store};

use super::reader::Pair;

/// The maximum number of tracked keys. With more, the hash table would grow beyond 75 MB.
pub const MAX_TRACKED_KEYS: usize = 3_600_000;
/// A point read takes about as long as scanning this many rows.
const SCAN_COST_RATIO: u64 = 32;

/// See the [module](self).
pub struct DuplicateDetector {
    greatest: Option<Vec<u8>>,
    tracked: Option<TrackedKeys>,
    max_tracked: usize,
    point_reads: u64,
    /// After this many point reads a scan of all keys is considered.
    scan_after_reads: u64,
}

/// The hashes of all keys of the keyspace.
struct TrackedKeys {
    hashes: HashSet<u128, BuildHasherDefault<IdentityHasher>>,
    seeds: [RandomState; 2],
}

/// The rows of a transaction, classified.
#[derive(Debug, PartialEq, Eq)]
pub struct Lookups<'a> {
    /// The keys that must be read. If a key exists, its row replaces another one.
    pub keys: Vec<&'a [u8]>,
    /// How many rows are known to replace another one, of the store or of the same transaction.
    pub replaced: u64,
}

impl DuplicateDetector {
    /// Tracks at most `max_tracked` keys.
    pub fn new(store: &Store, keyspace: &Keyspace, max_tracked: usize) -> Result<Self> {
        let greatest = store.range(keyspace, ..)?.next_back().transpose()?.map(|row| row.into_parts().0);
        Ok(Self { greatest, tracked: None, max_tracked, point_reads: 0, scan_after_reads: 1 })
    }

    /// Classifies the rows of the next transaction. All earlier transactions must be committed, and
    /// the commit of this transaction must succeed, because its keys count as existing from here
    /// on.
    pub fn classify<'a>(&mut self, store: &Store, keyspace: &Keyspace, rows: &'a [Pair]) -> Result<Lookups<'a>> {
        if self.tracked.is_none() && self.point_reads >= self.scan_after_reads {
            self.scan_after_reads = self.point_reads.saturating_mul(2);
            self.track_all_keys(store, keyspace)?;
        }
        let lookups = match &mut self.tracked {
            Some(tracked) => Lookups { keys: Vec::new(), replaced: tracked.insert(rows) },
            None => self.classify_untracked(rows),
        };
        // The greatest key is updated even while all keys are tracked, because the tracking may
        // end.
        let greatest = rows.iter().map(|(key, _)| key).max();
        if greatest > self.greatest.as_ref() {
            self.greatest = greatest.cloned();
        }
        self.point_reads += lookups.keys.len() as u64;
        if self.tracked.as_ref().is_some_and(|tracked| tracked.hashes.len() > self.max_tracked) {
            self.tracked = None;
            self.scan_after_reads = u64::MAX;
        }
        Ok(lookups)
    }

    fn classify_untracked<'a>(&self, rows: &'a [Pair]) -> Lookups<'a> {
        let mut lookups = Lookups { keys: Vec::new(), replaced: 0 };
        let (mut ascending, mut others) = (Vec::<&[u8]>::new(), HashSet::new());
        for (key, _) in rows {
            let key = key.as_slice();
            if ascending.last().copied().or(self.greatest.as_deref()).is_none_or(|greatest| key > greatest) {
                ascending.push(key);
            } else if ascending.binary_search(&key).is_ok() || !others.insert(key) {
                lookups.replaced += 1;
            } else {
                lookups.keys.push(key);
            }
        }
        lookups
    }

    /// Scans and tracks all keys, if the scan is cheap enough and the keys are not too many.
    fn track_all_keys(&mut self, store: &Store, keyspace: &Keyspace) -> Result<()> {
        // An engine without statistics is in memory, where a scan is cheap.
        let columns = store.engine_stats().map_or_else(|_| Vec::new(), |stats| stats.columns);
        let estimate =
            columns.iter().find(|column| column.column == Column::Write).map_or(0, |column| column.estimated_keys);
        if estimate > self.point_reads.saturating_mul(SCAN_COST_RATIO) || estimate > self.max_tracked as u64 {
            return Ok(());
        }
        let mut tracked = TrackedKeys { hashes: HashSet::default(), seeds: [RandomState::new(), RandomState::new()] };
        let scanned = store.range(keyspace, ..)?.visit(|key, _| {
            tracked.hashes.insert(key_hash(&tracked.seeds, key));
            if tracked.hashes.len() > self.max_tracked { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.tracked = scanned.is_continue().then_some(tracked);
        Ok(())
    }
}

/// The hasher of a set of hashes: takes half of the 128 bits, without hashing them again.
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
    /// Adds the keys, and returns how many of them were in the set already.
    fn insert(&mut self, rows: &[Pair]) -> u64 {
        let replaced = rows.iter().filter(|(key, _)| !self.hashes.insert(key_hash(&self.seeds, key)));
        replaced.count() as u64
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
        fn new_and_replaced_rows_are_counted_exactly(
            before in prop::collection::btree_set("[a-d]{1,2}", 0..6),
            transactions in prop::collection::vec(prop::collection::vec("[a-d]{1,2}", 0..8), 0..12),
            max_tracked in 0_usize..20,
        ) {
            let store = Store::in_memory().unwrap();
            let keyspace = store.keyspace("rows").unwrap();
            store.transact(|txn| before.iter().try_for_each(|key| txn.put(&keyspace, key, ""))).unwrap();
            let mut detector = DuplicateDetector::new(&store, &keyspace, max_tracked).unwrap();
            let mut existing: BTreeSet<String> = before;
            for keys in transactions {
                let rows: Vec<Pair> = keys.iter().map(|key| (key.clone().into_bytes(), vec![])).collect();
                let replaced = keys.into_iter().filter(|key| !existing.insert(key.clone())).count() as u64;
                prop_assert_eq!(super::super::put(&store, &keyspace, &rows, &mut detector).unwrap(), replaced);
            }
        }
    }

    #[test]
    fn ascending_and_tracked_keys_need_no_reads() {
        let store = Store::in_memory().unwrap();
        let keyspace = store.keyspace("rows").unwrap();
        let mut detector = DuplicateDetector::new(&store, &keyspace, 10).unwrap();
        let rows: Vec<Pair> = ["a", "b", "c", "b", "a0", "a0"].map(|key| (key.into(), vec![])).into();
        let lookups = detector.classify(&store, &keyspace, &rows).unwrap();
        assert_eq!(lookups, Lookups { keys: vec![b"a0"], replaced: 2 });
        store.transact(|txn| rows.iter().try_for_each(|(key, value)| txn.put(&keyspace, key, value))).unwrap();
        let rows: Vec<Pair> = ["d", "a", "a1"].map(|key| (key.into(), vec![])).into();
        let lookups = detector.classify(&store, &keyspace, &rows).unwrap();
        assert_eq!(lookups, Lookups { keys: vec![], replaced: 1 });
    }
}
