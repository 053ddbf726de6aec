//! How large transactions end: their locks are turned into versions, or taken away, in the background and page by page.
//!
//! The verdict stands before an ending begins, in the primary's record or in the pipeline's memory of who gave up. So
//! anybody may do a part of the work: writers that meet such a lock do. A process that dies in the middle leaves the rest
//! to the [sweep](super::housekeeping) of the next, which reads the same verdict.

use std::ops::Bound;

use super::Embedded;
use crate::engine::{PageRequest, RowRange};
use crate::error::Result;
use crate::pipeline::{Purpose, Refused, Settled};
use crate::protocol::{CommitPoint, RollBack, forget, let_go};
use crate::row::{Lock, Row, RowChange, RowKey, TxnId};
use crate::timestamp::Timestamp;

/// A transaction whose verdict stands while rows are still locked.
#[derive(Clone)]
pub struct Ending {
    txn: TxnId,
    primary: RowKey,
    /// Where locks of it may be left.
    rest: RowRange,
    verdict: CommitPoint,
}

impl Ending {
    /// The end of a transaction that has locked rows from `lowest` to `highest`: committed, or else rolled back.
    pub fn new(txn: TxnId, primary: &RowKey, lowest: &RowKey, highest: &RowKey, committed: Option<Timestamp>) -> Self {
        let bound = |row: &RowKey| Bound::Included(row.as_bytes().to_vec());
        let rest = RowRange { start: bound(lowest), end: bound(highest) };
        let verdict = committed.map_or(CommitPoint::RolledBack, CommitPoint::Committed);
        Self { txn, primary: primary.clone(), rest, verdict }
    }
}

impl Embedded {
    pub(super) fn end_later(&self, ending: Ending) {
        self.endings.lock().push_back(ending);
        self.wake_housekeeper();
    }

    /// How many large transactions are over with rows still locked.
    pub fn endings(&self) -> usize {
        self.endings.lock().len()
    }

    /// Does the next page of the oldest ending; the answer is whether there is more to do.
    pub fn end_page(&self) -> Result<bool> {
        let Some(ending) = self.endings.lock().front().cloned() else { return Ok(false) };
        let txn = ending.txn;
        let (next, failed) = match self.end_page_of(ending) {
            Ok(next) => (next, None),
            Err(why) => (None, Some(why)),
        };
        // Whoever has done the same page meanwhile has come to the same.
        let mut endings = self.endings.lock();
        let position = endings.iter().position(|other| other.txn == txn);
        if let Some(done) = position.and_then(|position| endings.remove(position)) {
            match (next, &failed) {
                (Some(next), _) => endings.push_front(next),
                // The others must not wait for one that fails.
                (None, Some(_)) => endings.push_back(done),
                (None, None) => {}
            }
        }
        failed.map_or(Ok(!endings.is_empty()), Err)
    }

    /// What is left to do after the page.
    fn end_page_of(&self, mut ending: Ending) -> Result<Option<Ending>> {
        let limit = self.group_rows();
        let page = PageRequest { range: &ending.rest, backwards: false, limit, cursor: None };
        let found = self.pipeline.engine().snapshot()?.scan_locks(&page)?;
        let ends_here = mutated!(ShortPageEndsStream) && found.len() < limit;
        let last = found.last().map(|(row, _)| Bound::Excluded(row.as_bytes().to_vec()));
        let own: Vec<_> = found.into_iter().filter(|(_, lock)| lock.txn == ending.txn).collect();
        self.carry_out_together(ending.txn, &ending.primary, &own, ending.verdict, false)?;
        self.counters.rows_ended.add(own.len() as u64);
        if let Some(last) = last.filter(|_| !mutated!(StreamEndsEarly)).filter(|_| !ends_here) {
            ending.rest.start = last;
            crash_point!(EndingForward if ending.verdict != CommitPoint::RolledBack);
            crash_point!(EndingBack if ending.verdict == CommitPoint::RolledBack);
            return Ok(Some(ending));
        }
        crash_point!(EndingDone);
        self.finish(&ending)?;
        event!(DEBUG, start_ts = %ending.txn.start_ts, "large transaction ended");
        Ok(None)
    }

