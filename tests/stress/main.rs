//! Many threads at once, with the books checked all the while; power cuts in the middle; and races made to happen.
//!
//! Every test prints its seed; `PERCOLITE_SEED=number` makes all of them use that one. Threads are scheduled by the
//! machine, so a seed repeats the choices and not the interleaving. No test measures time. One that hangs is ended, with
//! the names of those that still run.

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
