//! From the grant of a named lock to its guard.
//!
//! The lock queue grants a request in memory, as soon as the previous grant ends. The following
//! steps lead from one grant to the next. Their order proves two things: the later holder sees what
//! earlier holders have committed under their fences, and once the later holder has its token,
//! transactions that the earlier grants fence no longer commit.
//!
//! 1. *End.* The bit *ended* is set in the old grant's atomic word before the new request is
//!    granted. The leader of the commit pipeline reads this word when it decides a commit that the
//!    old grant fences, so from here on it rejects such commits.
//! 2. *Drain.* Commits that are still in flight may have been decided before the end. If there are
//!    any, an empty submission passes through the pipeline, and so publishes them.
//! 3. *`min_read_ts`.* The present `visible_ts` becomes the smallest `read_ts` that is allowed for
//!    transactions which the new grant fences. So such a transaction sees everything that was
//!    committed before the new grant.
//! 4. *Token.* A new timestamp: above every commit that conflicting earlier grants fenced, and
//!    below every commit that the new grant fences.
//! 5. *Durable.* The `Sync` commits of earlier conflicting grants, and the end of their leases,
//!    must survive a power cut. So one durable transaction removes the rows of these leases and
//!    writes the row of the new lease, if there is one. Then the step waits until those commits are
//!    durable.
//! 6. *Check.* The new grant may have been ended in the meantime.

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::LockAuthority;
use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::{ExpiredLease, Grant, LockLostReason, Predecessors, RequestHandle};
#[cfg(doc)]
use crate::store::handle::Store;
use crate::store::named_locks::guard::LockGuard;
use crate::store::named_locks::lease_row::LeaseRow;
use crate::store::named_locks::lease_rows::LeaseRows;
use crate::store::named_locks::service::LockService;
use crate::store::named_locks::state::NamedLocks;
use crate::timestamp::Timestamp;

impl LockService<'_> {
    /// Activates a request that is granted in memory, and makes its guard.
    pub fn activate_guard(self, request: RequestHandle) -> Result<LockGuard> {
        self.activate_grant(request.grant(), true)?;
        Ok(self.make_guard(request))
    }

    /// Makes the guard of a request whose grant is activated already.
    pub fn make_guard(self, request: RequestHandle) -> LockGuard {
        LockGuard::new(self.store, self.locks, request)
    }

    /// Steps 2 to 6. Without `waits`, as in [`Store::transact_with_lock`], step 5 changes the lease
    /// rows durably, but does not wait for the commits of earlier grants. This call, not its
    /// caller, passes the grant's lease to the lease renewer: an async task makes the call on a
    /// pool thread, and may be dropped before it returns.
    pub fn activate_grant(self, grant: &Arc<Grant>, waits: bool) -> Result<()> {
        if grant.has_lease() {
            self.start_lease_renewer()?;
        }
        self.activation(grant).run(waits)
    }

    /// Does what [`LockService::activate_grant`] does, if nothing has to be waited for; else
    /// returns `false` without effect.
    #[cfg(feature = "tokio")]
    pub fn try_activate_now(self, grant: &Arc<Grant>, waits: bool) -> Result<bool> {
        self.activation(grant).try_now(waits)
    }

    fn activation<'a>(&'a self, grant: &'a Arc<Grant>) -> Activation<'a> {
        Activation { locks: self.locks, authority: self.authority, lease_rows: self.lease_rows(), grant }
    }
}

/// Runs steps 2 to 6 for a grant.
struct Activation<'a> {
    locks: &'a Arc<NamedLocks>,
    authority: &'a dyn LockAuthority,
    lease_rows: LeaseRows<'a>,
    grant: &'a Arc<Grant>,
}

