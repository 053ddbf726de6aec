//! Reads of a transaction: of its own writes first, then of its read view.

use crate::engine::RowRange;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::row::{Mutation, RowKey};
use crate::store::catalog::reader::CatalogReader;
use crate::store::keyspace::Keyspace;
use crate::store::limits::check_key;
use crate::store::read::key_range::{KeyRange, key_range_in, prefix_range};
use crate::store::read::scan::Scan;
use crate::store::read::versions::Versions;
use crate::store::txn::Txn;
use crate::value::Value;

impl Txn {
    /// The value of a row as the transaction sees it; `None` if the row does not exist.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidArgument`]: the key is empty, or another error has aborted the
    ///   transaction.
    /// - [`ErrorKind::TooLarge`]: the key exceeds [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
    /// - [`ErrorKind::KeyspaceNotFound`]: the keyspace was dropped before the transaction began. A
    ///   keyspace that was created or restored after that is empty but for own writes, and stays so
    ///   when it is dropped.
    /// - [`ErrorKind::Conflict`]: the transaction was aborted by an earlier conflict.
    /// - [`ErrorKind::SnapshotTooOld`], [`ErrorKind::Corruption`], [`ErrorKind::Io`],
    ///   [`ErrorKind::Closed`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let is_seen = CatalogReader::new(&self.store).check_visible(&self.reader.view, keyspace)?;
        check_key(key.as_ref())?;
        if is_seen { self.read(&keyspace.row(key.as_ref())) } else { Ok(None) }
    }

    /// The values of several rows, in the order of `keys`.
    ///
    /// # Errors
    /// Those of [`Txn::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let rows = keyspace.rows(keys)?;
        if CatalogReader::new(&self.store).check_visible(&self.reader.view, keyspace)? {
            self.multi_read(&rows)
        } else {
            Ok(vec![None; rows.len()])
        }
    }

    /// Whether a row exists. Its value is not copied. A value of more than 255 bytes
    /// ([`MAX_SHORT_VALUE_BYTES`](crate::row::MAX_SHORT_VALUE_BYTES)) that a two-phase commit or a
    /// large transaction wrote is not read either; any other lies beside its key.
    ///
    /// # Errors
    /// Those of [`Txn::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        let is_seen = CatalogReader::new(&self.store).check_visible(&self.reader.view, keyspace)?;
        check_key(key.as_ref())?;
        Ok(is_seen && self.contains(&keyspace.row(key.as_ref()))?)
    }

    /// The value of a row. The commit checks that no other transaction has written the row since
    /// this transaction began. The call is optimistic: it takes no lock and does not wait.
    ///
    /// For conflicts, this read counts as a write of the row. If two transactions overlap, and each
    /// writes the row or reads it by this call, the first to commit wins. The other one gets
    /// [`ErrorKind::Conflict`] at its commit. Only a [large
    /// transaction](crate::store::Builder::large_transaction_bytes) may get the conflict earlier,
    /// because it locks the row before its commit, like the rows that it writes. The row may be
    /// absent.
    ///
    /// In PostgreSQL, MySQL and RocksDB's `TransactionDB`, a read "for update" takes a lock that
    /// other transactions wait for. RocksDB's `OptimisticTransactionDB` checks at commit, as here.
    /// To protect a range against inserts, use a [guard
    /// row](crate::cookbook#a-range-that-must-not-change).
    ///
    /// # Errors
    /// Those of [`Txn::get`] and [`Txn::put`].
    pub fn get_for_update(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let row = self.check_write(keyspace, key.as_ref())?;
        let (value, is_unwritten) = self.store.inner.monitor.time_read(&self.reader, || {
            let own = self.buffered_write(&row)?;
            let is_unwritten = own.is_none();
            Ok::<_, Error>((self.read_with_buffer(own, &row)?, is_unwritten))
        })?;
        if is_unwritten {
            self.write(keyspace, row, Mutation::LockOnly)?;
        }
        Ok(value)
    }

    /// The committed versions of a row, newest first, as
    /// [`Snapshot::versions`](crate::store::Snapshot::versions) at the transaction's read
    /// timestamp. Own writes are not included.
    ///
    /// # Errors
    /// Those of [`Txn::get`], also from the iterator, which ends after an error.
    pub fn versions(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Versions> {
        self.buffer.check()?;
        let is_seen = CatalogReader::new(&self.store).check_visible(&self.reader.view, keyspace)?;
        check_key(key.as_ref())?;
        Ok(Versions::new(&self.store, &self.reader, keyspace.row(key.as_ref()), is_seen))
    }

    /// The rows whose keys are in a range, own writes up to this call included. A range whose end
    /// is before its start is empty. If this call fails, the first item of the scan is the error.
    ///
    /// A scan does not protect its range: another transaction may insert a row into it (a phantom),
    /// which is not a conflict.
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Scan {
        let range = CatalogReader::new(&self.store)
            .visible_range(&self.reader.view, keyspace, || key_range_in(keyspace, &range));
        self.scan(range)
    }

    /// The rows whose keys start with `prefix`, own writes up to this call included. Otherwise like
    /// [`Txn::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Scan {
        let range = CatalogReader::new(&self.store)
            .visible_range(&self.reader.view, keyspace, || prefix_range(keyspace, prefix.as_ref()));
        self.scan(range)
    }

    fn scan(&self, range: Result<RowRange>) -> Scan {
        let own = range.and_then(|range| {
            self.buffer.check()?;
            let own = self
                .buffer
                .write_set
                .range(range.start.as_ref().map(Vec::as_slice), range.end.as_ref().map(Vec::as_slice));
            Ok((Some(own), self.buffer.large_writes(&*self.store.inner.engine)?, range))
        });
        Scan::new(&self.store, &self.reader, own)
    }

    pub(super) fn read(&self, row: &RowKey) -> Result<Option<Value>> {
        self.store.inner.monitor.time_read(&self.reader, || self.read_with_buffer(self.buffered_write(row)?, row))
    }

    pub(super) fn contains(&self, row: &RowKey) -> Result<bool> {
        self.store.inner.monitor.time_read(&self.reader, || match self.buffered_write(row)? {
            Some(Mutation::Put(_)) => Ok(true),
            Some(Mutation::Delete) => Ok(false),
            Some(Mutation::LockOnly) | None => {
                let found = self.store.inner.rows.contains(&self.reader.view, row);
                self.store.inner.monitor.record_conflict(&self.reader, found)
            }
        })
    }

    fn multi_read(&self, rows: &[RowKey]) -> Result<Vec<Option<Value>>> {
        self.store.inner.monitor.time_read(&self.reader, || {
            let own: Vec<_> = rows.iter().map(|row| self.buffered_write(row)).collect::<Result<_>>()?;
            let is_other = |own: &Option<Mutation>| matches!(own, None | Some(Mutation::LockOnly));
            let others: Vec<_> = rows.iter().zip(&own).filter(|(_, own)| is_other(own)).map(|(row, _)| row).collect();
            let others = self.store.inner.rows.multi_read(&self.reader.view, &others);
            let mut others = self.store.inner.monitor.record_conflict(&self.reader, others)?.into_iter();
            let value = |own| match own {
                Some(Mutation::Put(value)) => Some(value),
                Some(Mutation::Delete) => None,
                Some(Mutation::LockOnly) | None => others.next().flatten(),
            };
            Ok(own.into_iter().map(value).collect())
        })
    }

    fn buffered_write(&self, row: &RowKey) -> Result<Option<Mutation>> {
        self.buffer.check()?;
        self.buffer.get(&*self.store.inner.engine, row)
    }

    /// The row as the transaction sees it, given its own write to the row.
    fn read_with_buffer(&self, own: Option<Mutation>, row: &RowKey) -> Result<Option<Value>> {
        match own {
            Some(Mutation::Put(value)) => Ok(Some(value)),
            Some(Mutation::Delete) => Ok(None),
            Some(Mutation::LockOnly) | None => self
                .store
                .inner
                .monitor
                .record_conflict(&self.reader, self.store.inner.rows.read(&self.reader.view, row)),
        }
    }
}
