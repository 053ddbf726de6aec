//! Durability: who is told that their commit survives a power cut, and when.
//!
//! A commit is visible as soon as it is applied, and its rows are free for the next one. It is *durable* once a sync that
//! began after it was applied has returned. A sync covers everything applied before it began, and the log is recovered as
//! a prefix, so one number says it all: every commit at or below `durable_ts` survives.
//!
//! ```text
//!   S = visible view          taken first: what is applied later may not be in this sync
//!   engine.sync()
//!   durable view = S          and everybody who waits for a timestamp <= S is answered
//! ```
//!
//! Whoever needs durability while nobody syncs does it on the spot, without handing over to another thread. Those who
//! come while a sync runs are left to the syncer thread, which goes on as long as anybody waits. Either may be held back
//! for those who are about to come: see [`super::gathering`]. Whom a sync has served, [a third thread](super::waking) wakes while the
//! next one begins; and whoever has made it sees to what was [deferred](super::deferring) meanwhile.
//!
//! Nobody waits in vain: where anybody does, or a sync is wanted, one runs, or the syncer thread has been woken, or it will look by
//! itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::gathering::Gathering;
use super::reply::Slot;
use super::waking::Waking;
use super::{Pipeline, undetermined};
use crate::engine::EngineError;
use crate::error::{ErrorKind, Result};
use crate::observe::{Part, Spent};
use crate::oracle::LEASE;
use crate::runtime::Parker;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// How often to look whether a running sync has renewed the lease.
const LEASE_POLL: Duration = Duration::from_millis(1);

pub struct Durability {
    durable_ts: AtomicU64,
    durable_view: Mutex<Arc<PinnedView>>,
    state: Mutex<State>,
    syncer: Mutex<Option<Arc<dyn Parker>>>,
    waking: Waking,
    stopping: AtomicBool,
}

/// What the syncer thread does next.
enum Next {
    Sync,
    /// Waits for those who are about to come, so long at most.
    Hold(Duration),
    /// Waits until it is woken.
    Rest,
}

#[derive(Default)]
struct State {
    syncing: bool,
    /// How many syncs have begun, and how many of them have ended well.
    begun: u64,
    ended: u64,
    /// Somebody wants a sync though nobody waits for it.
    wanted: bool,
    waiting: Vec<(Timestamp, Arc<Slot>)>,
    gathering: Gathering,
    /// The syncer thread will look by itself when those who are awaited have come or are late.
    holding: bool,
}

impl State {
    /// Whether a sync has to be made that nobody makes.
    fn is_due(&self) -> bool {
        !self.syncing && (self.wanted || !self.waiting.is_empty())
    }

    fn begin_sync(&mut self, waiting: usize) {
        self.syncing = true;
        self.begun += 1;
        self.gathering.begins(waiting);
    }
}

