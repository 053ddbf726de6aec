//! The commit pipeline of a store that one process has for itself.
//!
//! ```text
//!   committers ──> queue ──> combiner (one leader at a time)           one sync at a time
//!                             check guards from memory                 sample the visible view
//!                             stamp commit_ts                          engine.sync()
//!                             one engine.apply for all winners         publish it as the durable view
//!                             publish the visible view, answer         wake all commits that it covers
//! ```
//!
//! That is the whole rule: *a committer leads if no other does, and then decides the whole queue; a durable commit makes a sync if none
//! runs, and that covers all that is visible; else it waits.*
//!
//! Two watermarks follow from it. Everything at or below `visible_ts` is applied, and one shared view shows exactly
//! that. Everything at or below `durable_ts` survives a power cut. Read-write transactions read at `visible_ts`, so
//! they may read what is not durable yet; that is honest because nothing that depends on it is acknowledged before it is
//! durable itself: the log is one sequence, and a later commit cannot survive without the earlier one.
//!
//! Any error of a write or a sync poisons the pipeline before anybody is woken. From then on nothing succeeds until the
//! store is opened again: a sync that succeeds after one that failed proves nothing about what the first one lost.

mod combiner;
mod conflicts;
mod decide;
mod durability;
mod entrance;
mod filter;
mod live;
mod queue;
mod reply;
mod turns;

pub use combiner::{Submission, SubmissionKind, SubmitResult};
pub use decide::{CommitConditions, KeyspaceDescriptor, Rejection};
#[cfg(feature = "tokio")]
pub use entrance::WaitAction;
pub use entrance::{AdmissionWait, AttemptGuard, WaitTimes};
pub use turns::{AdmissionController, RowQueues};

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::combiner::WriteGroup;
use self::conflicts::ConflictSet;
use self::decide::LeaderState;
use self::durability::GroupSync;
use self::live::SnapshotList;
use self::queue::CommitQueue;
use self::turns::UnlockWaiters;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::identity;
use crate::locking::{LockManager, LockMetrics};
use crate::observe::Metrics;
use crate::oracle::{HIGH_WATER_KEY, LocalOracle, is_exhausted, read_high_water};
use crate::row::RowKey;
use crate::runtime::{Env, JoinHandle};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::view::ReadView;

/// Why a store that was closed in good order answers nothing any more.
pub const CLOSED_MESSAGE: &str = "the store was closed by its user";

/// See the [module](self).
pub struct Pipeline {
    engine: Arc<dyn Engine>,
    runtime: Arc<dyn Env>,
    oracle: LocalOracle,
    /// Every transaction that began before this belongs to an earlier life of the store.
    first_ts: Timestamp,
    queue: Mutex<CommitQueue>,
    /// The leader's own.
    leader_state: Mutex<LeaderState>,
    visible_view: Mutex<Arc<ReadView>>,
    snapshots: Mutex<SnapshotList>,
    group_sync: GroupSync,
    /// Two-phase transactions that are committed while rows are still locked.
    unapplied: Mutex<HashMap<Timestamp, Timestamp>>,
    /// Transactions of this life that gave up while rows are still locked.
    abandoned: Mutex<HashSet<Timestamp>>,
    /// Whether locks of an earlier life may be left.
    may_have_orphans: AtomicBool,
    unlock_waiters: Arc<UnlockWaiters>,
    named_locks: Arc<LockManager>,
    acked_ts: AtomicU64,
    failure: OnceLock<String>,
    metrics: Arc<Metrics>,
    syncer: Mutex<Option<Box<dyn JoinHandle>>>,
}

