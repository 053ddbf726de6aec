//! Fences: transactions that commit only while a named lock is held, as an etcd `Txn` that compares
//! a lease key.
//!
//! The leader of the commit pipeline checks a fence when it decides whether the transaction
//! commits. If the grant of the lock has ended at any time before, nothing is written.
//!
//! That a lock was held when a transaction *began* would prove nothing about its commit.
//!
//! A fenced transaction must also see what earlier holders have committed. A `start_ts` above the
//! token would not prove that: the read view is taken before `start_ts` is drawn. So the view's
//! `read_ts` is compared with the smallest `read_ts` that the grant allows.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::{FenceCondition, Grant, RequestHandle};
use crate::store::txn::Txn;
use crate::timestamp::Timestamp;

/// Ties transactions to the grant of a guard ([`LockGuard::fence`](crate::LockGuard::fence)): a
/// transaction to which the fence is added ([`Txn::fence`]) commits only while this grant is valid.
/// A fence does not hold the lock. It may be kept, sent to other threads and used for any number of
/// transactions.
#[derive(Clone)]
pub struct Fence {
    pub(in crate::store) grant: Arc<Grant>,
    pub(in crate::store) store: u64,
}

impl Fence {
    /// The fencing token of the grant.
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
    /// Makes the transaction commit only while the lock is held, and checks that the transaction
    /// sees the changes of earlier holders. May be called for several locks, at any time before the
    /// commit.
    ///
    /// First acquire the lock, then begin. A transaction that began before the grant may have read
    /// what another holder has changed since. So this call fails if anything was committed between
    /// the begin and the grant.
    ///
    /// If the grant has ended when the commit is decided, [`Txn::commit`] returns
    /// [`ErrorKind::LockLost`] and nothing is written. The commit of a transaction that only reads
    /// returns this error as well. [`transact`](crate::Store::transact) does not retry after this
    /// error. A commit that was decided before the grant ended is visible to the next holder. If
    /// the commit is to be [durable](crate::Durability), the next holder gets its guard only when
    /// the commit survives a power cut.
    ///
    /// **The expiry of a lease does not end the grant.** After the expiry, `fence` returns
    /// [`ErrorKind::LockLost`], but a transaction that was fenced before can commit until the grant
    /// ends, because until then there is no conflicting grant. The grant ends when its guard is
    /// dropped, or at the next request of the name. If a request is waiting already, the first one
    /// ends the grant soon after the expiry; without any request the background worker ends it a
    /// day later. After that, the commit returns [`ErrorKind::LockLost`] as well.
    ///
    /// A fence does not affect other transactions. A transaction without a fence conflicts with a
    /// fenced one as usual, if both write the same row. The fence of a shared lock or a semaphore
    /// says only that the grant is valid; others may hold the lock as well.
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
    /// - [`ErrorKind::LockLost`] if the grant has ended or its lease has expired.
    /// - [`ErrorKind::SnapshotTooOld`] if something was committed between the begin of the
    ///   transaction and the grant: begin a new transaction.
    /// - [`ErrorKind::InvalidArgument`] for the same inside of
    ///   [`Store::transact`](crate::Store::transact), because every attempt would fail: acquire the
    ///   lock before the call, or use
    ///   [`Store::transact_with_lock`](crate::Store::transact_with_lock).
    /// - [`ErrorKind::InvalidArgument`] for a lock of another store, and after an incomplete
    ///   conversion ([`LockGuard::upgrade`](crate::LockGuard::upgrade)).
    /// - [`ErrorKind::Closed`].
    pub fn fence(&mut self, fence: &Fence) -> Result<()> {
        self.add_lock_fence(fence, None)
    }

    pub(in crate::store) fn add_lock_fence(
        &mut self,
        fence: &Fence,
        releases: Option<&Arc<RequestHandle>>,
    ) -> Result<()> {
        let store = self.store();
        store.inner.check_open()?;
        let Fence { grant, store: identity } = fence;
        if *identity != store.instance_id() {
            return Err(Error::invalid(format!("lock {} belongs to another store", grant.target())));
        }
        if let Some(reason) = grant.end_reason_now(&*store.inner.env) {
            return Err(ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into());
        }
        if !grant.is_ready() {
            let what = format!("lock {} has no token yet: its conversion is incomplete, call it again", grant.target());
            return Err(Error::invalid(what));
        }
        if self.read_ts() < grant.min_read_ts() {
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
        let (target, min_read_ts) = (grant.target(), grant.min_read_ts());
        if self.is_attempt {
            let what = format!(
                "the transaction began before lock {target} was granted, so it does not see commits of earlier \
                 holders: acquire the lock before the transaction, or use transact_with_lock"
            );
            return Error::invalid(what);
        }
        let what = format!(
            "the transaction began before lock {target} was granted: its read_ts is {:#}, the lock requires \
             {min_read_ts:#} or later; begin a new transaction",
            self.read_ts()
        );
        ErrorKind::SnapshotTooOld(what).into()
    }
}
