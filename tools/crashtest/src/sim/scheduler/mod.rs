//! A deterministic scheduler: one thread runs at a time, and the seed decides which.
//!
//! Every simulated thread is an operating system thread that waits at its gate until it is
//! scheduled. A thread yields in [`Scheduler::yield_point`]: at every call of the engine and of the
//! runtime, and at every crash point. It may also yield before every lock that the store takes. The
//! seed decides which thread runs next, so a seed always gives the same interleaving.
//!
//! If each step picked a random thread, no thread would fall far behind, and a race that needs many
//! steps of another thread would never occur. So some seeds *stall* threads at times: a stalled
//! thread is not scheduled for many steps of the others, as if the operating system had preempted
//! it.
//!
//! Time is virtual. It advances slowly while threads run, and jumps when all threads wait. The wall
//! clock is derived from virtual time and can be set wrong.

mod explore;
mod threads;

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hasher as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use percolite::crashtest::{CrashPoint, LockAttempt};

pub use self::threads::{LONG_STALL, ROUND_STALL};
use self::threads::{STEPS_MAX, Stall, State, Thread, ThreadState};
use crate::rng::SeededRng;

/// The wall clock at the start of the simulation, in milliseconds since 1970.
const BEGAN_UNIX_MS: u64 = 1_763_700_000_000;
/// A simulated thread that does not yield within this real time hangs.
const REAL_TIME_MAX: Duration = Duration::from_secs(20);
/// A mutex counts as never released when a thread has failed to lock it this many times in a row.
const LOCK_ATTEMPTS_MAX: u32 = 1_000_000;
/// Steps of the main thread alone, after a run has hung, that it gets to report that.
const REPORT_STEPS_MAX: u64 = 1_000_000;
/// The number of a thread.
pub type ThreadId = usize;

thread_local! {
    static CURRENT: RefCell<Option<(Arc<Scheduler>, ThreadId)>> = const { RefCell::new(None) };
}

/// If the calling thread is simulated: its scheduler, and its number.
pub fn current() -> Option<(Arc<Scheduler>, ThreadId)> {
    CURRENT.with_borrow(Clone::clone)
}

/// When the crash of an incarnation comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// At the n-th yield from now.
    Step(u64),
    /// Some yields after a visit of a crash point: the point, the number of the visit, and the
    /// number of yields. Visits are counted from now; the first is 1.
    CrashPoint(CrashPoint, u64, u64),
}

/// The action of a crash. Its argument is the thread that runs when the crash comes.
pub type CrashAction = Arc<dyn Fn(ThreadId) + Send + Sync>;

/// Runs one simulated thread at a time.
pub struct Scheduler {
    state: Mutex<State>,
    trigger: Mutex<Option<(Trigger, CrashAction)>>,
    hits: Mutex<HashMap<CrashPoint, u64>>,
}

#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_one();
    }

    /// Returns whether the gate was opened in time.
    fn wait(&self) -> bool {
        let mut open = self.open.lock();
        while !*open {
            if self.opened.wait_for(&mut open, REAL_TIME_MAX).timed_out() && !*open {
                return false;
            }
        }
        *open = false;
        true
    }
}

impl Scheduler {
    /// A scheduler with these random choices; the calling thread is its first thread.
    pub fn new_on_current_thread(rng: SeededRng, trace: bool) -> Arc<Self> {
        let main = Thread::new("main", Arc::default());
        let scheduler = Arc::new(Self {
            state: Mutex::new(State::new(rng, main, trace)),
            trigger: Mutex::default(),
            hits: Mutex::default(),
        });
        CURRENT.set(Some((Arc::clone(&scheduler), 0)));
        scheduler
    }

    /// Connects the crash points and locks of this process with the schedulers: each call goes to
    /// the scheduler of the thread that makes it.
    pub fn install_hooks() {
        percolite::crashtest::set_crash_hook(Box::new(|point| {
            if let Some((scheduler, own)) = current() {
                scheduler.on_point(own, point);
            }
        }));
        percolite::crashtest::set_lock_hook(Box::new(|attempt| {
            current().is_some_and(|(scheduler, own)| scheduler.before_lock(own, attempt))
        }));
        percolite::crashtest::set_blocking_hook(Box::new(|work| match current() {
            Some((scheduler, _)) => scheduler.run_blocking(work),
            None => work(),
        }));
    }

