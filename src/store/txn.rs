//! Transactions.

use std::sync::Arc;

use parking_lot::Mutex;

use super::range::{KeyRange, prefix_range, rows_of};
use super::scan::{Scan, own_writes};
use super::{Durability, KEY_MAX_BYTES, Keyspace, Store, TxnOptions, VALUE_MAX_BYTES};
use crate::coordinator::{CommitRequest, Writes};
use crate::error::{Conflict, Error, ErrorKind, Result};
use crate::owner::OwnerId;
use crate::pipeline::{Held, Life};
use crate::row::{KeyspaceId, Mutation, RowKey, TxnId};
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// What every row counts besides its key and value, in bytes, towards a transaction's size.
const ROW_OVERHEAD_BYTES: usize = 64;

/// A transaction with snapshot isolation.
///
/// It reads the state of the store at its beginning, and its own writes over that. Writes are kept in memory until
/// [`Txn::commit`], which makes all of them visible at once or none. Of two transactions that overlap and write the same
/// row, the one that commits first wins and the other hears [`ErrorKind::Conflict`].
///
/// Snapshot isolation permits *write skew*: two transactions that each read what the other writes may both commit. Reading a
/// row with [`Txn::get_for_update`] closes that for the row.
///
/// Dropping a transaction rolls it back, silently and without waiting.
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Txn {
    view: Arc<PinnedView>,
    id: TxnId,
    writes: Writes,
    /// Of every keyspace that was written to, though some writes may have been taken back.
    lives: Vec<(KeyspaceId, Arc<Life>)>,
    /// What each write since the first savepoint replaced.
    undo: Vec<(RowKey, Option<Mutation>)>,
    /// Those that are valid: a number and how much of `undo` came before.
    savepoints: Vec<(u64, usize)>,
    savepoints_made: u64,
    bytes: usize,
    /// What `undo` holds.
    undo_bytes: usize,
    pub(super) options: TxnOptions,
    pub(super) held: Option<Held>,
    /// Retrying from the beginning may help: the transaction met a conflict, whatever its user made of the error.
    met_conflict: MetConflict,
    store: Store,
}

/// Remembers the first conflict that a transaction meets before it commits, which happens where others share the engine. Its
/// scans share it.
#[derive(Clone, Default)]
pub(super) struct MetConflict(Arc<Mutex<Option<Box<Conflict>>>>);

impl MetConflict {
    pub(super) fn note<T>(&self, outcome: Result<T>) -> Result<T> {
        if let Err(why) = &outcome
            && why.is_retryable()
            && let Some(conflict) = why.conflict()
        {
            self.0.lock().get_or_insert_with(|| Box::new(conflict.clone()));
        }
        outcome
    }
}

/// A committed transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    /// When it was committed; for a transaction that wrote nothing, what it has seen.
    pub ts: Timestamp,
}

/// A point in a transaction to which it can go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    number: u64,
    txn: TxnId,
}

impl Txn {
    pub(super) fn begin(store: &Store, options: TxnOptions) -> Result<Self> {
        store.inner.check_open()?;
        let (view, id) = store.inner.coordinator.begin()?;
        store.inner.counters.begun.add(1);
        Ok(Self {
            view,
            id,
            writes: Writes::new(),
            lives: Vec::new(),
            undo: Vec::new(),
            savepoints: Vec::new(),
            savepoints_made: 0,
            bytes: 0,
            undo_bytes: 0,
            options,
            held: None,
            met_conflict: MetConflict::default(),
            store: store.clone(),
        })
    }

    /// Everything committed at or below this is seen.
    pub fn read_ts(&self) -> Timestamp {
        self.view.read_ts
    }

    /// The timestamp that names the transaction in locks and records.
    pub fn start_ts(&self) -> Timestamp {
        self.id.start_ts
    }

    /// Who the transaction is in locks and conflicts.
    pub fn owner(&self) -> OwnerId {
        self.id.owner
    }

