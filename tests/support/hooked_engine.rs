//! An engine wrapper with hooks: a test can block its calls, make them fail, cut it off and record
//! what they read.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use percolite::engine::storage::Column;
use percolite::engine::{
    ApplyResult, Capabilities, Engine, EngineError, EngineSnapshot, GcEntry, OnCell, PageBuffer, PageRequest, RowBatch,
    RowRange, TxnRecordEntry, TxnRecordPage,
};
use percolite::row::{CellChange, KeyspaceId, RowChange, RowKey, RowState, TxnRecord, WriteRecord};
use percolite::{Timestamp, Value};

/// What the wrapper does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Pass,
    /// The call fails and has no effect.
    Refuse,
    /// The call takes effect and its reply is lost.
    Lose,
    /// Only for a sync: the hook has synced the engine itself, so the wrapper does not.
    Done,
}

type OnWrite = Arc<dyn Fn(&[RowBatch]) -> Act + Send + Sync>;
type OnSync = Arc<dyn Fn() -> Act + Send + Sync>;
type OnRead = Arc<dyn Fn() + Send + Sync>;

/// The test's side of a [`HookedEngine`]: hooks, counters and records.
#[derive(Default)]
pub struct Control {
    dead: AtomicBool,
    writes: AtomicU64,
    cut: Mutex<Option<(u64, Act)>>,
    on_write: Mutex<Option<OnWrite>>,
    on_sync: Mutex<Option<OnSync>>,
    on_read: Mutex<Option<(ThreadId, OnRead)>>,
    on_view: Mutex<Option<(ThreadId, OnRead)>>,
    on_row: Mutex<Option<(RowKey, OnRead)>>,
    views: AtomicU64,
    long_values_read: AtomicU64,
    walks: Mutex<Vec<Walk>>,
    collections: Mutex<Vec<Option<GcEntry>>>,
}

/// The range that was read for one page: up to its last cell if the page was full, otherwise to the
/// end of the requested range.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The number of the engine snapshot, in the order of opening.
    pub view: u64,
    pub column: Column,
    pub over: RowRange,
}

impl Walk {
    /// Whether the two walks have a part of a column in common, in the same engine snapshot.
    pub fn overlaps(&self, other: &Self) -> bool {
        let ends_before = |end: &Bound<Vec<u8>>, start: &Bound<Vec<u8>>| match (end, start) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(end), Bound::Included(start)) => end < start,
            (Bound::Included(end) | Bound::Excluded(end), Bound::Included(start) | Bound::Excluded(start)) => {
                end <= start
            }
        };
        (self.view, self.column) == (other.view, other.column)
            && !ends_before(&self.over.end, &other.over.start)
            && !ends_before(&other.over.end, &self.over.start)
    }
}

impl Control {
    /// The ranges read since the last call.
    pub fn take_walks(&self) -> Vec<Walk> {
        std::mem::take(&mut self.walks.lock().unwrap())
    }

    /// The start of each page of the GC queue that was read since the last call.
    pub fn take_collections(&self) -> Vec<Option<GcEntry>> {
        std::mem::take(&mut self.collections.lock().unwrap())
    }

    /// How many values out of line engine snapshots have read.
    pub fn long_values_read(&self) -> u64 {
        self.long_values_read.load(Ordering::SeqCst)
    }

    /// The hook runs before every `apply`; it may block.
    pub fn on_write(&self, hook: impl Fn(&[RowBatch]) -> Act + Send + Sync + 'static) {
        *self.on_write.lock().unwrap() = Some(Arc::new(hook));
    }

    /// The hook runs before every `sync`; it may block.
    pub fn on_sync(&self, hook: impl Fn() -> Act + Send + Sync + 'static) {
        *self.on_sync.lock().unwrap() = Some(Arc::new(hook));
    }

    /// The hook runs once, before this thread's next read of the write column through an engine
    /// snapshot. It is bound to the thread because the store's own threads read too.
    pub fn on_next_read(&self, hook: impl Fn() + Send + Sync + 'static) {
        *self.on_read.lock().unwrap() = Some((thread::current().id(), Arc::new(hook)));
    }

    /// The hook runs once, after this thread's next engine snapshot is taken and before it is
    /// returned.
    pub fn after_next_view(&self, hook: impl Fn() + Send + Sync + 'static) {
        *self.on_view.lock().unwrap() = Some((thread::current().id(), Arc::new(hook)));
    }