impl Pipeline {
    /// Takes charge of an engine.
    pub fn open(
        engine: Arc<dyn Engine>,
        runtime: Arc<dyn Env>,
        metrics: Arc<Metrics>,
        conflict_slots: usize,
    ) -> Result<Arc<Self>> {
        let high_water = read_high_water(&*engine)?;
        let high_water = if mutated!(TimestampsReused) { Timestamp::ZERO } else { high_water };
        let oracle = LocalOracle::new(high_water);
        crash_point!(OpenBefore);
        let lease = oracle.first_reservation(runtime.unix_millis());
        let mut entries = vec![(HIGH_WATER_KEY.into(), Some(lease.to_u64().to_be_bytes().to_vec()))];
        entries.extend(identity::at_opening(&*engine, || runtime.random())?);
        engine.write_meta(&entries)?;
        engine.sync()?;
        crash_point!(OpenReserved);
        oracle.reserve_until(lease);
        let opened_at = oracle.next(runtime.unix_millis()).ok_or_else(out_of_timestamps)?;

        let view = engine.snapshot()?;
        let orphans = view.any_lock()?;
        crash_point!(OpenScanned);
        let first = ReadView::new(opened_at, view, orphans);
        let mut live = SnapshotList::default();
        live.add(&first, runtime.elapsed());
        let pipeline = Arc::new(Self {
            engine,
            oracle,
            first_ts: opened_at,
            queue: Mutex::default(),
            leader_state: Mutex::new(LeaderState {
                row_locks: HashMap::new(),
                large_txns: HashMap::new(),
                conflict_set: ConflictSet::new(conflict_slots, runtime.random()),
                group: WriteGroup::default(),
                queue_buffer: Vec::new(),
            }),
            visible_view: Mutex::new(Arc::clone(&first)),
            snapshots: Mutex::new(live),
            group_sync: GroupSync::new(first, &*runtime),
            unapplied: Mutex::default(),
            abandoned: Mutex::default(),
            may_have_orphans: AtomicBool::new(orphans),
            unlock_waiters: Arc::default(),
            named_locks: Arc::new(LockManager::new(runtime.random(), LockMetrics::new(Arc::clone(&metrics)))),
            acked_ts: AtomicU64::new(opened_at.to_u64()),
            failure: OnceLock::new(),
            metrics,
            syncer: Mutex::default(),
            runtime,
        });
        let worker = Arc::clone(&pipeline);
        let syncer = pipeline.runtime.spawn("percolite-sync", Box::new(move || worker.run_syncer()));
        let syncer = syncer.map_err(|why| ErrorKind::Io(format!("cannot start a thread: {why}")))?;
        *pipeline.syncer.lock() = Some(syncer);
        Ok(pipeline)
    }

    /// Ends the syncer thread and refuses everything from here on.
    pub fn close(&self) {
        let syncer = self.syncer.lock().take();
        self.group_sync.stop();
        syncer.into_iter().for_each(JoinHandle::join);
        let closed_well = self.failure.set(CLOSED_MESSAGE.into()).is_ok();
        self.group_sync.release_waiters();
        if closed_well {
            crash_point!(CloseSynced);
            // The next life may begin where this one ended. Without this it begins above the lease, which is as good. Closed
            // first: a leader that has passed the check for failures could still draw a timestamp above what is written.
            let last = if mutated!(OracleUsableAfterClose) { self.oracle.last_issued() } else { self.oracle.close() };
            let last = last.to_u64().to_be_bytes().to_vec();
            let _ = self.engine.write_meta(&[(HIGH_WATER_KEY.into(), Some(last))]).and_then(|()| self.engine.sync());
        }
    }

    /// Has everything visible made durable soon.
    pub fn request_sync(&self) {
        if self.durable_ts() < self.visible_view().read_ts {
            self.group_sync.request_sync();
        }
    }

    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    pub fn runtime(&self) -> &dyn Env {
        &*self.runtime
    }

    /// The locks by name, which end with the pipeline.
    pub fn named_locks(&self) -> &Arc<LockManager> {
        &self.named_locks
    }

    fn oracle(&self) -> &LocalOracle {
        &self.oracle
    }

    /// A fresh timestamp.
    pub fn next_timestamp(&self) -> Result<Timestamp> {
        self.next_timestamp_and_clock().map(|(ts, _)| ts)
    }

    /// A fresh timestamp, and what the clock said, in milliseconds since 1970.
    pub fn next_timestamp_and_clock(&self) -> Result<(Timestamp, u64)> {
        loop {
            let now = self.runtime.unix_millis();
            if let Some(ts) = self.oracle.next(now) {
                return Ok((ts, now));
            }
            self.wait_for_reservation()?;
        }
    }

    /// A fresh timestamp, unless it has to be waited for.
    #[cfg(feature = "tokio")]
    pub fn try_next_timestamp(&self) -> Option<Timestamp> {
        self.oracle.next(self.runtime.unix_millis())
    }

