//! Every order of steps, every crash, every late message: the protocol explored exhaustively, within bounds.
//!
//! Other tests run the store and hope to be unlucky. This one leaves nothing to luck: two models call the protocol's own
//! functions and guards on plain rows ([`rows`]) and try everything that can happen to two or three transactions on two or
//! three rows. [`embedded`] is one process with a log that a crash cuts; [`shared`] is several clients of one
//! engine, with a clock, readers, and changes that arrive late or twice. After every step a [`judge`] who knows nothing of the
//! protocol says whether a promise is broken, and [`explore`] shows the path that leads there.
//!
//! The models decide in which order steps run, as the coordinators do; what a step does to a row only the protocol decides.
//! So a change of `src/protocol` is tried here the moment that it is made. What is not here: threads, bytes, disks.
//!
//! Bounds are chosen so that all explorations together take about a minute on two cores.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod embedded;
mod explore;
mod rows;
mod shared;
mod spec;

use percolite::row::{Mutation, SHORT_VALUE_MAX_BYTES};

use crate::embedded::Embedded;
use crate::explore::{Coverage, explore};
use crate::shared::Shared;
use crate::spec::Script;

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

const DELETE: Mutation = Mutation::Delete;
const HOLD: Mutation = Mutation::LockOnly;

fn put() -> Mutation {
    Mutation::Put("".into())
}

/// A value that does not fit into the lock.
fn long() -> Mutation {
    Mutation::Put(vec![0; SHORT_VALUE_MAX_BYTES + 1].into())
}

fn two_phase<const N: usize>(writes: [(usize, Mutation); N]) -> Script {
    Script { writes: writes.into(), primary_last: false, one_phase: false }
}

fn one_phase<const N: usize>(writes: [(usize, Mutation); N]) -> Script {
    Script { one_phase: true, ..two_phase(writes) }
}

/// Two phases, the primary locked last.
fn backwards<const N: usize>(writes: [(usize, Mutation); N]) -> Script {
    Script { primary_last: true, ..two_phase(writes) }
}

#[test]
fn embedded_a_crash_within_recovery_leaves_whole_transactions() {
    let model = Embedded {
        scripts: vec![two_phase([(A, put()), (B, put())]), two_phase([(B, put()), (A, put())])],
        rows: 2,
        batch_rows: 1,
        rows_with_primary: 1,
        crashes: 2,
        resolvers: 2,
        coverage: Coverage::of(&[
            "a crash loses a commit that was not acknowledged",
            "a crash interrupts the recovery from another",
            "an errand rolls a row forward",
            "an errand rolls a row back",
            "an errand comes too late",
            "an owner finds its row rolled forward by somebody else",
            "a writer meets a live lock",
            "a writer meets a newer commit",
            "the sweep forgets how the dead ended",
        ]),
    };
    explore(model, 150_000);
}

#[test]
fn embedded_the_status_tells_until_the_last_of_three_rows() {
    let model = Embedded {
        scripts: vec![two_phase([(A, put()), (B, put()), (C, put())]), two_phase([(C, put()), (A, put())])],
        rows: 3,
        batch_rows: 1,
        rows_with_primary: 1,
        crashes: 1,
        resolvers: 2,
        coverage: Coverage::of(&[
            "a crash loses a commit that was not acknowledged",
            "an errand rolls a row forward",
            "an errand rolls a row back",
            "an errand comes too late",
            "an owner finds its row rolled forward by somebody else",
        ]),
    };
    explore(model, 190_000);
}

#[test]
fn embedded_one_phase_and_two_phase_and_holds_get_along() {
    let model = Embedded {
        scripts: vec![
            two_phase([(A, put()), (B, HOLD)]),
            two_phase([(B, put()), (A, put())]),
            one_phase([(A, HOLD), (B, put())]),
        ],
        rows: 2,
        batch_rows: 1,
        rows_with_primary: 1,
        crashes: 1,
        resolvers: 2,
        coverage: Coverage::of(&[
            "a crash loses a commit that was not acknowledged",
            "an errand rolls a row forward",
            "an errand rolls a row back",
            "an owner finds its row rolled forward by somebody else",
            "a writer meets a live lock",
            "a writer meets a newer commit",
        ]),
    };
    explore(model, 600_000);
}

fn long_values_and_deletions() -> Vec<Script> {
    vec![
        two_phase([(A, long()), (B, long()), (C, DELETE)]),
        two_phase([(A, DELETE), (C, long())]),
        one_phase([(A, put()), (B, put())]),
    ]
}

#[test]
fn embedded_long_values_and_deletions_are_whole_in_groups() {
    let model = Embedded {
        scripts: long_values_and_deletions(),
        rows: 3,
        batch_rows: 3,
        rows_with_primary: 1,
        crashes: 2,
        resolvers: 1,
        coverage: Coverage::of(&[
            "a crash loses a commit that was not acknowledged",
            "an errand rolls a row forward",
            "an owner finds its row rolled forward by somebody else",
            "an errand rolls a row back",
            "the sweep forgets how the dead ended",
        ]),
    };
    explore(model, 1_000_000);
}

