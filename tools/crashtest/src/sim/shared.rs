//! A history of an engine that several processes share. Each process reaches the engine over a bad
//! network, on which requests arrive late, twice or never. A process may die anywhere and leave its
//! locks to the other processes. The engine itself does not crash.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use percolite::engine::sim::{SimEngine, SimStorage};
use percolite::engine::unreliable::{Faults, FaultyEngine};
use percolite::engine::{Engine, EngineError};
use percolite::oracle::{MemoryOracle, Oracle};
use percolite::{SharedConfig, SleepingRowLockWaiter, Store, Timestamp};

use super::engine::{ProcessDead, ScheduledEngine, is_dead};
use super::plan::{Crash, INCARNATIONS_MAX, SimPlan};
use super::recorder::SimRecorder;
use super::runtime::SimRuntime;
use super::scheduler::{Scheduler, Trigger};
use super::{SimStats, clock_offset_ms};
use crate::client::{Client, ClientId, ROWS, TxnEnd};
use crate::invariants::check_structure;
use crate::rng::SeededRng;
use crate::violation::Violation;

/// After this time every row lock has expired, even if the clock was set back by hours.
const A_DAY: Duration = Duration::from_secs(24 * 3600);
const A_DAY_MS: i64 = 24 * 3_600_000;

type Network = FaultyEngine<SimEngine>;
type Process = Arc<ScheduledEngine<Network>>;

/// The oracle of all processes. Its calls yield to the scheduler, as the calls of the engine do.
struct SimOracle {
    oracle: MemoryOracle,
    scheduler: Arc<Scheduler>,
}

impl Oracle for SimOracle {
    fn timestamp(&self) -> Result<Timestamp, EngineError> {
        self.scheduler.yield_point("oracle");
        let ts = self.oracle.timestamp();
        self.scheduler.yield_point("oracle answers");
        ts
    }
}

/// See the [module](self).
pub struct Shared<'a> {
    scheduler: &'a Arc<Scheduler>,
    memory: SimStorage,
    oracle: Arc<SimOracle>,
    recorder: SimRecorder,
    plan: &'a SimPlan,
    rng: SeededRng,
    networks: Vec<Arc<Network>>,
    violations: Arc<Mutex<Vec<Violation>>>,
    stats: SimStats,
    sessions: u64,
}

impl<'a> Shared<'a> {
    /// A history before its start.
    pub fn new(scheduler: &'a Arc<Scheduler>, plan: &'a SimPlan, rng: SeededRng) -> Self {
        let oracle = MemoryOracle::new(SimRuntime::new(scheduler, 0));
        Self {
            scheduler,
            memory: SimStorage::new(),
            oracle: Arc::new(SimOracle { oracle, scheduler: Arc::clone(scheduler) }),
            recorder: SimRecorder::default(),
            plan,
            rng,
            networks: Vec::new(),
            violations: Arc::default(),
            stats: SimStats::default(),
            sessions: 0,
        }
    }

    /// Runs all incarnations.
    pub fn run(mut self) -> (SimRecorder, SimStats, Vec<Violation>) {
        let loaded_ok = self.load();
        if let Err(error) = loaded_ok {
            self.report("harness", error);
        }
        let loaded = self.recorder.attempted();
        let mut incarnation = 0;
        while incarnation < self.plan.incarnations || (incarnation < INCARNATIONS_MAX && !self.stats.is_enough()) {
            if let Err(error) = self.run_incarnation(incarnation) {
                self.report("harness", error);
                break;
            }
            self.stats.attempted = self.recorder.attempted() - loaded;
            if self.scheduler.deadlock().is_some() {
                break;
            }
            incarnation += 1;
        }
        if self.scheduler.deadlock().is_none()
            && let Err(error) = self.final_incarnation(incarnation)
        {
            self.report("progress", error);
        }
        if let Some(what) = self.scheduler.deadlock() {
            self.report("progress", what);
        }
        let violations = std::mem::take(&mut *self.violations.lock());
        (self.recorder, self.stats, violations)
    }