impl Activation<'_> {
    fn run(&self, waits: bool) -> Result<()> {
        let Self { locks, authority, grant, .. } = *self;
        let mut past = locks.manager.predecessors_of(grant);
        if past.has_in_flight {
            crash_point!(LockGrantEnded);
            authority.drain()?;
            crash_point!(LockDrained);
            past = locks.manager.predecessors_of(grant);
        }
        grant.set_min_read_ts(authority.visible_view().read_ts);
        grant.set_token(authority.token()?);
        crash_point!(LockToken);
        self.replace_leases(&past)?;
        if waits {
            authority.wait_durable(past.unsynced_commit_ts)?;
        }
        if !past.is_empty() {
            locks.manager.prune(&grant.name, authority.durable_ts());
        }
        grant.set_ready();
        if grant.has_lease() {
            locks.renewer.watch(grant);
        }
        check(locks, grant)
    }

    #[cfg(feature = "tokio")]
    fn try_now(&self, waits: bool) -> Result<bool> {
        let Self { locks, authority, grant, .. } = *self;
        let past = locks.manager.predecessors_of(grant);
        let must_sync = waits && past.unsynced_commit_ts > authority.durable_ts();
        if grant.has_lease() || past.has_in_flight || !past.leases.is_empty() || must_sync {
            return Ok(false);
        }
        let min_read_ts = authority.visible_view().read_ts;
        let Some(token) = authority.try_token() else { return Ok(false) };
        grant.set_min_read_ts(min_read_ts);
        grant.set_token(token);
        if !past.is_empty() {
            locks.manager.prune(&grant.name, authority.durable_ts());
        }
        grant.set_ready();
        check(locks, grant).map(|()| true)
    }

    /// Removes the rows of earlier leases and writes the row of the new grant's lease, if it has
    /// one, in one durable transaction.
    fn replace_leases(&self, past: &Predecessors) -> Result<()> {
        let Self { locks, grant, .. } = *self;
        // Of several expired leases, the one with the greatest token is reported as taken over.
        if let Some(over) = past.leases.iter().filter(|lease| is_expired(lease)).max_by_key(|lease| lease.token()) {
            locks.manager.metrics.taken_over();
            let holder = locks.clock().holder(over);
            event!(INFO, lock = %grant.name, from = %holder, "lock taken over");
            grant.set_expired_lease(ExpiredLease { token: over.token(), holder });
        }
        crash_point!(LockHandedOver if !past.leases.is_empty());
        if !grant.has_lease() && past.leases.is_empty() {
            return Ok(());
        }
        let removed: Vec<Timestamp> = past.leases.iter().map(|lease| lease.token()).collect();
        let now = locks.env.elapsed();
        let row = grant.lease().map(|lease| LeaseRow::new(locks, grant, lease.duration));
        let since_ms = row.as_ref().map(|row| row.since_ms);
        if grant.has_lease() {
            grant.set_lease_row(true);
        }
        // The transaction that writes the lease row is fenced by the lease's own grant. If this
        // grant has ended, the next holder may already have removed the rows that it found, so the
        // row must not be written any more.
        let fence = Some(grant).filter(|_| row.is_some());
        let changed = self.lease_rows.update(&grant.name, &removed, row.as_ref(), fence);
        // If the store was closed meanwhile, the error says so, whatever error the update returned.
        changed.or_else(|error| {
            if locks.manager.closed().is_some() { check(locks, grant).and(Err(error)) } else { Err(error) }
        })?;
        for lease in &past.leases {
            lease.set_lease_row(false);
        }
        grant.with_lease(|lease| {
            (lease.expires_at, lease.renewed_at_ms) =
                (now.saturating_add(lease.duration), since_ms.unwrap_or_default());
            lease.end_row_write();
        });
        crash_point!(LockLeaseDurable if grant.has_lease());
        if grant.has_lease() {
            locks.manager.on_lease_renewed(grant);
        }
        Ok(())
    }
}

fn is_expired(grant: &Grant) -> bool {
    grant.end_reason_at(Duration::ZERO) == Some(LockLostReason::Expired)
}

/// Step 6: checks that the new grant is valid.
fn check(locks: &NamedLocks, grant: &Grant) -> Result<()> {
    let lost = grant.end_reason_now(&*locks.env);
    // Read after `lost`, because a close of the store first sets `closed` and then ends the grants.
    // So if the close has ended this grant, the error is `Closed`, not `LockLost`.
    if let Some(reason) = locks.manager.closed() {
        return Err(Error::closed(reason));
    }
    match lost {
        Some(reason) => Err(ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into()),
        None => Ok(()),
    }
}
