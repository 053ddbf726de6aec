//! A runtime whose wall clock and monotonic clock move only when the test moves them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use percolite::Builder;
use percolite::env::{BootClock, Env, JoinHandle, Parker, SystemEnv};

/// An arbitrary time, in milliseconds since 1970.
pub const THEN: u64 = 1_763_726_400_000;
pub const HOUR: Duration = Duration::from_secs(3600);
pub const DAY: Duration = Duration::from_secs(24 * 3600);

/// If a wait of at most this length ends because its length has passed in real time, it moves both
/// clocks forward by that length. A longer wait below [`LONG`] does not move them.
const SHORT: Duration = Duration::from_millis(50);
/// A wait of at least this length moves the clocks like a [`SHORT`] one. It ends in real time only
/// if something is broken.
const LONG: Duration = Duration::from_secs(10);

/// The runtime of a store: clocks that the test moves, and the threads, sleep and random numbers of
/// the system.
pub struct Clocks {
    system: SystemEnv,
    state: Mutex<State>,
    changed: Condvar,
    this: Weak<Self>,
}

struct State {
    unix_millis: u64,
    elapsed: Duration,
    /// The number of the machine's start; `None` if the machine has no clock of its own.
    boot: Option<u64>,
    alarms: Vec<Weak<Alarm>>,
    /// A thread name and a total of clock reads. Threads of this name block at each read beyond it.
    stalled: Option<(&'static str, u64)>,
    /// The number of threads that are blocked by `stalled`.
    waiting: usize,
    /// The number of clock reads, by thread name.
    looks: HashMap<String, u64>,
    /// Threads of this name do nothing.
    left_out: Option<&'static str>,
}

impl Clocks {
    pub fn new() -> Arc<Self> {
        Self::at(THEN)
    }

    /// Clocks whose wall clock is at `unix_millis`.
    pub fn at(unix_millis: u64) -> Arc<Self> {
        let elapsed = Duration::from_secs(1);
        let state = State {
            unix_millis,
            elapsed,
            boot: None,
            alarms: Vec::new(),
            stalled: None,
            waiting: 0,
            looks: HashMap::new(),
            left_out: None,
        };
        Arc::new_cyclic(|this| {
            let this = Weak::clone(this);
            Self { system: SystemEnv::default(), state: Mutex::new(state), changed: Condvar::new(), this }
        })
    }

    /// Options of a store with these clocks.
    pub fn builder(self: &Arc<Self>) -> Builder {
        percolite::Store::builder().env(Arc::<Self>::clone(self))
    }

    /// The monotonic clock is from here on that of the machine, whose start has this number.
    pub fn of_boot(self: Arc<Self>, boot: u64) -> Arc<Self> {
        self.state.lock().boot = Some(boot);
        self
    }

    /// Threads that are started with this name from here on do nothing.
    pub fn without(self: Arc<Self>, thread: &'static str) -> Arc<Self> {
        self.state.lock().left_out = Some(thread);
        self
    }

    /// Moves both clocks forward.
    pub fn pass(&self, time: Duration) {
        let (now, alarms) = {
            let mut state = self.state.lock();
            state.elapsed += time;
            state.unix_millis += u64::try_from(time.as_millis()).unwrap();
            state.alarms.retain(|alarm| alarm.strong_count() > 0);
            (state.elapsed, state.alarms.iter().filter_map(Weak::upgrade).collect::<Vec<_>>())
        };
        alarms.iter().for_each(|alarm| alarm.ring_at(now));
    }

    /// Sets the wall clock only.
    pub fn set_wall(&self, unix_millis: u64) {
        self.state.lock().unix_millis = unix_millis;
    }

    pub fn wall(&self) -> u64 {
        self.state.lock().unix_millis
    }

    /// Threads of this name block at their next clock read, until [`Clocks::resume`].
    pub fn stall(&self, thread: &'static str) {
        self.stall_after(thread, 0);
    }

    /// Threads of this name block after `looks` more clock reads.
    pub fn stall_after(&self, thread: &'static str, looks: u64) {
        let mut state = self.state.lock();
        let upto = state.looks.get(thread).copied().unwrap_or_default() + looks;
        state.stalled = Some((thread, upto));
    }

    pub fn resume(&self) {
        self.state.lock().stalled = None;
        self.changed.notify_all();
    }

