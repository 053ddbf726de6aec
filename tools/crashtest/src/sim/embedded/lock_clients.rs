//! The lock clients of a simulation, and the checks of named locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use percolite::engine::Engine;
use percolite::env::Env;
use percolite::{Error, Keyspace, Store};

use super::super::Mode;
use super::super::engine::{ProcessDead, is_dead};
use super::super::plan::LOCK_CLIENT;
use super::super::runtime::SimRuntime;
use super::super::scheduler::ThreadId;
use super::{Embedded, Process};
use crate::client::ClientId;
use crate::lock_checker::replay;
use crate::lock_workload::event::{EventRecorder, LockEvent, LogicalTime};
use crate::lock_workload::{EventWriter, LOCK_KEYSPACE, LockClient, LockEnv, final_checks};
use crate::violation::Violation;

/// If no lock client records an event for this time, one of them waits for ever: every pause,
/// timeout and lease is shorter.
const HANG_TIMEOUT: Duration = Duration::from_secs(300);
/// The first interval between two checks of the lock clients; each further interval is twice as
/// long.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Pauses between two incarnations, in milliseconds.
const PAUSES_MS: [usize; 4] = [1, 100, 600, 3000];

/// The lock events of all incarnations.
#[derive(Clone, Default)]
pub struct LockEvents {
    events: Arc<Mutex<Vec<LockEvent>>>,
    ticks: Arc<AtomicU64>,
}

impl LockEvents {
    /// All events.
    pub fn all(&self) -> Vec<LockEvent> {
        self.events.lock().clone()
    }

    fn for_process(&self, dead: &ProcessDead) -> ProcessEvents {
        ProcessEvents { shared: self.clone(), dead: Arc::clone(dead) }
    }

    /// The number of requests.
    pub fn requests(&self) -> u64 {
        self.events.lock().iter().filter(|event| matches!(event, LockEvent::Requested { .. })).count() as u64
    }