    /// Takes the record of the end away: there is nobody left to tell.
    fn finish(&self, ending: &Ending) -> Result<()> {
        self.carry_out_together(ending.txn, &ending.primary, &[], ending.verdict, true)?;
        self.pipeline.stream_ended(ending.txn.start_ts)
    }

    /// Carries a verdict that stands out on many rows, on as many at once as the engine can change. Those that somebody else has
    /// done are left alone. With the last rows of a committed transaction its record goes, too: that `finishes` it.
    pub(super) fn carry_out_together(
        &self,
        txn: TxnId,
        primary: &RowKey,
        locks: &[(RowKey, Lock)],
        verdict: CommitPoint,
        finishes: bool,
    ) -> Result<()> {
        let mut locks = locks;
        while let Some((some, others)) = locks.split_at_checked(self.group_rows())
            && !others.is_empty()
        {
            self.carry_out_together(txn, primary, some, verdict, false)?;
            locks = others;
        }
        let mut left: Vec<&(RowKey, Lock)> = locks.iter().collect();
        loop {
            let done = match verdict {
                CommitPoint::Committed(commit_ts) if finishes || !left.is_empty() => {
                    let record = finishes.then(|| forget(primary.clone(), txn.start_ts));
                    self.roll_forward(txn, &left, commit_ts, record)?
                }
                CommitPoint::RolledBack if !left.is_empty() => self.let_go_of(txn, &left)?,
                _ => None,
            };
            let Some(done) = done else { return Ok(()) };
            // Whoever has done this one is at work on the others, too.
            let view = self.pipeline.engine().snapshot()?;
            let mut still = Vec::with_capacity(left.len());
            for locked in left {
                if locked.0 != done && view.lock(&locked.0)?.is_some_and(|lock| lock.txn == txn) {
                    still.push(locked);
                }
            }
            left = still;
        }
    }

    /// Turns locks of a committed transaction into versions together, or names one that is gone. With the last of them
    /// goes the `record` of the commit.
    fn roll_forward(
        &self,
        txn: TxnId,
        locks: &[&(RowKey, Lock)],
        commit_ts: Timestamp,
        record: Option<RowChange>,
    ) -> Result<Option<RowKey>> {
        let purpose = Purpose::RollForward { commit_ts, finishes: record.is_some() };
        let mut changes = Vec::with_capacity(locks.len() + 1);
        for (row, lock) in locks {
            changes.push(self.commit_change(txn, row, lock, commit_ts, false)?);
        }
        changes.extend(record);
        self.end_together(txn, changes, purpose)
    }

    /// Takes locks of a transaction that is rolled back away together, or names one that is gone.
    pub(super) fn let_go_of(&self, txn: TxnId, locks: &[&(RowKey, Lock)]) -> Result<Option<RowKey>> {
        let change = |(row, lock): &&(RowKey, Lock)| -> Option<RowChange> {
            let as_locked = Row { lock: Some(lock.clone()), ..Row::default() };
            let_go(&as_locked, &RollBack { row: row.clone(), txn })
        };
        self.end_together(txn, locks.iter().filter_map(change).collect(), Purpose::Other)
    }

    fn end_together(&self, txn: TxnId, changes: Vec<RowChange>, purpose: Purpose) -> Result<Option<RowKey>> {
        match self.pipeline.submit_own(changes, purpose)? {
            Settled::Applied(_) => Ok(None),
            Settled::Refused(Refused::Lock(row, _) | Refused::Found(row, _)) => Ok(Some(row)),
            Settled::Refused(obstacle) => Err(self.explain(obstacle, txn, txn.start_ts)),
        }
    }
}
