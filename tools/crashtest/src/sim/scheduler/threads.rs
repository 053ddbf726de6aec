//! The threads of a simulation, and the choice of the next one: plain data, without operating
//! system threads.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use super::{Gate, ThreadId};
use crate::choices::Choices;
use crate::rng::SeededRng;

/// The longest stall: steps of other threads, and time.
const STALL: (usize, Duration) = (400, Duration::from_millis(20));
/// The longest stall where threads are stalled often.
pub const LONG_STALL: (usize, Duration) = (2000, Duration::from_millis(100));
/// Virtual time after which an exploration hangs.
const EXPLORED_TIME_MAX: Duration = Duration::from_secs(3_600);
/// Steps after which a run hangs: many times as many as the longest history has.
pub const STEPS_MAX: u64 = 5_000_000;

/// A stall that lasts longer than the pause between two rounds of the background worker.
pub const ROUND_STALL: (usize, Duration) = (8000, Duration::from_millis(600));

pub struct State {
    pub rng: SeededRng,
    pub threads: Vec<Thread>,
    pub now: Duration,
    pub clock_offset_ms: i64,
    /// The running thread is replaced once in this many yields.
    pub switch_every: usize,
    /// A thread that is about to lock a mutex of the store first yields, once in this many times;
    /// 0: never.
    pub yield_at_locks_every: usize,
    /// A thread that yields is stalled once in this many times; 0: never.
    pub stall_every: usize,
    /// The longest stall: steps, and time.
    pub stall_max: (usize, Duration),
    /// Only threads with this name prefix are stalled.
    pub stall_prefix: &'static str,
    pub steps: u64,
    pub digest: DefaultHasher,
    pub trace: Option<Vec<String>>,
    pub deadlock: Option<String>,
    pub exploration: Option<Exploration>,
}

/// All interleavings of a few threads with a few switches, one after the other: in place of the
/// seed, [`Choices`] decide. Other threads run only while none of these can, so that the number of
/// interleavings stays small, or before all of these.
pub struct Exploration {
    pub choices: Choices,
    /// How often a thread that can continue may still be replaced by another one.
    pub switches_left: u32,
    pub threads: Vec<ThreadId>,
    /// Those of `threads` that the store has started, and which end with it.
    pub background: Vec<ThreadId>,
    /// Whether threads that are not among these run first. So where one of `threads` waits for such
    /// a thread, the others do not continue.
    pub others_first: bool,
}

pub struct Thread {
    pub name: String,
    pub gate: Arc<Gate>,
    pub state: ThreadState,
    /// An unpark that no park has consumed yet.
    pub permit: bool,
    /// While the stall lasts, the thread is scheduled only if no other thread can run.
    pub stall: Option<Stall>,
    /// How many times in a row the thread has found a mutex locked.
    pub lock_attempts: u32,
    /// A thread on hold is not scheduled.
    pub is_on_hold: bool,
}

impl Thread {
    pub fn new(name: &str, gate: Arc<Gate>) -> Self {
        Self {
            name: name.into(),
            gate,
            state: ThreadState::Ready,
            permit: false,
            stall: None,
            lock_attempts: 0,
            is_on_hold: false,
        }
    }
}

impl Thread {
    fn is_ready(&self) -> bool {
        self.state == ThreadState::Ready && !self.is_on_hold
    }
}

/// A stall ends at the step or at the time, whichever comes first.
#[derive(Clone, Copy)]
pub struct Stall {
    pub step: u64,
    pub time: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ThreadState {
    Ready,
    Waiting { until: Option<Duration> },
    Ended,
}

impl Exploration {
    /// The next of the ready threads, of which there is at least one. If `own` is among them, it
    /// has found a mutex locked: then they take turns until the mutex is free.
    fn next(&mut self, own: ThreadId, ready: &[ThreadId]) -> ThreadId {
        if ready.contains(&own) {
            return ready.iter().copied().find(|id| *id > own).unwrap_or(ready[0]);
        }
        let (explored, others): (Vec<ThreadId>, Vec<ThreadId>) = ready.iter().partition(|id| self.threads.contains(id));
        match explored[..] {
            _ if self.others_first && !others.is_empty() => others[0],
            [] => ready[0],
            [one] => one,
            _ => explored[self.choices.choose(explored.len())],
        }
    }
}

impl State {
    pub fn new(mut rng: SeededRng, main: Thread, trace: bool) -> Self {
        let restless = [1, 1, 2, 4, 16][rng.below(5)];
        let pauses_at_locks = [0, 1, 4, 16][rng.below(4)];
        let stalls = [0, 0, 100, 1000][rng.below(4)];
        Self {
            rng,
            threads: vec![main],
            now: Duration::ZERO,
            clock_offset_ms: 0,
            switch_every: restless,
            yield_at_locks_every: pauses_at_locks,
            stall_every: stalls,
            stall_max: STALL,
            stall_prefix: "",
            steps: 0,
            digest: DefaultHasher::new(),
            trace: trace.then(Vec::new),
            deadlock: None,
            exploration: None,
        }
    }

