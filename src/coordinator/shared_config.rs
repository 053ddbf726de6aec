//! What a client of a shared engine needs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::env::Env;
use crate::oracle::Oracle;
use crate::row::RowKey;

/// Waits for a row that another client has locked, before a writer retries. With an engine that
/// can watch a row, the wait can end when the lock is removed.
pub trait RowLockWaiter: Send + Sync {
    /// Blocks until the row may be unlocked, or until about `timeout` has passed.
    fn wait(&self, row: &RowKey, timeout: Duration);
}

/// Always sleeps for `timeout`: it does not watch the row.
pub struct SleepingRowLockWaiter(pub Arc<dyn Env>);

impl fmt::Debug for SleepingRowLockWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SleepingRowLockWaiter").finish_non_exhaustive()
    }
}

impl RowLockWaiter for SleepingRowLockWaiter {
    fn wait(&self, _row: &RowKey, timeout: Duration) {
        self.0.sleep(timeout);
    }
}

/// What a client of a shared engine needs to open the store:
/// [`Builder::open_shared`](crate::Builder::open_shared).
#[derive(Clone)]
pub struct SharedConfig {
    /// The engine, or this client's connection to it.
    pub engine: Arc<dyn Engine>,
    /// The one oracle of all clients.
    pub oracle: Arc<dyn Oracle>,
    /// Waits for a row that another client has locked.
    pub waiter: Arc<dyn RowLockWaiter>,
    /// Time to live of a lock in milliseconds, at least 1. Other clients may roll a transaction
    /// back this long after it began to commit, or after its last heartbeat.
    pub ttl_ms: u64,
}

impl fmt::Debug for SharedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedConfig").field("ttl_ms", &self.ttl_ms).finish_non_exhaustive()
    }
}
