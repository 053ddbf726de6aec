//! The calls of a [`Store`] that begin, take snapshots, sync, copy and close.

use crate::error::{Error, Result};
use crate::store::handle::Store;
use crate::store::options::TxnOptions;
use crate::store::read::snapshot::Snapshot;
use crate::store::txn::Txn;
use crate::timestamp::Timestamp;

impl Store {
    /// Begins a transaction that reads the newest visible state.
    ///
    /// The transaction may read commits that are not durable yet, and that a power cut may undo.
    /// They are durable once [`Txn::wait_reads_durable`] has succeeded. With
    /// [`Durability::Sync`](crate::Durability::Sync), success of [`Txn::commit`] or
    /// [`Txn::rollback`] means the same.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn begin(&self) -> Result<Txn> {
        self.begin_with(TxnOptions::default())
    }

    /// [`Store::begin`] with options for this transaction.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if an option is out of
    /// [range](crate::option_ranges); those of [`Store::begin`].
    pub fn begin_with(&self, options: TxnOptions) -> Result<Txn> {
        let txn = Txn::begin(self, options)?;
        self.inner.metrics.transactions_started.add(1);
        Ok(txn)
    }

    /// A consistent view of everything acknowledged before this call, all of it durable. If an
    /// acknowledged buffered commit is not durable yet, the call waits for a sync. In a store
    /// opened with [`Durability::Buffered`](crate::Durability::Buffered) the snapshot shows
    /// everything visible, durable or not, without waiting.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed);
    /// [`ErrorKind::Undetermined`](crate::ErrorKind::Undetermined) if the sync fails.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.inner.check_open()?;
        Ok(Snapshot::new(self, self.inner.coordinator.snapshot()?))
    }

    /// A snapshot of everything committed at or below a timestamp in the history. The argument is a
    /// [`Timestamp`], such as a commit's or another snapshot's, or a
    /// [`SystemTime`](std::time::SystemTime), which means the first timestamp of its millisecond.
    ///
    /// The snapshot shows what a snapshot taken at that timestamp showed. It expires
    /// [`Builder::max_snapshot_age`](crate::Builder::max_snapshot_age) after this call; until then
    /// GC does not affect it.
    ///
    /// Timestamps follow the machine's clock within the limits described at [`Timestamp::millis`].
    /// To select an exact commit, use its timestamp and not a time.
    ///
    /// # Errors
    /// - [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld): the timestamp is before
    ///   the start of the history.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument): the store keeps no
    ///   history ([`Builder::history_retention`](crate::Builder::history_retention)), the timestamp
    ///   is in the future, or the engine is shared
    ///   ([`Builder::open_shared`](crate::Builder::open_shared)).
    /// - [`ErrorKind::Closed`](crate::ErrorKind::Closed),
    ///   [`ErrorKind::Undetermined`](crate::ErrorKind::Undetermined) if a sync fails.
    pub fn snapshot_at(&self, at: impl Into<Timestamp>) -> Result<Snapshot> {
        self.inner.check_open()?;
        Ok(Snapshot::new(self, self.inner.coordinator.snapshot_at(at.into())?))
    }

    /// Blocks until everything committed before this call is durable, buffered commits included.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed);
    /// [`ErrorKind::Undetermined`](crate::ErrorKind::Undetermined) if the sync fails.
    pub fn sync(&self) -> Result<()> {
        self.inner.check_open()?;
        // If the store has failed, this returns the failure, even if nothing is left to sync.
        self.inner.coordinator.check_open()?;
        self.inner.coordinator.sync(None)
    }

    /// Makes a copy of the store in a new directory, which can be opened as a store of its own.
    /// Transactions continue meanwhile. The copy has the state of the store at one moment during
    /// this call, with everything acknowledged before the call. If the new directory is on the same
    /// file system, most files of the copy are hard links: the call is quick, and the copy takes
    /// little space until the two stores diverge.
    ///
    /// The memtables are flushed first. The tables are then linked, and the copy gets an empty
    /// write-ahead log with an id of its own. The marker file is written last: a copy that was
    /// interrupted is not a store, and opening it returns an error. Accepted data losses
    /// ([`Store::data_losses`]) are not copied. The copy holds no [named lock](Store::lock):
    /// opening the copy for writing removes the leases in it. The fencing tokens of the copy may
    /// repeat those of this store.
    ///
    /// # Errors
    /// - [`ErrorKind::Io`](crate::ErrorKind::Io): the directory exists or cannot be created, or the
    ///   copy fails.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument): the path is empty, or
    ///   the store is in memory or open read-only. The directory of a read-only store can be copied
    ///   as it is.
    /// - [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn checkpoint(&self, directory: impl AsRef<std::path::Path>) -> Result<()> {
        self.inner.check_open()?;
        if self.inner.options.read_only {
            return Err(Error::invalid("a read-only store cannot be checkpointed; copy its directory"));
        }
        if directory.as_ref().as_os_str().is_empty() {
            return Err(Error::invalid("the path of a checkpoint must not be empty"));
        }
        self.inner.coordinator.check_open()?;
        Ok(self.inner.engine.checkpoint(directory.as_ref())?)
    }

    /// Makes everything durable and stops the background worker. Later calls that read, write or
    /// commit, on this store, its transactions and snapshots, return
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed). If `close` is called again on a clone, it
    /// does nothing and reports no error. The directory can be opened again once the store's
    /// clones, transactions, snapshots and scans are dropped as well.
    ///
    /// Calls that wait for a [named lock](Store::lock) return
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed), and lock guards become invalid. Leases that
    /// have a guard are released, durably. Leases without a guard
    /// ([`LockGuard::detach`](crate::LockGuard::detach)) stay.
    ///
    /// # Errors
    /// [`ErrorKind::Undetermined`](crate::ErrorKind::Undetermined), with the cause, if the sync
    /// fails or the store had failed earlier: buffered commits may be lost.
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) if it had failed because of damage.
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }
}
