//! The table of fates: the status of finished transactions that may still have locks.
//!
//! The rows are authoritative. With the table, the primary of a transaction that this process has
//! finished need not be read. A committed transaction with locks left, and a rolled-back large
//! transaction, have an entry from their end until their last lock is removed. The entry of a
//! committed transaction is made before a view that shows the commit is published. So every view
//! that is published while locks are left, and shows the commit, checks locks.
//!
//! | fate | the transaction | its locks |
//! |---|---|---|
//! | alive | has no entry: it is running, or has no lock left | stay |
//! | committed | its primary is a version | become versions |
//! | rolled back | is a large one that was rolled back | are removed |
//! | orphan | belongs to an earlier incarnation | the primary decides |
//!
//! *Look up the fate first, then read the row.* An entry is removed only after the last lock. So if
//! the row is still locked when it is read, the fate is valid; if the row is not locked, no fate is
//! needed.
//!
//! The table is also the queue of [lock cleanups](LockCleanup). The entry of a finished large
//! transaction has the range of its rows, until the background worker has resolved their locks.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::RowRange;
use crate::row::{RowKey, TxnId};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// What the table knows of a transaction. It decides what becomes of the transaction's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Alive,
    Committed(Timestamp),
    RolledBack,
    Orphan,
}

/// What is left of a finished large transaction's lock cleanup.
#[derive(Clone, Debug)]
pub struct LockCleanup {
    pub txn: TxnId,
    pub primary: RowKey,
    /// Rows that may still be locked.
    pub remaining: RowRange,
    /// The commit timestamp; `None` if the transaction was rolled back.
    pub committed: Option<Timestamp>,
}

struct Unfinished {
    committed: Option<Timestamp>,
    cleanup: Option<LockCleanup>,
}

/// The table of fates, by `start_ts`.
pub struct TxnFates {
    /// Transactions with an earlier `start_ts` belong to an earlier incarnation.
    first_ts: Timestamp,
    /// Whether locks of an earlier incarnation may be left.
    may_have_orphans: AtomicBool,
    unfinished: Mutex<BTreeMap<Timestamp, Unfinished>>,
}

impl TxnFates {
    pub fn new(first_ts: Timestamp, may_have_orphans: bool) -> Self {
        Self { first_ts, may_have_orphans: AtomicBool::new(may_have_orphans), unfinished: Mutex::default() }
    }

    /// The first timestamp of this incarnation.
    pub fn first_ts(&self) -> Timestamp {
        self.first_ts
    }

    pub fn fate(&self, start_ts: Timestamp) -> Fate {
        match self.unfinished.lock().get(&start_ts) {
            Some(Unfinished { committed: Some(commit_ts), .. }) => Fate::Committed(*commit_ts),
            Some(_) => Fate::RolledBack,
            None if start_ts < self.first_ts => Fate::Orphan,
            None => Fate::Alive,
        }
    }

    /// Adds a transaction whose primary is committed while other rows are still locked.
    pub fn committed(&self, start_ts: Timestamp, commit_ts: Timestamp) {
        self.unfinished.lock().insert(start_ts, Unfinished { committed: Some(commit_ts), cleanup: None });
    }

    /// Queues the lock cleanup of a large transaction that was rolled back, or that
    /// [`committed`](Self::committed) has added.
    pub fn schedule_cleanup(&self, cleanup: LockCleanup) {
        let start_ts = cleanup.txn.start_ts;
        let entry = Unfinished { committed: cleanup.committed, cleanup: Some(cleanup) };
        self.unfinished.lock().insert(start_ts, entry);
    }

    /// The pending cleanup with the lowest `start_ts` at or above this timestamp; if there is none,
    /// the one with the lowest `start_ts` of all.
    pub fn next_cleanup(&self, start_ts: Timestamp) -> Option<LockCleanup> {
        let unfinished = self.unfinished.lock();
        let mut pending = unfinished.range(start_ts..).chain(unfinished.range(..start_ts));
        pending.find_map(|(_, entry)| entry.cleanup.clone())
    }

