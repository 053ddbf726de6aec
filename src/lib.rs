//! An embedded, crash-safe, transactional key-value store with snapshot isolation, on RocksDB, after Google's Percolator.
//!
//! ```
//! # fn main() -> percolite::Result<()> {
//! use percolite::Store;
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("bank");
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
//!     let (key, value) = row?;
//!     println!("{} has {}", key.escape_ascii(), value.escape_ascii());
//! }
//! # Ok(()) }
//! ```
//!
//! # What you get
//!
//! **Snapshot isolation.** A transaction reads one moment of the store and its own writes over it. Of two that overlap and
//! write the same row, the first to commit wins; the other is told which row, by whom and when ([`Conflict`]), and
//! [`Store::transact`] runs it again. Write skew is possible, as in every store with snapshot isolation:
//! [`Txn::get_for_update`], which is optimistic too, closes it for the rows named; a range takes a
//! [guard row](cookbook#a-range-that-must-not-change).
//!
//! **Durability.** By default a commit is acknowledged when it would survive a power cut ([`Durability`]). Whatever a
//! transaction has read is durable too by the time that anything computed from it is acknowledged.
//!
//! **Crashes.** A transaction is whole or absent after any crash, and opening never waits for what a
//! crash left half done. Commits in one phase, by default all up to 32 MiB
//! ([`Builder::large_transaction_bytes`]), leave nothing. Larger ones, and those in [two
//! phases](CommitProtocol::TwoPhase), leave a row lock on each row that they had written. The first reader
//! or writer that meets one pays: a few point reads and one or two small writes. A [background
//! sweep](Builder::background_resolve) resolves the others; until it has, reads look for locks. See
//! [after a crash](cookbook#after-a-crash) for figures, and [`Store::row_locks`] and [`Store::stats`] for
//! what is left.
//!
//! **Locks by name.** For what a transaction cannot cover: one migration, one nightly job, so many
//! workers. [`Store::lock`] waits in the order of asking, [`Txn::fence`] has a transaction commit only
//! while the lock is held, a [lease](LockOptions::lease) outlives its process, and a
//! [token](LockGuard::token) stops late holders outside of the store. See
//! [one at a time](cookbook#one-at-a-time), and [when not to take
//! one](cookbook#when-not-to-take-a-lock).
//!
//! **Answers.** Why a transaction was slow or in conflict, the store says itself: [`Store::slow_transactions`], [`Store::active_transactions`],
//! [`Store::latencies`], [`Store::stats`]. Give transactions a [label](TxnOptions::with_label), and they are called by it.
//!
//! **Tests.** [`Store::in_memory`] is the same store over an engine in memory, whose crashes can be chosen
//! ([`engine::sim`]).
//!
//! # The map
//!
//! | layer | where | what |
//! |---|---|---|
//! | beside it | `asynchronous`, `typed` | `AsyncStore` (feature `tokio`), [`TypedKeyspace`] |
//! | public API | `store` | [`Store`], [`Keyspace`], [`Txn`], [`Snapshot`], [`Store::transact`], [`Store::lock`] |
//! | coordination | `coordinator`, `pipeline` | in which order steps run, and who waits for what |
//! | locks by name | `locking` | requests, grants and queues, in memory |
//! | protocol | [`protocol`] | Percolator's steps as plain functions over one row |
//! | engine | [`engine`] | consistent views and guarded row changes: a folder with log and RocksDB's tables, memory |
//! | below all | [`bounds`], [`row`], [`writes`], [`timestamp`], [`owner`], [`codec`], [`keys`], [`runtime`], [`oracle`], [`observe`] | the shared vocabulary |
//!
//! The [`cookbook`] shows how to do the usual things. `DESIGN.md` in the repository explains the whole and gives the reasons,
//! `docs/core.md` those of the log and the window above the tables, `docs/locks.md` those of locks.
//!
//! # Features
//!
//! `rocks` (default): the durable engine. Without it the crate needs no C++ compiler and offers memory only.
//!
//! `tokio`: `AsyncStore`, the same store for asynchronous code. Without it nothing here needs a runtime.
//!
//! `metrics`, `tracing`: what [`observe`] lists goes to the recorder or subscriber that the program has installed for the crate of that
//! name. Metrics, latencies and slow transactions can be asked for without either.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")
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
pub mod bounds;
pub mod codec;
#[doc = include_str!("cookbook.md")]
pub mod cookbook {}
mod coordinator;
#[cfg_attr(
    not(all(test, feature = "rocks")),
    allow(dead_code, unused_imports, reason = "the simulated disk is for tests, the real one for folders")
)]
pub(crate) mod disk;
pub mod engine;
mod error;
mod identity;
pub mod keys;
mod locking;
#[allow(clippy::cast_possible_truncation, reason = "its slots are numbered by 32 bits")]
#[allow(
    dead_code,
    unused_imports,
    reason = "the proof of the core in tools/compare compiles it, too, and uses the rest"
)]
mod memtable;
#[cfg(test)]
#[path = "memtable/tests.rs"]
mod memtable_tests;
pub mod oracle;
pub mod owner;
mod pipeline;
pub mod protocol;
pub mod row;
mod row_key;
pub mod runtime;
mod shown;
mod store;
mod sync;
pub mod timestamp;
mod typed;
mod view;
mod waiter;
#[cfg_attr(
    not(all(test, feature = "rocks")),
    allow(dead_code, unused_imports, reason = "the simulated disk is for tests, the real one for folders")
)]
pub(crate) mod wal;
pub mod writes;

// Its Rust examples are compiled, and run where they leave no folder behind.
#[cfg(all(doctest, feature = "rocks", feature = "tokio"))]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncLockGuard, AsyncScan, AsyncSnapshot, AsyncStore};
pub use coordinator::shared::{LockWaiter, SharedConfig, SleepingLockWaiter};
pub use coordinator::{CommitProtocol, HistoryRetention};
pub use engine::{ColumnStats, Compression, DataLoss, EngineStats};
pub use error::{Conflict, ConflictReason, Error, ErrorKind, Result};
pub use locking::{
    CancelToken, ExpiredLease, LockEntry, LockHolder, LockLost, LockLostReason, LockMode, LockModeStats,
    LockNotAvailable, LockState, LockStats, LockTable, LockTarget,
};
pub use observe::{Latencies, LatencyHistogram};
pub use owner::OwnerId;
pub use protocol::TransactionStatus;
pub use row::{KeyspaceId, RowKey};
#[cfg(feature = "rocks")]
pub use store::RepairReport;
pub use store::{
    ActiveKind, ActiveTransaction, ActiveTransactionStatus, Builder, Commit, ConflictStatus, DumpBase, DumpHeader,
    DumpOptions, DumpStats, Durability, Fence, IntegrityIssue, IntoControlFlow, KeyRange, Keyspace, KeyspaceSize,
    KeyspaceStats, LockGuard, LockOptions, LockWaitPolicy, MAX_KEY_BYTES, MAX_KEYSPACE_NAME_BYTES,
    MAX_LOCK_REASON_BYTES, MAX_VALUE_BYTES, OnExisting, Options, RetryPolicy, RowLock, RowLockStatus, RowLocks,
    Savepoint, Scan, SlowTransaction, SlowTransactionStatus, Snapshot, Stats, Store, StoreStatus, TimeBreakdown, Txn,
    TxnOptions, TxnOutcome, TxnStatus, VerifyReport, Version, Versions,
};
pub use timestamp::{ParseTimestampError, Timestamp};
pub use typed::{KeyPrefix, Readable, TypedKeyspace, TypedScan};
