//! One history of an engine that several processes share: each has a bad network to it, and may die at any point and leave
//! its locks to the others. The engine itself does not die; requests come late, twice or never.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use percolite::engine::sim::{SimEngine, SimStorage};
use percolite::engine::unreliable::{Faults, FaultyEngine};
use percolite::engine::{Engine, EngineError};
use percolite::oracle::{MemoryOracle, Oracle};
use percolite::{SharedConfig, SleepingLockWaiter, Store, Timestamp};

use super::engine::{Dead, Scheduled, is_dead};
use super::plan::{Crash, LIVES_MAX, Plan};
use super::runtime::SimRuntime;
use super::scheduler::{Due, Scheduler};
use super::sink::Book;
use super::{Seen, hours};
use crate::client::{Client, Ended, ROWS, Who};
use crate::dice::Dice;
use crate::invariants::structure;
use crate::violation::Broken;

/// Longer than any clock is off: a transaction may be taken to be as old as that, and live as long.
const A_DAY: Duration = Duration::from_secs(24 * 3600);
const A_DAY_MS: i64 = 24 * 3_600_000;

type Network = FaultyEngine<SimEngine>;
type Process = Arc<Scheduled<Network>>;

/// The oracle of all processes; asking it is a call like any other.
struct SimOracle {
    oracle: MemoryOracle,
    scheduler: Arc<Scheduler>,
}

impl Oracle for SimOracle {
    fn timestamp(&self) -> Result<Timestamp, EngineError> {
        self.scheduler.pause("oracle");
        let ts = self.oracle.timestamp();
        self.scheduler.pause("oracle answers");
        ts
    }
}

/// See the [module](self).
pub struct Shared<'a> {
    scheduler: &'a Arc<Scheduler>,
    memory: SimStorage,
    oracle: Arc<SimOracle>,
    book: Book,
    plan: &'a Plan,
    dice: Dice,
    networks: Vec<Arc<Network>>,
    broken: Arc<Mutex<Vec<Broken>>>,
    seen: Seen,
    sessions: u64,
}

impl<'a> Shared<'a> {
    /// A history that has not begun.
    pub fn new(scheduler: &'a Arc<Scheduler>, plan: &'a Plan, dice: Dice) -> Self {
        let oracle = MemoryOracle::new(SimRuntime::new(scheduler, 0));
        Self {
            scheduler,
            memory: SimStorage::new(),
            oracle: Arc::new(SimOracle { oracle, scheduler: Arc::clone(scheduler) }),
            book: Book::default(),
            plan,
            dice,
            networks: Vec::new(),
            broken: Arc::default(),
            seen: Seen::default(),
            sessions: 0,
        }
    }

    /// Lives all lives.
    pub fn run(mut self) -> (Book, Seen, Vec<Broken>) {
        let begun = self.load();
        if let Err(why) = begun {
            self.breaks("harness", why);
        }
        let loaded = self.book.tried();
        let mut life = 0;
        while life < self.plan.lives || (life < LIVES_MAX && !self.seen.is_enough()) {
            if let Err(why) = self.clients(life) {
                self.breaks("harness", why);
                break;
            }
            self.seen.tried = self.book.tried() - loaded;
            if self.scheduler.stuck().is_some() {
                break;
            }
            life += 1;
        }
        if self.scheduler.stuck().is_none()
            && let Err(why) = self.look_back(life)
        {
            self.breaks("I12 progress", why);
        }
        if let Some(what) = self.scheduler.stuck() {
            self.breaks("I12 progress", what);
        }
        let broken = std::mem::take(&mut *self.broken.lock());
        (self.book, self.seen, broken)
    }