    /// Starts a process with its network to the engine.
    fn process(&mut self, dead: &ProcessDead, faults: Faults) -> Result<(Process, Store), String> {
        let days_off = if self.plan.clock_steps { [-3, -2, -1, 0, 1, 2, 3][self.rng.below(7)] } else { 0 };
        let runtime = SimRuntime::new(self.scheduler, days_off * A_DAY_MS);
        let scheduler = Arc::clone(self.scheduler);
        let slow = Arc::new(move |millis| scheduler.sleep(Duration::from_millis(millis)));
        let (cells, bytes) = self.plan.page_limits;
        let network = Arc::new(FaultyEngine::with_pause(
            self.memory.shared_engine().with_page_limits(cells, bytes),
            faults,
            self.rng.bits(),
            slow,
        ));
        self.networks.push(Arc::clone(&network));
        let engine: Process =
            Arc::new(ScheduledEngine::new(network, Arc::clone(self.scheduler), Arc::clone(dead), usize::MAX));
        let store = Store::builder()
            .env(Arc::<SimRuntime>::clone(&runtime))
            .durability(self.plan.durability)
            .admission_limit(self.plan.admission_limit)
            .open_shared(SharedConfig {
                engine: Arc::<ScheduledEngine<Network>>::clone(&engine) as Arc<dyn Engine>,
                oracle: Arc::<SimOracle>::clone(&self.oracle) as Arc<dyn Oracle>,
                waiter: Arc::new(SleepingRowLockWaiter(runtime)),
                ttl_ms: self.plan.ttl_ms,
            })
            .map_err(|error| error.to_string())?;
        Ok((engine, store))
    }

    fn load(&mut self) -> Result<(), String> {
        let dead = ProcessDead::default();
        let (engine, store) = self.process(&dead, Faults::default())?;
        let recorder = self.recorder.for_process(&dead);
        let rows = store.keyspace(ROWS).map_err(|error| error.to_string())?;
        let mut client = self.client(&store, &*engine, &recorder, rows, 0);
        client.attempt(|txn| self.plan.workload.load(txn)).map_err(|error| error.to_string()).map(drop)
    }

