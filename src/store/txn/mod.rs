//! Transactions.

pub(in crate::store) mod buffer;
pub(in crate::store) mod commit;
pub(in crate::store) mod retry;

use std::sync::Arc;

use crate::contention::AttemptGuard;
use crate::engine::RowRange;
use crate::error::{Error, ErrorKind, Result};
use crate::owner::OwnerId;
use crate::row::{Mutation, RowKey, TxnId};
use crate::store::introspect::active::ActiveReader;
use crate::store::read::key_range::{KeyRange, key_range_in, prefix_range};
use crate::store::read::scan::Scan;
use crate::store::txn::buffer::TxnBuffer;
pub use crate::store::txn::commit::Commit;
use crate::store::txn::commit::TxnEnd;
use crate::store::{Keyspace, MAX_KEY_BYTES, MAX_VALUE_BYTES, Store, TxnOptions, Versions};
use crate::timestamp::Timestamp;

/// A transaction with snapshot isolation.
///
/// It reads the state of the store at its beginning, and its own writes over that. [`Txn::commit`] makes all of its writes
/// visible at once or none. Of two transactions that overlap and write the same
/// row, the one that commits first wins and the other hears [`ErrorKind::Conflict`].
///
/// Snapshot isolation permits *write skew*: two transactions that each read what the other writes may both commit. Reading a
/// row with [`Txn::get_for_update`] closes that for the row.
///
/// Writes are kept in memory up to [`Builder::large_transaction_bytes`](crate::store::Builder::large_transaction_bytes). Beyond that they are
/// *streamed*: put into the store as row locks while the transaction is still being written, so that its size is bounded by the
/// disk only. From then on others conflict with it before it commits, and its own writes may answer
/// [`ErrorKind::Conflict`]; after that error it is over, and every later call repeats it. Reading back what was streamed, and
/// writing it again, reads the disk. Rows that a savepoint takes back stay locked until the end. After the commit the locks
/// are turned into versions in the background, which nobody has to wait for.
///
/// Dropping a transaction rolls it back, silently and without waiting.
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Txn {
    reader: Arc<ActiveReader>,
    id: TxnId,
    pub(in crate::store) buffer: TxnBuffer,
    pub(in crate::store) options: TxnOptions,
    pub(in crate::store) attempt: Option<AttemptGuard>,
    /// Whether it is one attempt of several, which are looked at as a whole.
    pub(in crate::store) is_attempt: bool,
    /// Once it was asked to commit.
    ended: Option<TxnEnd>,
    store: Store,
}

/// A point in a transaction to which it can go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    number: u64,
    txn: TxnId,
}

impl Txn {
    /// One that is not counted.
    pub(in crate::store) fn begin(store: &Store, options: TxnOptions) -> Result<Self> {
        store.inner.check_open()?;
        options.check()?;
        let (view, id) = store.inner.coordinator.begin()?;
        event!(TRACE, owner = %id.owner, start_ts = %id.start_ts, read_ts = %view.read_ts, label = options.label,
            "transaction started");
        Ok(Self {
            buffer: TxnBuffer::new(id, if mutated!(ConflictOnStartTs) { id.start_ts } else { view.read_ts }),
            reader: store.inner.active.add(view, Some(id), options.label, store.inner.runtime.elapsed()),
            id,
            options,
            attempt: None,
            is_attempt: false,
            ended: None,
            store: store.clone(),
        })
    }

    /// Whatever has been committed is no conflict from here on.
    pub(in crate::store) fn skip_conflict_check(&mut self) {
        self.buffer.skip_conflict_check();
    }

    /// Locks everything that was written so far, as if it were much.
    pub(in crate::store) fn lock_buffered_rows_now(&mut self) -> Result<()> {
        let locked = self.buffer.lock_buffered_rows(&self.store, &self.reader.timer);
        self.reader.set_written(self.buffer.write_set.len(), self.buffer.bytes(), self.buffer.locked_rows());
        self.store.record_conflict(&self.reader, locked)
    }

    pub(in crate::store) fn buffered_bytes(&self) -> usize {
        self.buffer.bytes()
    }

