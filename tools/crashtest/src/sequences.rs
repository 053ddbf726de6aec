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

use anyhow::Context as _;
use percolite::engine::local::LocalEngine;
use percolite::engine::machine::{SimMachine, SimMachineStorage};
use percolite::engine::sim::SimStorage;
use percolite::engine::storage::{Batch as _, CellReader as _, Column, Storage as _};
use percolite::engine::{Engine, RowRange};
use percolite::mutants::enable_mutant;
use percolite::{CommitProtocol, Durability, Keyspace, Store, TxnOptions};

use crate::choices::Choices;
use crate::invariants::check_structure;
use crate::layer_args::LayerArgs;
use crate::layer_result::{Failure, LayerResult, TableProgress};
use crate::rng::SeededRng;
use crate::sim::{Scheduler, SimRuntime};
use crate::violation::Violation;

/// A memtable is switched when it has this many bytes: after a commit or two, so that some
/// sequences have several segments.
const MEMTABLE_BYTES: usize = 300;
/// The number of operations of the longest sequences: of a quick run, and of others.
const QUICK_LENGTH: u32 = 2;
const LENGTH: u32 = 3;
const LAYER: &str = "sequences";

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
    /// Copies the tables, as a checkpoint does; the copy must open and have all rows.
    Checkpoint,
    /// Closes the store, and opens it again.
    Reopen,
    /// Kills the process, and opens the store again.
    Kill,
    /// Cuts the power, and opens the store again.
    PowerCut,
}

const OPERATIONS: [Operation; 12] = [
    Operation::Put,
    Operation::PutSync,
    Operation::PutBoth,
    Operation::TwoPhase,
    Operation::Delete,
    Operation::Abandon,
    Operation::Sync,
    Operation::Flush,
    Operation::Checkpoint,
    Operation::Reopen,
    Operation::Kill,
    Operation::PowerCut,
];

/// The end of a sequence.
const ENDS: [Operation; 3] = [Operation::PowerCut, Operation::Kill, Operation::Reopen];

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutSync => "put-sync",
            Self::PutBoth => "put-both",
            Self::TwoPhase => "two-phase",
            Self::Delete => "delete",
            Self::Abandon => "abandon",
            Self::Sync => "sync",
            Self::Flush => "flush",
            Self::Checkpoint => "checkpoint",
            Self::Reopen => "reopen",
            Self::Kill => "kill",
            Self::PowerCut => "power-cut",
        }
    }
}

/// Runs all sequences, or those with two operations at most.
///
/// # Errors
/// An invalid case.
pub fn run(args: &LayerArgs) -> anyhow::Result<LayerResult> {
    let length = if args.quick { QUICK_LENGTH } else { LENGTH };
    let sequences = match &args.case {
        Some(case) => vec![sequence_of(case)?],
        None => sequences(length),
    };
    enable_mutant(args.mutant);
    Scheduler::install_hooks();
    let (clock, mut outcome, total) = (args.clock(), LayerResult::new(LAYER), sequences.len() as u64);
    let mut done = 0;
    while clock.allows(done, total) && !args.should_stop(&outcome) {
        let nth = (args.skip + done) % total;
        run_sequence(&sequences[usize::try_from(nth).unwrap_or_default()], args, &mut outcome);
        done += 1;
    }
    enable_mutant(None);
    if args.case.is_none() {
        outcome.progress = Some(TableProgress { done, total });
    }
    outcome.seconds = clock.seconds();
    Ok(outcome)
}

/// All sequences of at most `length` operations, each with each end.
fn sequences(length: u32) -> Vec<Vec<Operation>> {
    let count = OPERATIONS.len();
    let of_length = |length: u32| {
        let sequence = move |number: usize| {
            let at = |nth: u32| OPERATIONS[number / count.pow(nth) % count];
            (0..length).map(at).collect::<Vec<_>>()
        };
        (0..count.pow(length)).map(sequence)
    };
    let with_ends = |sequence: Vec<Operation>| ENDS.map(|end| [&sequence[..], &[end]].concat());
    (1..=length).flat_map(of_length).flat_map(with_ends).collect()
}

fn sequence_of(case: &str) -> anyhow::Result<Vec<Operation>> {
    let names = case.strip_prefix("sequences:").unwrap_or(case).split('.');
    let operation = |name: &str| {
        OPERATIONS.iter().copied().find(|operation| operation.name() == name).with_context(|| {
            let names: Vec<&str> = OPERATIONS.iter().map(|operation| operation.name()).collect();
            format!(
                "invalid case {case:?}; expected a case like sequences:put.flush.power-cut, of {}",
                names.join(", ")
            )
        })
    };
    names.map(operation).collect()
}