    /// The next thread, which is another one than `own` if possible in an exploration.
    pub fn choose(&mut self, own: ThreadId) -> Option<ThreadId> {
        loop {
            let now = self.now;
            for thread in self.threads.iter_mut().filter(|thread| !thread.is_on_hold) {
                if let ThreadState::Waiting { until: Some(until) } = thread.state
                    && until <= now
                {
                    thread.state = ThreadState::Ready;
                }
            }
            let ready: Vec<ThreadId> = (0..self.threads.len()).filter(|id| self.threads[*id].is_ready()).collect();
            if let Some(exploration) = self.exploration.as_mut().filter(|_| !ready.is_empty()) {
                return Some(exploration.next(own, &ready));
            }
            let is_stalled = |stall: &Stall| self.steps < stall.step && now < stall.time;
            let going: Vec<ThreadId> =
                ready.iter().copied().filter(|id| !self.threads[*id].stall.as_ref().is_some_and(is_stalled)).collect();
            if !going.is_empty() {
                return going.get(self.rng.below(going.len())).copied();
            }
            let going = self.threads.iter().filter(|thread| !thread.is_on_hold);
            let next = going.filter_map(|thread| match thread.state {
                ThreadState::Waiting { until } => until,
                ThreadState::Ready | ThreadState::Ended => None,
            });
            let stalls = ready.iter().filter_map(|id| self.threads[*id].stall).map(|stall| stall.time);
            match next.min() {
                Some(next) => self.now = stalls.min().map_or(next, |stall| stall.min(next)),
                // Only stalled threads can run.
                None if !ready.is_empty() => return ready.get(self.rng.below(ready.len())).copied(),
                None => return None,
            }
        }
    }

    /// The threads with this name that have not ended.
    pub fn named(&self, name: &str) -> impl Iterator<Item = ThreadId> {
        let is_named = move |id: &ThreadId| self.threads[*id].name == name;
        (0..self.threads.len()).filter(is_named).filter(|id| self.threads[*id].state != ThreadState::Ended)
    }

    /// In an exploration: the thread that replaces this one, although this one can continue.
    pub fn replacement(&mut self, own: ThreadId) -> Option<ThreadId> {
        let exploration = self.exploration.as_mut()?;
        if exploration.switches_left == 0 || !exploration.threads.contains(&own) {
            return None;
        }
        let is_ready = |id: &ThreadId| *id != own && self.threads[*id].is_ready();
        let others: Vec<ThreadId> = exploration.threads.iter().copied().filter(is_ready).collect();
        let next = others.get(exploration.choices.choose(others.len() + 1).checked_sub(1)?)?;
        exploration.switches_left -= 1;
        Some(*next)
    }

    /// Stalls a thread at random.
    pub fn stall(&mut self, own: ThreadId) {
        let may_stall = self.stall_every > 0 && own != 0 && self.threads[own].name.starts_with(self.stall_prefix);
        if may_stall && self.rng.one_in(self.stall_every) {
            let (steps_max, time_max) = self.stall_max;
            let step = self.steps + 1 + self.rng.below(steps_max) as u64;
            self.threads[own].stall = Some(Stall { step, time: self.now + time_max });
        }
    }

    /// Why the run never ends, if it takes too long.
    pub fn hang(&self, own: ThreadId) -> Option<String> {
        if self.exploration.is_some() && self.now > EXPLORED_TIME_MAX {
            return Some(format!("a wait has not ended after {EXPLORED_TIME_MAX:?}"));
        }
        let name = &self.threads[own].name;
        (self.steps > STEPS_MAX).then(|| format!("after {STEPS_MAX} steps thread {name} still goes on: it never ends"))
    }

    pub fn record(&mut self, own: ThreadId, what: &str) {
        self.steps += 1;
        self.digest.write_usize(own);
        self.digest.write(what.as_bytes());
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>10.3} {:<12} {what}", self.now.as_secs_f64() * 1e3, self.threads[own].name));
        }
    }
}
