//! The write buffer of a transaction: mutations in memory, its savepoints, and its fences.
//!
//! When the buffer reaches `large_transaction_bytes` the transaction becomes a [large
//! one](LargeTxn): the buffered rows are written into the store as locks, and the buffer is
//! emptied. From then on a read looks for an own write first in the buffer, then in the
//! transaction's own locks.
//!
//! Savepoints use an undo log: after the first savepoint, each write adds what it replaced.

use std::convert::Infallible;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::commit_conditions::CommitConditions;
use crate::contention::AttemptGuard;
use crate::coordinator::{Coordinator, LargeTxn};
use crate::engine::Engine;
use crate::error::{Conflict, Error, ErrorKind, Result};
use crate::keyspace_descriptor::KeyspaceDescriptor;
use crate::lock_manager::{FenceCondition, Fences, InFlightFences};
use crate::lock_value::read_own_lock;
use crate::observe::TxnTimer;
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, Mutation, RowKey, TxnId};
use crate::store::limits::check_size;
use crate::store::txn::large_writes::LargeWrites;
use crate::timestamp::Timestamp;
use crate::write_set::WriteSet;

/// What each row adds to the transaction's size, in bytes, besides its key and value.
const ROW_OVERHEAD_BYTES: usize = 64;

/// See the [module](self).
pub(in crate::store) struct TxnBuffer {
    id: TxnId,
    read_ts: Timestamp,
    /// The writes in memory. They override the writes that the transaction has locked in the store.
    /// Shared with the leader during a commit.
    pub(in crate::store) write_set: Arc<WriteSet>,
    /// Every keyspace that was written to, even if all of its writes were undone.
    pub(in crate::store) keyspaces: SmallVec<[(KeyspaceId, Arc<KeyspaceDescriptor>); 1]>,
    /// What each write since the first savepoint replaced.
    undo: Vec<(RowKey, Option<Mutation>)>,
    /// The valid savepoints: for each its number, and the length of `undo` when it was set.
    savepoints: Vec<(u64, usize)>,
    savepoints_made: u64,
    bytes: usize,
    /// The size of `undo` in bytes, with the overhead of each row.
    undo_bytes: usize,
    pub(in crate::store) large: Option<Box<dyn LargeTxn>>,
    /// Set once the transaction cannot commit any more: reads, writes and the commit then fail.
    aborted: Option<AbortReason>,
    /// The lock grants that must be valid at the commit.
    fences: Fences,
}

enum AbortReason {
    Conflict(Box<Conflict>),
    Other(String),
}

impl TxnBuffer {
    pub(in crate::store) fn new(id: TxnId, read_ts: Timestamp) -> Self {
        Self {
            id,
            read_ts,
            write_set: Arc::default(),
            keyspaces: SmallVec::new(),
            undo: Vec::new(),
            savepoints: Vec::new(),
            savepoints_made: 0,
            bytes: 0,
            undo_bytes: 0,
            large: None,
            aborted: None,
            fences: Fences::default(),
        }
    }

    /// Adds a fence: the commit fails if the lock grant has ended.
    pub(in crate::store) fn add_fence(&mut self, fence: FenceCondition) {
        self.fences.add(fence);
    }

    /// Ends a transaction that has no writes, so nothing is submitted. Fails if a grant that fences
    /// the transaction has ended; otherwise releases the lock of `transact_with_lock`, if any, as a
    /// commit does.
    pub(in crate::store) fn check_and_release_fences(&mut self) -> Result<()> {
        if self.fences.is_empty() {
            return Ok(());
        }
        let entered = InFlightFences::new(&std::mem::take(&mut self.fences));
        if let Some(lost) = entered.first_lost() {
            return Err(ErrorKind::LockLost(Box::new(lost)).into());
        }
        entered.on_visible(Timestamp::ZERO);
        Ok(())
    }

    /// For restores: from this call on, a commit of another transaction is no conflict, even if it
    /// is newer than this transaction's snapshot.
    pub(in crate::store) fn skip_conflict_check(&mut self) {
        self.read_ts = Timestamp::MAX;
        if let Some(large) = &mut self.large {
            large.skip_conflict_check();
        }
    }

    pub(in crate::store) fn read_ts(&self) -> Timestamp {
        self.read_ts
    }

    /// Whether there are no writes to commit.
    pub(in crate::store) fn is_empty(&self) -> bool {
        self.write_set.is_empty() && self.large.is_none()
    }

