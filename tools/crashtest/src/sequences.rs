//! Every sequence of at most a few operations on the simulated machine, with every loss.
//!
//! A power cut keeps any version of each sector that was not synced, any length of a file, any
//! change of a name, and any number of the tables' batches. Each of these is a choice, and all
//! combinations are run, one after the other: a sequence is repeated from the beginning for each.
//! So within these bounds nothing depends on luck, as it does in [`sim`](crate::sim).
//!
//! After each loss, and after each operation that opens the store again, the store must have one of
//! the states that it had since the last operation that makes everything durable; after a kill or a
//! close the last one. What it then has must survive a second loss, in which nothing else is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;
use percolite::engine::Engine;
use percolite::engine::local::LocalEngine;
use percolite::engine::machine::{SimMachine, SimMachineStorage};
use percolite::mutants::{Mutant, enable_mutant};
use percolite::{CommitProtocol, Durability, Keyspace, Store, TxnOptions};

use crate::interrupt;
use crate::invariants::check_structure;
use crate::layer_args::mutant;
use crate::rng::SeededRng;
use crate::sim::{Scheduler, SimRuntime};

/// A memtable is switched when it has this many bytes: after a commit or two, so that some
/// sequences have several segments.
const MEMTABLE_BYTES: usize = 300;
/// How many failures are printed.
const FAILURES_MAX: usize = 10;

/// Run every sequence of at most three operations, with every loss, and print how many these are.
#[derive(Args, Clone, Debug)]
pub struct SequencesArgs {
    /// The number of operations of the longest sequences.
    #[arg(long, default_value_t = 3)]
    pub length: u32,
    /// Enable a known mistake.
    #[arg(long, hide = true, value_parser = mutant)]
    pub mutant: Option<Mutant>,
}

/// What was run.
#[derive(Clone, Debug, Default)]
pub struct SequencesResult {
    /// How many sequences.
    pub sequences: u64,
    /// How many runs: each sequence with each loss.
    pub runs: u64,
    /// The largest number of runs of one sequence.
    pub runs_max: u64,
    /// The violations, each with its sequence and its choices.
    pub failures: Vec<String>,
}

/// An operation of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Writes a row; buffered.
    Put,
    /// Writes a row, durably.
    PutSync,
    /// Writes both rows; buffered.
    PutBoth,
    /// Writes both rows in two phases, durably.
    TwoPhase,
    /// Deletes a row; buffered.
    Delete,
    /// Writes a row, and drops the transaction.
    Abandon,
    /// Makes everything durable.
    Sync,
    /// Does all work of the flush thread.
    Flush,
    /// Closes the store, and opens it again.
    Reopen,
    /// Kills the process, and opens the store again.
    Kill,
    /// Cuts the power, and opens the store again.
    PowerCut,
}

const OPERATIONS: [Operation; 11] = [
    Operation::Put,
    Operation::PutSync,
    Operation::PutBoth,
    Operation::TwoPhase,
    Operation::Delete,
    Operation::Abandon,
    Operation::Sync,
    Operation::Flush,
    Operation::Reopen,
    Operation::Kill,
    Operation::PowerCut,
];

/// The end of a sequence.
const ENDS: [Operation; 3] = [Operation::PowerCut, Operation::Kill, Operation::Reopen];

/// The choices of a run, and after it those of the next.
#[derive(Debug, Default)]
struct Choices {
    /// What is chosen, and of how many.
    made: Vec<(usize, usize)>,
    next: usize,
}

impl Choices {
    fn choose(&mut self, possible: usize) -> usize {
        if self.next == self.made.len() {
            self.made.push((0, possible));
        }
        let (chosen, of) = self.made[self.next];
        assert_eq!(of, possible, "invariant: a sequence with the same choices has the same possibilities");
        self.next += 1;
        chosen
    }

    /// Turns to the next combination; false after the last one.
    fn advance(&mut self) -> bool {
        self.made.truncate(self.next);
        self.next = 0;
        while let Some((chosen, of)) = self.made.last_mut() {
            *chosen += 1;
            if chosen < of {
                return true;
            }
            self.made.pop();
        }
        false
    }
}

/// Runs all sequences up to this length.
pub fn run(args: &SequencesArgs) -> SequencesResult {
    enable_mutant(args.mutant);
    Scheduler::install_hooks();
    let mut result = SequencesResult::default();
    for length in 1..=args.length {
        for number in 0..OPERATIONS.len().pow(length) {
            let at = |nth: u32| OPERATIONS[number / OPERATIONS.len().pow(nth) % OPERATIONS.len()];
            let sequence: Vec<Operation> = (0..length).map(at).collect();
            result.sequences += 1;
            for end in ENDS {
                run_sequence(&[&sequence[..], &[end]].concat(), &mut result);
            }
            if interrupt::is_requested() || result.failures.len() >= FAILURES_MAX {
                return result;
            }
        }
    }
    enable_mutant(None);
    result
}

fn run_sequence(sequence: &[Operation], result: &mut SequencesResult) {
    let (mut choices, mut runs) = (Choices::default(), 0);
    loop {
        runs += 1;
        if let Err(what) = Run::new(&mut choices).and_then(|run| run.all(sequence)) {
            let chosen: Vec<usize> = choices.made[..choices.next].iter().map(|(chosen, _)| *chosen).collect();
            result.failures.push(format!("{sequence:?} with the choices {chosen:?}: {what}"));
            break;
        }
        if !choices.advance() {
            break;
        }
    }
    result.runs += runs;
    result.runs_max = runs.max(result.runs_max);
}

type Rows = BTreeMap<&'static str, String>;
type Process = Arc<LocalEngine<SimMachineStorage>>;

const KEYS: [&str; 2] = ["a", "b"];

