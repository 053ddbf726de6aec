//! Group sync: when a commit is durable, and how its committer waits for the sync.
//!
//! A commit is visible once a published view shows it; from then on its rows are free for other
//! commits. It is *durable* once a sync has returned that began after the commit was visible. The
//! log is recovered as a prefix, so one number is enough: every commit at or below `durable_ts`
//! survives a power cut.
//!
//! ```text
//!   S = visible view          sampled first: later commits may not be in this sync
//!   engine.sync()
//!   durable view = S          one call wakes all commits that this sync covers
//! ```
//!
//! One sync runs at a time. If no sync is running, the committer runs one itself, without a thread
//! switch. Otherwise the committer waits for the running sync or, if that sync began before the
//! commit was visible, for the next sync. The sync thread or another committer begins the next sync
//! as soon as the running sync ends.
//!
//! # Why an acknowledgement is honest
//!
//! `DESIGN.md`, section 5, proves that a durable commit, and everything it has read, survives a
//! power cut once the commit returns. The proof needs three facts of this file. The view `S` is
//! sampled before `engine.sync` is called. `S` becomes the durable view only after that call has
//! succeeded. If the call fails, the pipeline fails permanently before any waiter is woken: a later
//! sync that succeeds proves nothing, because the kernel may have dropped the failed pages
//! (PostgreSQL's "fsyncgate").
//!
//! A transaction without writes waits until `durable_ts >= read_ts`, so that it returns nothing
//! that a power cut could take back.
//!
//! # Grouping
//!
//! As in PostgreSQL and InnoDB, the log is written before the wait, so a group is all that was
//! written while the disk was busy. No sync is delayed to make a group larger. One call wakes the
//! whole group, because one call per commit would take as long as a sync if the group is large.
//!
//! A sync also makes the oracle's next reservation of timestamps durable, if one is due.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::failure::{Failure, undetermined};
use super::views::Views;
use crate::engine::{Engine, EngineError};
use crate::env::{Env, JoinHandle, Parker, Watermark};
use crate::error::{ErrorKind, Result};
use crate::local_oracle::{HIGH_WATER_KEY, LocalOracle};
use crate::observe::{Metrics, TxnPhase, TxnTimer};
use crate::panic_guard::PanicGuard;
use crate::read_view::ReadView;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// The parts of the pipeline that group sync uses.
pub struct SyncParts {
    pub engine: Arc<dyn Engine>,
    pub env: Arc<dyn Env>,
    pub metrics: Arc<Metrics>,
    pub oracle: Arc<LocalOracle>,
    pub views: Arc<Views>,
    pub failure: Arc<Failure>,
    /// Number of syncs that have ended. `u64::MAX` after a failure or a close, so all waits end.
    pub ended: Arc<dyn Watermark>,
}

/// Makes visible commits durable, and has the newest durable view.
pub struct GroupSync {
    parts: SyncParts,
    durable_ts: AtomicU64,
    durable_view: Mutex<Arc<ReadView>>,
    state: Mutex<State>,
    stopping: AtomicBool,
    parker: Mutex<Option<Arc<dyn Parker>>>,
    thread: Mutex<Option<Box<dyn JoinHandle>>>,
}

#[derive(Default)]
struct State {
    /// A sync is running.
    running: bool,
    /// Number of syncs that have begun.
    started: u64,
    /// The sync that began last makes the commits up to this timestamp durable, if it succeeds.
    covers_ts: Timestamp,
    /// Another sync was requested since the last one began.
    requested: bool,
}

/// How a caller gets the sync that it needs.
enum SyncRole {
    /// The caller runs the sync, which covers this view and is already counted in `started`.
    Leader(Arc<ReadView>),
    /// The caller waits until this many syncs have ended.
    Follower(u64),
}

impl GroupSync {
    pub fn new(parts: SyncParts) -> Self {
        let first = parts.views.visible();
        Self {
            parts,
            durable_ts: AtomicU64::new(first.read_ts.to_u64()),
            durable_view: Mutex::new(first),
            state: Mutex::default(),
            stopping: AtomicBool::new(false),
            parker: Mutex::default(),
            thread: Mutex::default(),
        }
    }

