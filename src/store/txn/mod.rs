//! Transactions: begin, read, write, commit or roll back, and retry.
//!
//! A transaction [reads](mod@read) one read view and collects its writes in a [buffer]. The
//! [commit] checks them for conflicts.

pub(in crate::store) mod buffer;
pub(in crate::store) mod commit;
pub(in crate::store) mod large_writes;
pub(in crate::store) mod outcome;
mod read;
pub(in crate::store) mod restart;
pub(in crate::store) mod retry;
pub(in crate::store) mod space;

use std::fmt;
use std::sync::Arc;

use crate::contention::AttemptGuard;
use crate::error::{Error, ErrorKind, Result};
use crate::owner_id::OwnerId;
use crate::row::{Mutation, RowKey, TxnId};
use crate::store::catalog::reader::CatalogReader;
use crate::store::handle::Store;
use crate::store::introspect::active_readers::ActiveReader;
use crate::store::keyspace::Keyspace;
use crate::store::limits::{MAX_VALUE_BYTES, check_key, check_size};
use crate::store::options::TxnOptions;
use crate::store::read::key_range::KeyRange;
use crate::store::read::keys::Keys;
use crate::store::txn::buffer::TxnBuffer;
use crate::store::txn::outcome::{Restarts, TxnEnd};
use crate::store::txn::space::check_put;
use crate::timestamp::Timestamp;
use crate::value::Value;

/// A transaction with snapshot isolation.
///
/// A transaction reads the state that the store had when it began, with its own writes applied.
/// [`Txn::commit`] makes all of its writes visible atomically, or none. If two transactions overlap
/// and write the same row, the first to commit wins, and the other gets [`ErrorKind::Conflict`]. A
/// large transaction, explained below, wins a row as soon as it has locked the row.
///
/// Snapshot isolation permits *write skew*: two transactions that each read what the other writes
/// may both commit. Reading a row with [`Txn::get_for_update`] prevents write skew on that row.
///
/// Writes are buffered in memory up to
/// [`Builder::large_transaction_bytes`](crate::store::Builder::large_transaction_bytes). A
/// transaction that exceeds this size becomes a *large transaction* (TiDB: pipelined DML): it
/// writes its rows into the store as row locks before it commits, so only the disk bounds its size.
///
/// Once a large transaction has locked a row, other transactions that write the row get a conflict,
/// even before the large transaction commits. A write of the large transaction may return
/// [`ErrorKind::Conflict`] as well. This aborts the large transaction: its later reads, writes and
/// the commit return the same error. When the large transaction reads or rewrites a row that it has
/// locked, the row is read from the store. If [`Txn::rollback_to`] undoes the write of such a row,
/// the row stays locked until the transaction ends. After the commit the background lock cleanup
/// turns the locks into versions; no call waits for it.
///
/// Dropping a transaction rolls it back, without an error and without waiting.
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Txn {
    reader: Arc<ActiveReader>,
    id: TxnId,
    pub(in crate::store) buffer: TxnBuffer,
    pub(in crate::store) options: TxnOptions,
    pub(in crate::store) attempt: Option<AttemptGuard>,
    /// Whether the transaction is an attempt of `transact`. If so, the slow log has no entry for
    /// this attempt, but one for the whole call.
    pub(in crate::store) is_attempt: bool,
    /// The attempts before this one, if the transaction was restarted.
    pub(in crate::store) restarts: Option<Restarts>,
    /// Set by the commit, successful or not.
    ended: Option<TxnEnd>,
    store: Store,
}

impl fmt::Debug for Txn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Txn")
            .field("start_ts", &self.id.start_ts)
            .field("read_ts", &self.read_ts())
            .field("owner_id", &self.id.owner)
            .field("label", &self.options.label)
            .field("buffered_rows", &self.buffer.write_set.len())
            .field("locked_rows", &self.buffer.locked_rows())
            .finish_non_exhaustive()
    }
}

/// A point to which a transaction can be rolled back: [`Txn::rollback_to`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    number: u64,
    txn: TxnId,
}

impl Txn {
    /// Begins a transaction without counting it in the statistics.
    pub(in crate::store) fn begin(store: &Store, options: TxnOptions) -> Result<Self> {
        store.inner.check_open()?;
        options.check()?;
        let (view, id) = store.inner.coordinator.begin()?;
        event!(TRACE, owner = %id.owner, start_ts = %id.start_ts, read_ts = %view.read_ts, label = options.label,
            "transaction started");
        Ok(Self {
            buffer: TxnBuffer::new(id, view.read_ts),
            reader: store.inner.monitor.register_txn(view, id, options.label),
            id,
            options,
            attempt: None,
            is_attempt: false,
            restarts: None,
            ended: None,
            store: store.clone(),
        })
    }

