//! An embedded, crash-safe, transactional key-value store with snapshot isolation, on RocksDB, after Google's Percolator.
//!
//! TODO

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod codec;
mod coordinator;
mod counters;
pub mod engine;
mod error;
pub mod keys;
pub mod oracle;
pub mod owner;
mod pipeline;
pub mod protocol;
pub mod row;
pub mod runtime;
mod store;
pub mod timestamp;
mod view;

pub use coordinator::CommitProtocol;
pub use coordinator::shared::{Commons, LockWaiter, Pause};
pub use error::{Conflict, ConflictReason, Error, ErrorKind, Result};
pub use owner::OwnerId;
pub use protocol::CommitPoint;
pub use row::{KeyspaceId, RowKey};
pub use store::{
    Builder, Commit, Durability, KEY_MAX_BYTES, KEYSPACE_NAME_MAX_BYTES, Keyspace, LockInfo, Locks, Options,
    RetryLimits, Savepoint, Scan, Snapshot, Stats, Store, Txn, TxnOptions, TxnStatus, VALUE_MAX_BYTES,
};
pub use timestamp::Timestamp;
