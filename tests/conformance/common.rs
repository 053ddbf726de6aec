//! Shared by the cases: engines to test, a client that retries, shorthand, random numbers.

use std::ops::{Bound, Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use percolite::OwnerId;
use percolite::Timestamp;
use percolite::engine::sim::SimStorage;
use percolite::engine::storage::Column;
use percolite::engine::unreliable::{Faults, FaultyEngine};
use percolite::engine::{
    ApplyResult, Capabilities, Engine, EngineError, EngineSnapshot, GcEntry, OnCell, PageBuffer, PageRequest, RowBatch,
    RowRange, TxnRecordPage,
};
use percolite::row::{
    CellChange, KeyspaceId, Lock, LockType, Precondition, RowChange, RowKey, RowState, StoredValue, TxnId, TxnRecord,
    Value, WriteRecord,
};
use tempfile::TempDir;

/// An engine under test.
pub struct Subject {
    engine: Box<dyn Engine>,
    pub seed: u64,
    /// Whether a call may take effect more than once before it returns.
    pub repeats: bool,
    _directory: Option<TempDir>,
}

impl Subject {
    pub fn new(engine: impl Engine + 'static, seed: u64) -> Self {
        Self { engine: Box::new(engine), seed, repeats: false, _directory: None }
    }
}

impl Deref for Subject {
    type Target = dyn Engine;
    fn deref(&self) -> &Self::Target {
        self.engine.as_ref()
    }
}

#[cfg(feature = "rocks")]
pub const MEMORY: percolite::engine::directory::DirectoryOptions = percolite::engine::directory::DirectoryOptions {
    block_cache_bytes: 4 << 20,
    write_buffer_bytes: 4 << 20,
    compression: percolite::engine::Compression::Lz4,
    accept_data_loss: None,
};

#[cfg(feature = "rocks")]
pub fn rocks(seed: u64) -> Subject {
    use percolite::engine::directory::DirectoryStorage;
    use percolite::engine::local::LocalEngine;
    let directory = tempfile::tempdir().unwrap();
    let engine = LocalEngine::new(DirectoryStorage::open(directory.path(), MEMORY).unwrap(), true);
    Subject { _directory: Some(directory), ..Subject::new(engine, seed) }
}

pub fn sim_embedded(seed: u64) -> Subject {
    Subject::new(SimStorage::new().exclusive_engine(), seed)
}

pub fn sim_shared(seed: u64) -> Subject {
    Subject::new(SimStorage::new().shared_engine(), seed)
}

/// A faulty network without late copies: the cases change cells directly, without the protocol that
/// protects against late copies. `network.rs` tests late copies.
pub fn unreliable_sim(seed: u64) -> Subject {
    let faults =
        Faults { lost_requests: 150, lost_replies: 150, duplicates: 150, late_duplicates: 0, ..Faults::bad_network() };
    let engine = Answered(FaultyEngine::new(SimStorage::new().shared_engine(), faults, seed));
    Subject { repeats: true, ..Subject::new(engine, seed) }
}

/// Runs a case for each seed. A failure prints the engine and the seed.
pub fn check(engine: &'static str, seeds: Range<u64>, make: fn(u64) -> Subject, case: fn(&Subject)) {
    for seed in seeds {
        let context = Context(format!("engine {engine}, seed {seed}"));
        case(&make(seed));
        drop(context);
    }
}

/// A text that is printed if the test panics while this value exists.
pub struct Context(pub String);

impl Drop for Context {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with {}", self.0);
        }
    }
}

/// A client that repeats a request that got no reply. It reads the row before it accepts a refusal,
/// because an earlier copy of its own request may have caused the refusal.
pub struct Answered<E>(pub E);

const ATTEMPTS_MAX: usize = 1000;

pub fn until_answered<T>(mut call: impl FnMut() -> Result<T, EngineError>) -> Result<T, EngineError> {
    for _ in 0..ATTEMPTS_MAX {
        match call() {
            Err(EngineError::Undetermined(_)) => {}
            answer => return answer,
        }
    }
    panic!("no reply in {ATTEMPTS_MAX} attempts");
}

impl<E: Engine> Answered<E> {
    fn is_applied(&self, group: &RowBatch) -> Result<bool, EngineError> {
        let view = self.snapshot()?;
        let mut edits = 0;
        for change in group.changes().iter() {
            let row = &change.row;
            let mut applied = is_applied(&change.lock, || view.lock(row), &mut edits)?;
            applied &= is_applied(&change.write, || view.write(row), &mut edits)?;
            applied &= is_applied(&change.txn_record, || view.txn_record(row, change.start_ts), &mut edits)?;
            for (start_ts, edit) in &change.data {
                applied &= is_applied(edit, || view.data(row, *start_ts), &mut edits)?;
            }
            if let Some(version) = &change.archived_version {
                applied &= view.version_at(row, version.commit_ts)?.as_ref() == Some(version);
                edits += 1;
            }
            if !applied {
                return Ok(false);
            }
        }
        Ok(edits > 0)
    }
}