    /// Starts the sync thread.
    pub fn start(self: &Arc<Self>) -> Result<()> {
        let own = Arc::clone(self);
        let thread = self.parts.env.spawn("percolite-sync", Box::new(move || own.run_thread()));
        let thread = thread.map_err(|error| ErrorKind::Io(format!("cannot start a thread: {error}")))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Stops the sync thread. Committers can still make syncs themselves.
    pub fn stop(&self) {
        let thread = self.thread.lock().take();
        self.stopping.store(true, Ordering::Release);
        self.wake_thread();
        thread.into_iter().for_each(JoinHandle::join);
    }

    /// Every commit at or below this survives a power cut.
    pub fn durable_ts(&self) -> Timestamp {
        Timestamp::from_u64(self.durable_ts.load(Ordering::Acquire))
    }

    /// The view at `durable_ts`: it shows only durable commits.
    pub fn durable_view(&self) -> Arc<ReadView> {
        Arc::clone(&self.durable_view.lock())
    }

    /// Requests a sync by the sync thread, and does not wait for it.
    pub fn request_sync(&self) {
        let mut state = self.state.lock();
        state.requested = true;
        // If a sync is running, the end of that sync wakes the thread.
        if !state.running {
            self.wake_thread();
        }
    }

    /// Returns once every commit at or below `ts`, which must be visible, is durable.
    ///
    /// # Errors
    /// `Undetermined` if the pipeline fails or is closed before that: the commits may or may not be
    /// durable.
    pub fn wait_durable(&self, ts: Timestamp) -> Result<()> {
        let failure = &self.parts.failure;
        while self.durable_ts() < ts {
            if let Some(reason) = failure.reason() {
                return Err(undetermined(reason));
            }
            let Some(role) = self.join_sync(ts) else { continue };
            self.run_role(role).map_err(|error| undetermined(failure.reason().unwrap_or(&error.to_string())))?;
        }
        Ok(())
    }

    /// [`GroupSync::wait_durable`], with the wait recorded in the transaction's timer.
    pub fn wait_durable_timed(&self, ts: Timestamp, timer: &TxnTimer) -> Result<()> {
        if self.durable_ts() >= ts {
            return Ok(());
        }
        timer.start(self.parts.env.elapsed());
        let durable = self.wait_durable(ts);
        timer.lap(TxnPhase::Sync, self.parts.env.elapsed());
        durable
    }

    /// Returns once everything written before this call is durable, also what has no timestamp,
    /// such as the safe point. Nothing depends on that: a crash leaves a prefix of all changes, so
    /// what was removed because of the safe point is there again if the safe point is lost. A
    /// running sync, which may have begun too early, would do as well. This sync, like all others,
    /// never runs concurrently with another one: if one of two concurrent syncs failed, it could
    /// lose pages that the other then reports as durable.
    pub fn sync_now(&self) -> Result<()> {
        self.parts.failure.check_open()?;
        self.join_sync(Timestamp::MAX).map_or(Ok(()), |role| self.run_role(role))?;
        self.parts.failure.check_open()
    }

    /// Returns once a sync has ended that may have extended the oracle's reservation: the running
    /// one, or one that this call makes.
    pub fn wait_for_reservation(&self) -> Result<()> {
        self.parts.failure.check_open()?;
        let role = {
            let mut state = self.state.lock();
            if state.running {
                SyncRole::Follower(state.started)
            } else {
                SyncRole::Leader(self.begin_sync(&mut state))
            }
        };
        self.run_role(role)
    }

    /// Runs the sync or, as a follower, waits until it has ended. A follower's wait also ends,
    /// without an error, when the pipeline fails.
    fn run_role(&self, role: SyncRole) -> Result<()> {
        match role {
            SyncRole::Leader(view) => self.sync_with(view),
            SyncRole::Follower(number) => {
                self.parts.ended.wait_for(number);
                Ok(())
            }
        }
    }

    /// How to get a sync that covers `ts`; `None` if such a sync has just ended.
    fn join_sync(&self, ts: Timestamp) -> Option<SyncRole> {
        let mut state = self.state.lock();
        // A successful sync first raises `durable_ts`, and then takes this mutex to clear
        // `running`. So if `durable_ts` is below `ts` here, no sync that covers `ts` has ended.
        if self.durable_ts() >= ts {
            return None;
        }
        if !state.running {
            return Some(SyncRole::Leader(self.begin_sync(&mut state)));
        }
        if ts <= state.covers_ts {
            return Some(SyncRole::Follower(state.started));
        }
        state.requested = true;
        Some(SyncRole::Follower(state.started + 1))
    }

    fn begin_sync(&self, state: &mut State) -> Arc<ReadView> {
        assert!(!state.running, "invariant: one sync runs at a time");
        let view = self.parts.views.visible();
        *state = State { running: true, started: state.started + 1, covers_ts: view.read_ts, requested: false };
        view
    }

    fn wake_thread(&self) {
        if let Some(parker) = &*self.parker.lock() {
            parker.unpark();
        }
    }

    fn run_thread(&self) {
        let parker = self.parts.env.parker();
        *self.parker.lock() = Some(Arc::clone(&parker));
        loop {
            let (is_requested, begun) = {
                let mut state = self.state.lock();
                // After a failure there is nothing to sync; the thread parks until it is stopped.
                let is_requested = state.requested && self.parts.failure.reason().is_none();
                (is_requested, (is_requested && !state.running).then(|| self.begin_sync(&mut state)))
            };
            match begun {
                Some(view) => drop(self.sync_with(view)),
                None if !is_requested && self.stopping.load(Ordering::Acquire) => return,
                None => parker.park(None),
            }
        }
    }

    /// Runs the sync for which [`GroupSync::begin_sync`] returned this view.
    fn sync_with(&self, view: Arc<ReadView>) -> Result<()> {
        // Waiters must not wait forever.
        let guard = PanicGuard::new(|| {
            self.parts.failure.poison(ErrorKind::Io("the engine panicked during a sync".into()).into());
            self.state.lock().running = false;
        });
        let synced = self.sync_and_publish(view);
        drop(guard);
        let number = {
            let mut state = self.state.lock();
            state.running = false;
            if state.requested {
                self.wake_thread();
            }
            state.started
        };
        if synced.is_ok() {
            self.parts.ended.advance_to(number);
        }
        synced
    }

    fn sync_and_publish(&self, view: Arc<ReadView>) -> Result<()> {
        let SyncParts { failure, metrics, .. } = &self.parts;
        // The pipeline may have failed since the caller checked, for example in the previous sync.
        failure.check_open()?;
        crash_point!(SyncBefore);
        let synced = self.sync_engine();
        let took = synced.map_err(|error| failure.poison(error.into()))?;
        let ts = view.read_ts;
        metrics.wal_syncs.add(1);
        metrics.wal_sync.record(took);
        event!(TRACE, durable_ts = %ts, took_us = took.as_micros(), "synced");
        let replaced = std::mem::replace(&mut *self.durable_view.lock(), view);
        drop(replaced);
        self.durable_ts.fetch_max(ts.to_u64(), Ordering::AcqRel);
        crash_point!(SyncPublished);
        Ok(())
    }

    /// Syncs the engine, and extends the reservation of timestamps if that is due. Returns the
    /// duration of the sync.
    fn sync_engine(&self) -> Result<Duration, EngineError> {
        let SyncParts { engine, env, oracle, .. } = &self.parts;
        let now = env.unix_millis();
        let reservation = oracle.needs_reservation(now).then(|| oracle.next_reservation(now));
        crash_point!(OracleReservationBefore if reservation.is_some());
        if let Some(until) = reservation {
            engine.write_meta(&[(HIGH_WATER_KEY.into(), Some(until.to_u64().to_be_bytes().to_vec()))])?;
        }
        let began = env.elapsed();
        engine.sync()?;
        crash_point!(SyncReturned);
        let took = env.elapsed().saturating_sub(began);
        if let Some(until) = reservation {
            crash_point!(OracleReservationDurable);
            oracle.reserve_until(until);
        }
        Ok(took)
    }
}
