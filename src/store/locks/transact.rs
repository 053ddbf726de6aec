//! Transactions under a lock.
//!
//! The lock is taken before the first attempt and held over all of them, so attempts of different callers do not meet. Every attempt is
//! fenced. The leader of the commit pipeline releases the lock when it has made the commit visible, before the sync: the next holder goes on
//! while this caller waits until its commit is durable. That is as honest as reading what is not durable: nothing that depends on it is
//! acknowledged before it is durable itself, because the log is one sequence.

use std::sync::Arc;

use super::{Fence, LockOptions};
use crate::error::{Error, Result};
use crate::locking::{LockTarget, RequestHandle};
use crate::store::transact::{NestingGuard, RetryLoop};
use crate::store::{Store, Txn, TxnOptions};

/// The lock that attempts are made under.
#[derive(Clone)]
pub(crate) struct TxnLock {
    fence: Fence,
    request: Arc<RequestHandle>,
}

impl TxnLock {
    pub(in crate::store) fn fence(&self, txn: &mut Txn) -> Result<()> {
        txn.add_lock_fence(&self.fence, Some(&self.request))
    }
}

impl Store {
    /// [`Store::transact_with`] under a lock: takes it, begins, holds it over all attempts, commits only while it is held, and releases it as
    /// soon as the commit is visible. Returns when the commit is as durable as asked for; the next holder goes on meanwhile, so many
    /// callers on one name share syncs. `LockOptions::exclusive()` waits for the lock at most 30 seconds; the limits of retrying count from
    /// the grant.
    ///
    /// A closure must not act outside of the store: what it reads is provisional until this returns, as in [`Store::transact`]. Where a
    /// lock has to cover more than one transaction, take a guard ([`Store::lock`]) and a [fence](Txn::fence).
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{LockOptions, TxnOptions};
    /// # let store = percolite::Store::in_memory()?;
    /// # let queue = store.keyspace("queue")?;
    /// store.lock_transact("queue", LockOptions::exclusive(), TxnOptions::default(), |txn| {
    ///     let last = txn.range(&queue, ..).rev().next().transpose()?.map_or(0, |(key, _)| key[0]);
    ///     txn.put(&queue, [last + 1], "job")
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Store::lock_with`] and [`Store::transact`]; [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) when the lock was taken away
    /// by force before the commit: nothing was written; [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a lease.
    pub fn transact_with_lock<'a, T, E: From<Error>>(
        &self,
        target: impl Into<LockTarget<'a>>,
        lock: LockOptions,
        txn: TxnOptions,
        mut work: impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Result<T, E> {
        check_no_lease(&lock)?;
        let request = self.acquire_request(&target.into(), &lock)?;
        self.activate_grant(request.grant(), false)?;
        let (_inside, outermost) = NestingGuard::enter();
        let under = self.txn_lock(request)?;
        let mut attempts = RetryLoop::new(self, txn).with_lock(under.clone());
        let answer = loop {
            let held = attempts.admission_wait(outermost).block(&*self.inner.runtime);
            if let Some(answer) = attempts.run_attempt(held, &mut work) {
                break answer;
            }
        };
        drop(attempts);
        self.release_txn_lock(&under);
        answer
    }

    pub(crate) fn txn_lock(&self, request: RequestHandle) -> Result<TxnLock> {
        let fence = Fence { grant: Arc::clone(request.grant()), store: self.lock_manager()?.store };
        Ok(TxnLock { fence, request: Arc::new(request) })
    }

    /// Releases the lock if no commit has, and what is left of its grant.
    pub(crate) fn release_txn_lock(&self, under: &TxnLock) {
        under.request.release();
        if let (Some(locks), Some(embedded)) = (&self.inner.locks, &self.inner.embedded) {
            locks.heads.prune(&under.fence.grant.name, embedded.pipeline().durable_ts());
        }
    }
}

pub(crate) fn check_no_lease(lock: &LockOptions) -> Result<()> {
    if lock.lease.is_some() {
        return Err(Error::invalid("a transaction under a lock takes no lease: it ends with the call"));
    }
    Ok(())
}
