//! Conflict memory: when was a row last committed? Answered without reading the row.
//!
//! A fixed number of slots, each remembering the row that was committed last among those that hash to it, and a floor:
//! the newest commit among the rows it has forgotten. A row that the slot does not know was last committed at or
//! below the floor, so a transaction that reads at or above the floor has no conflict there. Only a transaction older than
//! that has to read the row. The memory never grows, however long a transaction idles.
//!
//! A load would drive everything out, one row after the other. So of a commit of many rows only the timestamp is kept, as a floor for
//! the rows between its first and its last: two loads side by side, each in its part of the keys, know nothing of each other. When
//! there are more of them than a few, the oldest becomes a floor for all rows.
//!
//! Rows that a transaction held without writing them (`get_for_update`) leave no record on disk. So those that lose their
//! slot are kept in a list of their own. When that is full, its older half is given up, and raises a second floor, for all rows,
//! below which the answer is *conflict* without looking. That may refuse a transaction that could have gone ahead; it is
//! older than many holds, and will try again with a newer snapshot.

use std::collections::{HashMap, VecDeque};

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use crate::row::RowKey;
use crate::timestamp::Timestamp;

/// So many commits of many rows are told from each other.
const RANGE_COMMITS_MAX: usize = 8;

/// See the [module](self).
pub struct ConflictSet {
    secrets: RapidSecrets,
    slots: Box<[CacheSlot]>,
    /// Rows, by their hashes, that have lost their slot, and whose last commit was a hold; no more than there are slots.
    lock_only: HashMap<u64, Timestamp>,
    /// The newest hold that was forgotten altogether.
    lock_only_low_water: Timestamp,
    /// The last commits that left versions of so many rows that none was remembered.
    range_commits: VecDeque<RangeCommit>,
    /// The newest of those before.
    low_water: Timestamp,
    /// The newest commit at all.
    max_commit_ts: Timestamp,
}

#[derive(Clone, Default)]
struct CacheSlot {
    row: u64,
    commit_ts: Timestamp,
    lock_only: bool,
    floor: Timestamp,
}

struct RangeCommit {
    lowest: RowKey,
    highest: RowKey,
    committed: Timestamp,
}

/// What the memory knows about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastCommit {
    /// Not after the timestamp asked about.
    NotAfter,
    /// At this timestamp, which is after.
    After(Timestamp),
    /// The row has to be read.
    Unknown,
}

impl ConflictSet {
    /// Memory with at least this many slots, and one of them. Rows are identified by their hashes, so the seed must be unknown to a client that chooses keys.
    pub fn new(slots: usize, seed: u64) -> Self {
        let secrets = RapidSecrets::seed(seed);
        let slots = vec![CacheSlot::default(); slots.next_power_of_two()].into();
        let zero = Timestamp::ZERO;
        Self {
            secrets,
            slots,
            lock_only: HashMap::new(),
            lock_only_low_water: zero,
            range_commits: VecDeque::new(),
            low_water: zero,
            max_commit_ts: zero,
        }
    }

    /// The newest commit of any row.
    pub fn max_commit_ts(&self) -> Timestamp {
        self.max_commit_ts
    }

    /// Whether the row was committed after `read_ts`.
    pub fn check(&self, row: &RowKey, read_ts: Timestamp) -> LastCommit {
        if self.max_commit_ts <= read_ts {
            return LastCommit::NotAfter;
        }
        let hash = self.hash(row);
        let Some(slot) = self.slots.get(self.index(hash)) else { return LastCommit::Unknown };
        let floor = if slot.row == hash {
            if slot.commit_ts > read_ts {
                return LastCommit::After(slot.commit_ts);
            }
            if mutated!(RangeCommitIgnored) { Timestamp::ZERO } else { self.low_water_of(row) }
        } else {
            self.low_water_of(row).max(slot.floor)
        };
        let held =
            self.lock_only.get(&hash).map_or(self.lock_only_low_water, |held| self.lock_only_low_water.max(*held));
        if held > read_ts {
            LastCommit::After(held)
        } else if floor > read_ts {
            LastCommit::Unknown
        } else {
            LastCommit::NotAfter
        }
    }

    /// The newest commit of many rows that may have been one of this row.
    fn low_water_of(&self, row: &RowKey) -> Timestamp {
        let among = |load: &&RangeCommit| (&load.lowest..=&load.highest).contains(&row);
        self.range_commits.iter().filter(among).map(|load| load.committed).fold(self.low_water, Timestamp::max)
    }

