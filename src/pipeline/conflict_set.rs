//! The conflict set: when each row was last committed, from memory, without reading the row.
//!
//! A transaction conflicts on a row that was committed after its `read_ts`. The check needs only
//! whether the last commit is *after* a timestamp. So a bounded memory is enough: the set has the
//! newest commits exactly, and for all other commits an upper bound, the *low water*.
//!
//! # Slots
//!
//! The number of slots is fixed, and each has the last commit of one row. A commit goes to the slot
//! that its row hashes to. If another row is in the slot, that row is evicted, and its commit
//! raises the slot's low water. So a row that is not in its slot was last committed at or below the
//! slot's low water:
//!
//! | row | last commit |
//! |---|---|
//! | in its slot | exact |
//! | not in its slot, `read_ts` at or above the low water | not after `read_ts`: no conflict |
//! | not in its slot, `read_ts` below the low water | unknown: the engine reads the row |
//!
//! Only a transaction that is older than a low water pays for a read. The set never grows, however
//! long a transaction idles. When the store is opened the set is empty, because commits of earlier
//! incarnations are at or below every new `read_ts`.
//!
//! # Commits of many rows
//!
//! A bulk load would evict every row. So a commit of more than 2,048 rows is recorded as one range:
//! its timestamp is a low water for the rows from its lowest to its highest, also for those in a
//! slot. Two loads in different key ranges do not affect each other. When there are more than
//! [`RANGE_COMMITS_MAX`] ranges, the oldest becomes a low water for all rows.
//!
//! # Lock-only commits
//!
//! A lock-only commit (`get_for_update`) leaves no version, so the engine cannot find it by reading
//! the row. When the row of such a commit is evicted from its slot, the commit moves to a map. When
//! the map is full, the older half of its commits is removed and raises a second low water. A
//! transaction with a `read_ts` below this low water conflicts on every row. Such a conflict may be
//! spurious, but only a transaction older than many lock-only commits gets it, and the retry has a
//! newer snapshot.
//!
//! FoundationDB's resolvers have a `ConflictSet` for the same purpose. The term *low water* is from
//! CockroachDB's timestamp cache.

use std::collections::{HashMap, VecDeque};

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use crate::row::RowKey;
use crate::timestamp::Timestamp;

/// Maximum number of commits of many rows that are recorded as ranges.
const RANGE_COMMITS_MAX: usize = 8;

/// The timestamps of the newest commits, by row, and upper bounds for all other commits.
pub struct ConflictSet {
    secrets: RapidSecrets,
    slots: Box<[Slot]>,
    /// Lock-only commits without a slot, by the hashes of their rows: another row has taken the
    /// slot, or has kept it because its commit is newer. The map has at most as many entries as
    /// there are slots.
    lock_only: HashMap<u64, Timestamp>,
    /// Timestamp of the newest lock-only commit that was removed from `lock_only`.
    lock_only_low_water: Timestamp,
    /// The newest commits of many rows, oldest first.
    range_commits: VecDeque<RangeCommit>,
    /// Timestamp of the newest commit that was removed from `range_commits`: a low water for all
    /// rows.
    low_water: Timestamp,
    /// Timestamp of the newest commit of any row.
    max_commit_ts: Timestamp,
}

#[derive(Clone, Default)]
struct Slot {
    row: u64,
    commit_ts: Timestamp,
    lock_only: bool,
    /// The slot's low water. A row that hashes to this slot, but is not in it, has no later commit,
    /// except for commits that were recorded as ranges.
    low_water: Timestamp,
}

struct RangeCommit {
    lowest: RowKey,
    highest: RowKey,
    committed: Timestamp,
}

/// When a row was last committed, compared with a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastCommit {
    /// At or before the timestamp.
    NotAfter,
    /// After the timestamp; the field is the commit timestamp. If that is the low water of
    /// lock-only commits, the commit may be another row's, and the conflict spurious.
    After(Timestamp),
    /// Not in memory: the row must be read.
    Unknown,
}

