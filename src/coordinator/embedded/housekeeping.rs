//! What is done in the background: the sweep after a crash, and collection.
//!
//! The sweep resolves every lock that an earlier life of the store left behind, page by page; opening never waits for
//! it, and readers resolve what they meet meanwhile. When no such lock is left, the statuses of those transactions
//! have nobody left to tell: the safe point moves up to the opening of the store, durably, and then they go.
//!
//! Collection takes away the records of deleted rows that no live snapshot is older than, and replaced versions that are
//! older than the history that is kept.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::EmbeddedCoordinator;
use super::resolve::LockResolution;
use crate::engine::{EngineError, EngineSnapshot, GcEntry, PageRequest, RowRange};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::{SubmissionKind, SubmitResult};
use crate::protocol::{GcRequest, OldVersion, delete_txn_record, gc_row};
use crate::row::{Lock, RowChange, RowKey};
use crate::runtime::JoinHandle;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

const PAGE_ROWS: usize = 512;
/// So much of a large transaction's end is done before the other work has its turn. Tests of crashes have few rows, and are to
/// meet the other work in the middle.
const CLEANUP_PAGES_PER_ROUND: usize = if cfg!(feature = "crashtest") { 1 } else { 32 };
const IDLE_INTERVAL: Duration = Duration::from_millis(500);

