//! Fences: transactions that commit only while a lock is held.
//!
//! The condition is looked at where it is decided whether the transaction commits, by the leader of the commit pipeline: a guard
//! may be lost at any moment before, and then nothing is written. That a lock was held when a transaction *began* would say
//! nothing, and to compare its `start_ts` with the token would not do either: its view is taken before that is drawn. So the view
//! is compared, with the grant's floor.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::locking::{FenceCondition, Grant, RequestHandle};
use crate::store::Txn;
use crate::timestamp::Timestamp;

/// A condition of transactions: they commit only while the grant stands that this was made of
/// ([`LockGuard::fence`](super::LockGuard::fence)). It does not hold the lock, and may be kept, sent and used freely, for any number of
/// transactions.
#[derive(Clone)]
pub struct Fence {
    pub(super) grant: Arc<Grant>,
    pub(super) store: u64,
}

impl Fence {
    /// The grant's number.
    pub fn token(&self) -> Timestamp {
        self.grant.token()
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({:?}, {})", self.grant.name, self.token())
    }
}

impl Txn {
    /// Has the transaction commit only while the lock is held, and checks that it sees what was done under the lock before. May be called
    /// for several locks, at any time before the commit.
    ///
    /// Take the lock first, then begin: a transaction that began before the grant may have read what another holder has changed
    /// since, and is refused, if anything at all was committed in between. When the grant has ended before the commit is decided,
    /// [`Txn::commit`] returns [`ErrorKind::LockLost`] and nothing is written, by a transaction that only reads, too;
    /// [`transact`](crate::Store::transact) returns it, and does not try again. A commit that was decided before is seen by the next
    /// holder, whose guard waits until it is durable, if it is [to be](crate::Durability).
    ///
    /// **A lease whose time is over**, and which has no successor yet: `fence` returns [`ErrorKind::LockLost`], but a transaction that was
    /// fenced while the lease lasted still commits, since no conflicting grant exists. The grant ends when its guard is dropped, by the next
    /// request of the name, by the one at the front of the queue, or by the background a day later. From then on the commit, too, returns
    /// [`ErrorKind::LockLost`].
    ///
    /// It says nothing about transactions without the lock: rows that they write conflict as ever. And of a shared lock or a semaphore
    /// it says only that the grant stands; others may hold it, too.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let store = percolite::Store::in_memory()?;
    /// # let state = store.keyspace("state")?;
    /// let guard = store.lock("nightly")?;
    /// let fence = guard.fence();
    /// store.transact(|txn| {
    ///     txn.fence(&fence)?;
    ///     txn.put(&state, "last run", "2026-11-24")
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::LockLost`] when the lock is lost already, or its lease is over. When something was committed between the transaction's
    /// begin and the grant: by hand [`ErrorKind::SnapshotTooOld`] (begin a new one); inside of [`Store::transact`](crate::Store::transact)
    /// [`ErrorKind::InvalidArgument`], because every attempt would fail (take the lock before the call, or use
    /// [`Store::transact_with_lock`](crate::Store::transact_with_lock)). [`ErrorKind::InvalidArgument`] for a lock of another store, and
    /// for one whose conversion was given up before it had its token (`AsyncLockGuard::upgrade`); [`ErrorKind::Closed`].
    pub fn fence(&mut self, fence: &Fence) -> Result<()> {
        self.add_lock_fence(fence, None)
    }

    pub(super) fn add_lock_fence(&mut self, fence: &Fence, releases: Option<&Arc<RequestHandle>>) -> Result<()> {
        let store = self.store();
        store.inner.check_open()?;
        let Fence { grant, store: identity } = fence;
        if *identity != store.load_store_id() {
            return Err(Error::invalid(format!("lock {} belongs to another store", grant.target())));
        }
        if let Some(reason) = grant.end_reason_now(&*store.inner.runtime) {
            return Err(ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into());
        }
        if !grant.is_ready() {
            let what = format!(
                "lock {} has no token yet: its conversion was given up on the way, and has to be called once more",
                grant.target()
            );
            return Err(Error::invalid(what));
        }
        if self.read_ts() < grant.min_read_ts() && !mutated!(FenceIgnoresMinReadTs) {
            return Err(self.snapshot_before_grant_error(grant));
        }
        let durable = self.is_durable();
        self.buffer.add_fence(FenceCondition {
            grant: Arc::clone(grant),
            sync_before_next_grant: durable,
            release_on_commit: releases.cloned(),
        });
        Ok(())
    }

    fn snapshot_before_grant_error(&self, grant: &Grant) -> Error {
        let (target, floor) = (grant.target(), grant.min_read_ts());
        if self.is_attempt {
            let what = format!(
                "lock {target} was taken inside of the transaction, which does not see what earlier holders have committed: take it before the transaction, or use lock_transact"
            );
            return Error::invalid(what);
        }
        let what = format!(
            "the transaction began before lock {target} was granted: it reads at {:#}, and what earlier holders have committed is seen from {floor:#} on; begin a new one",
            self.read_ts()
        );
        ErrorKind::SnapshotTooOld(what).into()
    }
}