    fn run_blocking(self: &Arc<Self>, work: Box<dyn FnOnce() + Send>) {
        if let Err(error) = self.spawn_explored("blocking", work) {
            eprintln!("cannot start a thread: {error}");
            std::process::abort();
        }
    }

    /// Runs `action` once, when the trigger fires.
    pub fn set_trigger(&self, trigger: Trigger, action: CrashAction) {
        *self.trigger.lock() = Some((trigger, action));
    }

    /// If the trigger has not fired, makes it fire within this many yields.
    pub fn expire_within(&self, pauses: u64) {
        if let Some((trigger, _)) = &mut *self.trigger.lock() {
            *trigger = match *trigger {
                Trigger::Step(left) => Trigger::Step(left.min(pauses)),
                Trigger::CrashPoint(..) => Trigger::Step(pauses),
            };
        }
    }

    /// Removes the trigger; false if it has fired.
    pub fn cancel_trigger(&self) -> bool {
        self.trigger.lock().take().is_some()
    }

    /// Visits by crash point.
    pub fn hits(&self) -> HashMap<CrashPoint, u64> {
        self.hits.lock().clone()
    }

    fn on_point(&self, own: ThreadId, point: CrashPoint) {
        *self.hits.lock().entry(point).or_default() += 1;
        self.count_down(own, |trigger| {
            if let Trigger::CrashPoint(wanted, left, later) = trigger
                && *wanted == point
            {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    let later = *later;
                    *trigger = Trigger::Step(later);
                    return later == 0;
                }
            }
            false
        });
        self.yield_point(point.name());
    }

    fn count_down(&self, own: ThreadId, is_due: impl FnOnce(&mut Trigger) -> bool) {
        let action = {
            let mut watch = self.trigger.lock();
            let trigger = watch.as_mut().is_some_and(|(trigger, _)| is_due(trigger));
            watch.take_if(|_| trigger).map(|(_, action)| action)
        };
        if let Some(action) = action {
            self.trace("crash");
            action(own);
        }
    }

    /// Detaches the calling thread from the scheduler.
    pub fn detach() {
        CURRENT.set(None);
    }

    /// The number of the calling thread.
    pub fn own() -> ThreadId {
        current().map_or(0, |(_, own)| own)
    }

    /// May let another thread run. `what` names the next action of this thread.
    pub fn yield_point(&self, what: &str) {
        let own = Self::own();
        self.count_down(own, |trigger| match trigger {
            Trigger::Step(left) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
            Trigger::CrashPoint(..) => false,
        });
        let mut state = self.state.lock();
        state.record(own, what);
        let creep = state.rng.below(40) as u64;
        state.now += Duration::from_micros(creep);
        if let Some(what) = state.hang(own) {
            return Self::abort_run(state, own, what);
        }
        if state.exploration.is_some() {
            return self.switch_if_chosen(state, own);
        }
        state.stall(own);
        let restless = state.switch_every;
        if state.rng.one_in(restless) {
            self.switch(state, own);
        }
    }

    /// Runs before each attempt to lock a mutex of the store: yields at random before the first
    /// attempt, and always before a further one. Always returns true: the caller must not block on
    /// the mutex, but try again. Unlike `yield_point`, this adds nothing to virtual time. No crash
    /// comes here, because what a crash loses depends only on calls of the engine.
    fn before_lock(&self, own: ThreadId, attempt: LockAttempt) -> bool {
        let mut state = self.state.lock();
        if attempt == LockAttempt::Retry {
            let attempts = &mut state.threads[own].lock_attempts;
            *attempts += 1;
            if *attempts >= LOCK_ATTEMPTS_MAX {
                let what = format!("thread {} waits for a lock that is never released", state.threads[own].name);
                if own == 0 {
                    // Only the main thread could continue and report the stuck run, but it is stuck
                    // itself.
                    eprintln!("{what}");
                    std::process::abort();
                }
                Self::abort_run(state, own, what);
                return true;
            }
            state.record(own, "lock is taken");
            self.switch(state, own);
            return true;
        }
        state.threads[own].lock_attempts = 0;
        if state.exploration.is_some() {
            self.switch_if_chosen(state, own);
            return true;
        }
        let once_in = state.yield_at_locks_every;
        if once_in > 0 && state.rng.one_in(once_in) {
            state.record(own, "lock");
            state.stall(own);
            self.switch(state, own);
        }
        true
    }

    /// Waits until unparked, or for at most this time.
    pub fn park(&self, own: ThreadId, at_most: Option<Duration>) {
        let mut state = self.state.lock();
        state.record(own, "park");
        let until = at_most.map(|at_most| state.now.saturating_add(at_most));
        if std::mem::take(&mut state.threads[own].permit) {
            return;
        }
        state.threads[own].state = ThreadState::Waiting { until };
        self.switch(state, own);
        let mut state = self.state.lock();
        state.threads[own].permit = false;
    }

    /// Makes threads yield before they lock any mutex of the store. Those with this name prefix are
    /// also stalled once in `once_in` yields, for at most `longest`: steps of others, and time.
    pub fn stall_often(&self, threads: &'static str, once_in: usize, longest: (usize, Duration)) {
        let mut state = self.state.lock();
        (state.yield_at_locks_every, state.stall_every, state.stall_prefix) = (1, once_in, threads);
        state.stall_max = longest;
    }

    /// Makes threads yield before they lock any mutex of the store.
    pub fn yield_at_locks(&self) {
        self.state.lock().yield_at_locks_every = 1;
    }

    /// Stalls a thread for this many steps of others or for this time, whichever is over first.
    pub fn stall(&self, thread: ThreadId, steps: u64, time: Duration) {
        let mut state = self.state.lock();
        state.threads[thread].stall = Some(Stall { step: state.steps + steps, time: state.now + time });
    }

    /// Ends the wait of a thread. If the thread is not waiting, its next wait ends at once.
    pub fn unpark(&self, other: ThreadId) {
        let mut state = self.state.lock();
        let thread = &mut state.threads[other];
        thread.permit = true;
        if matches!(thread.state, ThreadState::Waiting { .. }) {
            thread.state = ThreadState::Ready;
        }
    }

    /// Sleeps in virtual time.
    pub fn sleep(&self, duration: Duration) {
        let own = Self::own();
        let end = self.now() + duration;
        while self.now() < end {
            let left = end.saturating_sub(self.now());
            self.park(own, Some(left));
        }
    }

    /// Virtual time since the simulation began.
    pub fn now(&self) -> Duration {
        self.state.lock().now
    }

    /// The wall clock, which may be wrong.
    pub fn unix_millis(&self) -> u64 {
        let state = self.state.lock();
        let millis = BEGAN_UNIX_MS + u64::try_from(state.now.as_millis()).unwrap_or(u64::MAX / 2);
        millis.saturating_add_signed(state.clock_offset_ms)
    }

    /// Sets the wall clock forward or back.
    pub fn step_clock(&self, by_ms: i64) {
        self.state.lock().clock_offset_ms += by_ms;
    }

    /// Lets virtual time pass.
    pub fn advance(&self, by: Duration) {
        self.state.lock().now += by;
    }

    /// 64 bits from the seed.
    pub fn random(&self) -> u64 {
        self.state.lock().rng.bits()
    }

    /// The number of steps: yields and other recorded actions.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// A digest of everything that has happened: equal in every run of a seed.
    pub fn digest(&self) -> u64 {
        self.state.lock().digest.finish()
    }

    /// The trace, if requested.
    pub fn take_trace(&self) -> Vec<String> {
        self.state.lock().trace.take().unwrap_or_default()
    }

    /// Why the run is stuck, if it is.
    pub fn deadlock(&self) -> Option<String> {
        self.state.lock().deadlock.clone()
    }

    /// Adds a line to the trace.
    pub fn trace(&self, what: &str) {
        self.state.lock().record(Self::own(), what);
    }

    /// Starts a thread; the seed decides when it runs first.
    pub fn spawn(self: &Arc<Self>, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<ThreadId> {
        let gate: Arc<Gate> = Arc::default();
        let own = {
            let mut state = self.state.lock();
            state.threads.push(Thread::new(name, Arc::clone(&gate)));
            state.threads.len() - 1
        };
        let scheduler = Arc::clone(self);
        std::thread::Builder::new().name(name.into()).spawn(move || {
            CURRENT.set(Some((Arc::clone(&scheduler), own)));
            if gate.wait() {
                match std::panic::catch_unwind(AssertUnwindSafe(work)) {
                    Ok(()) => scheduler.end(own),
                    Err(panic) => scheduler.end_by_panic(own, &*panic),
                }
            }
        })?;
        Ok(own)
    }

    /// Whether a thread has ended.
    pub fn has_ended(&self, other: ThreadId) -> bool {
        self.state.lock().threads[other].state == ThreadState::Ended
    }

    /// Waits for the end of a thread.
    pub fn join(&self, other: ThreadId) {
        let own = Self::own();
        while self.state.lock().threads[other].state != ThreadState::Ended && self.deadlock().is_none() {
            self.park(own, None);
        }
    }

    /// An assertion of the store is a violation. The others may wait for this thread forever, so
    /// the main thread does not wait for them.
    fn end_by_panic(&self, own: ThreadId, panic: &(dyn Any + Send)) {
        let mut state = self.state.lock();
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
        let what = format!("thread {} panicked: {}", state.threads[own].name, text.unwrap_or("without a text"));
        state.deadlock.get_or_insert(what);
        drop(state);
        self.end(own);
    }

    fn end(&self, own: ThreadId) {
        let mut state = self.state.lock();
        state.record(own, "end");
        state.threads[own].state = ThreadState::Ended;
        // A thread that joins this one waits without a timeout. All threads that wait so are woken,
        // and check again what they wait for.
        for thread in &mut state.threads {
            if thread.state == (ThreadState::Waiting { until: None }) {
                thread.permit = true;
                thread.state = ThreadState::Ready;
            }
        }
        self.switch(state, own);
    }

    /// Lets another thread run, and waits to be scheduled again unless this thread has ended.
    fn switch(&self, mut state: MutexGuard<'_, State>, own: ThreadId) {
        if let Some(what) = state.hang(own) {
            return Self::abort_run(state, own, what);
        }
        let Some(next) = state.choose(own) else {
            let waiting: Vec<&str> = state
                .threads
                .iter()
                .filter(|thread| thread.state != ThreadState::Ended)
                .map(|thread| thread.name.as_str())
                .collect();
            let what = format!("deadlock: all threads wait: {}", waiting.join(", "));
            return Self::abort_run(state, own, what);
        };
        if next != own {
            self.switch_to(state, own, next);
        }
    }

    fn switch_to(&self, state: MutexGuard<'_, State>, own: ThreadId, next: ThreadId) {
        let (theirs, mine) = (Arc::clone(&state.threads[next].gate), Arc::clone(&state.threads[own].gate));
        let ended = state.threads[own].state == ThreadState::Ended;
        drop(state);
        theirs.open();
        if !ended && !mine.wait() {
            let mut state = self.state.lock();
            let what = format!("thread {} does not yield", state.threads[next].name);
            state.threads[next].state = ThreadState::Ended;
            Self::abort_run(state, own, what);
        }
    }

    /// Aborts the history: only the main thread continues, to report the reason.
    fn abort_run(mut state: MutexGuard<'_, State>, own: ThreadId, what: String) {
        let is_stuck = own == 0 && state.steps > STEPS_MAX + REPORT_STEPS_MAX;
        let what = state.deadlock.get_or_insert(what).clone();
        if is_stuck {
            // No other thread could report it.
            eprintln!("{what}");
            std::process::abort();
        }
        if own != 0 {
            // No thread is to wait for it again.
            state.threads[own].state = ThreadState::Ended;
        }
        let main = Arc::clone(&state.threads[0].gate);
        (state.threads[0].state, state.threads[0].is_on_hold) = (ThreadState::Ready, false);
        drop(state);
        if own == 0 {
            return;
        }
        main.open();
        loop {
            std::thread::park();
        }
    }
}