    /// One more process, with its way to the engine.
    fn process(&mut self, dead: &Dead, faults: Faults) -> Result<(Process, Store), String> {
        let days_off = if self.plan.clock_steps { [-3, -2, -1, 0, 1, 2, 3][self.dice.below(7)] } else { 0 };
        let runtime = SimRuntime::new(self.scheduler, days_off * A_DAY_MS);
        let scheduler = Arc::clone(self.scheduler);
        let slow = Arc::new(move |millis| scheduler.sleep(Duration::from_millis(millis)));
        let (cells, bytes) = self.plan.pages;
        let network = Arc::new(FaultyEngine::with_pause(
            self.memory.shared_engine().with_page_limits(cells, bytes),
            faults,
            self.dice.bits(),
            slow,
        ));
        self.networks.push(Arc::clone(&network));
        let engine: Process =
            Arc::new(Scheduled::new(network, Arc::clone(self.scheduler), Arc::clone(dead), usize::MAX));
        let store = Store::builder()
            .runtime(Arc::<SimRuntime>::clone(&runtime))
            .durability(self.plan.durability)
            .admission_limit(self.plan.admission)
            .open_shared(SharedConfig {
                engine: Arc::<Scheduled<Network>>::clone(&engine) as Arc<dyn Engine>,
                oracle: Arc::<SimOracle>::clone(&self.oracle) as Arc<dyn Oracle>,
                waiter: Arc::new(SleepingLockWaiter(runtime)),
                ttl_ms: self.plan.ttl_ms,
            })
            .map_err(|why| why.to_string())?;
        Ok((engine, store))
    }

    fn load(&mut self) -> Result<(), String> {
        let dead = Dead::default();
        let (engine, store) = self.process(&dead, Faults::default())?;
        let sink = self.book.of(&dead);
        let rows = store.keyspace(ROWS).map_err(|why| why.to_string())?;
        let mut client = self.client(&store, &*engine, &sink, rows, 0);
        client.attempt(|txn| self.plan.workload.load(txn)).map_err(|why| why.to_string()).map(drop)
    }

