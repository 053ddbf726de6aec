//! A grant of a named lock: one request from its arrival to its end, and the fenced commits that
//! are in flight when it ends.
//!
//! One atomic word has the bit *ended* and the number of fenced commits in flight. A fenced commit
//! is counted from before it is decided until it is visible. The leader of the commit pipeline
//! reads the word when it decides the commit.
//!
//! So the next grant can rely on two facts. A fenced commit that was decided before the end and is
//! not visible yet is in the number, so the next grant waits for it. A fenced commit that is
//! decided after the end is rejected, because the bit is set.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::info::{ExpiredLease, LockHolder, LockLost, LockLostReason, LockTarget};
use super::mode::LockMode;
use crate::env::Env;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

const ENDED_BIT: u64 = 1 << 63;

/// Who made a request: shown in the lock table.
#[derive(Clone, Debug)]
pub struct Requester {
    pub origin: RequestOrigin,
    pub reason: Option<Box<str>>,
    /// By the monotonic clock.
    pub requested_at: Duration,
}

/// A thread or task of this process, or the holder that a lease row names.
#[derive(Clone, Debug)]
pub enum RequestOrigin {
    Here { thread: std::thread::Thread, task: Option<Box<str>> },
    Recovered(Box<LockHolder>),
}

/// The time to live of a grant.
#[derive(Clone, Debug)]
pub struct Lease {
    pub duration: Duration,
    /// By the monotonic clock.
    pub expires_at: Duration,
    /// The wall clock at the grant or the last renewal, in milliseconds since 1970.
    pub renewed_at_ms: u64,
    /// Whether the background thread renews the lease for a guard of this process.
    pub auto_renew: bool,
    /// Whether a guard of this process has the lease.
    pub has_guard: bool,
    /// Number of writes of the lease row in flight. The lease does not expire meanwhile.
    pub row_writes_in_flight: u32,
    /// Commit timestamp of the newest renewal that set the duration. Automatic renewals, which keep
    /// the duration, do not count.
    pub last_explicit_renewal_ts: Timestamp,
}

impl Lease {
    /// Ends a write of the lease row. A count that is too high would keep the lease forever, one
    /// that is too low would let it expire while a write renews it.
    pub fn end_row_write(&mut self) {
        let Some(left) = self.row_writes_in_flight.checked_sub(1) else {
            unreachable!("invariant: a write of a lease row that ends was counted when it began")
        };
        self.row_writes_in_flight = left;
    }
}

/// See the [module](self).
pub struct Grant {
    pub name: Arc<str>,
    /// The request's number, which grows in the order of arrival. A conversion keeps the number.
    pub id: u64,
    pub mode: LockMode,
    pub requester: Requester,
    /// Whether the lock manager had no entry for the name when the request was made, so that there
    /// are no predecessors to wait for.
    pub has_no_predecessors: bool,
    /// [`ENDED_BIT`] and the number of fenced commits in flight.
    state: AtomicU64,
    end_reason: OnceLock<LockLostReason>,
    is_granted: AtomicBool,
    is_ready: AtomicBool,
    token: AtomicU64,
    min_read_ts: AtomicU64,
    /// The newest fenced commit with `sync_before_next_grant`, or zero. It must be durable before
    /// the next conflicting grant is used.
    unsynced_commit_ts: AtomicU64,
    lease: Option<Box<Mutex<Lease>>>,
    /// Whether the lease row may be on disk.
    has_lease_row: AtomicBool,
    cold: OnceLock<Box<ColdFields>>,
}

/// Fields that few grants need.
#[derive(Default)]
struct ColdFields {
    /// Woken when the request is granted, or its wait ends otherwise.
    waiter: OnceLock<Arc<Waiter>>,
    /// Woken when the grant ends or its lease is renewed.
    watchers: Mutex<Vec<Arc<Waiter>>>,
    expired_lease: OnceLock<ExpiredLease>,
}

impl Grant {
    pub fn new(name: Arc<str>, id: u64, mode: LockMode, owner: Requester, lease: Option<Lease>) -> Self {
        Self {
            name,
            id,
            mode,
            requester: owner,
            has_no_predecessors: false,
            state: AtomicU64::new(0),
            end_reason: OnceLock::new(),
            is_granted: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            token: AtomicU64::new(0),
            min_read_ts: AtomicU64::new(0),
            unsynced_commit_ts: AtomicU64::new(0),
            lease: lease.map(|lease| Box::new(Mutex::new(lease))),
            has_lease_row: AtomicBool::new(false),
            cold: OnceLock::new(),
        }
    }

    fn cold(&self) -> &ColdFields {
        self.cold.get_or_init(Box::default)
    }