    /// For restores: from this call on, a commit of another transaction is no conflict, even if it
    /// is newer than this transaction's snapshot.
    pub(in crate::store) fn skip_conflict_check(&mut self) {
        self.buffer.skip_conflict_check();
    }

    /// Locks all buffered rows in the store, even if the transaction is still small.
    pub(in crate::store) fn lock_buffered_rows_now(&mut self) -> Result<()> {
        self.buffer.check()?;
        let locked = self.buffer.lock_buffered_rows(&*self.store.inner.coordinator, &self.reader.timer);
        let locked = locked.map_err(|error| self.abort(error));
        self.note_written();
        self.store.inner.monitor.record_conflict(&self.reader, locked)
    }

    /// Aborts the transaction. Returns `error`; if `error` is a conflict, the name of its keyspace
    /// and the label of the other transaction are filled in.
    fn abort(&mut self, error: Error) -> Error {
        let error = self.store.inner.monitor.with_conflict_names(error);
        self.buffer.abort(&error);
        error
    }

    fn note_written(&self) {
        self.reader.set_written(self.buffer.write_set.len(), self.buffer.bytes(), self.buffer.locked_rows());
    }

    pub(in crate::store) fn buffered_bytes(&self) -> usize {
        self.buffer.bytes()
    }

    pub(in crate::store) fn store(&self) -> &Store {
        &self.store
    }

    /// The read timestamp: everything committed at or below it is visible, and nothing else.
    pub fn read_ts(&self) -> Timestamp {
        self.reader.view.read_ts
    }

    /// The start timestamp, which identifies the transaction in row locks and records.
    pub fn start_ts(&self) -> Timestamp {
        self.id.start_ts
    }

    /// The owner id of the transaction in row locks and conflicts.
    pub fn owner_id(&self) -> OwnerId {
        self.id.owner
    }

