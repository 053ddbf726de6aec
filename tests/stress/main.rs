//! Stress: many threads, with invariants checked all the time; power cuts under load; and forced
//! races.
//!
//! Every test prints its seed; `PERCOLITE_SEED=number` sets it for all tests. The machine schedules
//! the threads, so a seed repeats the random choices but not the interleaving. No test measures
//! time. If a test hangs, a watchdog ends the process and names the tests that still run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, clippy::explicit_write, reason = "style of a library, not of its tests")]

mod bank;
mod common;
mod counters;
mod crashes;
mod keyspaces;
mod races;
#[path = "../support/mod.rs"]
mod support;
