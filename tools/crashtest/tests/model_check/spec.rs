//! The invariants, specified independently of the protocol.
//!
//! The specification observes every change that is applied and every status that is returned. From
//! these it derives the one end of each transaction ([`TxnEnds`]), and returns the [`Invariant`]
//! that a change or a status violates. What a reader must see at a timestamp follows from the ends
//! alone: in each row the value of the newest writer that committed at or below the timestamp. So
//! the rows are compared with a list of ends, and not with a second implementation of the protocol.

use percolite::OwnerId;
use percolite::Timestamp;
use percolite::internal::protocol::{
    CheckTxnStatus, OwnerLiveness, Resolve, Step, TxnStatus, check_txn_status, resolve,
};
use percolite::row::{CellChange, Lock, LockType, Mutation, RowChange, StoredValue, TxnId, TxnRecord, WriteRecord};

use crate::rows::{Cells, Rows, index};

/// The invariants of the models. Each is a property of every reachable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Invariant {
    SingleStatus,
    PrimaryFirst,
    NoLockAfterEnd,
    FirstCommitterWins,
    TimestampsInOrder,
    OneLock,
    LiveOwnersLeftAlone,
    LocksResolvable,
    SnapshotsWhole,
    ValuesThere,
    AcknowledgedSurvives,
    NothingLeft,
}

/// What a transaction writes. The first row is its primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub writes: Vec<(usize, Mutation)>,
    /// Whether the primary is locked after the other rows. No coordinator does so, but the protocol
    /// must tolerate this order.
    pub primary_last: bool,
    pub one_phase: bool,
}

impl Script {
    pub fn primary(&self) -> usize {
        self.writes[0].0
    }

    fn shares_a_row_with(&self, other: &Self) -> bool {
        self.writes.iter().any(|(row, _)| other.writes.iter().any(|(theirs, _)| row == theirs))
    }
}

/// The timestamps of a transaction's snapshot and start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TxnTimestamps {
    pub read_ts: Timestamp,
    pub start_ts: Timestamp,
}

/// A transaction's id: in the models each owner has one transaction.
pub fn txn_id(start_ts: Timestamp) -> TxnId {
    TxnId { start_ts, owner: OwnerId::from_u64(start_ts.to_u64()) }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Committed(Timestamp),
    RolledBack,
}

impl From<TxnRecord> for End {
    fn from(status: TxnRecord) -> Self {
        match status {
            TxnRecord::Committed(commit_ts) => Self::Committed(commit_ts),
            TxnRecord::RolledBack => Self::RolledBack,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct TxnState {
    end: Option<End>,
    /// A bit for each row on which the transaction has ended.
    applied_rows: u8,
}

/// What the specification needs to know besides the ends.
pub struct Scenario<'a> {
    pub scripts: &'a [Script],
    pub timestamps: &'a [Option<TxnTimestamps>],
    /// Whether the owner of a lock is live. While it is, only the owner itself may end its
    /// transaction.
    pub is_live: &'a dyn Fn(&Lock) -> bool,
}

impl Scenario<'_> {
    fn number(&self, start_ts: Timestamp) -> usize {
        let found = self
            .timestamps
            .iter()
            .position(|timestamps| timestamps.is_some_and(|timestamps| timestamps.start_ts == start_ts));
        found.expect("every transaction in the rows has started")
    }
}

/// How each transaction has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TxnEnds(Vec<TxnState>);

impl TxnEnds {
    pub fn new(txns: usize) -> Self {
        Self(vec![TxnState::default(); txns])
    }

    pub fn end_of(&self, txn: usize) -> Option<End> {
        self.0[txn].end
    }

    /// Records that a transaction has ended, or that its end was reported.
    pub fn end(&mut self, case: &Scenario<'_>, txn: usize, end: End) -> Result<(), Invariant> {
        if let Some(before) = self.0[txn].end {
            return if before == end { Ok(()) } else { Err(Invariant::SingleStatus) };
        }
        self.0[txn].end = Some(end);
        let (End::Committed(commit_ts), Some(own)) = (end, case.timestamps[txn]) else { return Ok(()) };
        if commit_ts <= own.start_ts {
            return Err(Invariant::TimestampsInOrder);
        }
        for (other, state) in self.0.iter().enumerate().filter(|(other, _)| *other != txn) {
            let (Some(End::Committed(theirs)), Some(timestamps)) = (state.end, case.timestamps[other]) else {
                continue;
            };
            if theirs == commit_ts {
                return Err(Invariant::TimestampsInOrder);
            }
            let overlap = own.read_ts < theirs && timestamps.read_ts < commit_ts;
            if overlap && case.scripts[txn].shares_a_row_with(&case.scripts[other]) {
                return Err(Invariant::FirstCommitterWins);
            }
        }
        Ok(())
    }