    /// Has the oracle's lease extended in the background when less than half of it is left, so that no caller has to wait for it.
    pub fn request_reservation(&self) {
        if self.oracle.needs_reservation(self.runtime.unix_millis()) {
            self.group_sync.request_sync();
        }
    }

    /// Has timestamps tell the time, too: after a pause the first commit waits for a sync more.
    pub fn track_wall_clock(&self) {
        self.oracle.track_wall_clock();
    }

    /// Sees to it that every timestamp from here on is greater than `ts`, which comes from another store.
    pub fn advance_past(&self, ts: Timestamp) -> Result<()> {
        if is_exhausted(ts) {
            return Err(out_of_timestamps());
        }
        self.oracle.advance_past(ts);
        self.next_timestamp().map(drop)
    }

    /// The newest view: everything that is visible.
    pub fn visible_view(&self) -> Arc<ReadView> {
        Arc::clone(&self.visible_view.lock())
    }

    /// A view of nothing that could still be lost, and of everything acknowledged before.
    pub fn durable_view(&self) -> Result<Arc<ReadView>> {
        let durable = self.group_sync.durable_view();
        let current = self.visible_view();
        if mutated!(SnapshotAtVisible) {
            return Ok(current);
        }
        if durable.read_ts == current.read_ts {
            // The same commits; the newer view may have fewer locks to look at.
            return Ok(current);
        }
        if durable.read_ts.to_u64() >= self.acked_ts.load(Ordering::Acquire) {
            return Ok(durable);
        }
        self.wait_durable(current.read_ts)?;
        Ok(current)
    }

    /// Notes that somebody has been told of a commit.
    pub fn note_acked(&self, commit_ts: Timestamp) {
        self.acked_ts.fetch_max(commit_ts.to_u64(), Ordering::AcqRel);
    }

    /// Every commit at or below this would survive a power cut.
    pub fn durable_ts(&self) -> Timestamp {
        self.group_sync.durable_ts()
    }

    /// Whether the transaction began in an earlier life of the store, so that its owner is gone.
    pub fn is_orphan(&self, start_ts: Timestamp) -> bool {
        start_ts < self.first_ts
    }

    /// Whether the transaction has given up and some of its rows may still be locked.
    pub fn is_abandoned(&self, start_ts: Timestamp) -> bool {
        self.abandoned.lock().contains(&start_ts)
    }

    /// Notes that the transaction will never commit, whatever it has locked.
    pub fn abandon(&self, start_ts: Timestamp) {
        self.abandoned.lock().insert(start_ts);
    }

    /// Notes that no lock of the transaction is left; the writes that removed them have returned.
    pub fn forget_large_txn(&self, start_ts: Timestamp) -> Result<()> {
        let (changes, purpose) = (Vec::new(), SubmissionKind::ForgetLarge { start_ts });
        self.submit_internal(changes, purpose)?;
        self.abandoned.lock().remove(&start_ts);
        Ok(())
    }

    /// Transactions that began before this are orphans.
    pub fn first_ts(&self) -> Timestamp {
        self.first_ts
    }

    /// When the transaction was committed, if rows of it are still locked by this process.
    pub fn unapplied(&self, start_ts: Timestamp) -> Option<Timestamp> {
        self.unapplied.lock().get(&start_ts).copied()
    }

    /// Whether rows of any committed transaction are still locked.
    pub fn any_unapplied(&self) -> bool {
        !self.unapplied.lock().is_empty()
    }

    /// Says that no lock of an earlier life is left; the writes that removed them have returned.
    pub fn clear_orphan_flag(&self) -> Result<()> {
        self.may_have_orphans.store(false, Ordering::Release);
        // The leader publishes a view that need not look at locks.
        self.drain()
    }

    /// Returns once a commit that somebody has seen in the engine, ahead of its publication, is visible.
    pub fn wait_visible(&self, ts: Timestamp) -> Result<()> {
        if self.visible_view().read_ts < ts { self.drain() } else { Ok(()) }
    }