impl ConflictSet {
    /// A set with at least this many slots, and at least one. Rows are identified by 64-bit hashes.
    /// If two rows have the same hash, a commit of one can replace a lock-only commit of the other,
    /// and hide it. So the seed must be secret from clients that choose keys.
    pub fn new(slots: usize, seed: u64) -> Self {
        let secrets = RapidSecrets::seed(seed);
        let slots = vec![Slot::default(); slots.next_power_of_two()].into();
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

    /// Whether the row was committed after `read_ts`.
    pub fn check(&self, row: &RowKey, read_ts: Timestamp) -> LastCommit {
        if self.max_commit_ts <= read_ts {
            return LastCommit::NotAfter;
        }
        let hash = self.hash(row);
        let slot = &self.slots[self.index(hash)];
        let low_water = if slot.row == hash {
            if slot.commit_ts > read_ts {
                return LastCommit::After(slot.commit_ts);
            }
            self.low_water_of(row)
        } else {
            self.low_water_of(row).max(slot.low_water)
        };
        let lock_only_ts =
            self.lock_only.get(&hash).map_or(self.lock_only_low_water, |ts| self.lock_only_low_water.max(*ts));
        if lock_only_ts > read_ts {
            LastCommit::After(lock_only_ts)
        } else if low_water > read_ts {
            LastCommit::Unknown
        } else {
            LastCommit::NotAfter
        }
    }

    /// The newest of the range commits that may include this row: those whose range does, and all
    /// that were removed from `range_commits`.
    fn low_water_of(&self, row: &RowKey) -> Timestamp {
        let includes = |range: &&RangeCommit| (&range.lowest..=&range.highest).contains(&row);
        self.range_commits.iter().filter(includes).map(|range| range.committed).fold(self.low_water, Timestamp::max)
    }

    /// Records a commit of many rows between `lowest` and `highest` as one range. The caller must
    /// also [insert](Self::insert) the commit's lock-only rows, because no version on disk shows
    /// them.
    pub fn insert_range(&mut self, lowest: &RowKey, highest: &RowKey, committed: Timestamp) {
        self.max_commit_ts = self.max_commit_ts.max(committed);
        self.range_commits.push_back(RangeCommit { lowest: lowest.clone(), highest: highest.clone(), committed });
        if self.range_commits.len() > RANGE_COMMITS_MAX
            && let Some(oldest) = self.range_commits.pop_front()
        {
            self.low_water = self.low_water.max(oldest.committed);
        }
    }

    /// Records a commit of the row; `lock_only` if it left no version.
    pub fn insert(&mut self, row: &RowKey, committed: Timestamp, lock_only: bool) {
        let hash = self.hash(row);
        let index = self.index(hash);
        let slot = &mut self.slots[index];
        self.max_commit_ts = self.max_commit_ts.max(committed);
        // A late roll-forward can record a commit that is older than the one in the slot. Such a
        // commit does not take the slot: a newer commit of its row may have been evicted from the
        // slot before, and the slot would then show the older one as the row's last commit.
        let evicted = if slot.row == hash {
            None
        } else if committed < slot.commit_ts {
            Some((hash, committed, lock_only))
        } else {
            Some((slot.row, slot.commit_ts, slot.lock_only))
        };
        if let Some((_, committed, _)) = evicted {
            slot.low_water = slot.low_water.max(committed);
        }
        if committed >= slot.commit_ts {
            (slot.row, slot.commit_ts, slot.lock_only) = (hash, committed, lock_only);
        }
        if let Some((row, committed, true)) = evicted {
            self.insert_lock_only(row, committed);
        }
    }

    fn insert_lock_only(&mut self, row: u64, committed: Timestamp) {
        if self.lock_only.len() >= self.slots.len() {
            let mut all: Vec<Timestamp> = self.lock_only.values().copied().collect();
            let middle = all.len() / 2;
            let (_, median, _) = all.select_nth_unstable(middle);
            self.lock_only_low_water = self.lock_only_low_water.max(*median);
            let low_water = self.lock_only_low_water;
            self.lock_only.retain(|_, ts| *ts > low_water);
        }
        let newest = self.lock_only.entry(row).or_default();
        *newest = committed.max(*newest);
    }

    fn hash(&self, row: &RowKey) -> u64 {
        rapidhash_v3_seeded(row.as_bytes(), &self.secrets)
    }

    /// The slot of a row. A commit that was recorded in no slot would be a lost update.
    fn index(&self, hash: u64) -> usize {
        let slots = self.slots.len() as u64;
        assert!(slots.is_power_of_two(), "invariant: the conflict set has a power of two of slots, not {slots}");
        let Ok(index) = usize::try_from(hash & (slots - 1)) else {
            unreachable!("invariant: the index of a slot is below their number")
        };
        index
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

    /// With a known seed a client could choose two rows with the same hash, and hide a lock-only
    /// commit.
    #[test]
    fn hash_collisions_depend_on_the_seed() {
        let (one, other) = (ConflictSet::new(1, 1), ConflictSet::new(1, 2));
        for name in ["a", "a longer name", "a name that is longer than what is hashed in one step, by far"] {
            assert_ne!(one.hash(&row(name)), other.hash(&row(name)));
        }
    }

    /// With slots that the mask does not reach, a commit would be recorded for the wrong rows.
    #[test]
    #[should_panic(expected = "invariant: the conflict set has a power of two of slots, not 3")]
    fn slots_that_are_no_power_of_two_break_an_invariant() {
        let mut memory = ConflictSet::new(4, 7);
        memory.slots = vec![Slot::default(); 3].into();
        memory.insert(&row("a"), ts(10), false);
    }

    #[test]
    fn a_row_in_its_slot_is_exact() {
        let mut memory = ConflictSet::new(1024, 7);
        memory.insert(&row("a"), ts(10), false);
        assert_eq!(memory.check(&row("a"), ts(9)), LastCommit::After(ts(10)));
        assert_eq!(memory.check(&row("a"), ts(10)), LastCommit::NotAfter);
        assert_eq!(memory.check(&row("b"), ts(1)), LastCommit::NotAfter);
    }

    #[test]
    fn a_late_insert_does_not_hide_a_newer_commit() {
        let mut memory = ConflictSet::new(1024, 7);
        memory.insert(&row("a"), ts(20), false);
        memory.insert(&row("a"), ts(10), true);
        assert_eq!(memory.check(&row("a"), ts(15)), LastCommit::After(ts(20)));
    }

    #[test]
    fn a_late_insert_does_not_hide_an_evicted_newer_commit() {
        let mut memory = ConflictSet::new(1, 7);
        memory.insert(&row("a"), ts(20), false);
        memory.insert(&row("b"), ts(30), false);
        memory.insert(&row("a"), ts(10), false);
        assert_eq!(memory.check(&row("a"), ts(15)), LastCommit::Unknown);
    }

    #[test]
    fn an_evicted_row_is_unknown_only_below_the_low_water() {
        let mut memory = ConflictSet::new(1, 7);
        memory.insert(&row("a"), ts(10), false);
        memory.insert(&row("b"), ts(20), false);
        assert_eq!(memory.check(&row("a"), ts(9)), LastCommit::Unknown);
        assert_eq!(memory.check(&row("a"), ts(10)), LastCommit::NotAfter);
    }

    #[test]
    fn a_range_commit_evicts_nothing() {
        let mut memory = ConflictSet::new(64, 7);
        memory.insert(&row("a"), ts(10), false);
        memory.insert(&row("lock-only"), ts(20), true);
        memory.insert_range(&row("a"), &row("z"), ts(20));
        for name in ["a", "another"] {
            assert_eq!(memory.check(&row(name), ts(19)), LastCommit::Unknown);
            assert_eq!(memory.check(&row(name), ts(20)), LastCommit::NotAfter);
        }
        assert_eq!(memory.check(&row("a"), ts(9)), LastCommit::After(ts(10)));
        assert_eq!(memory.check(&row("lock-only"), ts(19)), LastCommit::After(ts(20)));
        memory.insert(&row("a"), ts(30), false);
        assert_eq!(memory.check(&row("a"), ts(25)), LastCommit::After(ts(30)));
        assert_eq!(memory.check(&row("another"), ts(25)), LastCommit::NotAfter);
    }

    #[test]
    fn range_commits_affect_other_rows_only_past_the_limit() {
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
    fn an_evicted_lock_only_commit_stays_a_conflict() {
        let mut memory = ConflictSet::new(1, 7);
        memory.insert(&row("a"), ts(10), true);
        memory.insert(&row("b"), ts(20), false);
        assert_eq!(memory.check(&row("a"), ts(9)), LastCommit::After(ts(10)));
        assert_eq!(memory.check(&row("a"), ts(10)), LastCommit::NotAfter);
    }

    #[test]
    fn lock_only_commits_affect_other_rows_only_past_the_limit() {
        let mut memory = ConflictSet::new(8, 7);
        for number in 1..=12 {
            memory.insert(&row(&number.to_string()), ts(number), true);
        }
        for number in 1..=12 {
            assert_eq!(memory.check(&row(&number.to_string()), ts(number - 1)), LastCommit::After(ts(number)));
            // The row's only commit is at `number`, so for a transaction that reads at `number` the
            // answer `After` would be wrong. `Unknown` is allowed: another row may be in the slot,
            // and the slot's low water may be higher.
            assert!(!matches!(memory.check(&row(&number.to_string()), ts(number)), LastCommit::After(_)));
        }
        assert!(!matches!(memory.check(&row("another"), ts(0)), LastCommit::After(_)));

        for number in 13..=1000 {
            memory.insert(&row(&number.to_string()), ts(number), true);
        }
        assert!(memory.lock_only.len() <= 8);
        for number in 1..=1000 {
            let LastCommit::After(lock_only_ts) = memory.check(&row(&number.to_string()), ts(number - 1)) else {
                panic!("the lock-only commit at {number} is missing")
            };
            assert!(lock_only_ts >= ts(number));
        }
        assert_eq!(memory.check(&row("another"), ts(1000)), LastCommit::NotAfter);
    }

    #[test]
    fn the_set_is_bounded_and_loses_no_conflict() {
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
