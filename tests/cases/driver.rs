//! A driver of the protocol's pure functions: a test sends single requests to rows in a map or in
//! an engine, in any order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use percolite::OwnerId;
use percolite::Timestamp;
use percolite::TxnStatus;
use percolite::engine::{ApplyResult, Engine, RowBatch};
use percolite::internal::protocol::{
    CheckTxnStatus, CommitRow, GcRequest, Heartbeat, OnePhase, OwnerLiveness, Prewrite, PrewriteResult, Resolve,
    Rollback, Step, StepError, check_txn_status, commit, commit_at_least, gc_row, heartbeat, one_phase, prewrite,
    resolve, rollback,
};
use percolite::row::{
    CellChange, KeyspaceId, Lock, Mutation, RowChange, RowKey, RowState, StoredValue, TxnId, TxnRecord, Value,
    WriteRecord,
};

pub fn ts(number: u64) -> Timestamp {
    Timestamp::from_u64(number)
}

pub fn row(key: &str) -> RowKey {
    RowKey::new(KeyspaceId(1), key.as_bytes())
}

/// The transaction that began at `start_ts`. Its owner id is unique for each `start_ts`.
pub fn txn(start_ts: u64) -> TxnId {
    TxnId { start_ts: ts(start_ts), owner: OwnerId::from_u64(1 << 40 | start_ts) }
}

/// A prewrite of a put to one row, which is its own primary.
pub fn put(txn: TxnId, key: &str, value: &str) -> Prewrite {
    write(txn, key, Mutation::Put(value.into()))
}

pub fn write(txn: TxnId, key: &str, mutation: Mutation) -> Prewrite {
    Prewrite {
        row: row(key),
        txn,
        read_ts: ts(txn.start_ts.to_u64() - 1),
        primary: row(key),
        mutation,
        write_seq: 1,
        ttl_ms: 0,
        min_commit_ts: Timestamp::ZERO,
    }
}

/// A place that stores rows: a map in memory, or an engine.
pub trait Rows: Send + Sync {
    fn read(&self, row: &RowKey, start_ts: Timestamp) -> RowState;
    /// Applies the change, or returns the row that failed its preconditions.
    fn make(&self, change: RowChange) -> Result<(), RowState>;
    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Option<Value>;
    fn set_safe_point(&self, to: Timestamp);
}

/// Rows in a map, without an engine.
#[derive(Default)]
pub struct Memory {
    rows: Mutex<BTreeMap<RowKey, Cells>>,
    safe_point: Mutex<Timestamp>,
}

#[derive(Default)]
struct Cells {
    lock: Option<Lock>,
    write: Option<WriteRecord>,
    data: BTreeMap<Timestamp, Value>,
    statuses: BTreeMap<Timestamp, TxnRecord>,
}

fn edit<T>(cell: &mut Option<T>, edit: CellChange<T>) {
    match edit {
        CellChange::Keep => {}
        CellChange::Put(content) => *cell = Some(content),
        CellChange::Delete => *cell = None,
    }
}

fn edit_in<T>(cells: &mut BTreeMap<Timestamp, T>, at: Timestamp, edit: CellChange<T>) {
    match edit {
        CellChange::Keep => {}
        CellChange::Put(content) => drop(cells.insert(at, content)),
        CellChange::Delete => drop(cells.remove(&at)),
    }
}

impl Rows for Memory {
    fn read(&self, row: &RowKey, start_ts: Timestamp) -> RowState {
        let rows = self.rows.lock().unwrap();
        let safe_point = *self.safe_point.lock().unwrap();
        let Some(cells) = rows.get(row) else { return RowState { safe_point, ..RowState::default() } };
        RowState {
            lock: cells.lock.clone(),
            write: cells.write.clone(),
            txn_record: cells.statuses.get(&start_ts).copied(),
            safe_point,
        }
    }

    fn make(&self, change: RowChange) -> Result<(), RowState> {
        let found = self.read(&change.row, change.start_ts);
        if !change.preconditions.iter().all(|guard| guard.is_met(&found)) {
            return Err(found);
        }
        let mut rows = self.rows.lock().unwrap();
        let cells = rows.entry(change.row).or_default();
        edit(&mut cells.lock, change.lock);
        edit(&mut cells.write, change.write);
        edit_in(&mut cells.statuses, change.start_ts, change.txn_record);
        for (at, change) in change.data {
            edit_in(&mut cells.data, at, change);
        }
        Ok(())
    }

    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Option<Value> {
        self.rows.lock().unwrap().get(row)?.data.get(&start_ts).cloned()
    }

