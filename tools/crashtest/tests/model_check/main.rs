//! Model checking of the protocol, exhaustive within bounds: every order of steps, every crash,
//! every late message.
//!
//! Two models call the protocol's own functions and preconditions on plain rows ([`rows`]), and try
//! everything that can happen to two or three transactions on two or three rows. [`embedded`] is
//! one process with a log that a crash truncates. [`shared`] is several clients of one engine, with
//! a clock, readers, and changes that arrive late or twice. After every step [`spec`] checks the
//! invariants, and [`explore`] prints the path to a violation.
//!
//! The models decide the order of steps, as the coordinators do. Only the protocol decides what a
//! step does to a row, so every change of `src/protocol` is tested here. Threads, bytes and disks
//! are not modelled.
//!
//! Bounds are chosen so that all explorations together take about a minute on two cores.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot continue fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of libraries, not of tests")]

mod embedded;
mod explore;
mod rows;
mod shared;
mod spec;

use percolite::row::{MAX_SHORT_VALUE_BYTES, Mutation};

use crate::embedded::Embedded;
use crate::explore::{Coverage, explore};
use crate::shared::Shared;
use crate::spec::Script;

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

const DELETE: Mutation = Mutation::Delete;
const LOCK_ONLY: Mutation = Mutation::LockOnly;

fn put() -> Mutation {
    Mutation::Put("".into())
}

/// A value that is too long to be stored in the lock.
fn long() -> Mutation {
    Mutation::Put(vec![0; MAX_SHORT_VALUE_BYTES + 1].into())
}

fn two_phase<const N: usize>(writes: [(usize, Mutation); N]) -> Script {
    Script { writes: writes.into(), primary_last: false, one_phase: false }
}

fn one_phase<const N: usize>(writes: [(usize, Mutation); N]) -> Script {
    Script { one_phase: true, ..two_phase(writes) }
}

/// Two phases, where the primary is locked last.
fn primary_last<const N: usize>(writes: [(usize, Mutation); N]) -> Script {
    Script { primary_last: true, ..two_phase(writes) }
}

#[test]
fn embedded_a_crash_within_recovery_keeps_atomicity() {
    let model = Embedded {
        scripts: vec![two_phase([(A, put()), (B, put())]), two_phase([(B, put()), (A, put())])],
        rows: 2,
        batch_rows: 1,
        rows_with_primary: 1,
        crashes: 2,
        resolvers: 2,
        coverage: Coverage::of(&[
            "a crash loses an unacknowledged commit",
            "a crash interrupts the recovery from another",
            "a resolver rolls a row forward",
            "a resolver rolls a row back",
            "a resolver is too late",
            "an owner finds its row already rolled forward",
            "a writer meets a live lock",
            "a writer meets a newer commit",
            "the sweep deletes transaction records",
        ]),
    };
    explore(model, 150_000);
}

#[test]
fn embedded_the_record_stays_until_the_last_of_three_rows() {
    let model = Embedded {
        scripts: vec![two_phase([(A, put()), (B, put()), (C, put())]), two_phase([(C, put()), (A, put())])],
        rows: 3,
        batch_rows: 1,
        rows_with_primary: 1,
        crashes: 1,
        resolvers: 2,
        coverage: Coverage::of(&[
            "a crash loses an unacknowledged commit",
            "a resolver rolls a row forward",
            "a resolver rolls a row back",
            "a resolver is too late",
            "an owner finds its row already rolled forward",
        ]),
    };
    explore(model, 190_000);
}

#[test]
fn embedded_one_phase_two_phase_and_lock_only_rows() {
    let model = Embedded {
        scripts: vec![
            two_phase([(A, put()), (B, LOCK_ONLY)]),
            two_phase([(B, put()), (A, put())]),
            one_phase([(A, LOCK_ONLY), (B, put())]),
        ],
        rows: 2,
        batch_rows: 1,
        rows_with_primary: 1,
        crashes: 1,
        resolvers: 2,
        coverage: Coverage::of(&[
            "a crash loses an unacknowledged commit",
            "a resolver rolls a row forward",
            "a resolver rolls a row back",
            "an owner finds its row already rolled forward",
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
fn embedded_long_values_and_deletions_are_atomic_in_groups() {
    let model = Embedded {
        scripts: long_values_and_deletions(),
        rows: 3,
        batch_rows: 3,
        rows_with_primary: 1,
        crashes: 2,
        resolvers: 1,
        coverage: Coverage::of(&[
            "a crash loses an unacknowledged commit",
            "a resolver rolls a row forward",
            "an owner finds its row already rolled forward",
            "a resolver rolls a row back",
            "the sweep deletes transaction records",
        ]),
    };
    explore(model, 1_000_000);
}

/// The change with the commit point commits up to two rows. So of three rows one is committed
/// later, of two rows none is.
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
            "a crash loses an unacknowledged commit",
            "a resolver rolls a row forward",
            "a resolver rolls a row back",
            "the sweep deletes transaction records",
        ]),
    };
    explore(model, 300_000);
}

