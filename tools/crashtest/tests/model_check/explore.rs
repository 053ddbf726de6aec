//! Explores every state that a model can reach, and reports the result.
//!
//! An exploration proves something only if it ends, and if the interesting events did occur. So
//! each configuration has a minimum number of states, and a list of events that must occur
//! ([`Coverage`]). Events are counted when steps are taken, and are no part of the states, because
//! they would multiply the number of states. A violation is shown as one of the shortest paths of
//! actions that lead to it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::spec::Invariant;

/// The smallest machine on which the tests run has two cores.
const THREADS: usize = 2;

/// One exploration runs at a time, because each needs the machine's memory.
static EXPLORING: Mutex<()> = Mutex::new(());

/// A model that can print its states and actions.
pub trait Describe: Model {
    fn violation(state: &Self::State) -> Option<Invariant>;
    fn coverage(&self) -> &Coverage;
    /// The action, with its actor and the actor's state.
    fn describe(&self, state: &Self::State, action: &Self::Action) -> String;
    fn show(&self, state: &Self::State) -> String;
}

/// Events, with the number of times that each has occurred.
pub struct Coverage(Vec<(&'static str, AtomicU64)>);

impl Coverage {
    pub fn of(names: &[&'static str]) -> Self {
        Self(names.iter().map(|name| (*name, AtomicU64::new(0))).collect())
    }

    /// Counts an event, if this configuration expects it.
    pub fn hit(&self, what: &str) {
        if let Some((_, times)) = self.0.iter().find(|(name, _)| *name == what) {
            times.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The invariants as properties of states.
pub fn invariants<M: Describe>() -> Vec<Property<M>> {
    macro_rules! always {
        ($($name:ident: $text:literal)*) => {
            vec![$(Property::always($text, |_, state| M::violation(state) != Some(Invariant::$name))),*]
        };
    }
    always! {
        SingleStatus: "a transaction has one status, always and on every row"
        PrimaryFirst: "no row is committed before its primary"
        NoLockAfterEnd: "a transaction does not lock a row on which it has ended"
        FirstCommitterWins: "of two concurrent transactions that write the same row only one commits"
        TimestampsInOrder: "read_ts, start_ts and commit_ts are in order, and commit_ts is unique"
        OneLock: "a lock is replaced or removed only by its own transaction"
        LiveOwnersLeftAlone: "a transaction with a live owner is not ended by others"
        LocksResolvable: "every lock can be resolved"
        SnapshotsWhole: "a reader sees every commit at or below its timestamp, and no other"
        ValuesThere: "exactly the referenced values are stored"
        AcknowledgedSurvives: "acknowledged commits survive"
        NothingLeft: "at the end no lock and no transaction record is left"
    }
}

/// Explores all states, and prints their number with the name of the test. Fails if an invariant is
/// violated, and prints a path to the violation; or if there are fewer than `states_min` states, or
/// an event of the [`Coverage`] never occurred.
pub fn explore<M>(model: M, states_min: usize)
where
    M: Describe + Send + Sync + 'static,
    M::State: Clone + PartialEq + std::hash::Hash + Send + Sync + 'static,
    M::Action: Clone + PartialEq,
{
    let test = std::thread::current();
    let name = test.name().unwrap();
    let _alone = EXPLORING.lock();
    let started = Instant::now();
    let explored = model.checker().threads(THREADS).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!(
        "\n{name}: {} states, generated {} times, depth {}, {:.1} s",
        explored.unique_state_count(),
        explored.state_count(),
        explored.max_depth(),
        started.elapsed().as_secs_f64()
    );
    let model = explored.model();
    for (event, times) in &model.coverage().0 {
        println!("    {:>10} x {event}", times.load(Ordering::Relaxed));
    }

    let found = explored.discoveries();
    let shortest =
        found.into_iter().map(|(invariant, path)| (invariant, path.into_vec())).min_by_key(|(_, path)| path.len());
    if let Some((invariant, path)) = shortest {
        println!("\n{name}: violated: {invariant}");
        for (number, (state, action)) in path.iter().enumerate() {
            match action {
                Some(action) => println!("{:>4}. {}", number + 1, model.describe(state, action)),
                None => println!("{}", model.show(state)),
            }
        }
        panic!("{name}: violated: {invariant}; the path is printed above");
    }
    assert!(explored.is_done(), "{name}: the exploration did not complete");
    let states = explored.unique_state_count();
    assert!(states >= states_min, "{name}: only {states} states, at least {states_min} are expected");
    for (event, times) in &model.coverage().0 {
        assert!(times.load(Ordering::Relaxed) > 0, "{name}: never occurred: {event}");
    }
}
