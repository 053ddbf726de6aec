//! Builds the pipeline from its parts, and has the operations that need several parts.

use std::sync::Arc;

use super::failure::{Failure, undetermined_by};
use super::fates::TxnFates;
use super::group_commit::{CommitParts, GroupCommit};
use super::group_sync::{GroupSync, SyncParts};
use super::precheck::LeaderMemory;
use super::submission::{Submission, SubmissionKind, SubmitResult};
use super::timestamps::{Timestamps, exhausted};
use super::views::Views;
use crate::contention::{AdmissionWait, UnlockWaiters};
use crate::engine::Engine;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::local_oracle::{HIGH_WATER_KEY, LocalOracle, read_high_water};
use crate::lock_manager::{LockManager, LockMetrics};
use crate::observe::{Metrics, TxnTimer};
use crate::read_view::ReadView;
use crate::row::{RowChange, RowKey};
use crate::store_id;
use crate::timestamp::Timestamp;

/// The commit pipeline of an open store.
pub struct Pipeline {
    engine: Arc<dyn Engine>,
    env: Arc<dyn Env>,
    oracle: Arc<LocalOracle>,
    timestamps: Arc<Timestamps>,
    views: Arc<Views>,
    fates: Arc<TxnFates>,
    failure: Arc<Failure>,
    sync: Arc<GroupSync>,
    commits: GroupCommit,
    unlock_waiters: Arc<UnlockWaiters>,
    named_locks: Arc<LockManager>,
}

impl Pipeline {
    /// Opens an engine: reserves timestamps above all earlier ones, and checks for locks of earlier
    /// incarnations. The conflict set has at least `conflict_rows` slots.
    pub fn open(
        engine: Arc<dyn Engine>,
        env: Arc<dyn Env>,
        metrics: Arc<Metrics>,
        conflict_rows: usize,
    ) -> Result<Arc<Self>> {
        let oracle = Arc::new(open_oracle(&*engine, &*env)?);
        let first_ts = oracle.next(env.unix_millis()).ok_or_else(exhausted)?;
        let snapshot = engine.snapshot()?;
        let any_lock = snapshot.any_lock()?;
        crash_point!(OpenScanned);

        let ended = env.new_watermark();
        let lock_metrics = LockMetrics::new(Arc::clone(&metrics));
        let named_locks = Arc::new(LockManager::new(env.random(), lock_metrics));
        let memory = LeaderMemory::new(conflict_rows, env.random());
        let failure = Arc::new(Failure::new(Arc::clone(&named_locks), Arc::clone(&ended)));
        let fates = Arc::new(TxnFates::new(first_ts, any_lock));
        let first = ReadView::new(first_ts, snapshot, any_lock);
        let views = Arc::new(Views::new(Arc::clone(&engine), Arc::clone(&env), Arc::clone(&fates), first));
        let sync = Arc::new(GroupSync::new(SyncParts {
            engine: Arc::clone(&engine),
            env: Arc::clone(&env),
            metrics: Arc::clone(&metrics),
            oracle: Arc::clone(&oracle),
            views: Arc::clone(&views),
            failure: Arc::clone(&failure),
            ended,
        }));
        let timestamps = Arc::new(Timestamps::new(Arc::clone(&oracle), Arc::clone(&env), Arc::clone(&sync)));
        let unlock_waiters = Arc::<UnlockWaiters>::default();
        let parts = CommitParts {
            engine: Arc::clone(&engine),
            env: Arc::clone(&env),
            metrics,
            failure: Arc::clone(&failure),
            fates: Arc::clone(&fates),
            views: Arc::clone(&views),
            timestamps: Arc::clone(&timestamps),
            sync: Arc::clone(&sync),
            unlock_waiters: Arc::clone(&unlock_waiters),
        };
        let commits = GroupCommit::new(parts, memory);
        sync.start()?;
        let parts =
            Self { engine, env, oracle, timestamps, views, fates, failure, sync, commits, unlock_waiters, named_locks };
        Ok(Arc::new(parts))
    }

    /// Stops the sync thread and rejects all further calls. The caller must have synced all commits
    /// that must survive, but for those that were acknowledged since: the last sync is for them.
    ///
    /// # Errors
    /// `Undetermined` if that sync fails.
    pub fn close(&self) -> Result<()> {
        self.sync.stop();
        if !self.failure.close() {
            return Ok(());
        }
        crash_point!(CloseSynced);
        // After this write, the timestamps of the next incarnation start where those of this
        // incarnation ended. If the write fails, they start above the reservation, which is correct
        // too, so its error is ignored. The oracle is closed before the write: a leader that has
        // passed the failure check could otherwise allocate a timestamp above the one written here.
        let last = self.oracle.close();
        let last = last.to_u64().to_be_bytes().to_vec();
        let _ = self.engine.write_meta(&[(HIGH_WATER_KEY.into(), Some(last))]);
        self.engine.sync().map_err(|error| undetermined_by(&error.into()))
    }

    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    pub fn env(&self) -> &dyn Env {
        &*self.env
    }