    fn set_safe_point(&self, to: Timestamp) {
        *self.safe_point.lock().unwrap() = to;
    }
}

impl Rows for Arc<dyn Engine> {
    fn read(&self, row: &RowKey, start_ts: Timestamp) -> RowState {
        self.read_row(row, start_ts).unwrap()
    }

    fn make(&self, change: RowChange) -> Result<(), RowState> {
        match self.apply(&[RowBatch::Changes(vec![change])]).unwrap().pop().unwrap() {
            ApplyResult::Applied => Ok(()),
            ApplyResult::PreconditionFailed { row, .. } => Err(*row),
        }
    }

    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Option<Value> {
        self.snapshot().unwrap().data(row, start_ts).unwrap()
    }

    fn set_safe_point(&self, to: Timestamp) {
        self.advance_safe_point(to).unwrap();
    }
}

/// After this number of failed attempts at a request the test fails. A first attempt may fail
/// because it has not read the row; others fail only if another thread has just changed the row.
const ATTEMPTS_MAX: usize = 1000;

/// Sends requests and repeats each until its change applies.
#[derive(Clone)]
pub struct Driver(pub Arc<dyn Rows>);

impl Driver {
    fn drive<T>(
        &self,
        row: &RowKey,
        start_ts: Timestamp,
        mut as_read: RowState,
        step: impl Fn(&RowState) -> Result<Step<T>, StepError>,
    ) -> Result<T, StepError> {
        for _ in 0..ATTEMPTS_MAX {
            let (change, answer) = match step(&as_read)? {
                Step::Apply(change, answer) => (change, answer),
                Step::Done(answer) => return Ok(answer),
            };
            assert_eq!((&change.row, change.start_ts), (row, start_ts));
            match self.0.make(change) {
                Ok(()) => return Ok(answer),
                Err(found) => as_read = found,
            }
        }
        panic!("the preconditions of {row:?} refuse what the step allows: {as_read:?}");
    }

    fn informed<T>(
        &self,
        row: &RowKey,
        start_ts: Timestamp,
        step: impl Fn(&RowState) -> Result<Step<T>, StepError>,
    ) -> Result<T, StepError> {
        self.drive(row, start_ts, self.0.read(row, start_ts), step)
    }

    /// Sends the request as a coordinator does, without reading the row first. A request that reads
    /// the row first must get the same result.
    pub fn prewrite(&self, request: &Prewrite) -> Result<PrewriteResult, StepError> {
        let start_ts = request.txn.start_ts;
        let looked = prewrite(&self.0.read(&request.row, start_ts), request).map(|step| match step {
            Step::Apply(_, answer) | Step::Done(answer) => answer,
        });
        let blind = self.drive(&request.row, start_ts, RowState::default(), |row| prewrite(row, request));
        assert_eq!(blind, looked, "a prewrite without a read must have the same result as one with a read");
        blind
    }

    /// Like `prewrite`, but without the comparison with a prewrite that reads first: other threads
    /// may change the row between the two prewrites.
    pub fn race_for(&self, request: &Prewrite) -> Result<PrewriteResult, StepError> {
        self.drive(&request.row, request.txn.start_ts, RowState::default(), |row| prewrite(row, request))
    }

    pub fn one_phase(
        &self,
        txn: TxnId,
        read_ts: u64,
        key: &str,
        mutation: &Mutation,
        commit_ts: u64,
    ) -> Result<Timestamp, StepError> {
        let (read_ts, commit_ts) = (ts(read_ts), ts(commit_ts));
        let row = row(key);
        let request = OnePhase { row: &row, txn, read_ts, commit_ts, mutation, keep_old_version: false };
        self.informed(&row, txn.start_ts, |as_read| one_phase(as_read, &request))
    }

    /// Commits a primary.
    pub fn commit(&self, txn: TxnId, key: &str, commit_ts: u64) -> Result<Timestamp, StepError> {
        self.commit_as(txn, key, commit_ts, true)
    }

