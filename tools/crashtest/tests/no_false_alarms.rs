//! The checker reports no violation in the histories of a correct store.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    clippy::pedantic,
    reason = "a test that cannot continue fails"
)]

mod support;

use percolite_crashtest::checker::CheckResult;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::support::store::{Shape, history};
use crate::support::{report, seed, text};

const HISTORIES: u64 = 20_000;

#[test]
fn valid_histories_have_no_violation() {
    let seed = seed();
    let mut seen = 0;
    for number in 0..HISTORIES {
        let shape = Shape::random(&mut StdRng::seed_from_u64(seed + number));
        let lines = history(seed + number, &shape);
        let report = report(&lines);
        seen += report.inferred_committed;
        assert_ne!(report.result, CheckResult::Violated, "number {number}\n{}\n{report}", text(&lines));
    }
    println!("{HISTORIES} histories, {seen} commits inferred");
    assert!(seen as u64 > HISTORIES / 10, "too few unknown outcomes were observed");
}
