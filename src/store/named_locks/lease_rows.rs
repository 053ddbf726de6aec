//! Leases of named locks: grants that outlast their process, and their rows in the store.
//!
//! A row `lock/<name>` in the catalog's keyspace has the lease holders of the name: mode, token,
//! wall clock at the grant or the last renewal, and time to live. Ordinary durable transactions
//! change the row. They find an entry by its token, never by the name alone (except to remove a
//! corrupt row), so a late release cannot end a later grant. Opening the store reads the rows. From
//! then on the lock manager decides in memory who holds a lock, and the rows only record it.
//!
//! **Time.** The process that granted a lease measures the time of the lease by the monotonic
//! clock. Each later opening computes once how much time is left, from zero to the whole time to
//! live, and measures this rest by the monotonic clock. It uses the monotonic clock that all
//! processes of the machine share ([`Env::boot_clock`](crate::env::Env::boot_clock)) or, after a
//! restart of the machine, the wall clock. Timestamps of the oracle are not used: they lag, jump,
//! and can stand still.
//!
//! While its row is being written, a lease does not expire. The result of the write decides whether
//! the lease is valid.

use std::ops::Bound;
use std::sync::Arc;

use crate::engine::RowRange;
use crate::engine::storage::Column;
use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::{FenceCondition, Grant};
use crate::read_view::ReadView;
use crate::row::RowKey;
use crate::store::catalog::entries::LOCK_PREFIX;
use crate::store::catalog::reader::CatalogReader;
use crate::store::handle::Store;
use crate::store::named_locks::lease_row::{LeaseRow, decode_leases, encode_leases, lock_key};
use crate::store::options::{Durability, TxnOptions};
use crate::store::read::key_range::prefix_range;
use crate::store::txn::Txn;
use crate::timestamp::Timestamp;
use crate::value::Value;

/// The maximum number of lease rows that one transaction changes: about a megabyte.
pub(super) const LEASE_ROWS_PER_TXN: usize = 4096;

/// The lease rows of a store. Transactions of the store read and change them.
#[derive(Clone, Copy)]
pub(crate) struct LeaseRows<'a> {
    store: &'a Store,
}

impl<'a> LeaseRows<'a> {
    pub fn new(store: &'a Store) -> Self {
        Self { store }
    }

    /// Changes the row of a name, durably: removes the entries with the tokens `removed`, and adds
    /// `put`, or replaces the entry that has the same token as `put`. Commits only while `fence` is
    /// valid. Returns the commit timestamp, or the read timestamp if nothing was to be changed.
    pub(in crate::store) fn update(
        self,
        name: &str,
        removed: &[Timestamp],
        put: Option<&LeaseRow>,
        fence: Option<&Arc<Grant>>,
    ) -> Result<Timestamp> {
        let (catalog, key) = (self.store.inner.catalog.keyspace(), lock_key(name));
        retry_conflicts(|| {
            let mut txn = self.store.begin_with(lease_txn_options().durability(Durability::Sync))?;
            if let Some(grant) = fence {
                add_fence(&mut txn, grant);
            }
            let before = self.load(&mut txn, name)?;
            let mut leases = before.clone().unwrap_or_default();
            leases.retain(|lease| !removed.contains(&lease.token) && put.is_none_or(|put| put.token != lease.token));
            leases.extend(put.cloned());
            if !leases.is_empty() {
                txn.put(&catalog, &key, encode_leases(&leases))?;
            } else if before.is_some() {
                txn.delete(&catalog, &key)?;
            } else {
                // There is no row, so nothing to change. If another transaction has removed the
                // row, `rollback` waits until the removal is durable.
                let seen = txn.read_ts();
                return txn.rollback().map(|()| seen);
            }
            txn.commit().map(|commit| commit.commit_ts)
        })
    }

