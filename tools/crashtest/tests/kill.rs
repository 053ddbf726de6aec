//! A few cases with killed processes. The harness itself runs all of them.

#![cfg(feature = "rocks")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

use parking_lot::Mutex;
use percolite_crashtest::kill::{Config, run_case};
use percolite_crashtest::layer_result::LayerResult;
use percolite_crashtest::mutants;
use percolite_crashtest::violation::Violation;

/// One test at a time: a mutant is switched on for this whole process, which verifies all stores.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn run(case: &str, mutant: Option<&str>) -> LayerResult {
    let _alone = ONE_AT_A_TIME.lock();
    let program = env!("CARGO_BIN_EXE_percolite-crashtest").into();
    let mutant = mutant.map(|name| mutants::named(name).unwrap());
    run_case(&Config { program, mutant, ..Config::new().unwrap() }, case).unwrap()
}

#[test]
fn a_killed_process_loses_no_acknowledged_commit() {
    for case in [
        "kill:group.written/2/two-phase/sync/17",
        "kill:commit.primary/last/two-phase/buffered/18",
        "kill:commit.done/1/auto/buffered/19",
        "kill:create.before/2/auto/sync/20",
    ] {
        let outcome = run(case, None);
        assert!(outcome.passed(), "{outcome:#?}");
    }
}

#[test]
fn detects_rollback_without_primary() {
    let case = |seed| {
        run(&format!("kill:resolve.before-roll-forward/1/two-phase/sync/{seed}"), Some("rollback-without-primary"))
    };
    let failed = (0..10).map(case).find(|outcome| !outcome.failures.is_empty());
    let failed = failed.expect("one of ten cases finds the mutant");
    assert!(failed.failures[0].replay.ends_with("--mutant rollback-without-primary"));
    // The failure is expected, so its saved files are not needed.
    let dir = failed.failures[0].saved_in.as_ref().expect("the failure is saved");
    assert!(dir.join("history.jsonl").exists());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn detects_early_gc() {
    let case = |seed| run(&format!("kill:gc.done/last/auto/sync/{seed}"), Some("gc-too-early"));
    let failed = (1..10).map(case).find(|outcome| !outcome.failures.is_empty());
    let failed = failed.expect("one of nine cases finds the mutant");
    // The checker, a transaction whose own reads disagree, or a changed historical state may show
    // the mistake.
    let shows_it = |violation: &Violation| {
        violation.invariant == "isolation"
            || violation.details.contains(", reading at ")
            || violation.details.contains("the state at")
    };
    assert!(failed.failures[0].violations.iter().any(shows_it), "{failed:#?}");
    std::fs::remove_dir_all(failed.failures[0].saved_in.as_ref().expect("the failure is saved")).unwrap();
}

#[test]
fn an_unknown_crash_point_is_refused() {
    let config = Config::new().unwrap();
    assert!(run_case(&config, "kill:nowhere/1/auto/sync/1").is_err());
}
