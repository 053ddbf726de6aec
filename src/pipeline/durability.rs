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
//! for those who are about to come: see [`super::gathering`]. Whom a sync has served, a third thread wakes while the next one
//! begins; and whoever has made it sees to what was [deferred](super::queue) meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::Pipeline;
use super::gathering::Gathering;
use super::queue::DEFERRING_MIN;
use super::reply::Slot;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::{Part, Spent};
use crate::oracle::LEASE;
use crate::runtime::Parker;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// How often to look whether a running sync has renewed the lease.
const LEASE_POLL: Duration = Duration::from_millis(1);

/// Fewer are woken by the syncer thread itself, which takes as long as waking the waker thread.
// Tests of crashes have few clients, and are to meet the waker.
const HANDED_OVER_MIN: usize = if cfg!(feature = "crashtest") { 1 } else { 2 };

pub struct Durability {
    durable_ts: AtomicU64,
    durable_view: Mutex<Arc<PinnedView>>,
    state: Mutex<State>,
    syncer: Mutex<Option<Arc<dyn Parker>>>,
    waking: Waking,
    stopping: AtomicBool,
}

/// For the waker thread, which wakes those whose commits a sync has made durable while the syncer thread begins the next one:
/// waking many takes as long as a sync.
struct Waking {
    /// `None` when the thread has ended.
    durable: Mutex<Option<Vec<Arc<Slot>>>>,
    parker: Mutex<Option<Arc<dyn Parker>>>,
}

impl Waking {
    fn wake_thread(&self) {
        if let Some(parker) = &*self.parker.lock() {
            parker.unpark();
        }
    }

    /// Wakes them, or has them woken.
    fn wake(&self, mut slots: Vec<Arc<Slot>>, at_once: bool) {
        if !at_once
            && slots.len() >= HANDED_OVER_MIN
            && let Some(durable) = &mut *self.durable.lock()
        {
            durable.append(&mut slots);
            self.wake_thread();
        }
        for slot in slots {
            slot.wake();
        }
    }
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
            waking: Waking { durable: Mutex::new(Some(Vec::new())), parker: Mutex::default() },
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

    /// How long to hold the next sync back for so many. Nobody is waited for by a store that closes.
    fn hold(&self, state: &mut State, now: Duration, waiting: usize) -> Option<Duration> {
        let holds = !state.syncing && !state.wanted && !self.stopping.load(Ordering::Acquire);
        if holds { state.gathering.hold(now, waiting) } else { None }
    }

    /// Has the syncer thread look, if anybody waits and nobody syncs.
    pub fn kick(&self) {
        let state = self.state.lock();
        let waiting = state.waiting.len();
        let looks_itself = state.holding && !state.wanted && !state.gathering.is_complete(waiting);
        if !state.syncing && !looks_itself && (state.wanted || waiting > 0) {
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
                self.sync_once(1).map_err(|why| undetermined(&why.to_string()))?;
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
            let pause = {
                let mut state = durability.state.lock();
                let waiting = state.waiting.len();
                let due = !state.syncing && (state.wanted || waiting > 0);
                // Also while none of those who are awaited is there.
                let hold = durability.hold(&mut state, self.runtime().elapsed(), waiting);
                state.holding = hold.is_some();
                if due && hold.is_none() {
                    state.begin_sync(waiting);
                    None
                } else {
                    Some(hold)
                }
            };
            crash_point!(SyncHeld if matches!(pause, Some(Some(_))));
            match pause {
                // A failure has poisoned the pipeline and answered everybody; the thread only stays to be stopped.
                None if self.failure().is_none() => {
                    let _ = self.sync_once(0);
                }
                _ if durability.stopping.load(Ordering::Acquire) => return,
                pause => parker.park(pause.flatten()),
            }
        }
    }

    /// The waker thread's work.
    pub(super) fn run_waker(&self) {
        let Durability { waking, stopping, .. } = &self.durability;
        let parker = self.runtime().parker();
        *waking.parker.lock() = Some(Arc::clone(&parker));
        loop {
            let durable = {
                let mut durable = waking.durable.lock();
                let some = durable.as_mut().map(std::mem::take).unwrap_or_default();
                if some.is_empty() && stopping.load(Ordering::Acquire) {
                    *durable = None;
                    return;
                }
                some
            };
            if durable.is_empty() {
                parker.park(None);
                continue;
            }
            crash_point!(WakeBefore);
            for slot in durable {
                slot.wake();
            }
            if mutated!(WakerWakesAll) {
                self.durability.give_up().iter().for_each(|slot| slot.wake());
            }
        }
    }

