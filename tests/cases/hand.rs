//! The protocol by hand: single requests over rows in a map or in an engine, in whatever order a test likes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use percolite::CommitPoint;
use percolite::OwnerId;
use percolite::engine::{ApplyResult, Engine, RowBatch};
use percolite::protocol::{
    Asker, CheckStatus, Collect, Commit, Heartbeat, OnePhase, Prewrite, Prewritten, Refusal, Resolve, RollBack, Step,
    check_status, collect, commit, commit_at_or_above, heartbeat, one_phase, prewrite, resolve, roll_back,
};
use percolite::row::{
    Bytes, Edit, KeyspaceId, Lock, Mutation, Row, RowChange, RowKey, Status, TxnId, Value, WriteRecord,
};
use percolite::timestamp::Timestamp;

pub fn ts(number: u64) -> Timestamp {
    Timestamp::from_u64(number)
}

pub fn row(key: &str) -> RowKey {
    RowKey::new(KeyspaceId(1), key.as_bytes())
}

/// The transaction that began at `start_ts`; every number has an owner of its own.
pub fn txn(start_ts: u64) -> TxnId {
    TxnId { start_ts: ts(start_ts), owner: OwnerId::from_u64(1 << 40 | start_ts) }
}

/// A prewrite of one row, which is its own primary.
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
        sequence: 1,
        ttl_ms: 0,
        min_commit_ts: Timestamp::ZERO,
    }
}

/// Where rows are kept.
pub trait Rows: Send + Sync {
    fn read(&self, row: &RowKey, start_ts: Timestamp) -> Row;
    /// Makes the change, or answers with the row that refused it.
    fn make(&self, change: RowChange) -> Result<(), Row>;
    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Option<Vec<u8>>;
    fn set_safe_point(&self, to: Timestamp);
}

/// Rows in a map: nothing between a protocol function and the test.
#[derive(Default)]
pub struct Memory {
    rows: Mutex<BTreeMap<RowKey, Cells>>,
    safe_point: Mutex<Timestamp>,
}

#[derive(Default)]
struct Cells {
    lock: Option<Lock>,
    write: Option<WriteRecord>,
    data: BTreeMap<Timestamp, Bytes>,
    statuses: BTreeMap<Timestamp, Status>,
}

fn edit<T>(cell: &mut Option<T>, edit: Edit<T>) {
    match edit {
        Edit::Keep => {}
        Edit::Put(content) => *cell = Some(content),
        Edit::Delete => *cell = None,
    }
}

fn edit_in<T>(cells: &mut BTreeMap<Timestamp, T>, at: Timestamp, edit: Edit<T>) {
    match edit {
        Edit::Keep => {}
        Edit::Put(content) => drop(cells.insert(at, content)),
        Edit::Delete => drop(cells.remove(&at)),
    }
}

impl Rows for Memory {
    fn read(&self, row: &RowKey, start_ts: Timestamp) -> Row {
        let rows = self.rows.lock().unwrap();
        let safe_point = *self.safe_point.lock().unwrap();
        let Some(cells) = rows.get(row) else { return Row { safe_point, ..Row::default() } };
        Row {
            lock: cells.lock.clone(),
            write: cells.write.clone(),
            status: cells.statuses.get(&start_ts).copied(),
            safe_point,
        }
    }

    fn make(&self, change: RowChange) -> Result<(), Row> {
        let found = self.read(&change.row, change.start_ts);
        if !change.guards.iter().all(|guard| guard.holds(&found)) {
            return Err(found);
        }
        let mut rows = self.rows.lock().unwrap();
        let cells = rows.entry(change.row).or_default();
        edit(&mut cells.lock, change.lock);
        edit(&mut cells.write, change.write);
        edit_in(&mut cells.statuses, change.start_ts, change.status);
        for (at, change) in change.data {
            edit_in(&mut cells.data, at, change);
        }
        Ok(())
    }

    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Option<Vec<u8>> {
        self.rows.lock().unwrap().get(row)?.data.get(&start_ts).map(|value| value.to_vec())
    }

    fn set_safe_point(&self, to: Timestamp) {
        *self.safe_point.lock().unwrap() = to;
    }
}

impl Rows for Arc<dyn Engine> {
    fn read(&self, row: &RowKey, start_ts: Timestamp) -> Row {
        self.read_row(row, start_ts).unwrap()
    }

    fn make(&self, change: RowChange) -> Result<(), Row> {
        match self.apply(&[RowBatch::Changes(vec![change])]).unwrap().pop().unwrap() {
            ApplyResult::Applied => Ok(()),
            ApplyResult::PreconditionFailed { row, .. } => Err(*row),
        }
    }

    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Option<Vec<u8>> {
        self.snapshot().unwrap().data(row, start_ts).unwrap()
    }

    fn set_safe_point(&self, to: Timestamp) {
        self.advance_safe_point(to).unwrap();
    }
}

/// Only rivals on other threads make a second one necessary.
const ATTEMPTS_MAX: usize = 1000;

/// Sends requests.
#[derive(Clone)]
pub struct Hand(pub Arc<dyn Rows>);

impl Hand {
    fn drive<T>(
        &self,
        row: &RowKey,
        start_ts: Timestamp,
        mut as_read: Row,
        step: impl Fn(&Row) -> Result<Step<T>, Refusal>,
    ) -> Result<T, Refusal> {
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
        panic!("the guards of {row:?} refuse what the step allows: {as_read:?}");
    }

