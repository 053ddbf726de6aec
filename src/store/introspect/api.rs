//! The calls of a [`Store`] that show its state: statistics, active and slow transactions, row
//! locks, keyspace sizes, the status document.

use crate::engine::{DataLoss, EngineStats};
use crate::error::Result;
use crate::observe::Latencies;
use crate::owner_id::OwnerId;
use crate::protocol::TxnStatus;
use crate::row::{RowKey, TxnId};
use crate::store::handle::Store;
use crate::store::introspect::active_readers::ActiveTransaction;
use crate::store::introspect::keyspace_stats::{KeyspaceStats, keyspace_stats};
use crate::store::introspect::retrying_calls::RetryingCall;
use crate::store::introspect::row_locks::RowLocks;
use crate::store::introspect::slow_log::SlowTransaction;
use crate::store::introspect::stats::{Stats, latencies};
use crate::store::introspect::status::StoreStatus;
#[cfg(doc)]
use crate::store::read::snapshot::Snapshot;
use crate::timestamp::Timestamp;

impl Store {
    /// Counters since the store was opened, and its watermarks.
    pub fn stats(&self) -> Stats {
        Stats::read(&self.inner)
    }

    /// Latencies of commits, waits, syncs and whole calls of `transact` since the store was opened.
    /// [`Latencies::since`] gives those of a shorter period.
    pub fn latencies(&self) -> Latencies {
        latencies(&self.inner.metrics)
    }

