//! What the simulation guarantees for its histories.

use percolite_crashtest::history::Line;
use percolite_crashtest::sim::runner::{SimArgs, run_with};
use percolite_crashtest::sim::{Mode, Scheduler, SimResult, TRANSACTIONS_MIN, run};

const MODES: [Mode; 2] = [Mode::Embedded, Mode::Shared];

fn histories(mode: Mode) -> impl Iterator<Item = (u64, SimResult)> {
    Scheduler::install_hooks();
    let first = rand::random_range(0..1 << 40);
    println!("{mode:?} from seed {first}");
    (first..first + 40).map(move |seed| (seed, run(mode, seed, false)))
}

#[test]
fn every_history_holds_and_almost_all_count() {
    for mode in MODES {
        let mut uncounted = Vec::new();
        for (seed, run) in histories(mode) {
            let sessions = |line: &Line| if let Line::Transaction(txn) = line { Some(txn.session) } else { None };
            let transactions = run.lines().filter(|line| sessions(line).is_some()).count() as u64;
            let crashes = run.lines().filter(|line| *line == Line::Crash).count();
            assert!(run.violations.is_empty(), "{mode:?}/{seed}: {:?}", run.violations);
            if run.is_valid {
                assert!(crashes > 0 && transactions >= TRANSACTIONS_MIN, "{mode:?}/{seed}");
            } else {
                uncounted.push(seed);
            }
        }
        // A history without a crash or with too few transactions does not count: a few in ten
        // thousand are so.
        assert!(uncounted.len() <= 1, "{mode:?}: {uncounted:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for mode in MODES {
        for (seed, first) in histories(mode).take(10) {
            let second = run(mode, seed, false);
            assert_eq!(first.digest, second.digest, "{mode:?}/{seed}");
            assert!(first.lines().eq(second.lines()), "{mode:?}/{seed}");
        }
    }
}

#[test]
fn a_run_has_the_requested_number_of_valid_histories() {
    let common = percolite_crashtest::layer_args::LayerArgs { seed: 1, ..Default::default() };
    let outcome = run_with(&SimArgs { common, mode: None, count: Some(30) }).expect("the arguments are valid");
    assert_eq!((outcome.cases, outcome.failures.len()), (30, 0));
}
