//! Explores every state that a model can reach, and says what was found.
//!
//! An exploration proves something only if it came to its end and if what was to be provoked did happen. So each configuration
//! says how many states there must be at least, and lists *sights*: things that must have been met under way. They
//! are counted as steps are taken, because most of them are events, and keeping events in the states would only multiply
//! those. A broken rule is shown as the path of actions that leads to it, one of the shortest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::spec::Invariant;

/// Two cores are what the smallest machine has.
const THREADS: usize = 2;

/// One exploration at a time has the machine's memory for itself.
static EXPLORING: Mutex<()> = Mutex::new(());

/// A model that can tell what happens in it.
pub trait Describe: Model {
    fn violation(state: &Self::State) -> Option<Invariant>;
    fn coverage(&self) -> &Coverage;
    /// The action, and who does what in it.
    fn describe(&self, state: &Self::State, action: &Self::Action) -> String;
    fn show(&self, state: &Self::State) -> String;
}

/// What was met under way, and how often.
pub struct Coverage(Vec<(&'static str, AtomicU64)>);

impl Coverage {
    pub fn of(names: &[&'static str]) -> Self {
        Self(names.iter().map(|name| (*name, AtomicU64::new(0))).collect())
    }

    /// Counts the sight, if this configuration looks out for it.
    pub fn hit(&self, what: &str) {
        if let Some((_, times)) = self.0.iter().find(|(name, _)| *name == what) {
            times.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The rules as properties of states.
pub fn rules<M: Describe>() -> Vec<Property<M>> {
    macro_rules! always {
        ($($rule:ident: $promise:literal)*) => {
            vec![$(Property::always($promise, |_, state| M::violation(state) != Some(Invariant::$rule))),*]
        };
    }
    always! {
        SingleStatus: "a transaction has one verdict, for ever and everywhere"
        PrimaryFirst: "nothing is committed before its primary"
        NoLockAfterEnd: "a row that a transaction has ended on is never locked by it again"
        FirstCommitterWins: "of two that overlap and write the same row only one commits"
        TimestampsInOrder: "read_ts, start_ts and commit_ts are in order, and commit_ts is unique"
        OneLock: "a lock is taken over and let go by its owner's transaction alone"
        LiveOwnersLeftAlone: "nobody ends a transaction whose owner lives"
        LocksResolvable: "every lock can be resolved"
        SnapshotsWhole: "a reader sees every commit at or below its timestamp, and no other"
        ValuesThere: "every value that is pointed to is there, and no other"
        AcknowledgedSurvives: "what was acknowledged survives"
        NothingLeft: "when all is over no lock and no record of an end is left"
    }
}

/// Explores all there is, in the name of the test; fails with a path where a rule is broken.
pub fn explore<M>(model: M, states_min: usize)
where
    M: Describe + Send + Sync + 'static,
    M::State: Clone + PartialEq + std::hash::Hash + Send + Sync + 'static,
    M::Action: Clone + PartialEq,
{
    let test = std::thread::current();
    let name = test.name().unwrap();
    let _alone = EXPLORING.lock();
    let begun = Instant::now();
    let explored = model.checker().threads(THREADS).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!(
        "\n{name}: {} states, generated {} times, depth {}, {:.1} s",
        explored.unique_state_count(),
        explored.state_count(),
        explored.max_depth(),
        begun.elapsed().as_secs_f64()
    );
    let model = explored.model();
    for (sight, times) in &model.coverage().0 {
        println!("    {:>10} x {sight}", times.load(Ordering::Relaxed));
    }

    let found = explored.discoveries();
    let shortest =
        found.into_iter().map(|(promise, path)| (promise, path.into_vec())).min_by_key(|(_, path)| path.len());
    if let Some((promise, path)) = shortest {
        println!("\n{name}: BROKEN: {promise}");
        for (number, (state, action)) in path.iter().enumerate() {
            match action {
                Some(action) => println!("{:>4}. {}", number + 1, model.describe(state, action)),
                None => println!("{}", model.show(state)),
            }
        }
        panic!("{name}: broken: {promise}; the path is printed above");
    }
    assert!(explored.is_done(), "{name}: the exploration did not come to its end");
    let states = explored.unique_state_count();
    assert!(states >= states_min, "{name}: only {states} states, {states_min} are expected at least");
    for (sight, times) in &model.coverage().0 {
        assert!(times.load(Ordering::Relaxed) > 0, "{name}: never met: {sight}");
    }
}