    /// Writes these entries, each with the name of its lock, in place of those with the same
    /// tokens, durably, in one transaction. An entry keeps its duration. Commits only while all of
    /// `fences` are valid. Returns the commit timestamp.
    pub(super) fn renew(self, renewed: &[(&str, &LeaseRow)], fences: &[&Arc<Grant>]) -> Result<Timestamp> {
        let catalog = self.store.inner.catalog.keyspace();
        retry_conflicts(|| {
            let mut txn = self.begin()?;
            fences.iter().for_each(|grant| add_fence(&mut txn, grant));
            for (name, row) in renewed {
                let mut leases = self.load(&mut txn, name)?.unwrap_or_default();
                let old = leases.iter().position(|lease| lease.token == row.token).map(|at| leases.remove(at));
                leases.push(LeaseRow { ttl_ms: old.map_or(row.ttl_ms, |old| old.ttl_ms), ..(*row).clone() });
                txn.put(&catalog, lock_key(name), encode_leases(&leases))?;
            }
            txn.commit().map(|commit| commit.commit_ts)
        })
    }

    /// The holders in the row of a name; `None` if there is no row. If the row is corrupt, requests
    /// of the name fail from here on.
    fn load(self, txn: &mut Txn, name: &str) -> Result<Option<Vec<LeaseRow>>> {
        let key = lock_key(name);
        let row = txn.get_for_update(&self.store.inner.catalog.keyspace(), &key);
        let leases = row.and_then(|row| row.map(|row| Ok(decode_leases(key.as_bytes(), &row)?.1)).transpose());
        if let (Err(error), Some(locks)) = (&leases, &self.store.inner.locks)
            && matches!(error.kind(), ErrorKind::Corruption(_))
        {
            locks.manager.set_corrupt(name, &error.to_string());
        }
        leases
    }

    /// Removes the rows of ended leases, durably. A corrupt row does not prevent the removal of the
    /// others; it stays until [`Store::force_unlock`].
    pub(in crate::store) fn remove(self, ended: &[Arc<Grant>]) -> Result<()> {
        if ended.iter().any(|grant| grant.in_flight_commits() > 0) {
            // Commits in flight may include those that write these rows. Without the drain, a row
            // could be written after its removal. Two other rules prevent that, too: a commit that
            // is queued earlier conflicts with the removal, which reads the row for update, and one
            // that is queued later finds its grant ended.
            self.store.inner.lock_authority()?.drain()?;
        }
        let mut damaged = Ok(());
        for some in ended.chunks(LEASE_ROWS_PER_TXN) {
            damaged = retry_conflicts(|| self.remove_batch(some))?.and(damaged);
            crash_point!(LockReleased);
            some.iter().for_each(|grant| grant.set_lease_row(false));
        }
        damaged
    }