    /// Checks a status that was returned for a transaction. A transaction that was reported as
    /// rolled back must stay rolled back.
    pub fn check_answer(
        &mut self,
        case: &Scenario<'_>,
        start_ts: Timestamp,
        answer: TxnStatus,
    ) -> Result<(), Invariant> {
        let txn = case.number(start_ts);
        match answer {
            // Pending is also right if the owner has aborted and not yet rolled back its primary.
            TxnStatus::Pending => {
                let TxnState { end, applied_rows } = self.0[txn];
                let decided = applied_rows & 1 << case.scripts[txn].primary() != 0;
                if decided || matches!(end, Some(End::Committed(_))) { Err(Invariant::SingleStatus) } else { Ok(()) }
            }
            TxnStatus::Committed(commit_ts) if self.0[txn].end == Some(End::Committed(commit_ts)) => Ok(()),
            TxnStatus::Committed(_) => Err(Invariant::SingleStatus),
            TxnStatus::RolledBack => self.end(case, txn, End::RolledBack),
        }
    }

    /// Checks a change before it is applied to a row.
    pub fn apply(&mut self, case: &Scenario<'_>, before: &Cells, change: &RowChange) -> Result<(), Invariant> {
        let row = index(&change.row);
        let bit = 1 << row;
        if let CellChange::Put(lock) = &change.lock {
            if before.lock.as_ref().is_some_and(|held| held.txn != lock.txn) {
                return Err(Invariant::OneLock);
            }
            if self.0[case.number(lock.txn.start_ts)].applied_rows & bit != 0 {
                return Err(Invariant::NoLockAfterEnd);
            }
        }
        let unlocked = before.lock.as_ref().filter(|_| change.lock == CellChange::Delete);
        if unlocked.is_some_and(|lock| lock.txn.start_ts != change.start_ts) {
            return Err(Invariant::OneLock);
        }

        let version = match &change.write {
            CellChange::Put(WriteRecord { txn, commit_ts, .. }) if txn.start_ts == change.start_ts => Some(*commit_ts),
            // The version is another transaction's. It also records when this transaction has
            // committed its lock-only lock.
            CellChange::Put(WriteRecord { lock_only_ts, .. }) => *lock_only_ts,
            CellChange::Keep | CellChange::Delete => None,
        };
        let status = match change.txn_record {
            CellChange::Put(status) => Some(status.into()),
            CellChange::Keep | CellChange::Delete => None,
        };
        let mut ends: Vec<End> = version.map(End::Committed).into_iter().chain(status).collect();
        if let (true, Some(lock)) = (ends.is_empty(), unlocked) {
            // A lock-only lock of a committed transaction may be removed without a record. Any
            // other lock that is removed without a record was rolled back.
            match self.0[case.number(change.start_ts)].end {
                Some(end @ End::Committed(_)) if lock.lock_type == LockType::LockOnly => ends.push(end),
                _ => ends.push(End::RolledBack),
            }
        }
        for end in ends {
            let txn = case.number(change.start_ts);
            let is_primary = case.scripts[txn].primary() == row;
            match (end, self.0[txn].end) {
                (End::Committed(_), None) if !is_primary => return Err(Invariant::PrimaryFirst),
                (End::RolledBack, None) if is_primary && unlocked.is_some_and(case.is_live) => {
                    return Err(Invariant::LiveOwnersLeftAlone);
                }
                _ => self.end(case, txn, end)?,
            }
            self.0[txn].applied_rows |= bit;
        }
        Ok(())
    }

    /// The `start_ts` of the transaction whose value a reader at `read_ts` must find in the row.
    pub fn expected(&self, case: &Scenario<'_>, row: usize, read_ts: Timestamp) -> Option<Timestamp> {
        let writes =
            |txn: usize| case.scripts[txn].writes.iter().find(|(at, m)| *at == row && *m != Mutation::LockOnly);
        let visible = self.0.iter().enumerate().filter_map(|(txn, state)| match state.end {
            Some(End::Committed(commit_ts)) if commit_ts <= read_ts => Some((commit_ts, txn, &writes(txn)?.1)),
            _ => None,
        });
        match visible.max_by_key(|(commit_ts, ..)| *commit_ts)? {
            (_, txn, Mutation::Put(_)) => case.timestamps[txn].map(|timestamps| timestamps.start_ts),
            _ => None,
        }
    }

