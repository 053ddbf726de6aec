//! Every interleaving of a few threads or tasks in situations where two atomics, or two locks, are
//! used one after the other.
//!
//! A seed of [`sim`](crate::sim) rarely switches threads at just the one place where such a pair
//! matters. Here each situation is run once for every place at which a thread may be replaced: at
//! each lock, call of the engine or runtime, crash point and yield point of the store. With `S`
//! switches at most, all combinations of up to `S` places are run. Where a thread waits, the others
//! continue, which is no switch.

mod leader;
mod leases;
mod situations;
mod storage;
mod tasks;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use percolite::engine::Engine;
use percolite::engine::local::LocalEngine;
use percolite::engine::machine::{SimMachine, SimMachineStorage};
use percolite::mutants::enable_mutant;
use percolite::{Keyspace, Store};

use self::situations::{ONE_MEMTABLE, SITUATIONS, SMALL_MEMTABLE};
use crate::choices::Choices;
use crate::layer_args::LayerArgs;
use crate::layer_result::{Failure, LayerResult, TableProgress};
use crate::rng::SeededRng;
use crate::sim::{Scheduler, SimRuntime};
use crate::violation::Violation;

const LAYER: &str = "interleavings";
/// How often a thread that can continue is replaced at most: in a quick run, and in others.
const QUICK_SWITCHES: u32 = 1;
const SWITCHES: u32 = 2;
/// The invariant that every wait of a situation ends.
const PROGRESS: &str = "progress";

/// A situation: its name, and what prepares it, starts its threads and judges their end.
struct Situation {
    name: &'static str,
    /// A memtable is switched when it has this many bytes.
    memtable_bytes: usize,
    /// How often a thread that can continue is replaced in a quick run.
    quick_switches: u32,
    run: fn(&World) -> Result<(), Violation>,
}

impl Situation {
    const fn new(name: &'static str, run: fn(&World) -> Result<(), Violation>) -> Self {
        Self { name, memtable_bytes: ONE_MEMTABLE, quick_switches: QUICK_SWITCHES, run }
    }

    /// A memtable is switched after a commit or two.
    const fn with_small_memtables(self) -> Self {
        Self { memtable_bytes: SMALL_MEMTABLE, ..self }
    }

    /// A quick run has two switches, too: one brings the situation about, and one comes within it.
    const fn with_two_switches(self) -> Self {
        Self { quick_switches: SWITCHES, ..self }
    }
}

/// A store on a machine of its own, and the threads of a situation.
struct World {
    scheduler: Arc<Scheduler>,
    machine: SimMachine,
    engine: Arc<LocalEngine<SimMachineStorage>>,
    store: Store,
    rows: Keyspace,
    found: Arc<Mutex<Option<Violation>>>,
    kept: Mutex<Vec<Box<dyn Any>>>,
}

impl World {
    fn new(memtable_bytes: usize) -> Result<Self, Violation> {
        let scheduler = Scheduler::new_on_current_thread(SeededRng::new(1), false);
        let machine = SimMachine::new();
        let (store, engine) = open(&scheduler, &machine, memtable_bytes)?;
        let rows = store.keyspace("rows").and_then(|rows| store.sync().map(|()| rows)).map_err(harness)?;
        let (found, kept) = (Arc::default(), Mutex::default());
        Ok(Self { scheduler, machine, engine, store, rows, found, kept })
    }

    /// Starts one of the situation's threads.
    fn spawn(&self, name: &str, work: impl FnOnce() -> Result<(), Violation> + Send + 'static) {
        let found = Arc::clone(&self.found);
        let work = move || {
            if let Err(violation) = work() {
                found.lock().get_or_insert(violation);
            }
        };
        if let Err(error) = self.scheduler.spawn_explored(name, Box::new(work)) {
            self.found.lock().get_or_insert(harness(error));
        }
    }

    /// Waits for the threads, and for those that blocking work of tasks has started.
    fn join(&self) -> Result<(), Violation> {
        for thread in (0..).map_while(|nth| self.scheduler.explored_thread(nth)) {
            self.scheduler.join(thread);
        }
        if let Some(what) = self.scheduler.deadlock() {
            return Err(Violation::new(PROGRESS, what));
        }
        self.found.lock().take().map_or(Ok(()), Err)
    }