    /// The size of the writes in memory, in bytes, with the overhead of each row.
    pub(in crate::store) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of rows that were locked in the store; a row that was locked twice counts twice.
    /// `None` if the transaction is not large.
    pub(in crate::store) fn locked_rows(&self) -> Option<u64> {
        self.large.as_ref().map(|large| large.writes())
    }

    /// Returns the error that has aborted the transaction, if any.
    pub(in crate::store) fn check(&self) -> Result<()> {
        match &self.aborted {
            None => Ok(()),
            Some(AbortReason::Conflict(conflict)) => Err(ErrorKind::Conflict(conflict.clone()).into()),
            Some(AbortReason::Other(error)) => Err(Error::invalid(format!("the transaction was aborted: {error}"))),
        }
    }

    /// The transaction's own write to the row, if any.
    pub(in crate::store) fn get(&self, engine: &dyn Engine, row: &RowKey) -> Result<Option<Mutation>> {
        match (self.write_set.get(row), &self.large) {
            (Some(mutation), _) => Ok(Some(mutation.clone())),
            (None, Some(_)) => read_own_lock(&*engine.snapshot()?, self.id, row),
            (None, None) => Ok(None),
        }
    }

    /// For a scan: the rows that the transaction has locked so far, if it is large.
    pub(in crate::store) fn large_writes(&self, engine: &dyn Engine) -> Result<Option<LargeWrites>> {
        let view = || Ok(LargeWrites { view: engine.snapshot()?, txn: self.id });
        self.large.as_ref().map(|_| view()).transpose()
    }

    /// Adds a write. `limit` is the maximum size of the buffer in bytes.
    pub(in crate::store) fn write(
        &mut self,
        engine: &dyn Engine,
        limit: usize,
        (keyspace, descriptor): (KeyspaceId, &Arc<KeyspaceDescriptor>),
        row: RowKey,
        mutation: Mutation,
    ) -> Result<()> {
        self.check()?;
        let replaced = if self.savepoints.is_empty() { None } else { Some(self.get(engine, &row)?) };
        let undo_bytes = replaced.as_ref().map_or(0, |replaced| size_of_undo(&row, replaced.as_ref()));
        let undo = replaced.map(|replaced| (row.clone(), replaced));
        let (bytes, all_undo_bytes) = (&mut self.bytes, self.undo_bytes + undo_bytes);
        Arc::make_mut(&mut self.write_set).insert(row, mutation, |row, before, after| {
            let replaced = before.map_or(0, |before| size_of_write(row, before));
            let sum = *bytes - replaced + size_of_write(row, after);
            check_size("a transaction", sum + all_undo_bytes, limit)?;
            *bytes = sum;
            Ok::<_, Error>(())
        })?;
        self.undo_bytes = all_undo_bytes;
        self.undo.extend(undo);
        if !self.keyspaces.iter().any(|(id, _)| *id == keyspace) {
            self.keyspaces.push((keyspace, Arc::clone(descriptor)));
        }
        Ok(())
    }

    /// Locks the buffered rows in the store, and empties the buffer. After an error the caller must
    /// [abort](TxnBuffer::abort) the transaction.
    pub(in crate::store) fn lock_buffered_rows(
        &mut self,
        coordinator: &dyn Coordinator,
        timer: &TxnTimer,
    ) -> Result<()> {
        if self.write_set.is_empty() {
            return Ok(());
        }
        // These conditions have no read view, so an expired view is no error here. The commit
        // checks whether it has expired.
        let conditions =
            Arc::new(CommitConditions { keyspaces: self.written_keyspaces(), ..CommitConditions::default() });
        let large = match &mut self.large {
            Some(large) => large,
            none => match coordinator.begin_large(self.id, self.read_ts) {
                Some(large) => none.insert(large),
                None => return Err(Error::invalid("not supported on a shared engine: large transactions")),
            },
        };
        large.lock_rows(&self.write_set, &conditions, timer)?;
        match Arc::get_mut(&mut self.write_set) {
            Some(buffer) => buffer.clear(),
            // A scan still reads this write set, so it cannot be emptied, but is replaced.
            None => self.write_set = Arc::default(),
        }
        self.bytes = 0;
        Ok(())
    }