    /// The hook runs once, before the next `read_row` of the row.
    pub fn on_next_look_at(&self, row: RowKey, hook: impl Fn() + Send + Sync + 'static) {
        *self.on_row.lock().unwrap() = Some((row, Arc::new(hook)));
    }

    pub fn no_hooks(&self) {
        *self.on_write.lock().unwrap() = None;
        *self.on_sync.lock().unwrap() = None;
    }

    /// The number of calls that write, of all kinds together.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Cuts the engine off at the `index`-th write from here, counted from 0: that write gets
    /// `act`, and every later call fails.
    pub fn cut_at(&self, index: u64, act: Act) {
        *self.cut.lock().unwrap() = Some((self.writes() + index, act));
    }

    /// Whether the engine has been cut off.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    fn alive(&self) -> Result<(), EngineError> {
        if self.is_dead() {
            Err(EngineError::Undetermined("the engine was cut off by the test".into()))
        } else {
            Ok(())
        }
    }

    fn write<T>(&self, act: Act, write: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
        self.alive()?;
        let index = self.writes.fetch_add(1, Ordering::SeqCst);
        let cut = *self.cut.lock().unwrap();
        let act = match cut {
            Some((at, act)) if at == index => {
                self.dead.store(true, Ordering::SeqCst);
                act
            }
            _ => act,
        };
        suffer(act, write)
    }
}

/// Runs and removes the hook if it is bound to this thread.
fn call_once(hook: &Mutex<Option<(ThreadId, OnRead)>>) {
    let mine = hook.lock().unwrap().take_if(|(thread, _)| *thread == thread::current().id());
    if let Some((_, hook)) = mine {
        hook();
    }
}

fn suffer<T>(act: Act, call: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    match act {
        Act::Pass => return call(),
        Act::Refuse | Act::Done => {}
        Act::Lose => drop(call()?),
    }
    Err(EngineError::Undetermined("the test made the call fail".into()))
}

pub struct HookedEngine {
    pub engine: Arc<dyn Engine>,
    pub control: Arc<Control>,
    pub batch_rows_max: usize,
}

impl Engine for HookedEngine {
    fn capabilities(&self) -> Capabilities {
        let below = self.engine.capabilities();
        Capabilities { batch_rows_max: self.batch_rows_max.min(below.batch_rows_max), ..below }
    }
    fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError> {
        self.control.alive()?;
        let view = self.engine.snapshot()?;
        call_once(&self.control.on_view);
        let number = self.control.views.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(HookedSnapshot { view, number, control: Arc::clone(&self.control) }))
    }
    fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError> {
        self.control.alive()?;
        let hook = self.control.on_row.lock().unwrap().take_if(|(watched, _)| watched == row);
        if let Some((_, hook)) = hook {
            hook();
        }
        self.engine.read_row(row, start_ts)
    }
    fn apply(&self, groups: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError> {
        let limit = self.capabilities().batch_rows_max;
        if let Some(requested) = groups.iter().map(RowBatch::row_count).find(|rows| *rows > limit) {
            return Err(EngineError::Limit { what: "a batch's row count", requested, limit });
        }
        let hook = self.control.on_write.lock().unwrap().clone();
        let act = hook.map_or(Act::Pass, |hook| hook(groups));
        self.control.write(act, || self.engine.apply(groups))
    }
    fn sync(&self) -> Result<(), EngineError> {
        self.control.alive()?;
        let hook = self.control.on_sync.lock().unwrap().clone();
        let act = hook.map_or(Act::Pass, |hook| hook());
        if act == Act::Done {
            return Ok(());
        }
        suffer(act, || self.engine.sync())
    }
    fn get_meta(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError> {
        self.control.alive()?;
        self.engine.get_meta(name)
    }
    fn scan_meta(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        self.control.alive()?;
        self.engine.scan_meta(prefix)
    }
    fn write_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError> {
        self.control.write(Act::Pass, || self.engine.write_meta(entries))
    }
    fn safe_point(&self) -> Result<Timestamp, EngineError> {
        self.control.alive()?;
        self.engine.safe_point()
    }
    fn advance_safe_point(&self, to: Timestamp) -> Result<(), EngineError> {
        self.control.write(Act::Pass, || self.engine.advance_safe_point(to))
    }
    fn gc_candidates(
        &self,
        after: Option<&GcEntry>,
        upto: Timestamp,
        limit: usize,
    ) -> Result<Vec<GcEntry>, EngineError> {
        self.control.alive()?;
        self.control.collections.lock().unwrap().push(after.cloned());
        self.engine.gc_candidates(after, upto, limit)
    }
    fn txn_records(
        &self,
        before: Timestamp,
        after: Option<&TxnRecordEntry>,
        limit: usize,
    ) -> Result<TxnRecordPage, EngineError> {
        self.control.alive()?;
        self.engine.txn_records(before, after, limit)
    }
    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
        self.control.write(Act::Pass, || self.engine.delete_keyspace(keyspace))
    }
}