    /// Checks that every lock could be resolved if its owner ended now. The owner's transaction
    /// must then have the end that is recorded here, or be rolled back if none is recorded.
    pub fn resolvable(
        &self,
        case: &Scenario<'_>,
        rows: &Rows,
        requester: OwnerLiveness,
        shared: bool,
    ) -> Result<(), Invariant> {
        for (row, lock) in rows.locks() {
            let (txn, primary) = (lock.txn, index(&lock.primary));
            let mut rows = rows.clone();
            let request = CheckTxnStatus { row: lock.primary.clone(), txn, liveness: requester };
            let status = settle(&mut rows, primary, txn, |row| check_txn_status(row, &request))?;
            let end = match status {
                TxnStatus::Pending => return Err(Invariant::LocksResolvable),
                TxnStatus::Committed(commit_ts) => End::Committed(commit_ts),
                TxnStatus::RolledBack => End::RolledBack,
            };
            if end != self.0[case.number(txn.start_ts)].end.unwrap_or(End::RolledBack) {
                return Err(Invariant::SingleStatus);
            }
            let request =
                Resolve { row: crate::rows::key(row), txn, status, keep_old_version: shared, on_shared_engine: shared };
            settle(&mut rows, row, txn, |row| resolve(row, &request))?;
            if rows.cells[row].lock.as_ref().is_some_and(|left| left.txn == txn) {
                return Err(Invariant::LocksResolvable);
            }
        }
        Ok(())
    }
}

/// Runs a step without concurrency.
fn settle<T>(
    rows: &mut Rows,
    row: usize,
    txn: TxnId,
    step: impl Fn(&percolite::row::RowState) -> Result<Step<T>, percolite::internal::protocol::StepError>,
) -> Result<T, Invariant> {
    match step(&rows.read(row, txn.start_ts)) {
        Ok(Step::Done(answer)) => Ok(answer),
        Ok(Step::Apply(change, answer)) if rows.refusal(std::slice::from_ref(&change)).is_none() => {
            rows.change(&change);
            Ok(answer)
        }
        Ok(Step::Apply(..)) | Err(_) => Err(Invariant::LocksResolvable),
    }
}

/// The `start_ts` of the transaction whose value a reader finds in the row of its view.
///
/// Reads as the store does: the value of a lock if `decides`, which means that the lock's
/// transaction is committed at or below `read_ts`; else the newest version at or below `read_ts`.
pub fn read(view: &Rows, row: usize, read_ts: Timestamp, decides: bool) -> Result<Option<Timestamp>, Invariant> {
    let cells = &view.cells[row];
    let from = |txn: TxnId, value: &StoredValue| match value {
        StoredValue::OutOfLine if !cells.data.contains(&txn.start_ts) => Err(Invariant::ValuesThere),
        StoredValue::OutOfLine | StoredValue::Inline(_) => Ok(Some(txn.start_ts)),
    };
    match &cells.lock {
        Some(Lock { txn, lock_type: LockType::Put(value), .. }) if decides => return from(*txn, value),
        Some(Lock { lock_type: LockType::Delete, .. }) if decides => return Ok(None),
        _ => {}
    }
    let versions = cells.write.iter().chain(cells.versions.iter().rev());
    match versions.into_iter().find(|version| version.commit_ts <= read_ts) {
        Some(WriteRecord { txn, value: Some(value), .. }) => from(*txn, value),
        Some(WriteRecord { value: None, .. }) | None => Ok(None),
    }
}

/// Checks that exactly the values to which a lock or a version refers are stored.
pub fn values_there(rows: &Rows) -> Result<(), Invariant> {
    for cells in &rows.cells {
        let locked = cells
            .lock
            .iter()
            .filter(|lock| lock.lock_type == LockType::Put(StoredValue::OutOfLine))
            .map(|lock| lock.txn);
        let versions = cells.write.iter().chain(&cells.versions);
        let written =
            versions.filter(|version| version.value == Some(StoredValue::OutOfLine)).map(|version| version.txn);
        let mut wanted: Vec<Timestamp> = locked.chain(written).map(|txn| txn.start_ts).collect();
        wanted.sort();
        wanted.dedup();
        if wanted != cells.data {
            return Err(Invariant::ValuesThere);
        }
    }
    Ok(())
}
