//! Ways to get Percolator wrong, each a test: case by case, engine by engine, one phase and two.
//!
//! The numbers are those of the list that the project was given (`percolator-cases.md`, 62 lines). A run ends with a table of
//! every case: passed, or not applicable and why. It fails when a case fails, is missing, is there twice, or was
//! decided for some columns of the table only.
//!
//! ```text
//! cargo test --release --workspace --test cases              everything
//! cargo test --release --workspace --test cases -- 37 deadlock   these cases: numbers, or words of their names
//! PERCOLITE_SEED=7 cargo test ...                            the same random choices as the run that printed 7
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
mod collection;
mod conflicts;
mod crash;
#[cfg(feature = "rocks")]
#[path = "../support/folders.rs"]
mod folders;
mod hand;
mod killed;
mod pipeline;
mod races;
mod reads;
mod report;
mod rollback_and_prewrite;
mod scans;
mod tap;
mod timestamps;
mod undecided;
mod waiting;
#[cfg(feature = "rocks")]
mod wal;
mod world;

fn main() -> std::process::ExitCode {
    let headings = [
        ("Roll-back and prewrite", rollback_and_prewrite::cases()),
        ("Timestamps", timestamps::cases()),
        ("Reads", reads::cases()),
        ("Conflicts", conflicts::cases()),
        ("Crash and recovery", crash::cases()),
        ("Garbage collection", collection::cases()),
        ("Of our own pipeline", pipeline::cases()),
    ];
    report::run(headings.into())
}