    fn logical_time(&self, incarnation: u32, now: Duration) -> LogicalTime {
        final_checks::logical_time(incarnation, now, self.ticks.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Records that the store of an incarnation was closed, or that its process has died.
    pub fn record_gone(&self, incarnation: u32, now: Duration) {
        let at = self.logical_time(incarnation, now);
        self.events.lock().push(LockEvent::StoreGone(at));
    }
}

/// The recorder of one process; events of a dead process are ignored.
struct ProcessEvents {
    shared: LockEvents,
    dead: ProcessDead,
}

impl EventRecorder for ProcessEvents {
    fn tick(&self) -> u64 {
        self.shared.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn record(&self, event: LockEvent) {
        if !is_dead(&self.dead) {
            self.shared.events.lock().push(event);
        }
    }
}

/// The time and the wall clock before an opening.
pub struct BeforeOpening(LogicalTime, u64);

impl Embedded<'_> {
    /// If the history is of locks and the incarnation is not the first, lets time pass and sets the
    /// wall clock. Then returns the time, right before the store is opened.
    pub(super) fn before_opening(&mut self, incarnation: u32) -> BeforeOpening {
        if self.plan.mode == Mode::Locks && incarnation > 0 {
            let pause = PAUSES_MS[self.rng.below(PAUSES_MS.len())];
            self.scheduler.advance(Duration::from_millis(self.rng.below(pause) as u64));
            // In a history of locks the clock can be set only here, forward or back by hours.
            self.step_clock();
        }
        BeforeOpening(self.lock_events.logical_time(incarnation, self.scheduler.now()), self.scheduler.unix_millis())
    }

    /// Attaches the leases of earlier incarnations right after an opening, and checks them.
    pub(super) fn check_leases(
        &mut self,
        store: &Store,
        engine: &Process,
        dead: &ProcessDead,
        BeforeOpening(before, wall): BeforeOpening,
    ) {
        if self.plan.mode != Mode::Locks {
            return;
        }
        self.shared_locks = Arc::new(self.shared_locks.next_incarnation());
        let (recorder, incarnation) = (self.lock_events.for_process(dead), before.incarnation);
        let now = self.lock_events.logical_time(incarnation, self.scheduler.now());
        recorder.record(LockEvent::StoreOpened(before, now, (wall, self.scheduler.unix_millis())));
        let checked = store.keyspace(LOCK_KEYSPACE).and_then(|rows| {
            let runtime = SimRuntime::new(self.scheduler, 0);
            let shared = Arc::clone(&self.shared_locks);
            let (engine, rows): (&dyn Engine, &Keyspace) = (&**engine, &rows);
            let env = LockEnv {
                store,
                engine,
                rows,
                runtime: &*runtime,
                recorder: &recorder,
                shared: &shared,
                is_simulated: true,
            };
            final_checks::check_leases(&EventWriter { env, incarnation }, &self.lock_events.all(), &mut self.rng)
        });
        match checked {
            Ok(violations) => self.violations.lock().extend(violations.into_iter().filter(|_| !is_dead(dead))),
            Err(error) => self.report_unless_dead(dead, "lock: leases survive the process", &error),
        }
    }

    fn report_unless_dead(&self, dead: &ProcessDead, invariant: &'static str, error: &Error) {
        if !is_dead(dead) {
            self.report(invariant, error.to_string());
        }
    }

    /// Starts the threads that take locks.
    pub(super) fn spawn_lock_clients(
        &mut self,
        store: &Store,
        engine: &Process,
        dead: &ProcessDead,
        incarnation: u32,
        deadline_yields: Option<u64>,
    ) -> Vec<ThreadId> {
        if self.plan.mode != Mode::Locks {
            return Vec::new();
        }
        let Ok(rows) = store.keyspace(LOCK_KEYSPACE) else { return Vec::new() };
        let steps = self.plan.lock_steps;
        let left = Arc::new(AtomicU64::new(steps * self.plan.lock_clients as u64 / 4));
        let mut threads = Vec::new();
        for _ in 0..self.plan.lock_clients {
            self.sessions += 1;
            let mut rng = self.rng.split();
            let client_id =
                ClientId { session: self.sessions, incarnation, config: self.plan.random_client_config(&mut rng) };
            let (store, engine, rows, dead) = (store.clone(), Arc::clone(engine), rows.clone(), Arc::clone(dead));
            let (recorder, shared, left) =
                (self.lock_events.for_process(&dead), Arc::clone(&self.shared_locks), Arc::clone(&left));
            let (violations, scheduler) = (Arc::clone(&self.violations), Arc::clone(self.scheduler));
            let runtime: Arc<dyn Env> = SimRuntime::new(self.scheduler, 0);
            let pause_max_ms = self.plan.lock_pause_max_ms;
            let work = move || {
                let env = LockEnv {
                    store: &store,
                    engine: &*engine,
                    rows: &rows,
                    runtime: &*runtime,
                    recorder: &recorder,
                    shared: &shared,
                    is_simulated: true,
                };
                let mut client = LockClient::new(env, client_id, rng, pause_max_ms);
                for step in 0..steps {
                    if let Err(error) = client.step() {
                        if !is_dead(&dead) {
                            violations.lock().push(Violation::new("lock: unexpected error", error.to_string()));
                        }
                        break;
                    }
                    if is_dead(&dead) {
                        break;
                    }
                    let is_late = step >= steps * 3 / 4;
                    if let Some(pauses) =
                        deadline_yields.filter(|_| is_late && left.fetch_sub(1, Ordering::SeqCst) == 1)
                    {
                        scheduler.expire_within(pauses);
                    }
                }
            };
            match self.scheduler.spawn(&format!("{LOCK_CLIENT} {}", self.sessions), Box::new(work)) {
                Ok(thread) => threads.push(thread),
                Err(error) => self.report("harness", error.to_string()),
            }
        }
        threads
    }

    /// Waits for the lock clients. If one waits for ever, reports it and closes the store, which
    /// ends the wait.
    pub(super) fn await_lock_clients(&self, threads: Vec<ThreadId>, store: &Store, dead: &ProcessDead) {
        let (mut poll_interval, mut idle) = (POLL_INTERVAL, Duration::ZERO);
        let mut last_tick = self.lock_events.ticks.load(Ordering::SeqCst);
        while threads.iter().any(|thread| !self.scheduler.has_ended(*thread)) && self.scheduler.deadlock().is_none() {
            self.scheduler.sleep(poll_interval);
            let now = self.lock_events.ticks.load(Ordering::SeqCst);
            (last_tick, idle) = (now, if now == last_tick { idle + poll_interval } else { Duration::ZERO });
            if idle > HANG_TIMEOUT {
                if !is_dead(dead) {
                    let table = store.lock_table().map(|table| table.entries);
                    self.report(
                        "lock: waits end",
                        format!("no lock client has recorded an event for {idle:?}: {table:?}"),
                    );
                }
                // Closing ends every grant and every wait.
                let _ = store.clone().close();
                break;
            }
            poll_interval = (2 * poll_interval).min(HANG_TIMEOUT / 4);
        }
        for thread in threads {
            self.scheduler.join(thread);
        }
    }

    /// Checks after all lock clients of an incarnation have ended.
    pub(super) fn check_locks(&self, store: &Store, engine: &Process, dead: &ProcessDead, incarnation: u32) {
        let (Mode::Locks, Ok(rows)) = (self.plan.mode, store.keyspace(LOCK_KEYSPACE)) else { return };
        let (recorder, runtime) = (self.lock_events.for_process(dead), SimRuntime::new(self.scheduler, 0));
        let env = LockEnv {
            store,
            engine: &**engine,
            rows: &rows,
            runtime: &*runtime,
            recorder: &recorder,
            shared: &self.shared_locks,
            is_simulated: true,
        };
        self.shared_locks.drop_guards(&EventWriter { env, incarnation });
        let violations = final_checks::check_wakeups(store, self.shared_locks.counts())
            .into_iter()
            .chain(final_checks::check_only_leases(store));
        let violations: Vec<Violation> = violations.collect();
        self.violations.lock().extend(violations.into_iter().filter(|_| !is_dead(dead)));
    }

    /// At the end of the history: looks up the commits under locks whose outcome is unknown, and
    /// checks that no lock is left.
    pub(super) fn resolve_lock_commits(&self, store: &Store, engine: &Process) -> Result<(), String> {
        if self.plan.mode != Mode::Locks {
            return Ok(());
        }
        let rows = store.keyspace(LOCK_KEYSPACE).map_err(|error| error.to_string())?;
        let ended = final_checks::resolve_unknown(&replay(&self.lock_events.all()).undecided, &**engine, &rows);
        self.lock_events.events.lock().extend(ended);
        let left = final_checks::check_nothing_left(store).map_err(|error| error.to_string())?;
        self.violations.lock().extend(left);
        Ok(())
    }
}