    /// One sync, for those who wait and so many besides, and then what was deferred meanwhile; the caller has set `syncing`.
    fn sync_once(&self, others: usize) -> Result<()> {
        let syncing = Syncing { pipeline: self, was_panicking: std::thread::panicking() };
        let synced = self.sync_alone(others);
        drop(syncing);
        self.after_sync();
        synced
    }

    /// Has what was deferred until now written, and decides whether deferring goes on.
    ///
    /// Nothing that is deferred lies for ever. As long as anything may be deferred a sync is running, and whoever makes it comes
    /// here, or many wait for one that is wanted. What lies there when it has ended is written, whoever leads. And where no sync
    /// will end any more, because the store has failed, both who notes the failure and who comes here after it stop deferring.
    fn after_sync(&self) {
        self.write_deferred();
        let (another_began, many_wait) = {
            let state = self.durability.state.lock();
            (state.syncing, state.waiting.len() >= DEFERRING_MIN)
        };
        // After a failure one may be marked as begun that nobody makes.
        if self.failure().is_some() || !(another_began || many_wait || mutated!(SyncsWithoutEnd)) {
            self.stop_deferring();
        } else if !another_began {
            // Without holding it back: whoever comes now is deferred, and would be awaited in vain.
            self.durability.want();
        }
    }

    fn sync_alone(&self, others: usize) -> Result<()> {
        let durability = &self.durability;
        // The sync before this one may have failed just now.
        if let Err(why) = self.check_alive() {
            durability.state.lock().syncing = false;
            return Err(why);
        }
        let waiting = {
            let mut state = durability.state.lock();
            state.wanted = false;
            state.waiting.len() + others
        };
        self.queue.lock().defer(waiting);
        let mut view = self.current_view();
        crash_point!(SyncBefore);
        let lease = self.lease_if_due();
        crash_point!(LeaseBefore if lease.is_some());
        let extended = match lease {
            Some(lease) => self.engine().set_meta(&[(LEASE.into(), Some(lease.to_u64().to_be_bytes().to_vec()))]),
            None => Ok(()),
        };
        let began = self.runtime().elapsed();
        let mut synced = extended.and_then(|()| self.engine().sync());
        if mutated!(SyncErrorIgnored) && synced.is_err() {
            synced = self.engine().sync();
        }
        if mutated!(DurableSampledLate) {
            view = self.current_view();
        }
        if let Err(why) = synced {
            let error = self.poison(why.into());
            durability.state.lock().syncing = false;
            return Err(error);
        }
        crash_point!(SyncReturned);
        if let Some(lease) = lease {
            crash_point!(LeaseDurable);
            self.oracle().extend(lease);
        }
        let (ts, took) = (view.read_ts, self.runtime().elapsed().saturating_sub(began));
        self.counters.syncs.add(1);
        self.counters.syncing.record(took);
        event!(TRACE, durable_ts = %ts, took_us = took.as_micros(), "synced");
        *durability.durable_view.lock() = view;
        durability.durable_ts.fetch_max(ts.to_u64(), Ordering::AcqRel);
        crash_point!(SyncPublished);
        let mut answered = Vec::new();
        let mut state = durability.state.lock();
        state.syncing = false;
        state.ended = state.begun;
        let before = state.waiting.len();
        state.waiting.retain(|(wanted, slot)| {
            let answer = *wanted <= ts || mutated!(AnySyncAcknowledges);
            if answer {
                answered.push(Arc::clone(slot));
            }
            !answer
        });
        let left = state.waiting.len();
        let now = self.runtime().elapsed();
        state.gathering.ended(now, took, before - left + others, left);
        let more = state.wanted || left > 0;
        drop(state);
        if more {
            durability.wake_syncer();
        }
        durability.waking.wake(answered, !more);
        Ok(())
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

fn undetermined(why: &str) -> Error {
    ErrorKind::Undetermined(why.into()).into()
}