    fn client<'c>(
        &mut self,
        store: &'c Store,
        engine: &'c dyn Engine,
        sink: &'c dyn crate::client::Sink,
        rows: percolite::Keyspace,
        life: u32,
    ) -> Client<'c> {
        self.sessions += 1;
        let who = Who { session: self.sessions, life, habits: self.plan.habits() };
        Client::new((store, engine), (rows, None), sink, who, self.dice.split())
    }

    fn clients(&mut self, life: u32) -> Result<(), String> {
        let (share, book) = (self.plan.share(life, self.book.tried()), self.book.clone());
        let enough = book.tried() + share * self.plan.clients as u64 * 3 / 4;
        let Crash { due, at_last } = self.plan.crash(&mut self.dice, true);
        let processes: Vec<_> = (0..self.plan.clients)
            .map(|_| {
                let dead = Dead::default();
                let faults = network_of(&mut self.dice);
                let (engine, store) = self.process(&dead, faults)?;
                Ok((dead, engine, store))
            })
            .collect::<Result<_, String>>()?;
        let mut threads = Vec::new();
        for (dead, engine, store) in &processes {
            self.sessions += 1;
            let (session, mut dice, plan) = (self.sessions, self.dice.split(), self.plan);
            let (workload, clock_steps) = (plan.workload, plan.clock_steps);
            let who = Who { session, life, habits: plan.habits() };
            let (store, engine, dead) = (store.clone(), Arc::clone(engine), Arc::clone(dead));
            let (scheduler, sink, book) = (Arc::clone(self.scheduler), self.book.of(&dead), book.clone());
            let (broken, skewed) = (Arc::clone(&self.broken), Arc::clone(&self.seen.skewed));
            let work = move || {
                let Ok(rows) = store.keyspace(ROWS) else { return };
                let mut client = Client::new((&store, &*engine), (rows, None), &sink, who, dice.split());
                for _ in 0..share {
                    match dice.below(30) {
                        0 => scheduler.sleep(Duration::from_millis(dice.below(1000) as u64)),
                        1 if clock_steps => scheduler.step_clock(hours(&mut dice)),
                        _ => {}
                    }
                    let ran = client.run(workload);
                    if is_dead(&dead) {
                        return;
                    }
                    if let Some(pauses) = at_last.filter(|_| book.tried() >= enough) {
                        scheduler.hurry(pauses);
                    }
                    match ran {
                        Err(why) if matches!(why.kind(), percolite::ErrorKind::Corruption(_)) => {
                            broken.lock().push(Broken::new("I8 workload", why.to_string()));
                            return;
                        }
                        // A network that stays bad for long enough; what is open will be looked up.
                        Ok(_) | Err(_) => {}
                    }
                }
                skewed.fetch_add(client.skewed(), Ordering::SeqCst);
            };
            match self.scheduler.spawn(&format!("client {session}"), Box::new(work)) {
                Ok(thread) => threads.push(thread),
                Err(why) => self.breaks("harness", why.to_string()),
            }
        }
        if self.plan.cut_off {
            self.cut_off(&threads);
        }
        self.plan_death(due, &threads, processes.iter().map(|(dead, ..)| Arc::clone(dead)).collect());
        for thread in threads {
            self.scheduler.join(thread);
        }
        self.scheduler.unwatch();
        self.seen.crashes += processes.iter().filter(|(dead, ..)| is_dead(dead)).count() as u64;
        Ok(())
    }

    /// Networks that carry nothing for a while, one after the other.
    fn cut_off(&mut self, threads: &[super::scheduler::ThreadId]) {
        let networks: Vec<_> = self.networks.iter().rev().take(threads.len()).cloned().collect();
        let (mut dice, scheduler) = (self.dice.split(), Arc::clone(self.scheduler));
        let work = move || {
            for _ in 0..4 {
                scheduler.sleep(Duration::from_millis(dice.below(100) as u64));
                let Some(network) = dice.pick(&networks).cloned() else { return };
                network.set_faults(Faults { lost_requests: 1000, ..Faults::default() });
                scheduler.sleep(Duration::from_millis(50 + dice.below(300) as u64));
                network.set_faults(network_of(&mut dice));
            }
        };
        // It ends by itself; nobody waits for it.
        if let Err(why) = self.scheduler.spawn("network", Box::new(work)) {
            self.breaks("harness", why.to_string());
        }
    }

    /// One process dies, wherever it is when the moment comes: the one whose turn it is.
    fn plan_death(&mut self, due: Due, threads: &[super::scheduler::ThreadId], processes: Vec<Dead>) {
        let (threads, book, otherwise) = (threads.to_vec(), self.book.clone(), self.dice.below(processes.len()));
        let act = move |whose| {
            let at = threads.iter().position(|thread| *thread == whose).unwrap_or(otherwise);
            if let Some(dead) = processes.get(at) {
                dead.store(true, Ordering::SeqCst);
                book.crashed();
            }
        };
        self.scheduler.watch(due, Arc::new(act));
    }

    /// Whoever is silent is taken for dead now, and one process with a good network looks at everything.
    fn look_back(&mut self, life: u32) -> Result<(), String> {
        self.scheduler.advance(A_DAY);
        let dead = Dead::default();
        let (engine, store) = self.process(&dead, Faults::default())?;
        let sink = self.book.of(&dead);
        let rows = store.keyspace(ROWS).map_err(|why| why.to_string())?;
        let mut client = self.client(&store, &*engine, &sink, rows.clone(), life);
        let judged = client.observe(self.plan.workload);
        if let Err(why) = judged {
            self.breaks("I8 workload", why.to_string());
        }
        let touched = client.touch_every_row();
        if !matches!(touched, Ok(Ended::Committed)) {
            self.breaks("I12 progress", format!("a transaction on every row: {touched:?}"));
        }
        // What is still on its way arrives now, and must find everything decided.
        let late: usize = self.networks.iter().map(|network| network.deliver_delayed()).sum();
        self.scheduler.tell(&format!("{late} late requests"));
        self.scheduler.advance(A_DAY);
        client.observe(self.plan.workload).map_err(|why| why.to_string())?;
        client.touch_every_row().map_err(|why| why.to_string())?;
        let settled = self.book.ledger().settle(&*engine, &rows).map_err(|why| why.to_string())?;
        self.seen.settled += settled.committed;
        self.broken.lock().extend(settled.lost);
        let reader = self.memory.shared_engine();
        let broken = structure(reader.storage()).map_err(|why| why.to_string())?;
        self.broken.lock().extend(broken);
        Ok(())
    }

    fn breaks(&self, promise: &'static str, how: impl Into<String>) {
        self.broken.lock().push(Broken::new(promise, how));
    }
}

/// Networks from good to very bad.
fn network_of(dice: &mut Dice) -> Faults {
    let bad = Faults::bad_network();
    match dice.below(4) {
        0 => Faults::default(),
        1 => Faults { lost_replies: 200, late_duplicates: 300, ..bad },
        _ => bad,
    }
}