    /// Remembers that so many rows, from the lowest to the highest, were committed that each of them would drive out others. Those
    /// that were only held are to be recorded all the same: nobody else knows of them.
    pub fn insert_range(&mut self, lowest: &RowKey, highest: &RowKey, committed: Timestamp) {
        self.max_commit_ts = self.max_commit_ts.max(committed);
        self.range_commits.push_back(RangeCommit { lowest: lowest.clone(), highest: highest.clone(), committed });
        if self.range_commits.len() > RANGE_COMMITS_MAX
            && let Some(oldest) = self.range_commits.pop_front()
        {
            self.low_water = self.low_water.max(oldest.committed);
        }
    }

    /// Remembers a commit of the row; `held` says that it left no version.
    pub fn insert(&mut self, row: &RowKey, committed: Timestamp, held: bool) {
        let hash = self.hash(row);
        let index = self.index(hash);
        let Some(slot) = self.slots.get_mut(index) else { return };
        self.max_commit_ts = self.max_commit_ts.max(committed);
        // A helper may roll a row forward late. Taking the slot then could hide a newer commit that was forgotten.
        let forgotten = if slot.row == hash {
            None
        } else if committed < slot.commit_ts {
            Some((hash, committed, held))
        } else {
            Some((slot.row, slot.commit_ts, slot.lock_only))
        };
        if let Some((_, committed, _)) = forgotten {
            slot.floor = slot.floor.max(committed);
        }
        if committed >= slot.commit_ts {
            (slot.row, slot.commit_ts, slot.lock_only) = (hash, committed, held);
        }
        if let Some((row, committed, true)) = forgotten {
            self.insert_lock_only(row, committed);
        }
    }

    fn insert_lock_only(&mut self, row: u64, committed: Timestamp) {
        if self.lock_only.len() >= self.slots.len() {
            let mut all: Vec<Timestamp> = self.lock_only.values().copied().collect();
            let middle = all.len() / 2;
            let (_, median, _) = all.select_nth_unstable(middle);
            self.lock_only_low_water = self.lock_only_low_water.max(*median);
            let floor = self.lock_only_low_water;
            self.lock_only.retain(|_, held| *held > floor);
        }
        let held = self.lock_only.entry(row).or_default();
        *held = committed.max(*held);
    }

    fn hash(&self, row: &RowKey) -> u64 {
        rapidhash_v3_seeded(row.as_bytes(), &self.secrets)
    }