    /// Removes these leases from the rows that can be read. If a row cannot be read, the inner
    /// result is its corruption.
    fn remove_batch(self, ended: &[Arc<Grant>]) -> Result<Result<()>> {
        let (catalog, mut damaged) = (self.store.inner.catalog.keyspace(), Ok(()));
        let mut txn = self.begin()?;
        for grant in ended {
            let key = lock_key(&grant.name);
            let mut leases = match self.load(&mut txn, &grant.name) {
                Ok(Some(leases)) => leases,
                Ok(None) => continue,
                Err(error) if matches!(error.kind(), ErrorKind::Corruption(_)) => {
                    damaged = Err(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            leases.retain(|lease| lease.token != grant.token());
            if leases.is_empty() {
                txn.delete(&catalog, &key)?;
            } else {
                txn.put(&catalog, &key, encode_leases(&leases))?;
            }
        }
        txn.commit().map(|_| damaged)
    }

    /// Removes the corrupt row of a name, durably.
    pub(in crate::store) fn remove_corrupt(self, name: &str) -> Result<()> {
        let mut txn = self.begin()?;
        txn.delete(&self.store.inner.catalog.keyspace(), lock_key(name))?;
        txn.commit().map(drop)
    }

    /// Removes all rows, durably.
    pub(in crate::store) fn clear(self) -> Result<()> {
        let (catalog, view) = (self.store.inner.catalog.keyspace(), self.store.inner.coordinator.begin()?.0);
        let mut keys = Vec::new();
        self.for_each(&view, |key, _| keys.push(key.to_vec()))?;
        for some in keys.chunks(LEASE_ROWS_PER_TXN) {
            let mut txn = self.begin()?;
            for key in some {
                txn.delete(&catalog, key)?;
            }
            txn.commit()?;
        }
        Ok(())
    }

    /// Calls `on_row` with the row of each name, or with the error of reading it. Fails if the rows
    /// cannot be listed.
    pub(in crate::store) fn for_each(
        self,
        view: &Arc<ReadView>,
        mut on_row: impl FnMut(&[u8], Result<Value>),
    ) -> Result<()> {
        let mut range = prefix_range(&self.store.inner.catalog.keyspace(), LOCK_PREFIX.as_bytes());
        for row in CatalogReader::new(self.store).entries(view, LOCK_PREFIX) {
            let Ok(row) = row else {
                // A scan ends at an error, so the rest is read row by row.
                return self.for_each_singly(view, &range, on_row);
            };
            range.start = Bound::Excluded(self.store.inner.catalog.keyspace().row_key(row.key()).as_bytes().to_vec());
            let (key, value) = row.into_parts();
            on_row(&key, Ok(value));
        }
        Ok(())
    }

    fn for_each_singly(
        self,
        view: &Arc<ReadView>,
        range: &RowRange,
        mut on_row: impl FnMut(&[u8], Result<Value>),
    ) -> Result<()> {
        let mut keys = Vec::new();
        view.snapshot.scan_raw(Column::Write, range, &mut |key, _| {
            keys.push(key.to_vec());
            true
        })?;
        for row in keys.iter().filter_map(|key| RowKey::from_bytes(key)) {
            if let Some(value) = self.store.inner.rows.read(view, &row).transpose() {
                on_row(row.user_key(), value.map_err(|error| damaged(&row, &error)));
            }
        }
        Ok(())
    }

    fn begin(self) -> Result<Txn> {
        self.store.begin_with(lease_txn_options())
    }
}

fn add_fence(txn: &mut Txn, grant: &Arc<Grant>) {
    let grant = Arc::clone(grant);
    txn.buffer.add_fence(FenceCondition { grant, sync_before_next_grant: true, release_on_commit: None });
}

fn damaged(row: &RowKey, error: &Error) -> Error {
    let name = row.user_key().escape_ascii();
    ErrorKind::Corruption(format!("lease row \"{name}\" cannot be read: {error}")).into()
}

/// Repeats `change` until it meets no conflict. `change` is a whole transaction, not only its
/// commit, because the writes of a large transaction may meet conflicts, too.
fn retry_conflicts<T>(mut change: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match change() {
            Err(error) if error.is_retryable() => {}
            done => return done,
        }
    }
}

fn lease_txn_options() -> TxnOptions {
    TxnOptions::with_label("percolite lease").durability(Durability::Sync)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row with three exclusive leases. Only a test makes such a row: the transaction that writes
    /// a lease normally removes the leases that conflict with it.
    #[test]
    fn of_conflicting_leases_the_greatest_token_wins() {
        let memory = crate::engine::sim::SimStorage::new();
        let store = Store::builder().open_in_memory(&memory).unwrap();
        let tokens = [7, 9, 8].map(Timestamp::from_u64);
        let since_ms = crate::env::Env::unix_millis(&*store.inner.env);
        for token in tokens {
            let lease = LeaseRow {
                shared: false,
                token,
                since_ms,
                boot: 0,
                since_boot_ms: 0,
                ttl_ms: 60_000,
                pid: 4242,
                label: None,
                thread: "main".into(),
                reason: None,
            };
            LeaseRows::new(&store).update("name", &[], Some(&lease), None).unwrap();
        }
        store.close().unwrap();
        let store = Store::builder().open_in_memory(&memory).unwrap();
        let held: Vec<_> = store.lock_holders("name").unwrap().iter().map(|entry| entry.token).collect();
        assert_eq!(held, [Some(tokens[1])]);
        assert!(store.force_unlock("name", tokens[1]).unwrap());
        // The leases with tokens 7 and 8 are still in the row. The next holder removes them.
        drop(store.lock("name").unwrap());
        store.close().unwrap();
        assert!(Store::builder().open_in_memory(&memory).unwrap().lock_table().unwrap().entries.is_empty());
    }
}