fn run_sequence(sequence: &[Operation], args: &LayerArgs, outcome: &mut LayerResult) {
    let (mut choices, mut runs) = (Choices::default(), 0_u64);
    loop {
        runs += 1;
        let mut commits = 0;
        let result = Run::new(&mut choices).and_then(|run| run.all(sequence, &mut commits));
        outcome.transactions += u64::from(commits);
        outcome.acknowledged += u64::from(commits);
        if let Err(what) = result {
            let names: Vec<&str> = sequence.iter().map(|operation| operation.name()).collect();
            let details = format!("with the choices {:?}: {what}", choices.chosen());
            let replay = args.replay(&format!("{LAYER}:{}", names.join(".")));
            let violations = vec![Violation::new("durability", details)];
            outcome.failures.push(Failure { replay, violations, saved_in: None });
            break;
        }
        if !choices.advance() {
            break;
        }
    }
    outcome.cases += 1;
    outcome.count("runs of a sequence", runs);
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

    fn all(mut self, sequence: &[Operation], commits: &mut u32) -> Result<(), String> {
        for (nth, operation) in sequence.iter().enumerate() {
            self.step(*operation).map_err(|what| format!("operation {nth}, {}: {what}", operation.name()))?;
            *commits = self.commits;
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
            Operation::Checkpoint => {
                self.check_copy()?;
                self.all_durable();
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

    /// Copies the tables, as a checkpoint does, and opens the copy.
    fn check_copy(&self) -> Result<(), String> {
        let copy = SimStorage::new();
        let copied = self.engine.storage().with_flushed_tables(|tables, _| {
            let (snapshot, mut batch) = (tables.snapshot()?, copy.new_batch(0));
            for column in Column::ALL {
                snapshot.scan(column, &RowRange::all(), false, |key, value| {
                    batch.put(column, key, value);
                    true
                })?;
            }
            copy.write(batch)
        });
        copied.map_err(text)?;
        let builder = Store::builder().env(SimRuntime::new(&self.scheduler, 0));
        let store = builder.open_engine(Arc::new(copy.exclusive_engine())).map_err(text)?;
        let rows = store.keyspace("rows").map_err(text)?;
        let (found, expected) = (read(&store, &rows)?, self.states.last());
        store.close().map_err(text)?;
        if Some(&found) == expected { Ok(()) } else { Err(format!("the copy has {found:?} instead of {expected:?}")) }
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
        read(&self.store, &self.rows)
    }
}

fn read(store: &Store, rows: &Keyspace) -> Result<Rows, String> {
    let snapshot = store.snapshot().map_err(text)?;
    let mut found = Rows::new();
    for key in KEYS {
        if let Some(value) = snapshot.get(rows, key).map_err(text)? {
            found.insert(key, String::from_utf8_lossy(&value).into_owned());
        }
    }
    Ok(found)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the layer could not fail.
    #[test]
    fn a_state_that_the_store_never_had_is_found() {
        Scheduler::install_hooks();
        let mut choices = Choices::default();
        let mut run = Run::new(&mut choices).expect("a new store opens");
        run.step(Operation::PutSync).expect("a commit");
        run.states = vec![Rows::from([("a", "never".into())])];
        let copied = run.step(Operation::Checkpoint);
        run.states = vec![Rows::from([("a", "never".into())])];
        let found = run.step(Operation::PowerCut);
        drop(run);
        Scheduler::detach();
        let expected = r#"it has {"a": "1"} instead of one of [{"a": "never"}]"#;
        assert_eq!(found, Err(expected.into()), "after a power cut");
        let expected = r#"the copy has {"a": "1"} instead of Some({"a": "never"})"#;
        assert_eq!(copied, Err(expected.into()), "in a checkpoint");
    }

    #[test]
    fn each_sequence_comes_once_and_has_a_case() {
        let all = sequences(QUICK_LENGTH);
        assert_eq!(all.len(), (12 + 12 * 12) * ENDS.len());
        let cases: std::collections::BTreeSet<String> = all
            .iter()
            .map(|sequence| sequence.iter().map(|operation| operation.name()).collect::<Vec<_>>().join("."))
            .collect();
        assert_eq!(cases.len(), all.len(), "two sequences have one name");
        let again: Vec<_> = cases.iter().map(|case| sequence_of(case).expect("a case of the layer")).collect();
        assert!(again.iter().all(|sequence| all.contains(sequence)), "a case names another sequence");
        assert!(sequence_of("sequences:put.fly").is_err(), "an unknown operation");
    }
}