    /// Statistics of the engine: memory, files, and whether flushes and compactions keep up with
    /// the writes. Reads some 40 properties of RocksDB and the directory, so do not call it for
    /// every transaction.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the engine has no
    /// statistics, as in memory; [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn engine_stats(&self) -> Result<EngineStats> {
        self.inner.check_open()?;
        Ok(self.inner.engine.stats()?)
    }

    /// Row counts and sizes of all keyspaces, ordered by name. Dropped keyspaces that are not
    /// purged yet come last.
    ///
    /// Counts the rows of each keyspace, up to `count` rows or 64 MiB, whichever comes first. The
    /// rest is estimated from RocksDB's approximate sizes. RocksDB has no size for rows that are
    /// not in tables yet, or that are all in one block. If that is true of all counted rows,
    /// counting continues, by as many rows or bytes each time, until there is a size. If `count` is
    /// `u64::MAX`, every row is counted, which takes as long as reading all rows. A store in memory
    /// always counts every row.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// let store = percolite::Store::in_memory()?;
    /// let towns = store.keyspace("towns")?;
    /// store.transact(|txn| txn.put(&towns, "Oslo", "717710"))?;
    /// let stats = store.keyspace_stats(10_000)?;
    /// assert_eq!(stats[0].name.as_deref(), Some("towns"));
    /// assert_eq!((stats[0].rows, stats[0].logical_bytes), (1, 10));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Snapshot::get`] and [`Store::snapshot`].
    pub fn keyspace_stats(&self, count: u64) -> Result<Vec<KeyspaceStats>> {
        keyspace_stats(&self.snapshot()?, count)
    }

    /// The active transactions and snapshots, ordered by the age of the state that they read,
    /// oldest first. GC removes nothing that an entry may read, unless the entry has expired. A
    /// transaction or snapshot stays in this list as long as one of its scans exists.
    ///
    /// Takes a short lock for each shard of the list and a reference to each entry; does not block.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{Store, TxnOptions};
    /// let store = Store::in_memory()?;
    /// let report = store.snapshot()?.with_label("monthly report");
    /// let txn = store.begin_with(TxnOptions::with_label("transfer"))?;
    /// for active in store.active_transactions() {
    ///     println!("{:?} {:?} for {:?}", active.kind, active.label, active.age);
    /// }
    /// assert_eq!(store.active_transactions().len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn active_transactions(&self) -> Vec<ActiveTransaction> {
        self.inner.monitor.active_transactions()
    }

    /// The calls of `transact` that have met a conflict and have not returned, oldest first.
    /// [`Store::active_transactions`] has only their running attempts, with the age of the attempt.
    ///
    /// Takes one short lock; does not block.
    pub fn retrying_calls(&self) -> Vec<RetryingCall> {
        self.inner.monitor.retrying_calls()
    }

    /// The last hundred transactions that took at least
    /// [`Builder::slow_transaction_threshold`](crate::store::Builder::slow_transaction_threshold),
    /// oldest first, with their time by phase and their conflicts.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{Store, TxnOptions};
    /// use std::time::Duration;
    /// let threshold = Duration::from_millis(20);
    /// let store = Store::builder().slow_transaction_threshold(threshold).in_memory()?;
    /// let rows = store.keyspace("rows")?;
    /// store.transact_with(TxnOptions::with_label("think first"), |txn| {
    ///     std::thread::sleep(Duration::from_millis(30));
    ///     txn.put(&rows, "key", "value")
    /// })?;
    /// let slow = store.slow_transactions().pop().unwrap();
    /// assert_eq!(slow.label, Some("think first"));
    /// // "think first" (owner …) took 30.2ms and was committed: 30.1ms user code …
    /// println!("{slow}");
    /// # assert!(slow.to_string().contains("user code"), "{slow}");
    /// # Ok(()) }
    /// ```
    pub fn slow_transactions(&self) -> Vec<SlowTransaction> {
        self.inner.monitor.slow_transactions()
    }

    /// The hundred slowest transactions since the store was opened, slowest first, of those that
    /// took at least
    /// [`Builder::slow_transaction_threshold`](crate::store::Builder::slow_transaction_threshold).
    /// Once there are a hundred, a later transaction displaces the fastest of them, if it is
    /// slower.
    pub fn slowest_transactions(&self) -> Vec<SlowTransaction> {
        self.inner.monitor.slowest_transactions()
    }

    /// The current activity of the store, and its counters since it was opened, as one document
    /// that can be serialized. The document's lists are shortened; [`Store::active_transactions`],
    /// [`Store::slow_transactions`], [`Store::slowest_transactions`] and [`Store::row_locks`]
    /// return them in full.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// let store = percolite::Store::in_memory()?;
    /// let status = store.status();
    /// assert_eq!((status.pid, status.active_total), (std::process::id(), 0));
    /// # Ok(()) }
    /// ```
    pub fn status(&self) -> StoreStatus {
        StoreStatus::read(self)
    }

    /// All current row locks, with owner, primary and transaction status. Resolves none of them.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`](crate::store::Snapshot::get). The iterator ends after an error.
    pub fn row_locks(&self) -> Result<RowLocks> {
        RowLocks::new(self)
    }

    /// The status of the transaction with this `start_ts` and `owner`, read from its primary, which
    /// a [`RowLock`](crate::RowLock) names.
    ///
    /// The transaction record is deleted once all locks of the transaction are resolved. After
    /// that, any row that the transaction wrote may be passed for `primary`: the status follows
    /// from the row's newest version. The result is `None` once another transaction has written
    /// that row. It is also `None` for a transaction that has not begun to commit, or whose commit
    /// was refused.
    ///
    /// To find out whether an [`Undetermined`](crate::ErrorKind::Undetermined) commit took effect,
    /// open the store again and call `txn_status` before other transactions write, if possible with
    /// a row that only the undetermined transaction writes.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`](crate::store::Snapshot::get).
    pub fn txn_status(&self, primary: &RowKey, start_ts: Timestamp, owner: OwnerId) -> Result<Option<TxnStatus>> {
        self.inner.check_open()?;
        self.inner.coordinator.txn_status(primary, TxnId { start_ts, owner })
    }

    /// Resolves every orphan row lock, and completes the lock cleanup of finished large
    /// transactions of this incarnation, as the background worker would. Returns the number of
    /// orphan locks that this call found; the background worker may resolve some of them meanwhile.
    /// On a shared engine the call does nothing and returns 0.
    ///
    /// # Errors
    /// Those of [`Txn::commit`](crate::store::Txn::commit).
    pub fn resolve_orphan_locks(&self) -> Result<u64> {
        self.inner.check_open()?;
        self.inner.check_writable()?;
        self.inner.coordinator.resolve_orphan_locks()
    }

    /// Accepted losses of acknowledged commits, oldest first: see
    /// [`Builder::accept_data_loss`](crate::store::Builder::accept_data_loss). A store with a loss
    /// that is not accepted cannot be opened.
    ///
    /// The segments that an accepted loss affects stay in the store's directory, as
    /// `wal/lost-<fingerprint>-<number>.segment`, and `wal/lost-<fingerprint>.txt` describes the
    /// loss. The loss is returned if the text file exists when the store is opened; all of these
    /// files may be deleted. A [checkpoint](Store::checkpoint) has none of them. For a store in
    /// memory the result is always empty.
    pub fn data_losses(&self) -> Vec<DataLoss> {
        self.inner.engine.data_losses()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_record_of_a_transaction_is_not_a_rollback() {
        let store = Store::in_memory().unwrap();
        let rows = store.keyspace("rows").unwrap();
        let write = || {
            let mut txn = store.begin().unwrap();
            txn.put(&rows, "k", "v").unwrap();
            txn
        };
        let txn = write();
        let (start_ts, owner) = (txn.start_ts(), txn.owner_id());
        let status = || store.txn_status(&rows.row_key("k"), start_ts, owner).unwrap();
        assert_eq!(status(), None);
        let commit = txn.commit().unwrap();
        assert_eq!(status(), Some(TxnStatus::Committed(commit.commit_ts)));
        write().commit().unwrap();
        assert_eq!(status(), None);
    }
}