/// Work that the layer above wants done now and then: what it is called when it fails, and the work.
pub type BackgroundTask = (&'static str, Box<dyn Fn() -> Result<()> + Send>);

/// The background thread.
pub struct BackgroundWorker {
    coordinator: Arc<EmbeddedCoordinator>,
    shared: Arc<Shared>,
    thread: Mutex<Option<Box<dyn JoinHandle>>>,
}

#[derive(Default)]
struct Shared {
    stopping: AtomicBool,
}

impl BackgroundWorker {
    /// Starts the thread; with `sweep` it begins by resolving what an earlier life left.
    pub fn start(coordinator: Arc<EmbeddedCoordinator>, sweep: bool, tasks: Vec<BackgroundTask>) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let theirs = Arc::clone(&coordinator);
        let work = move || own.run(&theirs, sweep, &tasks);
        let thread = coordinator
            .pipeline()
            .runtime()
            .spawn("percolite-sweep", Box::new(work))
            .map_err(|why| Error::from(ErrorKind::Io(format!("cannot start a thread: {why}"))))?;
        Ok(Self { coordinator, shared, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread after the page that it is at.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.coordinator.wake_background();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            thread.join();
        }
    }
}

impl Shared {
    fn run(&self, coordinator: &EmbeddedCoordinator, sweep: bool, tasks: &[BackgroundTask]) {
        let runtime = coordinator.pipeline().runtime();
        let parker = runtime.parker();
        *coordinator.background_parker.lock() = Some(Arc::clone(&parker));
        let mut swept = !sweep;
        let mut position = Bound::Unbounded;
        let (mut collection, mut collect_from) = (None, Duration::ZERO);
        while !self.stopping.load(Ordering::Acquire) {
            // An error here is either a failure that has closed the store already, or damage that whoever reads the row
            // will be told of. Each part goes on without the others.
            let mut more = false;
            if !swept {
                match coordinator.sweep_page(&mut position) {
                    Ok(page) => (swept, more) = (page.is_last, !page.is_last),
                    Err(why) => {
                        coordinator.log_failure("sweep", &why);
                        position = Bound::Unbounded;
                    }
                }
            }
            for _ in 0..CLEANUP_PAGES_PER_ROUND {
                // An ending that fails is tried again after a pause.
                let ended = coordinator.cleanup_page().inspect_err(|why| coordinator.log_failure("endings", why));
                if !ended.unwrap_or(false) || self.stopping.load(Ordering::Acquire) {
                    break;
                }
                more = true;
            }
            if collection.is_some() || runtime.elapsed() >= collect_from {
                let collected = coordinator.gc_page(&mut collection);
                more |= collected.inspect_err(|why| coordinator.log_failure("collection", why)).is_ok()
                    && collection.is_some();
                // The list begins with tombstones, which every page of the other work would pay for.
                collect_from = runtime.elapsed() + IDLE_INTERVAL;
            }
            for (what, chore) in tasks {
                let _ = chore().inspect_err(|why| coordinator.log_failure(what, why));
            }
            // Work that waits on this thread may have used up the wake of `stop`, which comes after the flag.
            if !more && !self.stopping.load(Ordering::Acquire) {
                parker.park(Some(IDLE_INTERVAL));
            }
        }
    }
}

/// A walk over the collector's work list, up to the floor at its beginning. Each page begins where the last one ended: what lies
/// before is tombstones, so from the list's beginning a page would cost more the more was collected.
pub struct GcCursor {
    /// The last entry that was looked at.
    after: GcEntry,
    horizon: Timestamp,
}

fn gc_change(view: &dyn EngineSnapshot, row: RowKey, superseded_at: Vec<Timestamp>) -> Result<RowChange, EngineError> {
    let mut replaced: Vec<OldVersion> = Vec::new();
    for ts in &superseded_at {
        replaced.extend(view.version_at(&row, ts.previous())?.as_ref().map(OldVersion::from));
    }
    replaced.dedup();
    let as_read = view.row(&row, Timestamp::ZERO)?;
    Ok(gc_row(&as_read, &GcRequest { row, superseded_at, old_versions: replaced }))
}

/// What a page of the sweep has come to.
pub struct SweepProgress {
    /// So many orphans were resolved.
    pub resolved: u64,
    /// No orphan is left, nor any record of their transactions.
    pub is_last: bool,
}

impl EmbeddedCoordinator {
    /// Reports a failure of the background, which has no caller, unless the store is closing or has failed as a whole.
    #[cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "for the event alone"))]
    fn log_failure(&self, what: &str, why: &Error) {
        if self.pipeline.failure().is_none() && !matches!(why.kind(), ErrorKind::Closed(_)) {
            event!(WARN, what, %why, "background work failed");
        }
    }

    /// Resolves the orphans among the next locks.
    pub fn sweep_page(&self, position: &mut Bound<Vec<u8>>) -> Result<SweepProgress> {
        let pipeline = &self.pipeline;
        let mut found = 0;
        if pipeline.may_have_orphans() {
            let range = RowRange { start: position.clone(), end: Bound::Unbounded };
            let page = PageRequest { range: &range, backwards: false, limit: PAGE_ROWS, cursor: None };
            let locks = pipeline.engine().snapshot()?.scan_locks(&page)?;
            found = self.resolve_orphans(&locks)?;
            let ends_here = mutated!(ShortPageEndsSweep) && locks.len() < PAGE_ROWS;
            if let Some((row, _)) = locks.last().filter(|_| !ends_here) {
                *position = Bound::Excluded(row.as_bytes().to_vec());
                return Ok(SweepProgress { resolved: found, is_last: false });
            }
        }
        crash_point!(SweepDone);
        self.delete_txn_records(pipeline.first_ts())?;
        if pipeline.may_have_orphans() {
            pipeline.clear_orphan_flag()?;
        }
        Ok(SweepProgress { resolved: found, is_last: true })
    }

    /// Resolves the orphans among locks: the first of a transaction by asking, the others together. The answer is how many.
    fn resolve_orphans(&self, locks: &[(RowKey, Lock)]) -> Result<u64> {
        let mut found = 0;
        let orphan = |(_, lock): &&(RowKey, Lock)| self.pipeline.is_orphan(lock.txn.start_ts);
        let mut orphans: Vec<(RowKey, Lock)> = locks.iter().filter(orphan).cloned().collect();
        while let Some((row, lock)) = orphans.first().cloned() {
            let resolved = self.resolve_lock(&row, &lock)?;
            crash_point!(SweepBetween);
            let (same, others): (Vec<_>, Vec<_>) = orphans
                .into_iter()
                .skip(1)
                .partition(|(_, other)| (other.txn, &other.primary) == (lock.txn, &lock.primary));
            found += 1;
            self.metrics.orphan_locks_resolved.add(1);
            event!(DEBUG, locks = same.len() + 1, "orphans resolved");
            orphans = match resolved {
                LockResolution::Resolved(verdict) => {
                    self.resolve_locks(lock.txn, &lock.primary, &same, verdict, false)?;
                    found += same.len() as u64;
                    self.metrics.orphan_locks_resolved.add(same.len() as u64);
                    others
                }
                // Somebody else has resolved this one; the next will say how.
                LockResolution::AlreadyGone | LockResolution::OwnerAlive => same.into_iter().chain(others).collect(),
            };
        }
        Ok(found)
    }

    /// Takes away what says how transactions before `before` ended. None of them may have a lock left.
    fn delete_txn_records(&self, before: Timestamp) -> Result<()> {
        let engine = self.pipeline.engine();
        if engine.txn_records(before, 1)?.is_empty() {
            return Ok(());
        }
        crash_point!(SafePointBefore);
        engine.advance_safe_point(before).map_err(|why| self.pipeline.poison(why.into()))?;
        self.pipeline.sync_now()?;
        crash_point!(SafePointDurable);
        loop {
            let ended = engine.txn_records(before, PAGE_ROWS)?;
            if ended.is_empty() {
                return Ok(());
            }
            for some in ended.chunks(self.group_rows_max()) {
                let changes = some.iter().map(|(row, start_ts)| delete_txn_record(row.clone(), *start_ts)).collect();
                self.try_apply(changes, SubmissionKind::NoCommit)?;
                crash_point!(TxnRecordGcBetween);
            }
        }
    }

    /// Collects what no reader needs among the next entries of the work list. `pass` is `None` at either end of the list.
    pub fn gc_page(&self, pass: &mut Option<GcCursor>) -> Result<()> {
        let (after, floor) = match pass.take() {
            Some(GcCursor { after, horizon: floor }) => (Some(after), floor),
            None if mutated!(GcTooEarly) => (None, self.pipeline.visible_view().read_ts),
            None => (None, self.advance_gc_horizon()?),
        };
        let entries = self.pipeline.engine().gc_candidates(after.as_ref(), floor, PAGE_ROWS)?;
        *pass = entries
            .last()
            .filter(|_| entries.len() == PAGE_ROWS)
            .map(|last| GcCursor { after: last.clone(), horizon: floor });
        let mut rows: BTreeMap<RowKey, Vec<Timestamp>> = BTreeMap::new();
        for (superseded_at, row) in entries {
            rows.entry(row).or_default().push(superseded_at);
        }
        let view = self.pipeline.engine().snapshot()?;
        let (mut unguarded, mut damage) = (Vec::new(), None);
        for (row, superseded_at) in rows {
            let change = match gc_change(&*view, row, superseded_at) {
                Ok(change) => change,
                Err(why) => {
                    // A row that cannot be read must not keep the others from being collected.
                    damage.get_or_insert(why);
                    continue;
                }
            };
            if change.preconditions.is_empty() {
                unguarded.push(change);
                continue;
            }
            crash_point!(GcBefore);
            self.submit_gc(vec![change])?;
            crash_point!(GcDone);
        }
        while !unguarded.is_empty() {
            let rest = unguarded.split_off(unguarded.len().min(self.group_rows_max()));
            self.submit_gc(std::mem::replace(&mut unguarded, rest))?;
        }
        damage.map_or(Ok(()), |why| Err(why.into()))
    }

    fn submit_gc(&self, changes: Vec<RowChange>) -> Result<()> {
        let entries = changes.iter().map(|change| change.gc_done.len()).sum();
        let versions: usize = changes.iter().map(|change| change.deleted_versions.len()).sum();
        if entries == 0 || !self.try_apply(changes, SubmissionKind::Gc)? {
            return Ok(());
        }
        self.metrics.gc_tombstones.add((entries - versions.min(entries)) as u64);
        self.metrics.gc_versions.add(versions as u64);
        event!(DEBUG, entries, versions, "collected");
        Ok(())
    }

    /// Makes changes; the answer is whether they were made. If not, another round will try again.
    fn try_apply(&self, changes: Vec<RowChange>, purpose: SubmissionKind) -> Result<bool> {
        Ok(matches!(self.pipeline.submit_internal(changes, purpose)?, SubmitResult::Applied(_)))
    }
}
