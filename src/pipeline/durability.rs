//! Durability: when a commit survives a power cut, and how its committer waits for that.
//!
//! A commit is visible as soon as it is applied, and its rows are free for the next one. It is *durable* once a sync that
//! began after it was applied has returned. A sync covers everything applied before it began, and the log is recovered as
//! a prefix, so one number says it all: every commit at or below `durable_ts` survives.
//!
//! ```text
//!   S = visible view          taken first: what is applied later may not be in this sync
//!   engine.sync()
//!   durable view = S          one call wakes all commits that this sync covers
//! ```
//!
//! There is one sync at a time. If none runs, the committer makes it itself, without a switch to another thread. If one runs, the
//! commit waits for it or, if it began before the commit was visible, for the next one. The syncer thread or another committer begins
//! that as soon as the running one has ended.
//!
//! This is group commit. As in `InnoDB`, the log is written before the wait, so a group is all that was written while the disk was
//! busy. One call wakes the group, since a call for each commit of a large group takes as long as a sync.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{Pipeline, undetermined};
use crate::engine::EngineError;
use crate::error::{ErrorKind, Result};
use crate::observe::{TxnPhase, TxnTimer};
use crate::oracle::HIGH_WATER_KEY;
use crate::runtime::{Env, Parker, Watermark};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::view::ReadView;

pub struct GroupSync {
    durable_ts: AtomicU64,
    durable_view: Mutex<Arc<ReadView>>,
    state: Mutex<State>,
    /// How many syncs have ended; the greatest number there is when no further one will.
    completed: Arc<dyn Watermark>,
    syncer: Mutex<Option<Arc<dyn Parker>>>,
    stopping: AtomicBool,
}

#[derive(Default)]
struct State {
    syncing: bool,
    /// How many syncs have begun.
    started: u64,
    /// What the last of them covers.
    covers_ts: Timestamp,
    /// Another one is to follow.
    requested: bool,
}

/// How a caller gets the sync that it needs.
enum SyncRole {
    /// It makes the sync, of this view; the sync counts as begun.
    Leader(Arc<ReadView>),
    /// It waits until so many syncs have ended.
    Follower(u64),
}

impl GroupSync {
    pub fn new(view: Arc<ReadView>, runtime: &dyn Env) -> Self {
        Self {
            durable_ts: AtomicU64::new(view.read_ts.to_u64()),
            durable_view: Mutex::new(view),
            state: Mutex::default(),
            completed: runtime.new_watermark(),
            syncer: Mutex::default(),
            stopping: AtomicBool::new(false),
        }
    }

    pub fn durable_ts(&self) -> Timestamp {
        Timestamp::from_u64(self.durable_ts.load(Ordering::Acquire))
    }

    /// The view of exactly what is durable.
    pub fn durable_view(&self) -> Arc<ReadView> {
        Arc::clone(&self.durable_view.lock())
    }

    /// Has the syncer thread sync soon.
    pub fn request_sync(&self) {
        let mut state = self.state.lock();
        state.requested = true;
        // The end of the running sync wakes the thread.
        if !state.syncing {
            self.wake_syncer();
        }
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake_syncer();
    }

    /// Ends all waits: there will be no further sync.
    pub fn release_waiters(&self) {
        self.completed.advance_to(u64::MAX);
    }

    fn wake_syncer(&self) {
        if let Some(syncer) = &*self.syncer.lock() {
            syncer.unpark();
        }
    }
}