    /// Sets the value of a row.
    ///
    /// # Errors
    /// Each of these leaves the transaction as it was:
    /// - [`ErrorKind::TooLarge`]: the key exceeds [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES), the
    ///   value [`MAX_VALUE_BYTES`], or the transaction
    ///   [`Builder::max_transaction_bytes`](crate::store::Builder::max_transaction_bytes).
    /// - [`ErrorKind::InvalidArgument`]: the key is empty, or the store is open read-only.
    /// - [`ErrorKind::KeyspaceNotFound`]: the keyspace was dropped.
    /// - [`ErrorKind::Conflict`]: the keyspace was being [restored](Store::restore) when the
    ///   transaction began.
    /// - [`ErrorKind::Io`]: the disk was full when the store was opened. Then rows can be deleted,
    ///   and keyspaces truncated and dropped, but nothing can be put until 3 MiB are free:
    ///   [`EngineStats::space_left`](crate::EngineStats::space_left).
    /// - [`ErrorKind::SnapshotTooOld`], [`ErrorKind::Closed`].
    ///
    /// A [large transaction](crate::store::Builder::large_transaction_bytes) locks rows in this
    /// call. Then it may also return [`ErrorKind::Conflict`] for a row, or an error of the store;
    /// either aborts the transaction.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl Into<Value>) -> Result<()> {
        let row = self.check_write(keyspace, key.as_ref())?;
        let value = value.into();
        check_size("a value", value.len(), MAX_VALUE_BYTES)?;
        self.write(keyspace, row, Mutation::Put(value))
    }

    /// Sets the value of a row that must not exist; [`Txn::put`] overwrites.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if the transaction sees the row; those of [`Txn::get`] and
    /// [`Txn::put`]. If another transaction creates the row meanwhile, the commit fails with a
    /// conflict.
    pub fn insert(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl Into<Value>) -> Result<()> {
        let row = self.check_write(keyspace, key.as_ref())?;
        if self.contains(&row)? {
            return Err(ErrorKind::AlreadyExists(row).into());
        }
        self.put(keyspace, key, value)
    }

    /// Deletes a row, which may be absent.
    ///
    /// # Errors
    /// Those of [`Txn::put`].
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        let row = self.check_write(keyspace, key.as_ref())?;
        self.write(keyspace, row, Mutation::Delete)
    }

    /// Deletes every row that the transaction sees in a range, own writes included. Returns the
    /// number of rows.
    ///
    /// The call is a [`Txn::delete`] of each row: it takes the time and memory of as many writes,
    /// and the commit deletes all of them or none. If another transaction writes one of these rows
    /// meanwhile, that is a conflict. A row that another transaction inserts into the range is not
    /// a conflict, and stays. To empty a whole keyspace in one step use
    /// [`Store::truncate_keyspace`].
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let store = percolite::Store::in_memory()?;
    /// # let log = store.keyspace("log")?;
    /// store.transact(|txn| {
    ///     ["2024-12", "2025-01", "2025-02"].iter().try_for_each(|key| txn.put(&log, key, ""))
    /// })?;
    /// let deleted = store.transact(|txn| txn.delete_range(&log, .."2025"))?;
    /// assert_eq!(deleted, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Txn::get`] and [`Txn::put`]. Some of the rows may then be deleted in the
    /// transaction: roll back to a [savepoint](Txn::savepoint), or end the transaction.
    pub fn delete_range(&mut self, keyspace: &Keyspace, range: impl KeyRange) -> Result<u64> {
        let keys = self.range(keyspace, range).keys();
        self.delete_scanned(keyspace, keys)
    }

    /// Deletes every row that the transaction sees whose key starts with `prefix`: see
    /// [`Txn::delete_range`].
    ///
    /// # Errors
    /// Those of [`Txn::delete_range`].
    pub fn delete_prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<u64> {
        let keys = self.prefix(keyspace, prefix).keys();
        self.delete_scanned(keyspace, keys)
    }

    fn delete_scanned(&mut self, keyspace: &Keyspace, keys: Keys) -> Result<u64> {
        self.store.inner.check_writable()?;
        let mut deleted = 0;
        for key in keys {
            self.delete(keyspace, key?)?;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// Sets a savepoint. After a transaction's first savepoint, each write also keeps in memory
    /// what would undo it. That counts as 64 bytes towards
    /// [`Builder::max_transaction_bytes`](crate::store::Builder::max_transaction_bytes), and if the
    /// transaction had written the row before, also as the key and value of that write.
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint { number: self.buffer.savepoint(), txn: self.id }
    }

    /// Undoes every write since the savepoint. The savepoint stays valid; those set after it become
    /// invalid.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the savepoint belongs to another transaction or has become
    /// invalid; [`ErrorKind::Conflict`] if the transaction was aborted by a conflict;
    /// [`ErrorKind::Closed`]. For a large transaction also the errors of a read. After an error the
    /// transaction is as it was.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        self.store.inner.check_open()?;
        if savepoint.txn != self.id {
            return Err(Error::invalid("the savepoint belongs to another transaction"));
        }
        self.buffer.rollback_to(&*self.store.inner.engine, savepoint.number)?;
        self.note_written();
        Ok(())
    }

    /// The rows in the buffer. If this transaction is large, the rows that it has already locked
    /// are no longer there.
    pub(in crate::store) fn written_rows(&self) -> Vec<RowKey> {
        self.buffer.write_set.keys().cloned().collect()
    }

    pub(super) fn check_write(&self, keyspace: &Keyspace, key: &[u8]) -> Result<RowKey> {
        self.store.inner.rows.check_usable(&self.reader.view)?;
        self.store.inner.check_writable()?;
        keyspace.check_not_dropped(self.store.instance_id())?;
        check_key(key)?;
        let row = keyspace.row(key);
        let named = CatalogReader::new(&self.store).check_not_staging(&self.reader.view, keyspace, &row);
        self.store.inner.monitor.record_conflict(&self.reader, named)?;
        Ok(row)
    }

    pub(super) fn write(&mut self, keyspace: &Keyspace, row: RowKey, mutation: Mutation) -> Result<()> {
        if let Mutation::Put(_) = mutation {
            check_put(self.store.inner.engine.space_left(), &row)?;
        }
        let descriptor = (keyspace.id(), &keyspace.inner.descriptor);
        let (inner, limit) = (&self.store.inner, self.store.inner.options.max_transaction_bytes);
        let written = self.buffer.write(&*inner.engine, limit, descriptor, row, mutation);
        self.store.inner.monitor.record_conflict(&self.reader, written)?;
        if self.buffer.bytes() >= inner.options.large_transaction_bytes && inner.coordinator.is_exclusive() {
            return self.lock_buffered_rows_now();
        }
        self.note_written();
        Ok(())
    }
}