fn is_applied<T: PartialEq>(
    edit: &CellChange<T>,
    now: impl FnOnce() -> Result<Option<T>, EngineError>,
    edits: &mut usize,
) -> Result<bool, EngineError> {
    *edits += usize::from(*edit != CellChange::Keep);
    Ok(match edit {
        CellChange::Keep => true,
        CellChange::Put(wanted) => now()?.as_ref() == Some(wanted),
        CellChange::Delete => now()?.is_none(),
    })
}

impl<E: Engine> Engine for Answered<E> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError> {
        Ok(Arc::new(AnsweredView(until_answered(|| self.0.snapshot())?)))
    }
    fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError> {
        until_answered(|| self.0.read_row(row, start_ts))
    }
    fn apply(&self, groups: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError> {
        let mut outcomes = until_answered(|| self.0.apply(groups))?;
        for (group, outcome) in groups.iter().zip(&mut outcomes) {
            if *outcome != ApplyResult::Applied && self.is_applied(group)? {
                *outcome = ApplyResult::Applied;
            }
        }
        Ok(outcomes)
    }
    fn sync(&self) -> Result<(), EngineError> {
        until_answered(|| self.0.sync())
    }
    fn get_meta(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError> {
        until_answered(|| self.0.get_meta(name))
    }
    fn scan_meta(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        until_answered(|| self.0.scan_meta(prefix))
    }
    fn write_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError> {
        until_answered(|| self.0.write_meta(entries))
    }
    fn safe_point(&self) -> Result<Timestamp, EngineError> {
        until_answered(|| self.0.safe_point())
    }
    fn advance_safe_point(&self, to: Timestamp) -> Result<(), EngineError> {
        until_answered(|| self.0.advance_safe_point(to))
    }
    fn gc_candidates(
        &self,
        after: Option<&GcEntry>,
        upto: Timestamp,
        limit: usize,
    ) -> Result<Vec<GcEntry>, EngineError> {
        until_answered(|| self.0.gc_candidates(after, upto, limit))
    }
    fn txn_records(
        &self,
        before: Timestamp,
        after: Option<&(RowKey, Timestamp)>,
        limit: usize,
    ) -> Result<TxnRecordPage, EngineError> {
        until_answered(|| self.0.txn_records(before, after, limit))
    }
    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
        until_answered(|| self.0.delete_keyspace(keyspace))
    }
}

struct AnsweredView(Arc<dyn EngineSnapshot>);

