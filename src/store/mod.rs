//! The public API: stores, keyspaces, transactions, snapshots.
//!
//! | module | what |
//! |---|---|
//! | `handle` | the handle, and the state that all handles of a store share |
//! | `builder`, `options`, `open` | opening a store with the options of a [`Builder`] |
//! | `api` | begin, snapshot, sync, checkpoint, close |
//! | `background` | what the background worker does for the store |
//! | `keyspace`, `catalog` | handles; creating, renaming and dropping keyspaces |
//! | `txn`, `read` | transactions, snapshots, scans |
//! | `sequence` | numbers without conflicts |
//! | `named_locks` | locks on names, and fences |
//! | `maintenance` | dump, restore, verification, repair |
//! | `introspect` | statistics, row locks, active and slow transactions, the status file |
//!
//! The public calls of a store are in several `impl Store` blocks, one for each subject. Most of
//! the work is done by the parts of a store: the catalog, the monitor of transactions, the row
//! reader, the named locks.
//!
//! The store uses the coordinator through its trait alone, so the same code runs on an exclusive
//! engine, on a shared one, and read-only.

mod api;
mod background;
mod builder;
mod catalog;
mod handle;
mod introspect;
mod keyspace;
mod limits;
mod maintenance;
mod named_locks;
mod open;
mod options;
mod read;
mod sequence;
mod txn;

pub use builder::Builder;
pub use handle::Store;
pub use introspect::active_readers::{ActiveKind, ActiveTransaction};
pub use introspect::keyspace_stats::{KeyspaceSize, KeyspaceStats};
pub use introspect::retrying_calls::RetryingCall;
pub use introspect::row_locks::{RowLock, RowLocks};
pub use introspect::slow_log::{SlowTransaction, TimeBreakdown, TxnOutcome};
pub use introspect::stats::Stats;
pub use introspect::status::StoreStatus;
pub use introspect::status_entries::{
    ActiveTransactionStatus, ConflictStatus, RetryingCallStatus, RowLockStatus, SlowTransactionStatus,
};
pub use keyspace::Keyspace;
pub use limits::{MAX_KEY_BYTES, MAX_KEYSPACE_NAME_BYTES, MAX_VALUE_BYTES};
pub use maintenance::dump::{DumpBase, DumpHeader, DumpOptions, DumpStats, OnExisting};
pub use maintenance::progress::IntoControlFlow;
#[cfg(feature = "rocks")]
pub use maintenance::repair::RepairReport;
pub use maintenance::verify::report::{IntegrityIssue, VerifyReport};
pub use named_locks::fence::Fence;
pub use named_locks::guard::LockGuard;
pub use named_locks::options::{LockOptions, LockWaitPolicy, MAX_LOCK_REASON_BYTES};
#[cfg(feature = "tokio")]
pub(crate) use named_locks::{
    lease_rows::LeaseRows,
    locked_txn::check_no_lease,
    request::{GrantPoll, RequestResult},
    service::LockService,
    txn_lock::TxnLock,
};
pub use options::{Durability, RetryPolicy, TxnOptions};

pub use read::key_range::KeyRange;
pub use read::keys::Keys;
pub use read::reader::{Readable, Reader};
pub use read::scan::Scan;
pub use read::scanned_row::Row;
pub use read::snapshot::Snapshot;
pub use read::versions::{Version, Versions};
pub use sequence::Sequence;
pub use txn::outcome::Commit;
pub use txn::restart::FailedCommit;
#[cfg(feature = "tokio")]
pub(crate) use txn::retry::RetryLoop;
pub use txn::{Savepoint, Txn};