/// Of three rows one is left behind the commit point, of two none.
#[test]
fn embedded_rows_that_fit_are_committed_with_the_primary() {
    let model = Embedded {
        scripts: long_values_and_deletions(),
        rows: 3,
        batch_rows: 2,
        rows_with_primary: 2,
        crashes: 2,
        resolvers: 1,
        coverage: Coverage::of(&[
            "a crash loses a commit that was not acknowledged",
            "an errand rolls a row forward",
            "an errand rolls a row back",
            "the sweep forgets how the dead ended",
        ]),
    };
    explore(model, 300_000);
}

#[test]
fn shared_late_and_repeated_changes_do_no_harm() {
    let model = Shared {
        scripts: vec![two_phase([(A, put()), (B, put())]), two_phase([(A, put()), (B, put())])],
        rows: 2,
        readers: 0,
        ticks: 2,
        late_messages: 2,
        prunes: false,
        coverage: Coverage::of(&[
            "a late change is made",
            "a late lock is refused",
            "a late change that locks nothing is refused",
            "a sign of life arrives",
            "an owner learns that it was taken for dead",
            "an errand rolls a row forward",
            "an errand rolls a row back",
            "an errand comes too late",
            "a writer meets a lock",
            "a writer meets a newer commit",
        ]),
    };
    explore(model, 800_000);
}

#[test]
fn shared_a_reader_sees_the_same_whatever_is_committed_later() {
    let model = Shared {
        scripts: vec![two_phase([(A, put()), (B, put())]), two_phase([(A, put()), (B, put())])],
        rows: 2,
        readers: 1,
        ticks: 1,
        late_messages: 1,
        prunes: false,
        coverage: Coverage::of(&[
            "a reader has pushed an owner above itself",
            "a reader reads what a lock intends",
            "a reader reads past a newer version",
            "an errand rolls a row forward",
            "an errand rolls a row back",
        ]),
    };
    explore(model, 3_000_000);
}

#[test]
fn shared_readers_push_one_owner_together() {
    let model = Shared {
        scripts: vec![two_phase([(A, long()), (B, DELETE)])],
        rows: 2,
        readers: 2,
        ticks: 1,
        late_messages: 1,
        prunes: false,
        coverage: Coverage::of(&["a reader has pushed an owner above itself", "an errand comes too late"]),
    };
    explore(model, 800_000);
}

#[test]
fn shared_three_writers_with_holds_and_deletions() {
    let model = Shared {
        scripts: vec![
            // The first two share a row that one of them only holds, and that may be absent or deleted.
            two_phase([(A, HOLD), (B, long())]),
            two_phase([(A, DELETE)]),
            two_phase([(A, put()), (B, HOLD)]),
        ],
        rows: 2,
        readers: 0,
        ticks: 1,
        late_messages: 0,
        prunes: false,
        coverage: Coverage::of(&[
            "an errand rolls a row forward",
            "an errand rolls a row back",
            "a writer meets a newer commit",
        ]),
    };
    explore(model, 400_000);
}

#[test]
fn shared_a_late_change_finds_the_safe_point_where_the_end_is_forgotten() {
    let model = Shared {
        scripts: vec![two_phase([(A, put()), (B, put())]), two_phase([(A, put()), (B, put())])],
        rows: 2,
        readers: 0,
        ticks: 1,
        late_messages: 1,
        prunes: true,
        coverage: Coverage::of(&[
            "an end is forgotten",
            "a late lock is refused",
            "an owner asks after its end is forgotten",
        ]),
    };
    explore(model, 350_000);
}

#[test]
fn shared_a_reader_outlives_the_records_that_it_asks_for() {
    let model = Shared {
        scripts: vec![two_phase([(A, put()), (B, put())])],
        rows: 2,
        readers: 1,
        ticks: 1,
        late_messages: 1,
        prunes: true,
        coverage: Coverage::of(&["an end is forgotten", "a reader comes after its answer is forgotten"]),
    };
    explore(model, 130_000);
}

#[test]
fn shared_a_primary_that_was_never_locked_says_rolled_back() {
    let model = Shared {
        scripts: vec![backwards([(A, put()), (B, put())]), two_phase([(B, put()), (A, put())])],
        rows: 2,
        readers: 0,
        ticks: 1,
        late_messages: 2,
        // While its primary is not locked a safe point above it would leave the other lock without a verdict.
        prunes: false,
        coverage: Coverage::of(&["an errand rolls a row back", "an errand rolls a row forward"]),
    };
    explore(model, 250_000);
}

#[test]
fn shared_a_reader_of_an_old_view_is_never_told_a_forgotten_end() {
    let model = Shared {
        scripts: vec![two_phase([(A, put()), (B, put())]), two_phase([(A, put())])],
        rows: 2,
        readers: 1,
        ticks: 0,
        late_messages: 0,
        prunes: true,
        coverage: Coverage::of(&["an end is forgotten", "a reader comes after its answer is forgotten"]),
    };
    explore(model, 120_000);
}
