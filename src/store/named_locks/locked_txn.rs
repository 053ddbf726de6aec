//! Transactions under a named lock.
//!
//! The lock is acquired before the first attempt and held during all of them, so attempts of
//! callers that exclude each other do not conflict. Every attempt is fenced.
//!
//! The leader of the commit pipeline releases the lock when the commit is visible, before the sync.
//! If the next holder is a call of `transact_with_lock`, too, it runs while this caller still waits
//! for durability. This is as safe as reading a commit that is not durable yet: the log is one
//! sequence, so what depends on the commit is durable only after it.

use crate::error::{Error, Result};
use crate::lock_manager::LockTarget;
use crate::store::handle::Store;
use crate::store::named_locks::options::LockOptions;
use crate::store::named_locks::service::LockService;
use crate::store::named_locks::txn_lock::TxnLock;
use crate::store::options::TxnOptions;
use crate::store::txn::Txn;
use crate::store::txn::retry::{NestingGuard, RetryLoop};

impl Store {
    /// [`Store::transact_with`] under a named lock: acquires the lock, holds it during all
    /// attempts, commits only while it is held, and releases it as soon as the commit is visible.
    ///
    /// The call returns when the commit is as durable as requested. The next holder does not wait
    /// for that durability if it uses this call, too, so such callers share syncs.
    /// `LockOptions::exclusive()` waits for the lock at most 30 seconds. The limits of retries in
    /// `txn` count from the grant, not from the call.
    ///
    /// The closure must have no effect outside of the store: what it reads is provisional until the
    /// call returns, as in [`Store::transact`]. For a lock over several transactions use a guard
    /// ([`Store::lock`]) and a [fence](Txn::fence).
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use percolite::{LockOptions, TxnOptions};
    /// # let store = percolite::Store::in_memory()?;
    /// # let queue = store.keyspace("queue")?;
    /// store.transact_with_lock("queue", LockOptions::exclusive(), TxnOptions::default(), |txn| {
    ///     let last = txn.range(&queue, ..).next_back().transpose()?;
    ///     let last = last.map_or(0, |row| row.key()[0]);
    ///     txn.put(&queue, [last + 1], "job")
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Store::lock_with`] and [`Store::transact`].
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if, for example,
    /// [`Store::force_unlock`] ended the grant before the commit: nothing was written.
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a lease.
    pub fn transact_with_lock<'a, T, E: From<Error>>(
        &self,
        target: impl Into<LockTarget<'a>>,
        lock: LockOptions,
        txn: TxnOptions,
        mut work: impl FnMut(&mut Txn) -> Result<T, E>,
    ) -> Result<T, E> {
        check_no_lease(&lock)?;
        let request = LockService::of(self)?.locks.acquire(&target.into(), &lock)?;
        LockService::of(self)?.activate_grant(request.grant(), false)?;
        let (_inside, outermost) = NestingGuard::enter();
        let under = TxnLock::new(LockService::of(self)?.locks, request);
        let mut attempts = RetryLoop::new(self, txn).with_lock(under.clone());
        let answer = loop {
            let held = attempts.admission_wait(outermost).block(&*self.inner.env);
            if let Some(answer) = attempts.run_attempt(held, &mut work) {
                break answer.map(|(answer, _)| answer);
            }
        };
        drop(attempts);
        under.release(self);
        answer
    }
}

pub(crate) fn check_no_lease(lock: &LockOptions) -> Result<()> {
    if lock.lease.is_some() {
        return Err(Error::invalid("transact_with_lock does not support leases: the lock ends with the call"));
    }
    Ok(())
}
