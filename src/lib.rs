//! An embedded, crash-safe, transactional key-value store with snapshot isolation, on RocksDB,
//! after Google's Percolator.
//!
//! ```
//! # fn main() -> percolite::Result<()> {
//! use percolite::Store;
//!
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("bank");
//! # #[cfg(feature = "rocks")]
//! let store = Store::open(&path)?;
//! # #[cfg(not(feature = "rocks"))]
//! # let store = Store::in_memory()?;
//! let accounts = store.keyspace("accounts")?;
//!
//! store.transact(|txn| {
//!     txn.put(&accounts, "alice", "100")?;
//!     txn.put(&accounts, "bob", "50")
//! })?; // durable when this returns
//!
//! let snapshot = store.snapshot()?;
//! for row in snapshot.range(&accounts, "a".."m").rev() {
//!     let row = row?;
//!     println!("{} has {}", row.key().escape_ascii(), row.value().escape_ascii());
//! }
//! # Ok(()) }
//! ```
//!
//! # What you get
//!
//! **Snapshot isolation.** A transaction reads one consistent state of the store, and its own
//! writes over it. If two transactions overlap and write the same row, the first to commit wins.
//! The other gets a [`Conflict`], which names the row and the transaction that was first.
//! [`Store::transact`] then runs the losing transaction again.
//!
//! Write skew is possible, as in every store with snapshot isolation. [`Txn::get_for_update`]
//! prevents it for single rows, without a wait; for ranges use a [guard
//! row](cookbook#a-range-that-must-not-change).
//!
//! **Durability.** By default a commit is acknowledged when it, and everything that its transaction
//! has read, survives a power cut ([`Durability`]).
//!
//! **Crashes.** After any crash a transaction is whole or absent, and opening does not wait for any
//! cleanup. One-phase commits, by default all up to 32 MiB ([`Builder::large_transaction_bytes`]),
//! leave nothing behind. Larger transactions, and those in [two phases](CommitProtocol::TwoPhase),
//! may leave a row lock on each row that they write.
//!
//! The first reader or writer that finds such a lock resolves it: a few point reads and one or two
//! small writes. A [background thread](Builder::background_resolve) resolves the others; until it
//! has finished, reads check for locks. See [after a crash](cookbook#after-a-crash) for what
//! remains to be done; [`Store::row_locks`] and [`Store::stats`] show the locks that are left.
//!
//! **Named locks** (PostgreSQL: advisory locks) are for work that a transaction cannot cover: one
//! migration, one nightly job, a bounded number of workers. [`Store::lock`] grants in the order of
//! requests. [`Txn::fence`] lets a transaction commit only while the lock is held. A
//! [lease](LockOptions::lease) outlives its process. With the [fencing token](LockGuard::token),
//! systems outside of the store can refuse a holder that comes too late. See [one at a
//! time](cookbook#one-at-a-time), and [when not to take one](cookbook#when-not-to-take-a-lock).
//!
//! **Observability.** [`Store::slow_transactions`], [`Store::active_transactions`],
//! [`Store::latencies`] and [`Store::stats`] show why a transaction was slow or in conflict. A
//! [label](TxnOptions::with_label) identifies a transaction in them.
//!
//! **Tests.** [`Store::in_memory`] is the same store on an in-memory engine, which can simulate
//! crashes ([`engine::sim`]).
//!
//! # The map
//!
//! | layer | modules | content |
//! |---|---|---|
//! | on top | `asynchronous`, `typed` | `AsyncStore` (feature `tokio`), [`TypedKeyspace`] |
//! | public API | `store` | [`Store`], [`Keyspace`], [`Txn`], [`Snapshot`] |
//! | coordination | `coordinator`, [`oracle`] | order of steps, timestamps, orphan locks |
//! | commit path | `pipeline`, `contention` | group commit, row queues, admission |
//! | named locks | `lock_manager` | requests, grants and queues, in memory |
//! | protocol | `protocol` | Percolator's steps as plain functions over one row |
//! | engine | [`engine`] | snapshots and conditional row changes, in a directory or in memory |
//! | storage | `wal`, `memtable`, `disk` | the log and the memtables above RocksDB's tables |
//! | base | [`row`], [`env`](mod@env), `codec`, `keys` | shared types |
//!
//! The [`cookbook`] has recipes for common tasks. In the repository, `DESIGN.md` explains the
//! design and its reasons, `docs/storage-engine.md` the log and memtables, `docs/locks.md` named
//! locks, and `docs/glossary.md` the terms.
//!
//! # Features
//!
//! `rocks` (default): the durable engine. Without it the crate needs no C++ compiler and has only
//! the in-memory engine.
//!
//! `tokio`: `AsyncStore`, the same store for asynchronous code. Without it the crate needs no
//! runtime.
//!
//! `metrics`, `tracing`: export what [`observe`] lists, to the recorder or subscriber that the
//! program has installed. [`Store::stats`], [`Store::latencies`] and [`Store::slow_transactions`]
//! need neither.

#![deny(missing_debug_implementations)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot continue must fail")
)]