    pub(in crate::store) fn store(&self) -> &Store {
        &self.store
    }

    /// Everything committed at or below this is seen.
    pub fn read_ts(&self) -> Timestamp {
        self.reader.view.read_ts
    }

    /// The timestamp that names the transaction in row locks and records.
    pub fn start_ts(&self) -> Timestamp {
        self.id.start_ts
    }

    /// Who the transaction is in row locks and conflicts.
    pub fn owner_id(&self) -> OwnerId {
        self.id.owner
    }

    /// A row's value as the transaction sees it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the key is empty and [`ErrorKind::TooLarge`] when it is longer than a row's can be,
    /// [`ErrorKind::KeyspaceNotFound`] when the keyspace was dropped before the transaction began (one that was created or restored
    /// later is empty but for own writes, and stays so when it is dropped),
    /// [`ErrorKind::SnapshotTooOld`], [`ErrorKind::Corruption`], [`ErrorKind::Io`], [`ErrorKind::Closed`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let is_seen = self.store.check_visible(&self.reader.view, keyspace)?;
        check_key(key.as_ref())?;
        if is_seen { self.read(&keyspace.row(key.as_ref())) } else { Ok(None) }
    }

    /// Several rows' values, in the order of `keys`.
    ///
    /// # Errors
    /// Those of [`Txn::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let rows = validated_rows(keyspace, keys)?;
        if self.store.check_visible(&self.reader.view, keyspace)? {
            self.multi_read(&rows)
        } else {
            Ok(vec![None; rows.len()])
        }
    }

    /// Whether a row is there.
    ///
    /// # Errors
    /// Those of [`Txn::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(keyspace, key)?.is_some())
    }

    /// A row's value, checked again at commit: optimistic, it locks nothing and waits for nothing.
    ///
    /// For conflicts it counts as a write of the row. Of two transactions that overlap and write the row,
    /// or read it by this call, the first to commit wins, and the commit of the other fails with
    /// [`ErrorKind::Conflict`]. Neither notices before. The row may be absent.
    ///
    /// In PostgreSQL, MySQL and RocksDB's `TransactionDB` the same words mean a lock that others wait
    /// for; RocksDB's `OptimisticTransactionDB` checks at commit, as here. Only a transaction that is
    /// [streamed](crate::store::Builder::large_transaction_bytes) locks the row before its commit, like the rows
    /// that it writes, and a conflict may then end it earlier. Rows that are not there yet are
    /// guarded by a [guard row](crate::cookbook#a-range-that-must-not-change).
    ///
    /// # Errors
    /// Those of [`Txn::get`] and [`Txn::put`].
    pub fn get_for_update(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let row = self.check_write(keyspace, key.as_ref())?;
        let (value, holds) = self.store.time_read(&self.reader, || {
            let own = self.buffered_write(&row)?;
            let holds = own.is_none();
            Ok::<_, Error>((self.read_with_buffer(own, &row)?, holds))
        })?;
        if holds {
            self.write(keyspace, row, Mutation::LockOnly)?;
        }
        Ok(value)
    }

    /// What commits have made of a row, as [`Snapshot::versions`](crate::store::Snapshot::versions) of the state that the transaction
    /// reads, without what it has written itself.
    ///
    /// # Errors
    /// Those of [`Txn::get`], also of the iterator, which ends after one.
    pub fn versions(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Versions> {
        self.buffer.check()?;
        let is_seen = self.store.check_visible(&self.reader.view, keyspace)?;
        check_key(key.as_ref())?;
        Ok(Versions::new(&self.store, &self.reader, keyspace.row(key.as_ref()), is_seen))
    }

    /// Sets a row's value.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] when key, value or transaction are, [`ErrorKind::InvalidArgument`] when the key is empty,
    /// [`ErrorKind::KeyspaceNotFound`] when the keyspace was dropped, [`ErrorKind::Closed`]. The transaction stays as it was.
    /// [`ErrorKind::Conflict`] where the keyspace was being [restored](Store::restore) when the transaction began; and where the
    /// transaction is so large that it locks its rows as it goes
    /// ([`Builder::large_transaction_bytes`](crate::store::Builder::large_transaction_bytes)), which is over then.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let row = self.check_write(keyspace, key.as_ref())?;
        let value = value.as_ref();
        check_size("a value", value.len(), MAX_VALUE_BYTES)?;
        self.write(keyspace, row, Mutation::Put(value.into()))
    }

    /// Sets the value of a row that must not be there yet.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] when the transaction sees the row, and those of [`Txn::put`]. A row that somebody else
    /// creates meanwhile is a conflict at commit.
    pub fn insert(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let row = self.check_write(keyspace, key.as_ref())?;
        if self.read(&row)?.is_some() {
            return Err(ErrorKind::AlreadyExists(row).into());
        }
        self.put(keyspace, key, value)
    }

    /// Removes a row, which may be absent.
    ///
    /// # Errors
    /// Those of [`Txn::put`].
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        let row = self.check_write(keyspace, key.as_ref())?;
        self.write(keyspace, row, Mutation::Delete)
    }

    /// Removes every row that the transaction sees in a range, own writes included; the answer is how many those were.
    ///
    /// It is a [`Txn::delete`] of each: all of them go at its commit or none, a row that somebody else writes meanwhile is a
    /// conflict, and it takes the time and the room of as many writes. A row that somebody else inserts meanwhile is not one that
    /// was seen, and stays. To empty a whole keyspace at once: [`Store::truncate_keyspace`].
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let store = percolite::Store::in_memory()?;
    /// # let log = store.keyspace("log")?;
    /// store.transact(|txn| ["2024-12", "2025-01", "2025-02"].iter().try_for_each(|key| txn.put(&log, key, "")))?;
    /// let gone = store.transact(|txn| txn.delete_range(&log, .."2025"))?;
    /// assert_eq!(gone, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Txn::get`] and [`Txn::put`]. Some rows may be deleted in the transaction then: go back to a
    /// [savepoint](Txn::savepoint), or end it.
    pub fn delete_range(&mut self, keyspace: &Keyspace, range: impl KeyRange) -> Result<u64> {
        let rows = self.range(keyspace, range);
        self.delete_scanned(keyspace, rows)
    }

    /// Removes every row that the transaction sees whose key begins with `prefix`: [`Txn::delete_range`].
    ///
    /// # Errors
    /// Those of [`Txn::delete_range`].
    pub fn delete_prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<u64> {
        let rows = self.prefix(keyspace, prefix);
        self.delete_scanned(keyspace, rows)
    }

    fn delete_scanned(&mut self, keyspace: &Keyspace, rows: Scan) -> Result<u64> {
        self.store.inner.check_writable()?;
        let mut deleted = 0;
        for row in rows {
            let (key, _) = row?;
            self.delete(keyspace, key)?;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// The rows whose keys lie in a range, own writes up to this call included. A range that ends before it begins is
    /// empty.
    ///
    /// Rows that a scan does not return are not protected: another transaction may insert one meanwhile.
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Scan {
        let range = self.store.visible_range(&self.reader.view, keyspace, || key_range_in(keyspace, &range));
        self.scan(range)
    }

    /// The rows whose keys begin with `prefix`, own writes up to this call included.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Scan {
        let range = self.store.visible_range(&self.reader.view, keyspace, || prefix_range(keyspace, prefix.as_ref()));
        self.scan(range)
    }

    fn scan(&self, range: Result<RowRange>) -> Scan {
        let own = range.and_then(|range| {
            self.buffer.check()?;
            let own = self
                .buffer
                .write_set
                .range(range.start.as_ref().map(Vec::as_slice), range.end.as_ref().map(Vec::as_slice));
            Ok((Some(own), self.buffer.large_writes(&self.store)?, range))
        });
        Scan::new(&self.store, &self.reader, own)
    }

    /// Marks this point. From the first mark on, what each write replaces is kept in memory, within
    /// [`Builder::max_transaction_bytes`](crate::store::Builder::max_transaction_bytes).
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint { number: self.buffer.savepoint(), txn: self.id }
    }

    /// Takes back every write made since the savepoint, which stays valid; later savepoints do not.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the savepoint is another transaction's or was taken back itself,
    /// [`ErrorKind::Closed`].
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        self.store.inner.check_open()?;
        if savepoint.txn != self.id {
            return Err(Error::invalid("the savepoint is another transaction's"));
        }
        self.buffer.rollback_to(&self.store, savepoint.number)?;
        self.reader.set_written(self.buffer.write_set.len(), self.buffer.bytes(), self.buffer.locked_rows());
        Ok(())
    }

    /// The rows that it has written so far, without those that were streamed.
    pub(in crate::store) fn written_rows(&self) -> Vec<RowKey> {
        self.buffer.write_set.keys().cloned().collect()
    }

    fn read(&self, row: &RowKey) -> Result<Option<Vec<u8>>> {
        self.store.time_read(&self.reader, || self.read_with_buffer(self.buffered_write(row)?, row))
    }

    fn multi_read(&self, rows: &[RowKey]) -> Result<Vec<Option<Vec<u8>>>> {
        self.store.time_read(&self.reader, || {
            let own: Vec<_> = rows.iter().map(|row| self.buffered_write(row)).collect::<Result<_>>()?;
            let is_other = |own: &Option<Mutation>| matches!(own, None | Some(Mutation::LockOnly));
            let others: Vec<_> = rows.iter().zip(&own).filter(|(_, own)| is_other(own)).map(|(row, _)| row).collect();
            let others = self.store.multi_read(&self.reader.view, &others);
            let mut others = self.store.record_conflict(&self.reader, others)?.into_iter();
            let value = |own| match own {
                Some(Mutation::Put(value)) => Some(value.to_vec()),
                Some(Mutation::Delete) => None,
                Some(Mutation::LockOnly) | None => others.next().flatten(),
            };
            Ok(own.into_iter().map(value).collect())
        })
    }

    fn buffered_write(&self, row: &RowKey) -> Result<Option<Mutation>> {
        self.buffer.check()?;
        self.buffer.get(&self.store, row)
    }

    /// The row as the transaction sees it, given what it has written to it.
    fn read_with_buffer(&self, own: Option<Mutation>, row: &RowKey) -> Result<Option<Vec<u8>>> {
        match own {
            Some(Mutation::Put(value)) => Ok(Some(value.to_vec())),
            Some(Mutation::Delete) => Ok(None),
            Some(Mutation::LockOnly) | None => {
                self.store.record_conflict(&self.reader, self.store.read(&self.reader.view, row))
            }
        }
    }

    fn check_write(&self, keyspace: &Keyspace, key: &[u8]) -> Result<RowKey> {
        self.store.check_usable(&self.reader.view)?;
        self.store.inner.check_writable()?;
        keyspace.check_not_dropped(self.store.load_store_id())?;
        check_key(key)?;
        let row = keyspace.row(key);
        let named = self.store.check_not_staging(&self.reader.view, keyspace, &row);
        self.store.record_conflict(&self.reader, named)?;
        Ok(row)
    }

    fn write(&mut self, keyspace: &Keyspace, row: RowKey, mutation: Mutation) -> Result<()> {
        let life = (keyspace.id(), &keyspace.inner.descriptor);
        let written = self.buffer.write(&self.store, life, row, mutation, &self.reader.timer);
        self.reader.set_written(self.buffer.write_set.len(), self.buffer.bytes(), self.buffer.locked_rows());
        self.store.record_conflict(&self.reader, written)
    }
}

/// Whether a row can have this key.
pub(in crate::store) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid("a key must not be empty"));
    }
    check_size("a key", key.len(), MAX_KEY_BYTES)
}

/// The rows with these keys, if there can be such rows.
pub(in crate::store) fn validated_rows<K: AsRef<[u8]>>(
    keyspace: &Keyspace,
    keys: impl IntoIterator<Item = K>,
) -> Result<Vec<RowKey>> {
    let row = |key: K| check_key(key.as_ref()).map(|()| keyspace.row(key.as_ref()));
    keys.into_iter().map(row).collect()
}

pub(in crate::store) fn check_size(what: &'static str, bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit { Err(ErrorKind::TooLarge { what, bytes, limit }.into()) } else { Ok(()) }
}