    /// A row's value as the transaction sees it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the key is empty and [`ErrorKind::TooLarge`] when it is longer than a row's can be,
    /// [`ErrorKind::NoSuchKeyspace`] when the keyspace was dropped before the transaction began,
    /// [`ErrorKind::SnapshotTooOld`], [`ErrorKind::Corruption`], [`ErrorKind::Io`], [`ErrorKind::Closed`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.store.check_keyspace(&self.view, keyspace)?;
        check_key(key.as_ref())?;
        self.read(&keyspace.row(key.as_ref()))
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
        keys.into_iter().map(|key| self.get(keyspace, key)).collect()
    }

    /// Whether a row is there.
    ///
    /// # Errors
    /// Those of [`Txn::get`].
    pub fn contains(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(keyspace, key)?.is_some())
    }

    /// A row's value, which must not change before this transaction commits: reading it counts as writing it, for
    /// conflicts. The row may be absent.
    ///
    /// # Errors
    /// Those of [`Txn::get`] and [`Txn::put`].
    pub fn get_for_update(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let row = self.check_row(keyspace, key.as_ref())?;
        let value = self.read(&row)?;
        if !self.writes.contains_key(&row) {
            self.write(keyspace, row, Mutation::Hold)?;
        }
        Ok(value)
    }

    /// Sets a row's value.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] when key, value or transaction are, [`ErrorKind::InvalidArgument`] when the key is empty,
    /// [`ErrorKind::NoSuchKeyspace`] when the keyspace was dropped, [`ErrorKind::Closed`]. The transaction stays as it was.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let row = self.check_row(keyspace, key.as_ref())?;
        let value = value.as_ref();
        check_size("a value", value.len(), VALUE_MAX_BYTES)?;
        self.write(keyspace, row, Mutation::Put(value.to_vec()))
    }

    /// Sets the value of a row that must not be there yet.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] when the transaction sees the row, and those of [`Txn::put`]. A row that somebody else
    /// creates meanwhile is a conflict at commit.
    pub fn insert(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let row = self.check_row(keyspace, key.as_ref())?;
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
        let row = self.check_row(keyspace, key.as_ref())?;
        self.write(keyspace, row, Mutation::Delete)
    }

    /// The rows whose keys lie in a range, own writes up to this call included. A range that ends before it begins is
    /// empty.
    ///
    /// Rows that a scan does not return are not protected: another transaction may insert one meanwhile.
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Scan {
        let range = self.store.check_keyspace(&self.view, keyspace).map(|()| rows_of(keyspace, &range));
        Scan::new(&self.store, &self.view, self.met_conflict.clone(), range, |range| own_writes(&self.writes, range))
    }

    /// The rows whose keys begin with `prefix`, own writes up to this call included.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Scan {
        let range = self.store.check_keyspace(&self.view, keyspace).map(|()| prefix_range(keyspace, prefix.as_ref()));
        Scan::new(&self.store, &self.view, self.met_conflict.clone(), range, |range| own_writes(&self.writes, range))
    }

    /// Marks this point.
    pub fn savepoint(&mut self) -> Savepoint {
        self.savepoints_made += 1;
        self.savepoints.push((self.savepoints_made, self.undo.len()));
        Savepoint { number: self.savepoints_made, txn: self.id }
    }

    /// Takes back every write made since the savepoint, which stays valid; later savepoints do not.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the savepoint is another transaction's or was taken back itself.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let position = self.savepoints.iter().position(|(number, _)| *number == savepoint.number);
        let Some((position, undo)) = position.and_then(|at| Some((at, self.savepoints.get(at)?.1))) else {
            return Err(Error::invalid("the savepoint was taken back"));
        };
        if savepoint.txn != self.id {
            return Err(Error::invalid("the savepoint is another transaction's"));
        }
        self.savepoints.truncate(position + 1);
        if mutated!(SavepointLeaks) {
            return Ok(());
        }
        for (row, before) in self.undo.drain(undo..).rev() {
            let kept = before.as_ref().map_or(0, |before| size_of_write(&row, before));
            self.undo_bytes -= kept.max(ROW_OVERHEAD_BYTES);
            let after = match before {
                Some(before) => {
                    self.bytes += size_of_write(&row, &before);
                    self.writes.insert(row.clone(), before)
                }
                None => self.writes.remove(&row),
            };
            self.bytes -= after.map_or(0, |after| size_of_write(&row, &after));
        }
        Ok(())
    }

    /// Commits.
    ///
    /// With [`Durability::Sync`] it returns when the commit, and everything that the transaction has read, is durable.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`]: another transaction came first; nothing of this one remains.
    /// [`ErrorKind::Undetermined`]: the store failed at a moment when the transaction may have been committed.
    /// [`ErrorKind::NoSuchKeyspace`]: a keyspace that it writes to was dropped meanwhile. Others mean that nothing was committed.
    pub fn commit(mut self) -> Result<Commit> {
        self.commit_in_place()
    }

    pub(super) fn commit_in_place(&mut self) -> Result<Commit> {
        self.store.check_view(&self.view)?;
        let inner = &self.store.inner;
        let durable = self.is_durable();
        let held = self.held.take();
        if self.writes.is_empty() {
            drop(held);
            if durable {
                inner.coordinator.confirm(self.view.read_ts)?;
            }
            inner.coordinator.acknowledge(self.view.read_ts);
            return Ok(Commit { ts: self.view.read_ts });
        }
        let request = CommitRequest {
            txn: self.id,
            read_ts: if mutated!(ConflictOnStartTs) { self.id.start_ts } else { self.view.read_ts },
            writes: &self.writes,
            protocol: self.options.protocol.unwrap_or(inner.options.protocol),
            durable,
            lives: self.lives_written(),
            held,
        };
        match inner.coordinator.commit(request) {
            Ok(ts) => Ok(Commit { ts }),
            Err(why) => {
                if why.is_retryable() {
                    inner.counters.conflicts.add(1);
                }
                Err(why)
            }
        }
    }

    /// Rolls back, and waits until everything that the transaction has read is durable, so that the caller may act on it.
    /// To leave without waiting, drop the transaction.
    ///
    /// # Errors
    /// [`ErrorKind::Undetermined`] when the sync fails: what was read may not be durable.
    pub fn roll_back(self) -> Result<()> {
        self.answer_without_commit()
    }

    /// Waits for what the caller may conclude from what was read, if the transaction is to be durable.
    pub(super) fn answer_without_commit(&self) -> Result<()> {
        if self.is_durable() { self.confirm_reads() } else { Ok(()) }
    }

    fn is_durable(&self) -> bool {
        self.options.durability.unwrap_or(self.store.inner.options.durability) == Durability::Sync
    }

    /// The conflict that the transaction has met, if any.
    pub(super) fn conflict_met(&self) -> Option<Error> {
        let conflict = self.met_conflict.0.lock().take()?;
        Some(ErrorKind::Conflict(conflict).into())
    }

    /// Waits until everything that the transaction may have read is durable.
    ///
    /// # Errors
    /// [`ErrorKind::Undetermined`] when the sync fails.
    pub fn confirm_reads(&self) -> Result<()> {
        self.store.inner.coordinator.confirm(self.view.read_ts)
    }

    /// Those of the keyspaces in which there is anything to commit.
    fn lives_written(&self) -> Vec<Arc<Life>> {
        let is_written = |id: KeyspaceId| {
            let next = self.writes.range(RowKey::new(id, b"")..).next();
            next.is_some_and(|(row, _)| row.keyspace() == id)
        };
        self.lives.iter().filter(|(id, _)| is_written(*id)).map(|(_, life)| Arc::clone(life)).collect()
    }

    /// The rows that it has written so far.
    pub(super) fn rows(&self) -> Vec<RowKey> {
        self.writes.keys().cloned().collect()
    }

    fn read(&self, row: &RowKey) -> Result<Option<Vec<u8>>> {
        match self.writes.get(row) {
            Some(Mutation::Put(value)) => Ok(Some(value.clone())),
            Some(Mutation::Delete) => Ok(None),
            Some(Mutation::Hold) | None => self.met_conflict.note(self.store.read(&self.view, row)),
        }
    }

    fn check_row(&self, keyspace: &Keyspace, key: &[u8]) -> Result<RowKey> {
        self.store.check_view(&self.view)?;
        self.store.inner.check_writable()?;
        keyspace.check(self.store.identity())?;
        check_key(key)?;
        Ok(keyspace.row(key))
    }

    fn write(&mut self, keyspace: &Keyspace, row: RowKey, mutation: Mutation) -> Result<()> {
        let before = self.writes.get(&row).map_or(0, |before| size_of_write(&row, before));
        let bytes = self.bytes - before + size_of_write(&row, &mutation);
        let undo_bytes = if self.savepoints.is_empty() { 0 } else { before.max(ROW_OVERHEAD_BYTES) };
        check_size(
            "a transaction",
            bytes + self.undo_bytes + undo_bytes,
            self.store.inner.options.transaction_max_bytes,
        )?;
        self.bytes = bytes;
        if !self.lives.iter().any(|(id, _)| *id == keyspace.id()) {
            self.lives.push((keyspace.id(), Arc::clone(&keyspace.0.life)));
        }
        if self.savepoints.is_empty() {
            self.writes.insert(row, mutation);
        } else {
            let replaced = self.writes.insert(row.clone(), mutation);
            self.undo.push((row, replaced));
            self.undo_bytes += undo_bytes;
        }
        Ok(())
    }
}

fn size_of_write(row: &RowKey, mutation: &Mutation) -> usize {
    row.as_bytes().len() + mutation.value_bytes() + ROW_OVERHEAD_BYTES
}

/// Whether a row can have this key.
pub(super) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid("a key must not be empty"));
    }
    check_size("a key", key.len(), KEY_MAX_BYTES)
}

fn check_size(what: &'static str, bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit { Err(ErrorKind::TooLarge { what, bytes, limit }.into()) } else { Ok(()) }
}