    /// Keeps a value until the situation is over.
    fn keep(&self, value: impl Any) {
        self.kept.lock().push(Box::new(value));
    }

    fn now(&self) -> impl Fn() -> Duration + Send + 'static {
        let scheduler = Arc::clone(&self.scheduler);
        move || scheduler.now()
    }
}

fn open(
    scheduler: &Arc<Scheduler>,
    machine: &SimMachine,
    memtable_bytes: usize,
) -> Result<(Store, Arc<LocalEngine<SimMachineStorage>>), Violation> {
    let storage = machine.open(memtable_bytes, 1).map_err(harness)?;
    let engine = Arc::new(LocalEngine::new(storage, true));
    let builder = Store::builder().env(SimRuntime::new(scheduler, 0));
    let store = builder.open_engine(Arc::clone(&engine) as Arc<dyn Engine>).map_err(harness)?;
    Ok((store, engine))
}

/// An error that no interleaving of a situation allows.
fn harness(error: impl std::fmt::Display) -> Violation {
    Violation::new("harness", error.to_string())
}

/// Runs all interleavings of the situations.
///
/// # Errors
/// An unknown situation.
pub fn run(args: &LayerArgs) -> anyhow::Result<LayerResult> {
    let wanted = args.case.as_deref().map(situation_of).transpose()?;
    let (clock, mut outcome) = (args.clock(), LayerResult::new(LAYER));
    enable_mutant(args.mutant);
    Scheduler::install_hooks();
    let count = SITUATIONS.len() as u64;
    let mut nth = args.skip;
    while clock.allows(nth - args.skip, if wanted.is_some() { 1 } else { count }) && !args.should_stop(&outcome) {
        let situation = wanted.unwrap_or(&SITUATIONS[usize::try_from(nth % count).unwrap_or_default()]);
        explore(situation, args, &mut outcome);
        nth += 1;
    }
    enable_mutant(None);
    if wanted.is_none() {
        outcome.progress = Some(TableProgress { done: nth - args.skip, total: count });
    }
    outcome.seconds = clock.seconds();
    Ok(outcome)
}

fn situation_of(case: &str) -> anyhow::Result<&'static Situation> {
    let name = case.strip_prefix("interleavings:").unwrap_or(case);
    SITUATIONS.iter().find(|situation| situation.name == name).with_context(|| {
        let names: Vec<&str> = SITUATIONS.iter().map(|situation| situation.name).collect();
        format!("invalid case {case:?}; expected interleavings:SITUATION with one of {}", names.join(", "))
    })
}

/// Runs one situation with all choices, until one fails.
fn explore(situation: &Situation, args: &LayerArgs, outcome: &mut LayerResult) {
    let switches = if args.quick { situation.quick_switches } else { SWITCHES };
    let mut choices = Choices::default();
    loop {
        let (result, made) = run_once(situation, switches, choices);
        choices = made;
        outcome.cases += 1;
        outcome.transactions += 1;
        outcome.acknowledged += 1;
        if let Err(Violation { invariant, details }) = result {
            let details = format!("{details}; with at most {switches} switches and the choices {:?}", choices.chosen());
            let replay = args.replay(&format!("{LAYER}:{}", situation.name));
            let violations = vec![Violation { invariant, details }];
            return outcome.failures.push(Failure { replay, violations, saved_in: None });
        }
        if crate::interrupt::is_requested() || !choices.advance() {
            return;
        }
    }
}

fn run_once(situation: &Situation, switches: u32, choices: Choices) -> (Result<(), Violation>, Choices) {
    let world = match World::new(situation.memtable_bytes) {
        Ok(world) => world,
        Err(violation) => return (Err(violation), choices),
    };
    world.scheduler.explore(choices, switches);
    let result = (situation.run)(&world);
    let choices = world.scheduler.end_exploration();
    if world.scheduler.deadlock().is_some() {
        // Its threads never end, and may have locked anything.
        std::mem::forget(world);
    } else {
        drop(world);
    }
    Scheduler::detach();
    (result, choices)
}