fn two_writers_of_two_rows() -> Vec<Script> {
    let writer = || two_phase([(A, put()), (B, put())]);
    vec![writer(), writer()]
}

#[test]
fn shared_late_and_repeated_changes_are_harmless() {
    let model = Shared {
        scripts: two_writers_of_two_rows(),
        rows: 2,
        readers: 0,
        ticks: 2,
        late_messages: 2,
        prunes: false,
        coverage: Coverage::of(&[
            "a late change is applied",
            "a late lock is refused",
            "a late change without a lock is refused",
            "a heartbeat arrives",
            "an owner finds itself rolled back",
            "a resolver rolls a row forward",
            "a resolver rolls a row back",
            "a resolver is too late",
            "a writer meets a lock",
            "a writer meets a newer commit",
        ]),
    };
    explore(model, 800_000);
}

#[test]
fn shared_a_snapshot_does_not_change_with_later_commits() {
    let model = Shared {
        scripts: two_writers_of_two_rows(),
        rows: 2,
        readers: 1,
        ticks: 1,
        late_messages: 1,
        prunes: false,
        coverage: Coverage::of(&[
            "a reader has raised an owner's min_commit_ts",
            "a reader returns the value of a lock",
            "a reader reads past a newer version",
            "a resolver rolls a row forward",
            "a resolver rolls a row back",
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
        coverage: Coverage::of(&["a reader has raised an owner's min_commit_ts", "a resolver is too late"]),
    };
    explore(model, 800_000);
}

#[test]
fn shared_three_writers_with_lock_only_rows_and_deletions() {
    let model = Shared {
        scripts: vec![
            // The first script only locks row `A`, which may be absent, as at the start, or deleted
            // by the second script.
            two_phase([(A, LOCK_ONLY), (B, long())]),
            two_phase([(A, DELETE)]),
            two_phase([(A, put()), (B, LOCK_ONLY)]),
        ],
        rows: 2,
        readers: 0,
        ticks: 1,
        late_messages: 0,
        prunes: false,
        coverage: Coverage::of(&[
            "a resolver rolls a row forward",
            "a resolver rolls a row back",
            "a writer meets a newer commit",
        ]),
    };
    explore(model, 400_000);
}

#[test]
fn shared_late_change_is_refused_by_the_safe_point() {
    let model = Shared {
        scripts: two_writers_of_two_rows(),
        rows: 2,
        readers: 0,
        ticks: 1,
        late_messages: 1,
        prunes: true,
        coverage: Coverage::of(&[
            "a transaction record is pruned",
            "a late lock is refused",
            "an owner commits after its record is pruned",
        ]),
    };
    explore(model, 350_000);
}

#[test]
fn shared_a_reader_outlives_the_records_that_it_needs() {
    let model = Shared {
        scripts: vec![two_phase([(A, put()), (B, put())])],
        rows: 2,
        readers: 1,
        ticks: 1,
        late_messages: 1,
        prunes: true,
        coverage: Coverage::of(&["a transaction record is pruned", "a reader needs a pruned record"]),
    };
    explore(model, 130_000);
}

#[test]
fn shared_an_unlocked_primary_means_rolled_back() {
    let model = Shared {
        scripts: vec![primary_last([(A, put()), (B, put())]), two_phase([(B, put()), (A, put())])],
        rows: 2,
        readers: 0,
        ticks: 1,
        late_messages: 2,
        // If the safe point passed a transaction whose primary is not locked yet, the transaction's
        // other lock would have no status.
        prunes: false,
        coverage: Coverage::of(&["a resolver rolls a row back", "a resolver rolls a row forward"]),
    };
    explore(model, 250_000);
}

#[test]
fn shared_a_reader_of_an_old_view_gets_no_pruned_status() {
    let model = Shared {
        scripts: vec![two_phase([(A, put()), (B, put())]), two_phase([(A, put())])],
        rows: 2,
        readers: 1,
        ticks: 0,
        late_messages: 0,
        prunes: true,
        coverage: Coverage::of(&["a transaction record is pruned", "a reader needs a pruned record"]),
    };
    explore(model, 120_000);
}
