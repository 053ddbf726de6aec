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
use crate::observe::{Part, Spent};
use crate::oracle::LEASE;
use crate::runtime::{Parker, Progress, Runtime};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

pub struct Durability {
    durable_ts: AtomicU64,
    durable_view: Mutex<Arc<PinnedView>>,
    state: Mutex<State>,
    /// How many syncs have ended; the greatest number there is when no further one will.
    ended: Arc<dyn Progress>,
    syncer: Mutex<Option<Arc<dyn Parker>>>,
    stopping: AtomicBool,
}

#[derive(Default)]
struct State {
    syncing: bool,
    /// How many syncs have begun.
    begun: u64,
    /// What the last of them covers.
    covered: Timestamp,
    /// Another one is to follow.
    wanted: bool,
}

/// How a caller gets the sync that it needs.
enum Turn {
    /// It makes the sync, of this view; the sync counts as begun.
    Sync(Arc<PinnedView>),
    /// It waits until so many syncs have ended.
    Wait(u64),
}

impl Durability {
    pub fn new(view: Arc<PinnedView>, runtime: &dyn Runtime) -> Self {
        Self {
            durable_ts: AtomicU64::new(view.read_ts.to_u64()),
            durable_view: Mutex::new(view),
            state: Mutex::default(),
            ended: runtime.progress(),
            syncer: Mutex::default(),
            stopping: AtomicBool::new(false),
        }
    }

    pub fn durable_ts(&self) -> Timestamp {
        Timestamp::from_u64(self.durable_ts.load(Ordering::Acquire))
    }

    /// The view of exactly what is durable.
    pub fn view(&self) -> Arc<PinnedView> {
        Arc::clone(&self.durable_view.lock())
    }

    /// Has the syncer thread sync soon.
    pub fn want(&self) {
        let mut state = self.state.lock();
        state.wanted = true;
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
    pub fn give_up(&self) {
        self.ended.reach(u64::MAX);
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
            let Some(turn) = self.turn(ts) else { continue };
            self.take(turn).map_err(|why| undetermined(self.failure().unwrap_or(&why.to_string())))?;
            if mutated!(AnySyncAcknowledges) && self.failure().is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// [`Pipeline::wait_durable`] for a transaction whose time is `spent`.
    pub fn confirm(&self, ts: Timestamp, spent: &Spent) -> Result<()> {
        if self.durable_ts() >= ts {
            return Ok(());
        }
        spent.start(self.runtime().elapsed());
        let confirmed = self.wait_durable(ts);
        spent.lap(Part::Syncing, self.runtime().elapsed());
        confirmed
    }

    /// Returns once all that was written before this call is durable, bookkeeping too. Never two syncs at a time: a failed one may have
    /// taken what another would then report as durable.
    pub fn sync_now(&self) -> Result<()> {
        self.check_alive()?;
        self.turn(Timestamp::MAX).map_or(Ok(()), |turn| self.take(turn))?;
        self.check_alive()
    }

    /// Returns once a sync has ended that may have brought the oracle a further lease: the running one, or one that is made here.
    pub(super) fn await_lease(&self) -> Result<()> {
        self.check_alive()?;
        let turn = {
            let mut state = self.durability.state.lock();
            if state.syncing { Turn::Wait(state.begun) } else { Turn::Sync(self.begin_sync(&mut state)) }
        };
        self.take(turn)
    }

    /// Returns once the sync has ended; after a failure a wait ends, too.
    fn take(&self, turn: Turn) -> Result<()> {
        match turn {
            Turn::Sync(view) => self.sync_with(view),
            Turn::Wait(number) => {
                self.durability.ended.wait(number);
                Ok(())
            }
        }
    }

    /// How to get a sync that covers `ts`; `None` if such a sync has ended meanwhile.
    fn turn(&self, ts: Timestamp) -> Option<Turn> {
        let mut state = self.durability.state.lock();
        // A sync that ends moves `durable_ts` before it takes the lock.
        if self.durable_ts() >= ts {
            return None;
        }
        if !state.syncing {
            return Some(Turn::Sync(self.begin_sync(&mut state)));
        }
        if ts <= state.covered || mutated!(AnySyncAcknowledges) {
            return Some(Turn::Wait(state.begun));
        }
        state.wanted = true;
        Some(Turn::Wait(state.begun + 1))
    }

    fn begin_sync(&self, state: &mut State) -> Arc<PinnedView> {
        let view = self.current_view();
        *state = State { syncing: true, begun: state.begun + 1, covered: view.read_ts, wanted: false };
        view
    }

    /// The syncer thread's work.
    pub(super) fn run_syncer(&self) {
        let durability = &self.durability;
        let parker = self.runtime().parker();
        *durability.syncer.lock() = Some(Arc::clone(&parker));
        loop {
            let (is_wanted, begun) = {
                let mut state = durability.state.lock();
                // A failure has poisoned the pipeline and ended all waits; the thread stays until it is stopped.
                let is_wanted = state.wanted && self.failure().is_none();
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
    fn sync_with(&self, view: Arc<PinnedView>) -> Result<()> {
        let syncing = Syncing { pipeline: self, was_panicking: std::thread::panicking() };
        let synced = self.sync_and_publish(view);
        drop(syncing);
        let number = {
            let mut state = self.durability.state.lock();
            state.syncing = false;
            if state.wanted {
                self.durability.wake_syncer();
            }
            state.begun
        };
        if synced.is_ok() {
            self.durability.ended.reach(number);
        }
        synced
    }

    fn sync_and_publish(&self, mut view: Arc<PinnedView>) -> Result<()> {
        // The sync before this one may have failed just now.
        self.check_alive()?;
        crash_point!(SyncBefore);
        let synced = self.sync_engine();
        if mutated!(DurableSampledLate) {
            view = self.current_view();
        }
        let took = synced.map_err(|why| self.poison(why.into()))?;
        let ts = view.read_ts;
        self.counters.syncs.add(1);
        self.counters.syncing.record(took);
        event!(TRACE, durable_ts = %ts, took_us = took.as_micros(), "synced");
        let replaced = std::mem::replace(&mut *self.durability.durable_view.lock(), view);
        drop(replaced);
        self.durability.durable_ts.fetch_max(ts.to_u64(), Ordering::AcqRel);
        crash_point!(SyncPublished);
        Ok(())
    }

    /// Has the engine make everything durable that was written, a further lease with it if one is due. The answer is how long the
    /// sync took.
    fn sync_engine(&self) -> Result<Duration, EngineError> {
        let lease = self.lease_if_due();
        crash_point!(LeaseBefore if lease.is_some());
        if let Some(lease) = lease {
            self.engine().write_meta(&[(LEASE.into(), Some(lease.to_u64().to_be_bytes().to_vec()))])?;
        }
        let began = self.runtime().elapsed();
        self.engine().sync()?;
        crash_point!(SyncReturned);
        let took = self.runtime().elapsed().saturating_sub(began);
        if let Some(lease) = lease {
            crash_point!(LeaseDurable);
            self.oracle().extend(lease);
        }
        Ok(took)
    }
}

/// A panic of the engine closes the pipeline instead of leaving everybody waiting for a sync that never ends.
struct Syncing<'a> {
    pipeline: &'a Pipeline,
    was_panicking: bool,
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            self.pipeline.poison(ErrorKind::Io("the engine panicked in a sync".into()).into());
            self.pipeline.durability.state.lock().syncing = false;
        }
    }
}
