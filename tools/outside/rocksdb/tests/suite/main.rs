//! The behaviour that `RocksDB`'s own tests of transactions ask for, on percolite.
//!
//! The tests are `transaction_test.cc`, `optimistic_transaction_test.cc`, their helper
//! `RandomTransactionInserter` and `timestamped_snapshot_test.cc` of `RocksDB` 11.8. Each test
//! here names the one whose behaviour it asks for. Where the two stores differ by design, the text
//! says how: percolite decides conflicts at the commit, as the optimistic transactions do, and a
//! transaction always has a snapshot, taken when it begins. Row locks that a client waits for are
//! named locks here.
//!
//! Each test runs in both commit protocols.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test that cannot continue fails")]

mod conflicts;
mod iterators;
mod keyspaces;
mod large;
mod named_locks;
mod recovery;
mod savepoints;
mod snapshots;
mod stress;
mod support;