impl Pipeline {
    /// Returns once everything at or below `ts`, which must be visible, is durable.
    pub fn wait_durable(&self, ts: Timestamp) -> Result<()> {
        while self.durable_ts() < ts {
            if let Some(why) = self.failure() {
                return Err(undetermined(why));
            }
            let Some(turn) = self.join_sync(ts) else { continue };
            self.run_role(turn).map_err(|why| undetermined(self.failure().unwrap_or(&why.to_string())))?;
            if mutated!(AnySyncAcknowledges) && self.failure().is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// [`Pipeline::wait_durable`] for a transaction whose time is `spent`.
    pub fn wait_durable_timed(&self, ts: Timestamp, spent: &TxnTimer) -> Result<()> {
        if self.durable_ts() >= ts {
            return Ok(());
        }
        spent.start(self.runtime().elapsed());
        let confirmed = self.wait_durable(ts);
        spent.lap(TxnPhase::Sync, self.runtime().elapsed());
        confirmed
    }

    /// Returns once all that was written before this call is durable, bookkeeping too. Never two syncs at a time: a failed one may have
    /// taken what another would then report as durable.
    pub fn sync_now(&self) -> Result<()> {
        self.check_open()?;
        self.join_sync(Timestamp::MAX).map_or(Ok(()), |turn| self.run_role(turn))?;
        self.check_open()
    }

    /// Returns once a sync has ended that may have brought the oracle a further lease: the running one, or one that is made here.
    pub(super) fn wait_for_reservation(&self) -> Result<()> {
        self.check_open()?;
        let turn = {
            let mut state = self.group_sync.state.lock();
            if state.syncing {
                SyncRole::Follower(state.started)
            } else {
                SyncRole::Leader(self.begin_sync(&mut state))
            }
        };
        self.run_role(turn)
    }

    /// Returns once the sync has ended; after a failure a wait ends, too.
    fn run_role(&self, turn: SyncRole) -> Result<()> {
        match turn {
            SyncRole::Leader(view) => self.sync_with(view),
            SyncRole::Follower(number) => {
                self.group_sync.completed.wait_for(number);
                Ok(())
            }
        }
    }

    /// How to get a sync that covers `ts`; `None` if such a sync has ended meanwhile.
    fn join_sync(&self, ts: Timestamp) -> Option<SyncRole> {
        let mut state = self.group_sync.state.lock();
        // A sync that ends moves `durable_ts` before it takes the lock.
        if self.durable_ts() >= ts {
            return None;
        }
        if !state.syncing {
            return Some(SyncRole::Leader(self.begin_sync(&mut state)));
        }
        if ts <= state.covers_ts || mutated!(AnySyncAcknowledges) {
            return Some(SyncRole::Follower(state.started));
        }
        state.requested = true;
        Some(SyncRole::Follower(state.started + 1))
    }

    fn begin_sync(&self, state: &mut State) -> Arc<ReadView> {
        let view = self.visible_view();
        *state = State { syncing: true, started: state.started + 1, covers_ts: view.read_ts, requested: false };
        view
    }

    /// The syncer thread's work.
    pub(super) fn run_syncer(&self) {
        let durability = &self.group_sync;
        let parker = self.runtime().parker();
        *durability.syncer.lock() = Some(Arc::clone(&parker));
        loop {
            let (is_wanted, begun) = {
                let mut state = durability.state.lock();
                // A failure has poisoned the pipeline and ended all waits; the thread stays until it is stopped.
                let is_wanted = state.requested && self.failure().is_none();
                (is_wanted, (is_wanted && !state.syncing).then(|| self.begin_sync(&mut state)))
            };
            match begun {
                Some(view) => drop(self.sync_with(view)),
                None if !is_wanted && durability.stopping.load(Ordering::Acquire) => return,
                None => parker.park(None),
            }
        }
    }

    /// Makes the sync that was begun with this view.
    fn sync_with(&self, view: Arc<ReadView>) -> Result<()> {
        let syncing = SyncPanicGuard { pipeline: self, was_panicking: std::thread::panicking() };
        let synced = self.sync_and_publish(view);
        drop(syncing);
        let number = {
            let mut state = self.group_sync.state.lock();
            state.syncing = false;
            if state.requested {
                self.group_sync.wake_syncer();
            }
            state.started
        };
        if synced.is_ok() {
            self.group_sync.completed.advance_to(number);
        }
        synced
    }

    fn sync_and_publish(&self, mut view: Arc<ReadView>) -> Result<()> {
        // The sync before this one may have failed just now.
        self.check_open()?;
        crash_point!(SyncBefore);
        let synced = self.sync_engine();
        if mutated!(WrittenSampledAfterSync) {
            view = self.visible_view();
        }
        let took = synced.map_err(|why| self.poison(why.into()))?;
        let ts = view.read_ts;
        self.metrics.wal_syncs.add(1);
        self.metrics.wal_sync.record(took);
        event!(TRACE, durable_ts = %ts, took_us = took.as_micros(), "synced");
        let replaced = std::mem::replace(&mut *self.group_sync.durable_view.lock(), view);
        drop(replaced);
        self.group_sync.durable_ts.fetch_max(ts.to_u64(), Ordering::AcqRel);
        crash_point!(SyncPublished);
        Ok(())
    }

    /// Has the engine make everything durable that was written, a further lease with it if one is due. The answer is how long the
    /// sync took.
    fn sync_engine(&self) -> Result<Duration, EngineError> {
        let lease = self.due_reservation();
        crash_point!(OracleReservationBefore if lease.is_some());
        if let Some(lease) = lease {
            self.engine().write_meta(&[(HIGH_WATER_KEY.into(), Some(lease.to_u64().to_be_bytes().to_vec()))])?;
        }
        let began = self.runtime().elapsed();
        self.engine().sync()?;
        crash_point!(SyncReturned);
        let took = self.runtime().elapsed().saturating_sub(began);
        if let Some(lease) = lease {
            crash_point!(OracleReservationDurable);
            self.oracle().reserve_until(lease);
        }
        Ok(took)
    }
}

/// A panic of the engine closes the pipeline instead of leaving everybody waiting for a sync that never ends.
struct SyncPanicGuard<'a> {
    pipeline: &'a Pipeline,
    was_panicking: bool,
}

impl Drop for SyncPanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            self.pipeline.poison(ErrorKind::Io("the engine panicked in a sync".into()).into());
            self.pipeline.group_sync.state.lock().syncing = false;
        }
    }
}