struct HookedSnapshot {
    view: Arc<dyn EngineSnapshot>,
    number: u64,
    control: Arc<Control>,
}

impl HookedSnapshot {
    fn before_read(&self) {
        call_once(&self.control.on_read);
    }

    fn walked(&self, column: Column, page: &PageRequest<'_>, cells: &PageBuffer, has_more: bool) {
        let mut over = page.range.clone();
        if has_more {
            let end = if page.backwards { &mut over.start } else { &mut over.end };
            *end = Bound::Included(cells.last().unwrap().0.to_vec());
        }
        self.control.walks.lock().unwrap().push(Walk { view: self.number, column, over });
    }
}

impl EngineSnapshot for HookedSnapshot {
    fn get_cell(&self, column: Column, row: &RowKey, on_cell: OnCell<'_>) -> Result<(), EngineError> {
        if column == Column::Write {
            self.before_read();
        }
        self.view.get_cell(column, row, on_cell)
    }
    fn txn_record(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<TxnRecord>, EngineError> {
        self.view.txn_record(row, start_ts)
    }
    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Value>, EngineError> {
        self.control.long_values_read.fetch_add(1, Ordering::SeqCst);
        self.view.data(row, start_ts)
    }
    fn version_at(&self, row: &RowKey, upto: Timestamp) -> Result<Option<WriteRecord>, EngineError> {
        self.view.version_at(row, upto)
    }
    fn scan_page(&self, column: Column, page: &PageRequest<'_>, cells: &mut PageBuffer) -> Result<bool, EngineError> {
        if column == Column::Write {
            self.before_read();
        }
        let has_more = self.view.scan_page(column, page, cells)?;
        self.walked(column, page, cells, has_more);
        Ok(has_more)
    }
}

fn change_of(groups: &[RowBatch], row: &RowKey) -> impl Iterator<Item = RowChange> {
    let row = row.clone();
    groups.iter().flat_map(|group| group.changes().into_owned()).filter(move |change| change.row == row)
}

/// Whether the call locks the row.
pub fn locks(groups: &[RowBatch], row: &RowKey) -> bool {
    change_of(groups, row).any(|change| matches!(change.lock, CellChange::Put(_)))
}

/// Whether the call gives the row a new version.
pub fn commits(groups: &[RowBatch], row: &RowKey) -> bool {
    change_of(groups, row).any(|change| matches!(change.write, CellChange::Put(_)))
}

/// Blocks a thread until the test opens the gate. Dropping the gate opens it.
pub struct Gate(Arc<(Mutex<Passing>, Condvar)>);

#[derive(Default)]
struct Passing {
    arrived: bool,
    open: bool,
}

/// The thread's side of a [`Gate`].
#[derive(Clone)]
pub struct Barrier(Arc<(Mutex<Passing>, Condvar)>);

const TIMEOUT: Duration = Duration::from_secs(30);

impl Gate {
    pub fn closed() -> (Self, Barrier) {
        let both = Arc::new((Mutex::new(Passing::default()), Condvar::new()));
        (Self(Arc::clone(&both)), Barrier(both))
    }

    /// Waits until a thread has arrived at the gate.
    pub fn wait_for_arrival(&self) {
        let (state, changed) = &*self.0;
        let (state, late) = changed.wait_timeout_while(state.lock().unwrap(), TIMEOUT, |state| !state.arrived).unwrap();
        drop(state);
        assert!(!late.timed_out(), "no thread arrived at the gate within {TIMEOUT:?}");
    }

    pub fn open(&self) {
        let (state, changed) = &*self.0;
        state.lock().unwrap().open = true;
        changed.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

impl Barrier {
    pub fn pass(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.arrived = true;
        changed.notify_all();
        drop(changed.wait_while(state, |state| !state.open).unwrap());
    }
}