    /// Goes through the queue with nothing to do: what was before it is published then.
    pub fn drain(&self) -> Result<()> {
        let (changes, purpose) = (Vec::new(), SubmissionKind::NoCommit);
        self.submit_internal(changes, purpose).map(drop)
    }

    /// Whether locks of an earlier life may be left.
    pub fn may_have_orphans(&self) -> bool {
        self.may_have_orphans.load(Ordering::Acquire)
    }

    /// Has an attempt wait until a row that a live transaction has locked is free.
    pub fn wait_for_unlock(&self, entrance: &mut AdmissionWait, row: &RowKey) {
        let (engine, looked_at, opened_at) = (Arc::clone(&self.engine), row.clone(), self.first_ts);
        let is_locked = move || engine.read_row(&looked_at, opened_at).is_ok_and(|found| found.lock.is_some());
        entrance.wait_for_unlock(&self.unlock_waiters, row.clone(), Box::new(is_locked));
    }

    /// The oldest timestamp at which anybody reads, or will.
    pub fn oldest_read_ts(&self) -> Timestamp {
        let visible = self.visible_view().read_ts;
        self.snapshots.lock().oldest_read_ts().map_or(visible, |oldest| oldest.min(visible))
    }

    /// Counts a view that was not published among those that are read, and ends it in time.
    pub fn add_historical_view(&self, view: &Arc<ReadView>) {
        self.snapshots.lock().add_historical(view, self.runtime.elapsed());
    }

    /// How many different views are being read.
    pub fn open_views(&self) -> usize {
        self.snapshots.lock().count()
    }

    /// Ends the views that a newer one replaced longer ago than `age`, and those of the past that were taken then; the answer is
    /// how many these were.
    pub fn expire_views(&self, age: Duration) -> usize {
        self.snapshots.lock().expire(self.runtime.elapsed().saturating_sub(age))
    }

    /// Called by the leader only, after the changes are applied.
    fn publish(&self, _leader: &mut LeaderState, newest: Option<Timestamp>, now: Duration) -> Result<()> {
        let (read_ts, check_locks_now) = {
            let current = self.visible_view.lock();
            (current.read_ts, current.must_check_locks)
        };
        // Read before the view is opened: a row that becomes whole in between is looked at once too often, never once too
        // seldom.
        let check_locks = self.may_have_orphans() || !self.unapplied.lock().is_empty();
        if newest.is_none() && check_locks_now == check_locks {
            return Ok(());
        }
        let view = self.engine.snapshot()?;
        let check_locks =
            if mutated!(LockCheckAfterSnapshot) { !self.unapplied.lock().is_empty() } else { check_locks };
        let next = ReadView::new(newest.map_or(read_ts, |ts| ts.max(read_ts)), view, check_locks);
        self.snapshots.lock().add(&next, now);
        let replaced = std::mem::replace(&mut *self.visible_view.lock(), next);
        drop(replaced);
        self.request_reservation();
        Ok(())
    }

    /// Why the pipeline has failed, if it has.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub fn check_open(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |why| Err(Error::closed(why)))
    }

    /// Closes the pipeline for good; every call that waits for it fails. The first reason counts. The answer is for a caller of
    /// which nothing can have been committed.
    pub fn poison(&self, why: Error) -> Error {
        Error::closed(self.record_failure(&why))
    }

    /// [`Pipeline::poison`] for a caller of which something may have been committed, or may not be durable.
    pub fn poison_undetermined(&self, why: Error) -> Error {
        undetermined(self.record_failure(&why))
    }

    fn record_failure(&self, why: &Error) -> &str {
        if self.failure.set(format!("the store has failed and must be opened again: {why}")).is_ok() {
            event!(ERROR, %why, "store failed");
            self.named_locks.close(self.failure().unwrap_or_default());
        }
        self.group_sync.release_waiters();
        self.failure().unwrap_or_default()
    }

    fn due_reservation(&self) -> Option<Timestamp> {
        let now = self.runtime.unix_millis();
        self.oracle.needs_reservation(now).then(|| self.oracle.next_reservation(now))
    }
}

fn undetermined(why: &str) -> Error {
    ErrorKind::Undetermined(why.into()).into()
}

fn out_of_timestamps() -> Error {
    ErrorKind::Corruption("the oracle's high-water mark leaves no timestamps".into()).into()
}