    fn client<'c>(
        &mut self,
        store: &'c Store,
        engine: &'c dyn Engine,
        recorder: &'c dyn crate::client::Recorder,
        rows: percolite::Keyspace,
        incarnation: u32,
    ) -> Client<'c> {
        self.sessions += 1;
        let client_id = ClientId { session: self.sessions, incarnation, config: self.plan.client_config() };
        Client::new((store, engine), (rows, None), recorder, client_id, self.rng.split())
    }

    fn run_incarnation(&mut self, incarnation: u32) -> Result<(), String> {
        let (share, shared_recorder) =
            (self.plan.transactions_per_client(incarnation, self.recorder.attempted()), self.recorder.clone());
        let enough = shared_recorder.attempted() + share * self.plan.clients as u64 * 3 / 4;
        let Crash { trigger, deadline_yields } = self.plan.crash(&mut self.rng, true);
        let processes: Vec<_> = (0..self.plan.clients)
            .map(|_| {
                let dead = ProcessDead::default();
                let faults = random_network(&mut self.rng);
                let (engine, store) = self.process(&dead, faults)?;
                Ok((dead, engine, store))
            })
            .collect::<Result<_, String>>()?;
        let mut threads = Vec::new();
        for (dead, engine, store) in &processes {
            self.sessions += 1;
            let (session, mut rng, plan) = (self.sessions, self.rng.split(), self.plan);
            let (workload, clock_steps) = (plan.workload, plan.clock_steps);
            let client_id = ClientId { session, incarnation, config: plan.client_config() };
            let (store, engine, dead) = (store.clone(), Arc::clone(engine), Arc::clone(dead));
            let (scheduler, recorder, shared_recorder) =
                (Arc::clone(self.scheduler), self.recorder.for_process(&dead), shared_recorder.clone());
            let (violations, skewed) = (Arc::clone(&self.violations), Arc::clone(&self.stats.write_skews));
            let work = move || {
                let Ok(rows) = store.keyspace(ROWS) else { return };
                let mut client = Client::new((&store, &*engine), (rows, None), &recorder, client_id, rng.split());
                for _ in 0..share {
                    match rng.below(30) {
                        0 => scheduler.sleep(Duration::from_millis(rng.below(1000) as u64)),
                        1 if clock_steps => scheduler.step_clock(clock_offset_ms(&mut rng)),
                        _ => {}
                    }
                    let ran = client.run(workload);
                    if is_dead(&dead) {
                        return;
                    }
                    if let Some(pauses) = deadline_yields.filter(|_| shared_recorder.attempted() >= enough) {
                        scheduler.expire_within(pauses);
                    }
                    match ran {
                        Err(error) if matches!(error.kind(), percolite::ErrorKind::Corruption(_)) => {
                            violations.lock().push(Violation::new("workload", error.to_string()));
                            return;
                        }
                        // Other errors mean that the network was bad for too long. Unknown outcomes
                        // are resolved at the end of the history.
                        Ok(_) | Err(_) => {}
                    }
                }
                skewed.fetch_add(client.write_skews(), Ordering::SeqCst);
            };
            match self.scheduler.spawn(&format!("client {session}"), Box::new(work)) {
                Ok(thread) => threads.push(thread),
                Err(error) => self.report("harness", error.to_string()),
            }
        }
        if self.plan.partitions {
            self.partition_networks(&threads);
        }
        self.plan_process_crash(trigger, &threads, processes.iter().map(|(dead, ..)| Arc::clone(dead)).collect());
        for thread in threads {
            self.scheduler.join(thread);
        }
        self.scheduler.cancel_trigger();
        self.stats.crashes += processes.iter().filter(|(dead, ..)| is_dead(dead)).count() as u64;
        Ok(())
    }

    /// Starts a thread that partitions a random network for a while, four times.
    fn partition_networks(&mut self, threads: &[super::scheduler::ThreadId]) {
        let networks: Vec<_> = self.networks.iter().rev().take(threads.len()).cloned().collect();
        let (mut rng, scheduler) = (self.rng.split(), Arc::clone(self.scheduler));
        let work = move || {
            for _ in 0..4 {
                scheduler.sleep(Duration::from_millis(rng.below(100) as u64));
                let Some(network) = rng.pick(&networks).cloned() else { return };
                network.set_faults(Faults { lost_requests: 1000, ..Faults::default() });
                scheduler.sleep(Duration::from_millis(50 + rng.below(300) as u64));
                network.set_faults(random_network(&mut rng));
            }
        };
        // The thread ends by itself and is not joined.
        if let Err(error) = self.scheduler.spawn("network", Box::new(work)) {
            self.report("harness", error.to_string());
        }
    }

    /// Kills one process when the trigger fires: the process of the running thread, or a random
    /// process if the thread is not a client.
    fn plan_process_crash(
        &mut self,
        trigger: Trigger,
        threads: &[super::scheduler::ThreadId],
        processes: Vec<ProcessDead>,
    ) {
        let (threads, shared_recorder, otherwise) =
            (threads.to_vec(), self.recorder.clone(), self.rng.below(processes.len()));
        let act = move |whose| {
            let at = threads.iter().position(|thread| *thread == whose).unwrap_or(otherwise);
            if let Some(dead) = processes.get(at) {
                dead.store(true, Ordering::SeqCst);
                shared_recorder.record_crash();
            }
        };
        self.scheduler.set_trigger(trigger, Arc::new(act));
    }

    /// Lets all locks expire, and verifies everything from a process with a good network.
    fn final_incarnation(&mut self, incarnation: u32) -> Result<(), String> {
        self.scheduler.advance(A_DAY);
        let dead = ProcessDead::default();
        let (engine, store) = self.process(&dead, Faults::default())?;
        let recorder = self.recorder.for_process(&dead);
        let rows = store.keyspace(ROWS).map_err(|error| error.to_string())?;
        let mut client = self.client(&store, &*engine, &recorder, rows.clone(), incarnation);
        let checked = client.check_snapshot(self.plan.workload);
        if let Err(error) = checked {
            self.report("workload", error.to_string());
        }
        let touched = client.lock_every_row();
        if !matches!(touched, Ok(TxnEnd::Committed)) {
            self.report("progress", format!("a transaction on every row: {touched:?}"));
        }
        // Delayed requests arrive only now, and must not change a decided outcome.
        let late: usize = self.networks.iter().map(|network| network.deliver_delayed()).sum();
        self.scheduler.trace(&format!("{late} late requests"));
        self.scheduler.advance(A_DAY);
        client.check_snapshot(self.plan.workload).map_err(|error| error.to_string())?;
        client.lock_every_row().map_err(|error| error.to_string())?;
        let resolved = self.recorder.log().resolve_unknown(&*engine, &rows).map_err(|error| error.to_string())?;
        self.stats.unacknowledged_commits += resolved.committed;
        self.violations.lock().extend(resolved.violations);
        let reader = self.memory.shared_engine();
        let violations = check_structure(reader.storage()).map_err(|error| error.to_string())?;
        self.violations.lock().extend(violations);
        Ok(())
    }

    fn report(&self, invariant: &'static str, details: impl Into<String>) {
        self.violations.lock().push(Violation::new(invariant, details));
    }
}

/// Networks from good to very bad.
fn random_network(rng: &mut SeededRng) -> Faults {
    let bad = Faults::bad_network();
    match rng.below(4) {
        0 => Faults::default(),
        1 => Faults { lost_replies: 200, late_duplicates: 300, ..bad },
        _ => bad,
    }
}