/// One run of a sequence.
struct Run<'a> {
    choices: &'a mut Choices,
    scheduler: Arc<Scheduler>,
    machine: SimMachine,
    store: Store,
    engine: Process,
    rows: Keyspace,
    /// The states that a loss may leave: first the one that is durable, last the present one.
    states: Vec<Rows>,
    commits: u32,
}

impl<'a> Run<'a> {
    fn new(choices: &'a mut Choices) -> Result<Self, String> {
        let scheduler = Scheduler::new_on_current_thread(SeededRng::new(1), false);
        let machine = SimMachine::new();
        let (store, engine) = open(&scheduler, &machine)?;
        let rows = store.keyspace("rows").and_then(|rows| store.sync().map(|()| rows)).map_err(text)?;
        Ok(Self { choices, scheduler, machine, store, engine, rows, states: vec![Rows::new()], commits: 0 })
    }

    fn all(mut self, sequence: &[Operation]) -> Result<(), String> {
        for (nth, operation) in sequence.iter().enumerate() {
            self.step(*operation).map_err(|what| format!("operation {nth}, {operation:?}: {what}"))?;
        }
        // What was recovered stays, and so do the rows of a loss that keeps nothing else.
        let states = vec![self.read()?];
        self.machine.crash_with(&mut |_| 0);
        self.reopen(states)?;
        self.store.resolve_orphan_locks().map_err(text)?;
        self.store.clone().close().map_err(text)?;
        let found = check_structure(self.engine.storage()).map_err(text)?;
        drop(self);
        Scheduler::detach();
        found.first().map_or(Ok(()), |violation| Err(format!("{}: {}", violation.invariant, violation.details)))
    }

    fn step(&mut self, operation: Operation) -> Result<(), String> {
        let buffered = TxnOptions::default().durability(Durability::Buffered);
        match operation {
            Operation::Put => self.commit(&["a"], buffered, false),
            Operation::PutSync => {
                self.commit(&["a"], TxnOptions::default().durability(Durability::Sync), false)?;
                self.all_durable();
                Ok(())
            }
            Operation::PutBoth => self.commit(&KEYS, buffered, false),
            Operation::TwoPhase => {
                let options = TxnOptions::default().durability(Durability::Sync);
                self.commit(&KEYS, options.commit_protocol(CommitProtocol::TwoPhase), false)?;
                self.all_durable();
                Ok(())
            }
            Operation::Delete => self.commit(&["a"], buffered, true),
            Operation::Abandon => {
                let mut txn = self.store.begin().map_err(text)?;
                txn.put(&self.rows, "a", "abandoned").map_err(text)
            }
            Operation::Sync => {
                self.store.sync().map_err(text)?;
                self.all_durable();
                Ok(())
            }
            Operation::Flush => {
                let mut written = 0;
                while self.engine.storage().run_background_once(&mut written) {}
                Ok(())
            }
            Operation::Reopen => {
                self.store.clone().close().map_err(text)?;
                self.all_durable();
                // Nothing may be lost of a store that was closed.
                self.machine.crash_with(&mut |possible| possible - 1);
                self.reopen(self.states.clone())
            }
            Operation::Kill => {
                let choices = &mut *self.choices;
                self.machine.kill_with(&mut |possible| choices.choose(possible));
                self.reopen(self.states.last().cloned().into_iter().collect())
            }
            Operation::PowerCut => {
                let choices = &mut *self.choices;
                self.machine.crash_with(&mut |possible| choices.choose(possible));
                self.reopen(self.states.clone())
            }
        }
    }

    fn commit(&mut self, keys: &[&'static str], options: TxnOptions, deletes: bool) -> Result<(), String> {
        self.commits += 1;
        let mut state = self.states.last().cloned().unwrap_or_default();
        let mut txn = self.store.begin_with(options).map_err(text)?;
        for key in keys {
            let value = self.commits.to_string();
            if deletes { txn.delete(&self.rows, *key) } else { txn.put(&self.rows, *key, value.as_str()) }
                .map_err(text)?;
            if deletes {
                state.remove(key)
            } else {
                state.insert(key, value)
            };
        }
        txn.commit().map_err(text)?;
        self.states.push(state);
        Ok(())
    }

    fn all_durable(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    /// Opens the store again, after a loss or without one. It must have one of these states.
    fn reopen(&mut self, allowed: Vec<Rows>) -> Result<(), String> {
        (self.store, self.engine) = open(&self.scheduler, &self.machine)?;
        self.rows = self.store.keyspace("rows").map_err(text)?;
        let found = self.read()?;
        if !allowed.contains(&found) {
            return Err(format!("it has {found:?} instead of one of {allowed:?}"));
        }
        // What a store shows after its opening is durable.
        self.states = vec![found];
        Ok(())
    }

    fn read(&self) -> Result<Rows, String> {
        let snapshot = self.store.snapshot().map_err(text)?;
        let mut found = Rows::new();
        for key in KEYS {
            if let Some(value) = snapshot.get(&self.rows, key).map_err(text)? {
                found.insert(key, String::from_utf8_lossy(&value).into_owned());
            }
        }
        Ok(found)
    }
}

fn open(scheduler: &Arc<Scheduler>, machine: &SimMachine) -> Result<(Store, Process), String> {
    let storage = machine.open(MEMTABLE_BYTES, 1).map_err(|error| format!("the machine does not open: {error}"))?;
    let engine = Arc::new(LocalEngine::new(storage, true));
    let store = Store::builder()
        .env(SimRuntime::new(scheduler, 0))
        .open_engine(Arc::clone(&engine) as Arc<dyn Engine>)
        .map_err(|error| format!("the store does not open: {error}"))?;
    Ok((store, engine))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