impl Durability {
    pub fn new(view: Arc<PinnedView>) -> Self {
        Self {
            durable_ts: AtomicU64::new(view.read_ts.to_u64()),
            durable_view: Mutex::new(view),
            state: Mutex::default(),
            syncer: Mutex::default(),
            waking: Waking::default(),
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

    /// Leaves applied commits to be answered when they are durable.
    pub fn leave(&self, waiting: Vec<(Timestamp, Arc<Slot>)>) {
        if waiting.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        // A sync that ended since the commits were published has moved this before it looked at who waits.
        let durable_ts = self.durable_ts();
        for (ts, slot) in waiting {
            if ts <= durable_ts {
                slot.wake();
            } else {
                state.waiting.push((ts, slot));
            }
        }
    }

    /// What the waker thread has to do.
    pub fn waking(&self) -> &Waking {
        &self.waking
    }

    /// Whether the threads are to end when nothing is left to do.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// How long to hold the next sync back for so many. Nobody is waited for by a store that closes.
    fn hold(&self, state: &mut State, now: Duration, waiting: usize) -> Option<Duration> {
        let holds = !state.syncing && !state.wanted && !self.is_stopping();
        if holds { state.gathering.hold(now, waiting) } else { None }
    }

    /// What the syncer thread does next; a sync counts as begun.
    fn next(&self, now: Duration) -> Next {
        let mut state = self.state.lock();
        let waiting = state.waiting.len();
        // Also while none of those who are awaited is there.
        let hold = self.hold(&mut state, now, waiting);
        state.holding = hold.is_some();
        match hold {
            Some(left) => Next::Hold(left),
            None if state.is_due() => {
                state.begin_sync(waiting);
                Next::Sync
            }
            None => Next::Rest,
        }
    }

    /// Whether somebody syncs, and how many wait for the next sync.
    pub fn syncing_and_waiting(&self) -> (bool, usize) {
        let state = self.state.lock();
        (state.syncing, state.waiting.len())
    }

    /// Has the syncer thread look, if anybody waits and nobody syncs.
    pub fn kick(&self) {
        let state = self.state.lock();
        let looks_itself = state.holding && !state.wanted && !state.gathering.is_complete(state.waiting.len());
        if state.is_due() && !looks_itself {
            self.wake_syncer();
        }
    }

    /// Has the syncer thread sync soon.
    pub fn want(&self) {
        self.state.lock().wanted = true;
        self.kick();
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake_syncer();
        self.waking.wake_thread();
    }

    /// Takes out everybody who waits, to be told that the store failed.
    pub fn give_up(&self) -> Vec<Arc<Slot>> {
        self.state.lock().waiting.drain(..).map(|(_, slot)| slot).collect()
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
        let durability = &self.durability;
        loop {
            if durability.durable_ts() >= ts {
                return Ok(());
            }
            if let Some(why) = self.failure() {
                return Err(undetermined(why));
            }
            let mut state = durability.state.lock();
            // A sync may have ended meanwhile, and would be waited for again.
            if durability.durable_ts() >= ts {
                return Ok(());
            }
            let waiting = state.waiting.len() + 1;
            let hold = durability.hold(&mut state, self.runtime().elapsed(), waiting);
            if !state.syncing && hold.is_none() {
                state.begin_sync(waiting);
                drop(state);
                self.sync_once(1).map_err(|why| undetermined(self.failure().unwrap_or(&why.to_string())))?;
                continue;
            }
            let slot = Slot::applied(self.runtime(), ts);
            // The running sync may have begun too early, but whoever ends it sees this and goes on.
            state.waiting.push((ts, Arc::clone(&slot)));
            drop(state);
            crash_point!(SyncHeld if hold.is_some());
            durability.kick();
            self.refuse_waiting_if_failed();
            return slot.wait().map(drop);
        }
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

    /// Makes a further lease durable; for whoever has found the present one used up.
    pub(super) fn renew_lease(&self) -> Result<()> {
        self.check_alive()?;
        if !self.sync_if_nobody_does()? {
            self.runtime().sleep(LEASE_POLL);
        }
        Ok(())
    }

    /// Returns once all that was written before this call is durable, bookkeeping too. Never two syncs at a time: a failed one may
    /// have taken what another would then report as durable.
    pub fn sync_now(&self) -> Result<()> {
        // One that runs may have begun too early.
        let next = self.durability.state.lock().begun + 1;
        while !self.sync_if_nobody_does()? {
            self.durability.want();
            self.runtime().sleep(LEASE_POLL);
            // Nobody syncs a store that has failed.
            self.check_alive()?;
            // Under load others begin the next one at once.
            if self.durability.state.lock().ended >= next {
                return Ok(());
            }
        }
        Ok(())
    }

    fn sync_if_nobody_does(&self) -> Result<bool> {
        let free = {
            let mut state = self.durability.state.lock();
            let (free, waiting) = (!state.syncing, state.waiting.len());
            if free {
                state.begin_sync(waiting);
            }
            free
        };
        if free { self.sync_once(0).map(|()| true) } else { Ok(false) }
    }

    /// The syncer thread's work.
    pub(super) fn run_syncer(&self) {
        let durability = &self.durability;
        let parker = self.runtime().parker();
        *durability.syncer.lock() = Some(Arc::clone(&parker));
        loop {
            let next = durability.next(self.runtime().elapsed());
            crash_point!(SyncHeld if matches!(next, Next::Hold(_)));
            match next {
                // A failure has poisoned the pipeline and answered everybody; the thread only stays to be stopped.
                Next::Sync if self.failure().is_none() => {
                    let _ = self.sync_once(0);
                }
                _ if durability.is_stopping() => return,
                Next::Hold(left) => parker.park(Some(left)),
                Next::Sync | Next::Rest => parker.park(None),
            }
        }
    }

    /// One sync, for those who wait and so many besides, and then what was deferred meanwhile; the caller has set `syncing`.
    fn sync_once(&self, others: usize) -> Result<()> {
        let syncing = Syncing { pipeline: self, was_panicking: std::thread::panicking() };
        let synced = self.sync_and_acknowledge(others);
        if synced.is_err() {
            self.durability.state.lock().syncing = false;
        }
        drop(syncing);
        self.after_sync();
        synced
    }

    fn sync_and_acknowledge(&self, others: usize) -> Result<()> {
        // The sync before this one may have failed just now.
        self.check_alive()?;
        let waiting = {
            let mut state = self.durability.state.lock();
            state.wanted = false;
            state.waiting.len() + others
        };
        self.queue.lock().defer(waiting);
        let mut view = self.current_view();
        crash_point!(SyncBefore);
        let synced = self.sync_engine();
        if mutated!(DurableSampledLate) {
            view = self.current_view();
        }
        let took = synced.map_err(|why| self.poison(why.into()))?;
        self.acknowledge_durable(view, took, others);
        Ok(())
    }

    /// Has the engine make everything durable that was written, a further lease with it if one is due. The answer is how long the
    /// sync took.
    fn sync_engine(&self) -> Result<Duration, EngineError> {
        let lease = self.lease_if_due();
        crash_point!(LeaseBefore if lease.is_some());
        if let Some(lease) = lease {
            self.engine().set_meta(&[(LEASE.into(), Some(lease.to_u64().to_be_bytes().to_vec()))])?;
        }
        let began = self.runtime().elapsed();
        let mut synced = self.engine().sync();
        if mutated!(SyncErrorIgnored) && synced.is_err() {
            synced = self.engine().sync();
        }
        synced?;
        crash_point!(SyncReturned);
        let took = self.runtime().elapsed().saturating_sub(began);
        if let Some(lease) = lease {
            crash_point!(LeaseDurable);
            self.oracle().extend(lease);
        }
        Ok(took)
    }

    /// Answers everybody who waits for something in the view, which was sampled before the sync that has ended, and took so long.
    fn acknowledge_durable(&self, view: Arc<PinnedView>, took: Duration, others: usize) {
        let (durability, ts) = (&self.durability, view.read_ts);
        self.counters.syncs.add(1);
        self.counters.syncing.record(took);
        event!(TRACE, durable_ts = %ts, took_us = took.as_micros(), "synced");
        let replaced = std::mem::replace(&mut *durability.durable_view.lock(), view);
        drop(replaced);
        durability.durable_ts.fetch_max(ts.to_u64(), Ordering::AcqRel);
        crash_point!(SyncPublished);
        let mut state = durability.state.lock();
        state.syncing = false;
        state.ended = state.begun;
        let is_durable = |(wanted, _): &mut (Timestamp, _)| *wanted <= ts || mutated!(AnySyncAcknowledges);
        let answered: Vec<_> = state.waiting.extract_if(.., is_durable).map(|(_, slot)| slot).collect();
        let left = state.waiting.len();
        state.gathering.ended(self.runtime().elapsed(), took, answered.len() + others, left);
        let more = state.wanted || left > 0;
        drop(state);
        if more {
            durability.wake_syncer();
        }
        durability.waking.wake(answered, !more);
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