    pub fn timestamps(&self) -> &Timestamps {
        &self.timestamps
    }

    pub fn views(&self) -> &Views {
        &self.views
    }

    pub fn fates(&self) -> &TxnFates {
        &self.fates
    }

    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    pub fn sync(&self) -> &GroupSync {
        &self.sync
    }

    /// The named locks. They close when the pipeline fails.
    pub fn named_locks(&self) -> &Arc<LockManager> {
        &self.named_locks
    }

    /// See [`GroupCommit::submit`].
    pub fn submit(&self, submission: Submission, timer: &TxnTimer) -> Result<SubmitResult> {
        self.commits.submit(submission, timer)
    }

    /// Applies changes that belong to no running transaction. They depend on their preconditions,
    /// but on no fence or other condition of a transaction, and no sync is made for them.
    pub fn submit_internal(&self, changes: Vec<RowChange>, kind: SubmissionKind) -> Result<SubmitResult> {
        let (batch, conditions) = (changes.into(), Arc::default());
        self.submit(Submission { batch, kind, durable: false, conditions, attempt: None }, &TxnTimer::default())
    }

    /// Returns once everything queued before this call is visible or rejected: this call submits an
    /// empty batch, which passes through the same queue.
    pub fn drain(&self) -> Result<()> {
        self.submit_internal(Vec::new(), SubmissionKind::NoCommit).map(drop)
    }

    /// Returns once the commit at `ts` is visible. The caller may have read the commit from the
    /// engine before the leader publishes it.
    pub fn wait_visible(&self, ts: Timestamp) -> Result<()> {
        if self.views.visible().read_ts < ts { self.drain() } else { Ok(()) }
    }

    /// A view that shows only durable commits, among them all that were acknowledged before this
    /// call. Syncs if an acknowledged buffered commit is not durable yet.
    pub fn durable_view(&self) -> Result<Arc<ReadView>> {
        let durable = self.sync.durable_view();
        let visible = self.views.visible();
        if durable.read_ts == visible.read_ts {
            // Both views show the same commits. The visible one may have been opened later, when
            // reads no longer had to check locks, so it is preferred.
            return Ok(visible);
        }
        if durable.read_ts >= self.views.acked_ts() {
            return Ok(durable);
        }
        self.sync.wait_durable(visible.read_ts)?;
        Ok(visible)
    }

    /// Requests a sync if a visible commit is not durable yet.
    pub fn request_sync(&self) {
        if self.sync.durable_ts() < self.views.visible().read_ts {
            self.sync.request_sync();
        }
    }

    /// Records that no lock of an earlier incarnation is left. To be called after the writes that
    /// removed these locks have returned: views opened from here on do not look for such locks.
    pub fn clear_orphans(&self) -> Result<()> {
        self.fates.clear_orphans();
        // Makes the leader publish a view that needs no lock checks.
        self.drain()
    }

    /// Makes `wait` also wait until the running transaction that has locked `row` releases the
    /// lock.
    pub fn wait_for_unlock(&self, wait: &mut AdmissionWait, row: &RowKey) {
        let (engine, probed, first_ts) = (Arc::clone(&self.engine), row.clone(), self.fates.first_ts());
        let is_locked = move || engine.read_row(&probed, first_ts).is_ok_and(|found| found.lock.is_some());
        wait.wait_for_unlock(&self.unlock_waiters, row.clone(), Box::new(is_locked));
    }
}

/// Opens the oracle with a durable reservation above all timestamps of earlier incarnations.
fn open_oracle(engine: &dyn Engine, env: &dyn Env) -> Result<LocalOracle, Error> {
    let high_water = read_high_water(engine)?;
    let oracle = LocalOracle::new(high_water);
    crash_point!(OpenBefore);
    let reservation = oracle.first_reservation(env.unix_millis());
    let mut entries = vec![(HIGH_WATER_KEY.into(), Some(reservation.to_u64().to_be_bytes().to_vec()))];
    entries.extend(store_id::at_opening(engine, || env.random())?);
    engine.write_meta(&entries)?;
    engine.sync()?;
    crash_point!(OpenReserved);
    oracle.reserve_until(reservation);
    Ok(oracle)
}