    /// Records that no lock of the transaction is left up to and including this row.
    pub fn cleaned_up_to(&self, start_ts: Timestamp, row: &RowKey) {
        if let Some(cleanup) = self.unfinished.lock().get_mut(&start_ts).and_then(|entry| entry.cleanup.as_mut())
            && let Bound::Included(from) | Bound::Excluded(from) = &cleanup.remaining.start
            && from.as_slice() <= row.as_bytes()
        {
            cleanup.remaining.start = Bound::Excluded(row.as_bytes().to_vec());
        }
    }

    /// Removes the transaction: it has no lock left.
    pub fn finished(&self, start_ts: Timestamp) {
        self.unfinished.lock().remove(&start_ts);
    }

    /// Number of finished large transactions with rows still locked.
    pub fn pending_cleanups(&self) -> usize {
        self.unfinished.lock().values().filter(|entry| entry.cleanup.is_some()).count()
    }

    /// Whether rows of a committed transaction are still locked.
    pub fn any_committed(&self) -> bool {
        self.unfinished.lock().values().any(|entry| entry.committed.is_some())
    }

    /// Whether locks of an earlier incarnation may be left.
    pub fn may_have_orphans(&self) -> bool {
        self.may_have_orphans.load(Ordering::Acquire)
    }

    /// Records that no lock of an earlier incarnation is left.
    pub fn clear_orphans(&self) {
        self.may_have_orphans.store(false, Ordering::Release);
    }

    /// Whether a committed value may still be in a lock instead of a version, so that reads must
    /// check locks.
    pub fn may_hide_commits(&self) -> bool {
        self.may_have_orphans() || self.any_committed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner_id::OwnerId;
    use crate::row::KeyspaceId;

    fn ts(number: u64) -> Timestamp {
        Timestamp::from_u64(number)
    }

    fn row(name: &str) -> RowKey {
        RowKey::new(KeyspaceId(1), name.as_bytes())
    }

    fn cleanup(start_ts: u64, committed: Option<u64>) -> LockCleanup {
        let bound = |name| Bound::Included(row(name).as_bytes().to_vec());
        LockCleanup {
            txn: TxnId { start_ts: ts(start_ts), owner: OwnerId::from_u64(1) },
            primary: row("a"),
            remaining: RowRange { start: bound("a"), end: bound("z") },
            committed: committed.map(ts),
        }
    }

    #[test]
    fn a_fate_lasts_from_the_decision_to_the_last_lock() {
        let fates = TxnFates::new(ts(100), true);
        assert_eq!([99, 100, 101].map(|start| fates.fate(ts(start))), [Fate::Orphan, Fate::Alive, Fate::Alive]);
        fates.committed(ts(101), ts(105));
        fates.schedule_cleanup(cleanup(102, None));
        assert_eq!([101, 102].map(|start| fates.fate(ts(start))), [Fate::Committed(ts(105)), Fate::RolledBack]);
        assert!(fates.any_committed());
        assert_eq!(fates.pending_cleanups(), 1);
        fates.finished(ts(101));
        fates.finished(ts(102));
        assert_eq!([101, 102].map(|start| fates.fate(ts(start))), [Fate::Alive; 2]);
        assert!(!fates.any_committed() && fates.may_hide_commits());
        fates.clear_orphans();
        assert!(!fates.may_hide_commits());
    }

    #[test]
    fn cleanups_rotate_and_only_move_forward() {
        let fates = TxnFates::new(ts(1), false);
        fates.committed(ts(3), ts(9));
        fates.schedule_cleanup(cleanup(2, None));
        fates.schedule_cleanup(cleanup(4, Some(8)));
        let next = |start| fates.next_cleanup(ts(start)).map(|cleanup| cleanup.txn.start_ts.to_u64());
        assert_eq!([0, 2, 3, 4, 5].map(next), [Some(2), Some(2), Some(4), Some(4), Some(2)]);
        for (name, remaining) in [("m", "m"), ("c", "m"), ("n", "n")] {
            fates.cleaned_up_to(ts(4), &row(name));
            let start = fates.next_cleanup(ts(4)).unwrap().remaining.start;
            assert_eq!(start, Bound::Excluded(row(remaining).as_bytes().to_vec()), "after {name}");
        }
        fates.cleaned_up_to(ts(7), &row("x"));
        assert_eq!(fates.pending_cleanups(), 2);
    }
}
