//! Conflict memory: when was a row last committed? Answered without reading the row.
//!
//! A fixed number of slots, each remembering the row that was committed last among those that hash to it, and a floor:
//! the newest commit among the rows it has forgotten. A row that the slot does not know was last committed at or
//! below the floor, so a transaction that reads at or above the floor has no conflict there. Only a transaction older than
//! that has to read the row. The memory never grows, however long a transaction idles.
//!
//! Rows that a transaction held without writing them (`get_for_update`) leave no record on disk, so forgetting one raises
//! a second floor below which the answer is *conflict* without looking. That may refuse a transaction that could have
//! gone ahead; it is old and will try again with a newer snapshot.

use crate::row::RowKey;
use crate::timestamp::Timestamp;

use std::hash::{DefaultHasher, Hash, Hasher};

/// See the [module](self).
pub struct ConflictMemory {
    slots: Box<[Slot]>,
}

#[derive(Clone, Default)]
struct Slot {
    row: u64,
    committed: Timestamp,
    held: bool,
    floor: Timestamp,
    held_floor: Timestamp,
}

impl Slot {
    fn forget(&mut self, committed: Timestamp, held: bool) {
        self.floor = self.floor.max(committed);
        if held {
            self.held_floor = self.held_floor.max(committed);
        }
    }
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

impl ConflictMemory {
    /// Memory with at least this many slots.
    pub fn new(slots: usize) -> Self {
        Self { slots: vec![Slot::default(); slots.max(1).next_power_of_two()].into() }
    }

    /// Whether the row was committed after `read_ts`.
    pub fn check(&self, row: &RowKey, read_ts: Timestamp) -> LastCommit {
        let hash = hash(row);
        let Some(slot) = self.slots.get(self.index(hash)) else { return LastCommit::Unknown };
        if slot.row == hash {
            if slot.committed > read_ts { LastCommit::After(slot.committed) } else { LastCommit::NotAfter }
        } else if slot.held_floor > read_ts {
            LastCommit::After(slot.held_floor)
        } else if slot.floor > read_ts {
            LastCommit::Unknown
        } else {
            LastCommit::NotAfter
        }
    }

    /// Remembers a commit of the row; `held` says that it left no version.
    pub fn record(&mut self, row: &RowKey, committed: Timestamp, held: bool) {
        let hash = hash(row);
        let index = self.index(hash);
        let Some(slot) = self.slots.get_mut(index) else { return };
        if committed < slot.committed {
            // A row that a helper has rolled forward late. Taking the slot could hide a newer commit that was forgotten.
            if slot.row != hash {
                slot.forget(committed, held);
            }
            return;
        }
        if slot.row != hash {
            slot.forget(slot.committed, slot.held);
            slot.row = hash;
        }
        slot.committed = committed;
        slot.held = held;
    }

    fn index(&self, hash: u64) -> usize {
        // The number of slots is a power of two, and what is cut off the hash does not matter.
        usize::try_from(hash & (self.slots.len() as u64 - 1)).unwrap_or(0)
    }
}

/// The same in every run, so that a simulation repeats.
pub fn hash(row: &RowKey) -> u64 {
    let mut hasher = DefaultHasher::new();
    row.hash(&mut hasher);
    hasher.finish()
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

    #[test]
    fn a_remembered_row_answers_exactly() {
        let mut memory = ConflictMemory::new(1024);
        memory.record(&row("a"), ts(10), false);
        assert_eq!(memory.check(&row("a"), ts(9)), LastCommit::After(ts(10)));
        assert_eq!(memory.check(&row("a"), ts(10)), LastCommit::NotAfter);
        assert_eq!(memory.check(&row("b"), ts(1)), LastCommit::NotAfter);
    }

    #[test]
    fn a_commit_remembered_late_does_not_hide_a_newer_one() {
        let mut memory = ConflictMemory::new(1024);
        memory.record(&row("a"), ts(20), false);
        memory.record(&row("a"), ts(10), true);
        assert_eq!(memory.check(&row("a"), ts(15)), LastCommit::After(ts(20)));
    }

    #[test]
    fn a_commit_remembered_late_does_not_hide_a_newer_one_that_was_forgotten() {
        let mut memory = ConflictMemory::new(1);
        memory.record(&row("a"), ts(20), false);
        memory.record(&row("b"), ts(30), false);
        memory.record(&row("a"), ts(10), false);
        assert_eq!(memory.check(&row("a"), ts(15)), LastCommit::Unknown);
    }

    #[test]
    fn a_forgotten_row_is_unknown_below_the_floor_and_clear_above() {
        let mut memory = ConflictMemory::new(1);
        memory.record(&row("a"), ts(10), false);
        memory.record(&row("b"), ts(20), false);
        assert_eq!(memory.check(&row("a"), ts(9)), LastCommit::Unknown);
        assert_eq!(memory.check(&row("a"), ts(10)), LastCommit::NotAfter);
    }

    #[test]
    fn a_forgotten_hold_stays_a_conflict() {
        let mut memory = ConflictMemory::new(1);
        memory.record(&row("a"), ts(10), true);
        memory.record(&row("b"), ts(20), false);
        assert_eq!(memory.check(&row("a"), ts(9)), LastCommit::After(ts(10)));
        assert_eq!(memory.check(&row("a"), ts(10)), LastCommit::NotAfter);
    }

    #[test]
    fn memory_stays_bounded_and_no_conflict_of_an_idle_transaction_is_lost() {
        let mut memory = ConflictMemory::new(64);
        for number in 1..100_000_u64 {
            memory.record(&row(&number.to_string()), ts(number), false);
        }
        assert_eq!(memory.slots.len(), 64);
        for number in 1..100_000_u64 {
            assert_ne!(memory.check(&row(&number.to_string()), ts(0)), LastCommit::NotAfter);
        }
    }
}
