//! Random operations on a store and on a model of snapshot isolation: both must give the same
//! results, conflicts included.
//!
//! A failure prints the smallest list of operations that shows it. Its seed is written to
//! `model.proptest-regressions`, and later runs try it first. `PROPTEST_CASES` (256 by default)
//! scales the number of lists that are tried on each engine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, clippy::type_complexity, reason = "style of a library, not of its tests")]

mod drive;
mod handle;
mod operations;
mod reference;
#[path = "../support/mod.rs"]
mod support;

use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

use crate::operations::{Profile, cases};
use crate::support::Home;

/// Tries `share` percent of the requested number of cases.
fn check(profile: Profile, share: u32, home: fn() -> Home) {
    let requested = Config::default();
    let config = Config {
        cases: (requested.cases * share).div_ceil(100),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/model/model.proptest-regressions"))),
        ..requested
    };
    let tried = TestRunner::new(config).run(&cases(profile), |case| drive::run(home(), &case));
    if let Err(error) = tried {
        panic!("{error}");
    }
}

#[test]
fn few_rows_in_sim() {
    check(Profile::FewRows, 500, Home::embedded);
}

#[test]
fn few_rows_in_sim_shared_by_two_clients() {
    check(Profile::FewRows, 1600, Home::shared);
}

#[cfg(feature = "rocks")]
#[test]
fn few_rows_in_rocks() {
    check(Profile::FewRows, 40, Home::rocks);
}

#[test]
fn many_rows_in_sim() {
    check(Profile::ManyRows, 100, Home::embedded);
}

#[test]
fn many_rows_in_sim_shared_by_two_clients() {
    check(Profile::ManyRows, 100, Home::shared);
}

#[cfg(feature = "rocks")]
#[test]
fn many_rows_in_rocks() {
    check(Profile::ManyRows, 30, Home::rocks);
}
