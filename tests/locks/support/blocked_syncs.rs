//! An engine in memory whose syncs the test can block.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use percolite::engine::TxnRecordPage;
use percolite::engine::sim::{SimEngine, SimStorage};
use percolite::engine::{ApplyResult, Capabilities, Engine, EngineError, EngineSnapshot, GcEntry, RowBatch};
use percolite::row::RowState;
use percolite::{KeyspaceId, RowKey, Timestamp};

/// The engine and its gate for syncs.
pub struct Gate {
    engine: SimEngine,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_shut: bool,
    /// The number of syncs that wait.
    waiting: usize,
    /// The number of writes of lease rows since the gate was shut.
    written: usize,
}

impl Gate {
    pub fn new(memory: &SimStorage) -> Arc<Self> {
        Arc::new(Self { engine: memory.exclusive_engine(), state: Mutex::default(), changed: Condvar::new() })
    }

    /// Makes later syncs wait.
    pub fn shut(&self) {
        *self.state.lock() = State { is_shut: true, ..State::default() };
    }

    pub fn open(&self) {
        self.state.lock().is_shut = false;
        self.changed.notify_all();
    }

    /// Whether a sync waits.
    pub fn is_held(&self) -> bool {
        self.state.lock().waiting > 0
    }

    /// Whether a lease row was written since the gate was shut, and a sync waits.
    pub fn holds_a_lease(&self) -> bool {
        let state = self.state.lock();
        state.written > 0 && state.waiting > 0
    }

    fn pass(&self) {
        let mut state = self.state.lock();
        let end = Instant::now() + super::LIMIT;
        state.waiting += 1;
        while state.is_shut && !self.changed.wait_until(&mut state, end).timed_out() {}
        state.waiting -= 1;
    }
}

fn is_lease(row: &RowKey) -> bool {
    row.keyspace_id() == KeyspaceId(0) && row.user_key().starts_with(b"lock/")
}

impl Engine for Gate {
    fn apply(&self, groups: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError> {
        let leases = groups.iter().flat_map(RowBatch::row_keys).filter(|row| is_lease(row)).count();
        let applied = self.engine.apply(groups);
        self.state.lock().written += leases;
        applied
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.pass();
        self.engine.sync()
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError> {
        self.engine.snapshot()
    }

    fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError> {
        self.engine.read_row(row, start_ts)
    }

    fn get_meta(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError> {
        self.engine.get_meta(name)
    }

    fn scan_meta(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        self.engine.scan_meta(prefix)
    }

    fn write_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError> {
        self.engine.write_meta(entries)
    }

    fn safe_point(&self) -> Result<Timestamp, EngineError> {
        self.engine.safe_point()
    }

    fn advance_safe_point(&self, to: Timestamp) -> Result<(), EngineError> {
        self.engine.advance_safe_point(to)
    }

    fn gc_candidates(
        &self,
        after: Option<&GcEntry>,
        upto: Timestamp,
        limit: usize,
    ) -> Result<Vec<GcEntry>, EngineError> {
        self.engine.gc_candidates(after, upto, limit)
    }

    fn txn_records(
        &self,
        before: Timestamp,
        after: Option<&(RowKey, Timestamp)>,
        limit: usize,
    ) -> Result<TxnRecordPage, EngineError> {
        self.engine.txn_records(before, after, limit)
    }

    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
        self.engine.delete_keyspace(keyspace)
    }
}