impl EngineSnapshot for AnsweredView {
    fn get_cell(&self, column: Column, row: &RowKey, on_cell: OnCell<'_>) -> Result<(), EngineError> {
        until_answered(|| self.0.get_cell(column, row, &mut *on_cell))
    }
    fn txn_record(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<TxnRecord>, EngineError> {
        until_answered(|| self.0.txn_record(row, start_ts))
    }
    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Value>, EngineError> {
        until_answered(|| self.0.data(row, start_ts))
    }
    fn version_at(&self, row: &RowKey, upto: Timestamp) -> Result<Option<WriteRecord>, EngineError> {
        until_answered(|| self.0.version_at(row, upto))
    }
    fn scan_page(&self, column: Column, page: &PageRequest<'_>, cells: &mut PageBuffer) -> Result<bool, EngineError> {
        until_answered(|| self.0.scan_page(column, page, cells))
    }
}

pub const KEYSPACE: KeyspaceId = KeyspaceId(7);

pub fn ts(number: u64) -> Timestamp {
    Timestamp::from_u64(number)
}

pub fn row(key: impl AsRef<[u8]>) -> RowKey {
    RowKey::new(KEYSPACE, key.as_ref())
}

pub fn txn(start_ts: u64) -> TxnId {
    TxnId { start_ts: ts(start_ts), owner: OwnerId::from_u64(0x0b0d_4f42_0000_0000 + start_ts) }
}

pub fn inline(value: impl AsRef<[u8]>) -> StoredValue {
    StoredValue::Inline(value.as_ref().into())
}

pub fn lock(start_ts: u64) -> Lock {
    Lock {
        txn: txn(start_ts),
        primary: row("primary"),
        lock_type: LockType::Put(inline("intended")),
        write_seq: 1,
        ttl_ms: 3000,
        min_commit_ts: ts(start_ts + 1),
    }
}

/// The version that `txn(commit_ts - 1)` commits at `commit_ts`.
pub fn put(commit_ts: u64) -> WriteRecord {
    WriteRecord {
        commit_ts: ts(commit_ts),
        txn: txn(commit_ts - 1),
        value: Some(inline(format!("value at {commit_ts}"))),
        lock_only_ts: None,
    }
}

pub fn deletion(commit_ts: u64) -> WriteRecord {
    WriteRecord { value: None, ..put(commit_ts) }
}

/// The version of `put(commit_ts)` with a later lock-only commit.
pub fn lock_only(commit_ts: u64, lock_only_at: u64) -> WriteRecord {
    WriteRecord { lock_only_ts: Some(ts(lock_only_at)), ..put(commit_ts) }
}

pub fn change(key: impl AsRef<[u8]>, start_ts: u64) -> RowChange {
    RowChange::new(row(key), ts(start_ts))
}

pub fn put_lock(key: impl AsRef<[u8]>, lock: Lock) -> RowChange {
    RowChange { lock: CellChange::Put(lock.clone()), ..change(key, lock.txn.start_ts.to_u64()) }
}

pub fn put_write(key: impl AsRef<[u8]>, write: WriteRecord) -> RowChange {
    RowChange { write: CellChange::Put(write.clone()), ..change(key, write.txn.start_ts.to_u64()) }
}

pub fn put_status(key: impl AsRef<[u8]>, start_ts: u64, status: TxnRecord) -> RowChange {
    RowChange { txn_record: CellChange::Put(status), ..change(key, start_ts) }
}

pub fn put_version(key: impl AsRef<[u8]>, version: WriteRecord) -> RowChange {
    RowChange { archived_version: Some(version), ..change(key, 0) }
}

pub fn put_data(key: impl AsRef<[u8]>, start_ts: u64, value: impl AsRef<[u8]>) -> RowChange {
    let edit = CellChange::Put(value.as_ref().into());
    RowChange { data: vec![(ts(start_ts), edit)], ..change(key, start_ts) }
}

pub fn group(changes: impl IntoIterator<Item = RowChange>) -> RowBatch {
    RowBatch::Changes(changes.into_iter().collect())
}

/// Applies one batch, which must succeed.
pub fn make(engine: &dyn Engine, changes: impl IntoIterator<Item = RowChange>) {
    assert_eq!(engine.apply(&[group(changes)]).unwrap(), [ApplyResult::Applied]);
}

/// Whether a change with these preconditions is applied; checks that the reply agrees with the
/// engine's cells.
pub fn is_allowed(engine: &dyn Engine, key: &str, start_ts: u64, preconditions: &[Precondition]) -> bool {
    // The probe writes a data cell that the row does not have yet.
    let before = engine.snapshot().unwrap();
    let mark = (1..1000).find(|mark| before.data(&row(key), ts(*mark)).unwrap().is_none()).unwrap();
    let data = vec![(ts(mark), CellChange::Put(b"probed".into()))];
    let probe = RowChange { preconditions: preconditions.into(), data, ..change(key, start_ts) };
    let outcomes = engine.apply(&[group([probe])]).unwrap();
    let allowed = match outcomes.as_slice() {
        [ApplyResult::Applied] => true,
        [ApplyResult::PreconditionFailed { index: 0, .. }] => false,
        other => panic!("the reply to one batch is {other:?}"),
    };
    let applied = engine.snapshot().unwrap().data(&row(key), ts(mark)).unwrap().is_some();
    assert_eq!(allowed, applied, "the reply to {preconditions:?} is not what happened");
    allowed
}

pub fn all_writes(engine: &dyn Engine) -> Vec<(RowKey, WriteRecord)> {
    engine
        .snapshot()
        .unwrap()
        .scan_writes(&PageRequest { range: &RowRange::all(), backwards: false, limit: usize::MAX, cursor: None })
        .unwrap()
}

pub fn between(start: Bound<&[u8]>, end: Bound<&[u8]>) -> RowRange {
    RowRange { start: start.map(<[u8]>::to_vec), end: end.map(<[u8]>::to_vec) }
}

/// Makes a busy writer wait for readers' progress, so that neither ends before the other has begun.
#[derive(Default)]
pub struct Pace(AtomicU64);

impl Pace {
    /// Called by a reader after each read.
    pub fn looked(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    /// Waits for three reads, or until `ended` returns that no reader is left.
    pub fn wait(&self, ended: impl Fn() -> bool) {
        let before = self.0.load(Ordering::Relaxed);
        while self.0.load(Ordering::Relaxed) < before + 3 && !ended() {
            std::thread::yield_now();
        }
    }
}

/// Random numbers by splitmix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }
    pub fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }
}

/// All transaction records, and the number of pages in which they are read.
pub fn txn_record_pages(engine: &dyn Engine, before: Timestamp, limit: usize) -> (Vec<(RowKey, Timestamp)>, usize) {
    let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = engine.txn_records(before, after.as_ref(), limit).unwrap();
        assert!(page.records.len() <= limit, "{page:?}");
        found.extend(page.records);
        pages += 1;
        after = page.next;
        if after.is_none() {
            return (found, pages);
        }
    }
}