    /// Commits a primary as its owner does: at the higher of `commit_ts` and the lock's
    /// `min_commit_ts`.
    pub fn commit_at_or_above(&self, txn: TxnId, key: &str, commit_ts: u64) -> Result<Timestamp, StepError> {
        let request = commit_request(txn, key, commit_ts, true);
        self.informed(&request.row, txn.start_ts, |as_read| commit_at_least(as_read, &request))
    }

    /// Commits a secondary, which leaves no transaction record.
    pub fn commit_secondary(&self, txn: TxnId, key: &str, commit_ts: u64) -> Result<Timestamp, StepError> {
        self.commit_as(txn, key, commit_ts, false)
    }

    fn commit_as(&self, txn: TxnId, key: &str, commit_ts: u64, keep_status: bool) -> Result<Timestamp, StepError> {
        let request = commit_request(txn, key, commit_ts, keep_status);
        self.informed(&request.row, txn.start_ts, |as_read| commit(as_read, &request))
    }

    pub fn roll_back(&self, txn: TxnId, key: &str) -> Result<(), StepError> {
        let request = Rollback { row: row(key), txn };
        self.informed(&request.row, txn.start_ts, |as_read| rollback(as_read, &request))
    }

    pub fn check(&self, txn: TxnId, primary: &str, liveness: OwnerLiveness) -> Result<TxnStatus, StepError> {
        let request = CheckTxnStatus { row: row(primary), txn, liveness };
        self.informed(&request.row, txn.start_ts, |as_read| check_txn_status(as_read, &request))
    }

    pub fn resolve(&self, txn: TxnId, key: &str, status: TxnStatus) -> Result<(), StepError> {
        let request = Resolve { row: row(key), txn, status, keep_old_version: false, on_shared_engine: false };
        self.informed(&request.row, txn.start_ts, |as_read| resolve(as_read, &request))
    }

    pub fn heartbeat(&self, txn: TxnId, primary: &str, ttl_ms: u64) -> Result<u64, StepError> {
        let request = Heartbeat { row: row(primary), txn, ttl_ms };
        self.informed(&request.row, txn.start_ts, |as_read| heartbeat(as_read, &request))
    }

    /// Runs GC for the deletion of the row at `deleted_at`. Returns whether its entry left the GC
    /// queue.
    pub fn collect(&self, key: &str, deleted_at: u64) -> bool {
        let as_read = self.0.read(&row(key), Timestamp::ZERO);
        let change =
            gc_row(&as_read, &GcRequest { row: row(key), replaced_at: vec![ts(deleted_at)], old_versions: Vec::new() });
        let done = !change.gc_done.is_empty();
        self.0.make(change).is_ok() && done
    }

    /// Prewrites and commits one row.
    pub fn write(&self, txn: TxnId, key: &str, value: &str, commit_ts: u64) {
        self.prewrite(&put(txn, key, value)).unwrap();
        assert_eq!(self.commit(txn, key, commit_ts), Ok(ts(commit_ts)));
    }

    pub fn lock(&self, key: &str) -> Option<Lock> {
        self.0.read(&row(key), Timestamp::ZERO).lock
    }

    pub fn record(&self, key: &str) -> Option<WriteRecord> {
        self.0.read(&row(key), Timestamp::ZERO).write
    }

    pub fn status(&self, key: &str, txn: TxnId) -> Option<TxnRecord> {
        self.0.read(&row(key), txn.start_ts).txn_record
    }

    /// The newest committed value.
    pub fn value(&self, key: &str) -> Option<String> {
        let newest = self.record(key)?;
        let bytes = match newest.value? {
            StoredValue::Inline(bytes) => bytes,
            StoredValue::OutOfLine => self.0.data(&row(key), newest.txn.start_ts).expect("the data cell is missing"),
        };
        Some(String::from_utf8(bytes.into()).unwrap())
    }
}

fn commit_request(txn: TxnId, key: &str, commit_ts: u64, keep_status: bool) -> CommitRow {
    CommitRow {
        row: row(key),
        txn,
        commit_ts: ts(commit_ts),
        keep_txn_record: keep_status,
        keep_old_version: false,
        on_shared_engine: false,
    }
}