#[cfg(feature = "crashtest")]
#[macro_use]
pub mod crashtest;
#[cfg(not(feature = "crashtest"))]
#[macro_use]
#[path = "no_crashtest.rs"]
mod crashtest;
#[macro_use]
pub mod observe;

#[cfg(feature = "tokio")]
mod asynchronous;
mod cell;
mod codec;
mod commit_conditions;
mod contention;
pub mod option_ranges;
mod value;
#[doc = include_str!("cookbook.md")]
pub mod cookbook {}
mod coordinator;
#[cfg_attr(
    not(all(test, feature = "rocks")),
    allow(
        dead_code,
        unused_imports,
        reason = "the simulated disk is for tests, the real one for stores in directories"
    )
)]
pub(crate) mod disk;
pub mod engine;
pub mod env;
mod error;
mod format_line;
mod json_forms;
mod keys;
mod keyspace_descriptor;
mod local_oracle;
mod lock_manager;
mod lock_value;
#[allow(missing_debug_implementations, reason = "a user has no value of its types")]
#[allow(clippy::cast_possible_truncation, reason = "slots of its hash index are 32-bit numbers")]
#[cfg_attr(not(feature = "rocks"), allow(dead_code, unused_imports, reason = "only the directory engine uses it"))]
mod memtable;
#[cfg(test)]
#[path = "memtable/tests.rs"]
mod memtable_tests;
pub mod oracle;
mod os_limits;
mod owner_id;
mod panic_guard;
mod pipeline;
mod process;
mod protocol;
mod read_view;
pub mod row;
mod row_hash;
mod row_key;
mod split_mix64;
mod store;
mod store_id;
mod sync;
mod timestamp;
mod tunables;
mod typed;
mod waiter;
#[cfg_attr(
    not(all(test, feature = "rocks")),
    allow(
        dead_code,
        unused_imports,
        reason = "the simulated disk is for tests, the real one for stores in directories"
    )
)]
pub(crate) mod wal;
mod write_set;

/// Not part of the public API: for the crash harness, the command line and the tests of this
/// repository. It changes without notice.
#[doc(hidden)]
pub mod internal {
    pub mod os_limits {
        pub use crate::os_limits::with_advice;
    }
    pub mod codec {
        pub use crate::codec::*;
    }
    pub mod keys {
        pub use crate::keys::*;
    }
    pub mod coordinator {
        pub use crate::coordinator::HistoryRetention;
    }
    pub mod local_oracle {
        pub use crate::local_oracle::{CLOCK_JUMP_MAX_MS, LocalOracle, RESERVATION_MS};
    }
    pub mod owner_id {
        pub use crate::owner_id::OwnerIdGenerator;
    }
    pub mod protocol {
        pub use crate::protocol::*;
    }
}

// Compiles the Rust examples of the README; runs those that leave no directory behind.
#[cfg(all(doctest, feature = "rocks", feature = "tokio"))]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncKeys, AsyncLockGuard, AsyncScan, AsyncSnapshot, AsyncStore};
pub use coordinator::CommitProtocol;
pub use coordinator::shared_config::{RowLockWaiter, SharedConfig, SleepingRowLockWaiter};
pub use engine::{ColumnStats, Compression, DataLoss, EngineStats, SpaceLeft};
pub use error::{Conflict, ConflictReason, Error, ErrorKind, Result};
pub use lock_manager::{
    CancelToken, ExpiredLease, LockEntry, LockHolder, LockLost, LockLostReason, LockMode, LockModeStats,
    LockNotAvailable, LockState, LockStats, LockTable, LockTarget,
};
pub use observe::{Latencies, LatencyHistogram};
pub use owner_id::OwnerId;
pub use protocol::TxnStatus;
pub use row::{KeyspaceId, RowKey};
#[cfg(feature = "rocks")]
pub use store::RepairReport;
pub use store::{
    ActiveKind, ActiveTransaction, ActiveTransactionStatus, Builder, Commit, ConflictStatus, DumpBase, DumpHeader,
    DumpOptions, DumpStats, Durability, FailedCommit, Fence, IntegrityIssue, IntoControlFlow, KeyRange, Keys, Keyspace,
    KeyspaceSize, KeyspaceStats, LockGuard, LockOptions, LockWaitPolicy, MAX_KEY_BYTES, MAX_KEYSPACE_NAME_BYTES,
    MAX_LOCK_REASON_BYTES, MAX_VALUE_BYTES, OnExisting, Readable, Reader, RetryPolicy, RetryingCall,
    RetryingCallStatus, Row, RowLock, RowLockStatus, RowLocks, Savepoint, Scan, Sequence, SlowTransaction,
    SlowTransactionStatus, Snapshot, Stats, Store, StoreStatus, TimeBreakdown, Txn, TxnOptions, TxnOutcome,
    VerifyReport, Version, Versions,
};
pub use timestamp::{ParseTimestampError, Timestamp};
pub use typed::{KeyPrefix, TypedKeys, TypedKeyspace, TypedScan};
pub use value::Value;