    fn informed<T>(
        &self,
        row: &RowKey,
        start_ts: Timestamp,
        step: impl Fn(&Row) -> Result<Step<T>, Refusal>,
    ) -> Result<T, Refusal> {
        self.drive(row, start_ts, self.0.read(row, start_ts), step)
    }

    /// Sent like a coordinator does, without looking at the row first. Whoever looks first must hear the same.
    pub fn prewrite(&self, request: &Prewrite) -> Result<Prewritten, Refusal> {
        let start_ts = request.txn.start_ts;
        let looked = prewrite(&self.0.read(&request.row, start_ts), request).map(|step| match step {
            Step::Apply(_, answer) | Step::Done(answer) => answer,
        });
        let blind = self.drive(&request.row, start_ts, Row::default(), |row| prewrite(row, request));
        assert_eq!(blind, looked, "the first guess must cost nothing");
        blind
    }

    /// Without a look at what others do at the same time.
    pub fn race_for(&self, request: &Prewrite) -> Result<Prewritten, Refusal> {
        self.drive(&request.row, request.txn.start_ts, Row::default(), |row| prewrite(row, request))
    }

    pub fn one_phase(
        &self,
        txn: TxnId,
        read_ts: u64,
        key: &str,
        mutation: &Mutation,
        commit_ts: u64,
    ) -> Result<Timestamp, Refusal> {
        let (read_ts, commit_ts) = (ts(read_ts), ts(commit_ts));
        let row = row(key);
        let request = OnePhase { row: &row, txn, read_ts, commit_ts, mutation, keep_replaced: false };
        self.informed(&row, txn.start_ts, |as_read| one_phase(as_read, &request))
    }

    /// Commits a primary.
    pub fn commit(&self, txn: TxnId, key: &str, commit_ts: u64) -> Result<Timestamp, Refusal> {
        self.commit_as(txn, key, commit_ts, true)
    }

    /// Commits a primary as its owner does: at the newest push, if there was one above `commit_ts`.
    pub fn commit_at_or_above(&self, txn: TxnId, key: &str, commit_ts: u64) -> Result<Timestamp, Refusal> {
        let request = commit_request(txn, key, commit_ts, true);
        self.informed(&request.row, txn.start_ts, |as_read| commit_at_or_above(as_read, &request))
    }

    /// Commits a secondary, which keeps no status.
    pub fn commit_secondary(&self, txn: TxnId, key: &str, commit_ts: u64) -> Result<Timestamp, Refusal> {
        self.commit_as(txn, key, commit_ts, false)
    }

    fn commit_as(&self, txn: TxnId, key: &str, commit_ts: u64, keep_status: bool) -> Result<Timestamp, Refusal> {
        let request = commit_request(txn, key, commit_ts, keep_status);
        self.informed(&request.row, txn.start_ts, |as_read| commit(as_read, &request))
    }

    pub fn roll_back(&self, txn: TxnId, key: &str) -> Result<(), Refusal> {
        let request = RollBack { row: row(key), txn };
        self.informed(&request.row, txn.start_ts, |as_read| roll_back(as_read, &request))
    }

    pub fn check(&self, txn: TxnId, primary: &str, asker: Asker) -> Result<CommitPoint, Refusal> {
        let request = CheckStatus { row: row(primary), txn, asker };
        self.informed(&request.row, txn.start_ts, |as_read| check_status(as_read, &request))
    }

    pub fn resolve(&self, txn: TxnId, key: &str, verdict: CommitPoint) -> Result<(), Refusal> {
        let request = Resolve { row: row(key), txn, verdict, keep_replaced: false, record_holds: false };
        self.informed(&request.row, txn.start_ts, |as_read| resolve(as_read, &request))
    }

    pub fn heartbeat(&self, txn: TxnId, primary: &str, ttl_ms: u64) -> Result<u64, Refusal> {
        let request = Heartbeat { row: row(primary), txn, ttl_ms };
        self.informed(&request.row, txn.start_ts, |as_read| heartbeat(as_read, &request))
    }

    /// Collects the deletion, and answers whether it is off the work list.
    pub fn collect(&self, key: &str, deleted_at: u64) -> bool {
        let as_read = self.0.read(&row(key), Timestamp::ZERO);
        let change =
            collect(&as_read, &Collect { row: row(key), superseded_at: vec![ts(deleted_at)], replaced: Vec::new() });
        let done = !change.collected.is_empty();
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

    pub fn status(&self, key: &str, txn: TxnId) -> Option<Status> {
        self.0.read(&row(key), txn.start_ts).status
    }

    /// The newest committed value.
    pub fn value(&self, key: &str) -> Option<String> {
        let newest = self.record(key)?;
        let bytes = match newest.value? {
            Value::Inline(bytes) => bytes.to_vec(),
            Value::InData => self.0.data(&row(key), newest.txn.start_ts).expect("the value is missing"),
        };
        Some(String::from_utf8(bytes).unwrap())
    }
}

fn commit_request(txn: TxnId, key: &str, commit_ts: u64, keep_status: bool) -> Commit {
    Commit { row: row(key), txn, commit_ts: ts(commit_ts), keep_status, keep_replaced: false, record_holds: false }
}