    pub fn is_stalled(&self) -> bool {
        self.state.lock().waiting > 0
    }

    /// Whether a thread of this name is parked. A thread that is not parked yet would miss the time
    /// that [`Clocks::pass`] lets pass.
    pub fn is_parked(&self, thread: &str) -> bool {
        let alarms: Vec<_> = self.state.lock().alarms.iter().filter_map(Weak::upgrade).collect();
        let is_parked = |alarm: &Alarm| {
            let state = alarm.state.lock();
            state.is_parked && !state.is_rung
        };
        alarms.iter().any(|alarm| alarm.thread == thread && is_parked(alarm))
    }

    /// The time of the monotonic clock.
    pub fn now(&self) -> Duration {
        self.state.lock().elapsed
    }

    /// The number of clock reads of threads with this name.
    pub fn looks(&self, thread: &str) -> u64 {
        self.state.lock().looks.get(thread).copied().unwrap_or_default()
    }

    fn look<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        let mut state = self.state.lock();
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let looks = state.looks.entry(name.to_owned()).or_default();
        *looks += 1;
        let looks = *looks;
        let end = Instant::now() + super::LIMIT;
        let stalls = |state: &State| state.stalled.is_some_and(|(thread, upto)| thread == name && looks > upto);
        let stalled = usize::from(stalls(&state));
        state.waiting += stalled;
        while stalls(&state) && !self.changed.wait_until(&mut state, end).timed_out() {}
        state.waiting -= stalled;
        read(&state)
    }
}

impl Env for Clocks {
    fn unix_millis(&self) -> u64 {
        self.look(|state| state.unix_millis)
    }

    fn elapsed(&self) -> Duration {
        self.look(|state| state.elapsed)
    }

    fn boot_clock(&self) -> Option<BootClock> {
        let state = self.state.lock();
        Some(BootClock { boot: state.boot?, elapsed: state.elapsed })
    }

    fn random(&self) -> u64 {
        self.system.random()
    }

    fn sleep(&self, duration: Duration) {
        self.system.sleep(duration);
    }

    fn parker(&self) -> Arc<dyn Parker> {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        let clocks = Weak::clone(&self.this);
        let alarm = Arc::new(Alarm { clocks, thread, state: Mutex::default(), rung: Condvar::new() });
        self.state.lock().alarms.push(Arc::downgrade(&alarm));
        alarm
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        let is_left_out = self.state.lock().left_out == Some(name);
        self.system.spawn(name, if is_left_out { Box::new(|| ()) } else { work })
    }
}

/// A parker whose waits end when the test's clock reaches the end of the wait, or when the wait's
/// length has passed in real time.
struct Alarm {
    clocks: Weak<Clocks>,
    thread: String,
    state: Mutex<Wait>,
    rung: Condvar,
}

#[derive(Default)]
struct Wait {
    is_parked: bool,
    is_rung: bool,
    /// The end of the wait by the test's clock.
    end: Option<Duration>,
}

impl Alarm {
    fn ring_at(&self, now: Duration) {
        let mut state = self.state.lock();
        if state.end.is_some_and(|end| end <= now) {
            state.is_rung = true;
            self.rung.notify_all();
        }
    }
}

impl Parker for Alarm {
    fn park(&self, at_most: Option<Duration>) {
        let mut state = self.state.lock();
        let now = self.clocks.upgrade().map(|clocks| clocks.state.lock().elapsed).unwrap_or_default();
        state.end = at_most.map(|at_most| now.saturating_add(at_most));
        state.is_parked = true;
        let end = at_most.and_then(|at_most| Instant::now().checked_add(at_most));
        while !state.is_rung {
            match end {
                Some(end) if self.rung.wait_until(&mut state, end).timed_out() => break,
                Some(_) => {}
                None => self.rung.wait(&mut state),
            }
        }
        let was_rung = std::mem::take(&mut *state).is_rung;
        drop(state);
        let counts = |time: &Duration| *time <= SHORT || *time >= LONG;
        if let (false, Some(really)) = (was_rung, at_most.filter(counts))
            && let Some(clocks) = self.clocks.upgrade()
        {
            clocks.pass(really);
        }
    }

    fn unpark(&self) {
        self.state.lock().is_rung = true;
        self.rung.notify_all();
    }
}