    fn index(&self, hash: u64) -> usize {
        // The number of slots is a power of two, and what is cut off the hash does not matter.
        usize::try_from(hash & (self.slots.len() as u64 - 1)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::KeyspaceId;

    fn row(name: &str) -> RowKey {
        RowKey::new(KeyspaceId(1), name.as_bytes())
    }

    fn ts(number: u64) -> Timestamp {
        Timestamp::from_u64(number)
    }

    /// Otherwise two rows that are taken for one, which could hide a hold, could be made up.
    #[test]
    fn which_rows_have_one_hash_depends_on_the_seed() {
        let (one, other) = (ConflictSet::new(1, 1), ConflictSet::new(1, 2));
        for name in ["a", "a longer name", "a name that is longer than what is hashed in one step, by far"] {
            assert_ne!(one.hash(&row(name)), other.hash(&row(name)));
        }
    }

    #[test]
    fn a_remembered_row_answers_exactly() {
        let mut memory = ConflictSet::new(1024, 7);
        memory.insert(&row("a"), ts(10), false);
        assert_eq!(memory.check(&row("a"), ts(9)), LastCommit::After(ts(10)));
        assert_eq!(memory.check(&row("a"), ts(10)), LastCommit::NotAfter);
        assert_eq!(memory.check(&row("b"), ts(1)), LastCommit::NotAfter);
    }

    #[test]
    fn a_commit_remembered_late_does_not_hide_a_newer_one() {
        let mut memory = ConflictSet::new(1024, 7);
        memory.insert(&row("a"), ts(20), false);
        memory.insert(&row("a"), ts(10), true);
        assert_eq!(memory.check(&row("a"), ts(15)), LastCommit::After(ts(20)));
    }

    #[test]
    fn a_commit_remembered_late_does_not_hide_a_newer_one_that_was_forgotten() {
        let mut memory = ConflictSet::new(1, 7);
        memory.insert(&row("a"), ts(20), false);
        memory.insert(&row("b"), ts(30), false);
        memory.insert(&row("a"), ts(10), false);
        assert_eq!(memory.check(&row("a"), ts(15)), LastCommit::Unknown);
    }

    #[test]
    fn a_forgotten_row_is_unknown_below_the_floor_and_clear_above() {
        let mut memory = ConflictSet::new(1, 7);
        memory.insert(&row("a"), ts(10), false);
        memory.insert(&row("b"), ts(20), false);
        assert_eq!(memory.check(&row("a"), ts(9)), LastCommit::Unknown);
        assert_eq!(memory.check(&row("a"), ts(10)), LastCommit::NotAfter);
    }

    #[test]
    fn a_commit_of_many_rows_drives_nobody_out_and_is_unknown_to_those_who_are_older() {
        let mut memory = ConflictSet::new(64, 7);
        memory.insert(&row("a"), ts(10), false);
        memory.insert(&row("held"), ts(20), true);
        memory.insert_range(&row("a"), &row("z"), ts(20));
        for name in ["a", "another"] {
            assert_eq!(memory.check(&row(name), ts(19)), LastCommit::Unknown);
            assert_eq!(memory.check(&row(name), ts(20)), LastCommit::NotAfter);
        }
        assert_eq!(memory.check(&row("a"), ts(9)), LastCommit::After(ts(10)));
        assert_eq!(memory.check(&row("held"), ts(19)), LastCommit::After(ts(20)));
        memory.insert(&row("a"), ts(30), false);
        assert_eq!(memory.check(&row("a"), ts(25)), LastCommit::After(ts(30)));
        assert_eq!(memory.check(&row("another"), ts(25)), LastCommit::NotAfter);
    }

    #[test]
    fn commits_of_many_rows_elsewhere_are_none_of_a_row_until_there_are_too_many() {
        let mut memory = ConflictSet::new(64, 7);
        let load = |memory: &mut ConflictSet, number: u64| {
            memory.insert_range(&row(&format!("{number:04}/a")), &row(&format!("{number:04}/z")), ts(number));
        };
        (1..=8).for_each(|number| load(&mut memory, number));
        for number in 1..=8 {
            let (first, between) = (row(&format!("{number:04}/a")), row(&format!("{number:04}/b")));
            for row in [first, between] {
                assert_eq!(memory.check(&row, ts(number - 1)), LastCommit::Unknown);
                assert_eq!(memory.check(&row, ts(number)), LastCommit::NotAfter);
            }
        }
        assert_eq!(memory.check(&row("elsewhere"), ts(0)), LastCommit::NotAfter);
        (9..=20).for_each(|number| load(&mut memory, number));
        assert_eq!(memory.range_commits.len(), 8);
        assert_eq!(memory.check(&row("elsewhere"), ts(11)), LastCommit::Unknown);
        assert_eq!(memory.check(&row("elsewhere"), ts(12)), LastCommit::NotAfter);
        assert_eq!(memory.check(&row("0001/a"), ts(11)), LastCommit::Unknown);
    }

    #[test]
    fn a_forgotten_hold_stays_a_conflict() {
        let mut memory = ConflictSet::new(1, 7);
        memory.insert(&row("a"), ts(10), true);
        memory.insert(&row("b"), ts(20), false);
        assert_eq!(memory.check(&row("a"), ts(9)), LastCommit::After(ts(10)));
        assert_eq!(memory.check(&row("a"), ts(10)), LastCommit::NotAfter);
    }

    #[test]
    fn holds_of_other_rows_refuse_nobody_until_there_are_too_many() {
        let mut memory = ConflictSet::new(8, 7);
        for number in 1..=12 {
            memory.insert(&row(&number.to_string()), ts(number), true);
        }
        for number in 1..=12 {
            assert_eq!(memory.check(&row(&number.to_string()), ts(number - 1)), LastCommit::After(ts(number)));
            // There may be a version that was forgotten, but no hold.
            assert!(!matches!(memory.check(&row(&number.to_string()), ts(number)), LastCommit::After(_)));
        }
        assert!(!matches!(memory.check(&row("another"), ts(0)), LastCommit::After(_)));

        for number in 13..=1000 {
            memory.insert(&row(&number.to_string()), ts(number), true);
        }
        assert!(memory.lock_only.len() <= 8);
        for number in 1..=1000 {
            let LastCommit::After(held) = memory.check(&row(&number.to_string()), ts(number - 1)) else {
                panic!("the hold at {number} was forgotten")
            };
            assert!(held >= ts(number));
        }
        assert_eq!(memory.check(&row("another"), ts(1000)), LastCommit::NotAfter);
    }

    #[test]
    fn memory_stays_bounded_and_no_conflict_of_an_idle_transaction_is_lost() {
        let mut memory = ConflictSet::new(64, 7);
        for number in 1..100_000_u64 {
            memory.insert(&row(&number.to_string()), ts(number), false);
        }
        assert_eq!(memory.slots.len(), 64);
        for number in 1..100_000_u64 {
            assert_ne!(memory.check(&row(&number.to_string()), ts(0)), LastCommit::NotAfter);
        }
    }
}
