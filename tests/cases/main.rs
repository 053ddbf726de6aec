//! Known ways to get Percolator wrong: a table of cases, engines and commit protocols.
//!
//! A case is a bug that a public system had or nearly had (TiKV, Badger, CockroachDB, OMID and
//! others), or one that a review of this pipeline found. It is named by its pitfall. Where there is
//! a public issue, the test's doc comment names it.
//!
//! A run ends with the table. For each case and each engine it says that the case passed, that it
//! failed, or why it is not applicable. The run fails if a case fails, is missing, has the name of
//! another case, or has neither a test nor a reason for a column.
//!
//! ```text
//! cargo test --release --test cases                     all cases
//! cargo test --release --test cases -- rollback resolv  cases with one of these in their name
//! PERCOLITE_SEED=7 cargo test ...                       the choices of the run that printed 7
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(
    clippy::pedantic,
    clippy::type_complexity,
    clippy::result_large_err,
    reason = "style of a library, not of its tests"
)]

mod acknowledged;
mod clocks;
mod conflicts;
mod crash;
#[cfg(feature = "rocks")]
#[path = "../support/directories.rs"]
mod directories;
mod driver;
mod environment;
mod gc;
#[path = "../support/hooked_engine.rs"]
mod hooked_engine;
mod killed;
mod pipeline;
mod races;
mod reads;
mod report;
mod rollback_and_prewrite;
mod scans;
mod timestamps;
mod undecided;
mod waiting;
#[cfg(feature = "rocks")]
mod wal;

fn main() -> std::process::ExitCode {
    let headings = [
        ("Rollback and prewrite", rollback_and_prewrite::cases()),
        ("Timestamps", timestamps::cases()),
        ("Reads", reads::cases()),
        ("Conflicts", conflicts::cases()),
        ("Crash and recovery", crash::cases()),
        ("Garbage collection", gc::cases()),
        ("Commit pipeline", pipeline::cases()),
    ];
    report::run(headings.into())
}