    pub fn target(&self) -> LockTarget<'static> {
        LockTarget::Name(self.name.to_string().into())
    }

    pub fn is_granted(&self) -> bool {
        self.is_granted.load(Ordering::Acquire)
    }

    pub(super) fn set_granted(&self) {
        self.is_granted.store(true, Ordering::Release);
    }

    /// Whether a guard may use the grant: it has its token, the fenced commits of earlier
    /// conflicting grants are visible, and its lease row, if it has a lease, is written.
    pub fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    pub fn set_ready(&self) {
        self.is_ready.store(true, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.state.load(Ordering::SeqCst) & ENDED_BIT != 0
    }

    /// Ends the grant; returns whether this call ended it.
    pub(super) fn end(&self, reason: LockLostReason) -> bool {
        // The reason is set before `ENDED_BIT`, so that a thread that sees the bit finds the
        // reason.
        let first = self.end_reason.set(reason).is_ok();
        yield_point!();
        self.state.fetch_or(ENDED_BIT, Ordering::SeqCst);
        first
    }

    /// Whether fenced commits are in flight, or the lease row may be on disk.
    pub fn has_leftovers(&self) -> bool {
        self.in_flight_commits() > 0 || self.has_lease_row()
    }

    pub(super) fn state(&self) -> &AtomicU64 {
        &self.state
    }

    /// Why the grant has ended, which it must have.
    pub(super) fn end_reason(&self) -> LockLostReason {
        let Some(reason) = self.end_reason.get() else {
            unreachable!("invariant: a grant that has ended has a reason")
        };
        *reason
    }

    /// Records a fenced commit that the next conflicting grant must find durable.
    pub(super) fn note_fenced_commit(&self, commit_ts: Timestamp) {
        self.unsynced_commit_ts.fetch_max(commit_ts.to_u64(), Ordering::AcqRel);
    }

    /// Number of fenced commits in flight.
    pub fn in_flight_commits(&self) -> u64 {
        self.state.load(Ordering::SeqCst) & !ENDED_BIT
    }

    pub fn token(&self) -> Timestamp {
        Timestamp::from_u64(self.token.load(Ordering::Acquire))
    }

    pub fn set_token(&self, token: Timestamp) {
        self.token.store(token.to_u64(), Ordering::Release);
    }

    /// The smallest `read_ts` that a fenced transaction may have.
    pub fn min_read_ts(&self) -> Timestamp {
        Timestamp::from_u64(self.min_read_ts.load(Ordering::Acquire))
    }

    pub fn set_min_read_ts(&self, min_read_ts: Timestamp) {
        self.min_read_ts.store(min_read_ts.to_u64(), Ordering::Release);
    }

    /// The newest fenced commit that the next conflicting grant must find durable.
    pub fn unsynced_commit_ts(&self) -> Timestamp {
        Timestamp::from_u64(self.unsynced_commit_ts.load(Ordering::Acquire))
    }

    pub fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    pub fn lease(&self) -> Option<Lease> {
        self.with_lease(|lease| lease.clone())
    }

    /// Reads or changes the lease; `None` without one.
    pub fn with_lease<T>(&self, change: impl FnOnce(&mut Lease) -> T) -> Option<T> {
        self.lease.as_ref().map(|lease| change(&mut lease.lock()))
    }

    /// If the lease has expired, marks it so that it cannot be renewed, and returns `true`.
    pub(super) fn try_expire(&self, now: Duration) -> bool {
        let expired = self.with_lease(|lease| {
            let over = lease.row_writes_in_flight == 0 && lease.expires_at <= now;
            if over {
                lease.expires_at = Duration::ZERO;
            }
            over
        });
        expired.unwrap_or(false)
    }

    /// Whether the lease has expired, by the monotonic clock.
    pub fn is_lease_expired(&self, now: Duration) -> bool {
        self.with_lease(|lease| lease.row_writes_in_flight == 0 && lease.expires_at <= now).unwrap_or(false)
    }

    pub fn has_lease_row(&self) -> bool {
        self.has_lease_row.load(Ordering::Acquire)
    }

    pub fn set_lease_row(&self, there: bool) {
        self.has_lease_row.store(there, Ordering::Release);
    }

    pub fn expired_lease(&self) -> Option<ExpiredLease> {
        self.cold.get()?.expired_lease.get().cloned()
    }

    pub fn set_expired_lease(&self, taken: ExpiredLease) {
        let _ = self.cold().expired_lease.set(taken);
    }

    pub(super) fn set_waiter(&self, waiter: Arc<Waiter>) {
        // The first waiter would be notified, and the second one never.
        assert!(self.cold().waiter.set(waiter).is_ok(), "invariant: a request has one waiter: {}", self.name);
    }

    pub fn waiter(&self) -> Option<&Arc<Waiter>> {
        self.cold.get()?.waiter.get()
    }

    /// Why the grant has ended; `None` while it is valid by the clock of this process.
    pub fn end_reason_at(&self, now: Duration) -> Option<LockLostReason> {
        if self.has_ended() {
            return Some(self.end_reason());
        }
        self.is_lease_expired(now).then_some(LockLostReason::Expired)
    }

    /// [`Grant::end_reason_at`] the present time. Reads the clock only for a lease.
    pub fn end_reason_now(&self, env: &dyn Env) -> Option<LockLostReason> {
        self.end_reason_at(if self.has_lease() { env.elapsed() } else { Duration::ZERO })
    }

    /// The error of a grant that has ended.
    pub fn lost_error(&self, reason: LockLostReason) -> LockLost {
        LockLost { target: self.target(), token: self.token(), reason }
    }

    /// Registers `watcher`, to be woken when the grant ends or its lease is renewed. If the grant
    /// has ended already, the watcher is not woken, so after this call the caller must check
    /// whether it has ended.
    pub fn watch(&self, watcher: &Arc<Waiter>) {
        self.cold().watchers.lock().push(Arc::clone(watcher));
        // Either this `fetch_or` or the one in `end` comes first. If this one, the thread that ends
        // the grant finds `cold` set, and the watcher in it. If the other, the caller's check sees
        // the end. So if that thread finds `cold` unset, there is no watcher that it must wake.
        self.state.fetch_or(0, Ordering::SeqCst);
    }

    pub fn unwatch(&self, watcher: &Arc<Waiter>) {
        self.cold().watchers.lock().retain(|other| !Arc::ptr_eq(other, watcher));
    }

    pub(super) fn watchers(&self) -> Vec<Arc<Waiter>> {
        self.cold.get().map(|rest| rest.watchers.lock().clone()).unwrap_or_default()
    }

    pub(super) fn take_watchers(&self) -> Vec<Arc<Waiter>> {
        self.cold.get().map(|rest| std::mem::take(&mut *rest.watchers.lock())).unwrap_or_default()
    }
}