    /// Locks the buffered rows, then commits all locked rows. After an error the caller must
    /// [abort](TxnBuffer::abort) the transaction.
    pub(in crate::store) fn commit_large(
        &mut self,
        coordinator: &dyn Coordinator,
        view: &Arc<ReadView>,
        durable: bool,
        attempt: Option<AttemptGuard>,
        timer: &TxnTimer,
    ) -> Result<Timestamp> {
        self.lock_buffered_rows(coordinator, timer)?;
        let conditions = self.commit_conditions(view);
        let Some(large) = &mut self.large else { return Err(Error::invalid("the transaction has locked no rows")) };
        let commit_ts = large.commit(&conditions, durable, attempt, timer)?;
        self.large = None;
        Ok(commit_ts)
    }

    /// Ends a transaction that cannot commit any more. Later reads, writes and the commit fail:
    /// with the same conflict if `error` is one, else with an error that has the text of `error`.
    /// The locks of a large transaction are released in the background, except after an
    /// undetermined commit, which may have taken effect.
    pub(in crate::store) fn abort(&mut self, error: &Error) {
        self.large = None;
        self.aborted = Some(match error.conflict() {
            Some(conflict) if error.is_retryable() => AbortReason::Conflict(Box::new(conflict.clone())),
            _ => AbortReason::Other(error.to_string()),
        });
    }

    pub(in crate::store) fn savepoint(&mut self) -> u64 {
        self.savepoints_made += 1;
        self.savepoints.push((self.savepoints_made, self.undo.len()));
        self.savepoints_made
    }

    pub(in crate::store) fn rollback_to(&mut self, engine: &dyn Engine, number: u64) -> Result<()> {
        self.check()?;
        let position = self.savepoints.iter().position(|(valid, _)| *valid == number);
        let Some((position, undo)) = position.and_then(|at| Some((at, self.savepoints.get(at)?.1))) else {
            return Err(Error::invalid("the savepoint is no longer valid"));
        };
        // Read before anything is changed, so that an error leaves the transaction as it was.
        let locked = self.large_writes(engine)?;
        let mut restored = Vec::with_capacity(self.undo.len() - undo);
        for (row, before) in self.undo[undo..].iter().rev() {
            let before = match (before, &locked) {
                // The undone write is already in the store, as a lock, which stays. A lock-only
                // write in the buffer overrides it. This adds no conflict, because the row is
                // locked in any case.
                (None, Some(locked)) if locked.write(row)?.is_some() => Some(Mutation::LockOnly),
                (before, _) => before.clone(),
            };
            restored.push((row.clone(), before));
        }
        self.savepoints.truncate(position + 1);
        for (row, before) in self.undo.drain(undo..) {
            self.undo_bytes -= size_of_undo(&row, before.as_ref());
        }
        let (bytes, buffer) = (&mut self.bytes, Arc::make_mut(&mut self.write_set));
        for (row, before) in restored {
            match before {
                Some(before) => {
                    let Ok(()) = buffer.insert(row, before, |row, after, before| {
                        *bytes += size_of_write(row, before);
                        *bytes -= after.map_or(0, |after| size_of_write(row, after));
                        Ok::<_, Infallible>(())
                    });
                }
                None => *bytes -= buffer.remove(&row).map_or(0, |after| size_of_write(&row, &after)),
            }
        }
        Ok(())
    }

    pub(in crate::store) fn commit_conditions(&self, view: &Arc<ReadView>) -> Arc<CommitConditions> {
        let (keyspaces, read_view) = (self.written_keyspaces(), Some(Arc::clone(view)));
        Arc::new(CommitConditions { keyspaces, read_view, fences: self.fences.clone() })
    }

    /// The keyspaces that have writes to commit. For a large transaction these are all keyspaces
    /// that it has written to, because its locked rows are not in memory.
    fn written_keyspaces(&self) -> SmallVec<[Arc<KeyspaceDescriptor>; 1]> {
        let is_written = |id: KeyspaceId| {
            let first = self.write_set.first_at_or_after(&RowKey::new(id, b""));
            self.large.is_some() || first.is_some_and(|(row, _)| row.keyspace_id() == id)
        };
        self.keyspaces.iter().filter(|(id, _)| is_written(*id)).map(|(_, descriptor)| Arc::clone(descriptor)).collect()
    }
}

fn size_of_write(row: &RowKey, mutation: &Mutation) -> usize {
    row.as_bytes().len() + mutation.value_bytes() + ROW_OVERHEAD_BYTES
}

fn size_of_undo(row: &RowKey, before: Option<&Mutation>) -> usize {
    before.map_or(ROW_OVERHEAD_BYTES, |before| size_of_write(row, before))
}
