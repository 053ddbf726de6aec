//! A grant: one request from its asking to its end, and what may be under way when it ends.
//!
//! Everything that decides is in one atomic word: whether the grant has *ended*, and how many fenced commits are under way. A
//! commit counts itself before it is decided and until it is visible; the leader of the commit pipeline looks at the word when it
//! decides. So ending and committing each see the other: a commit that was decided before the end is counted in what the end
//! finds, and waited for by the next grant; one that is decided later finds the end, and is refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::entry::{ExpiredLease, LockHolder, LockLost, LockTarget};
use super::mode::LockMode;
use crate::runtime::Env;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

const ENDED_BIT: u64 = 1 << 63;

/// Why a grant is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockLostReason {
    /// Its guard was released or dropped.
    Released,
    /// It became a grant of another mode.
    Converted,
    /// Its lease was over.
    Expired,
    /// [`Store::force_unlock`](crate::Store::force_unlock) took it away.
    Forced,
    /// The store was closed, or has failed.
    Closed,
    /// No grant of the name has the token.
    UnknownToken,
}

/// What a request says of its caller.
#[derive(Clone, Debug)]
pub struct Requester {
    pub origin: RequestOrigin,
    pub reason: Option<Box<str>>,
    /// When, by the runtime's clock.
    pub requested_at: Duration,
}

/// A thread or task of this process, or what the row of a lease says.
#[derive(Clone, Debug)]
pub enum RequestOrigin {
    Here { thread: std::thread::Thread, task: Option<Box<str>> },
    Recovered(Box<LockHolder>),
}

/// How long a grant lasts at most.
#[derive(Clone, Debug)]
pub struct Lease {
    pub duration: Duration,
    /// By the runtime's clock, which does not go back.
    pub expires_at: Duration,
    /// The wall clock at the grant or the last renewal, in milliseconds since 1970.
    pub renewed_at_ms: u64,
    /// Whether a guard of this process has it renewed.
    pub auto_renew: bool,
    /// Whether there is a guard.
    pub has_guard: bool,
    /// While its row is being written the lease does not expire.
    pub row_writes_in_flight: u32,
    /// The commit of the newest renewal with a time of its own.
    pub last_explicit_renewal_ts: Timestamp,
}

/// See the [module](self).
pub struct Grant {
    pub name: Arc<str>,
    /// The request's number, which grows in the order of asking. A conversion keeps it.
    pub id: u64,
    pub mode: LockMode,
    pub requester: Requester,
    /// Whether nothing was there of its name when it was granted, which was at once: nothing of earlier grants concerns it.
    pub has_no_predecessors: bool,
    /// [`ENDED_BIT`], and how many fenced commits are under way.
    state: AtomicU64,
    why_ended: OnceLock<LockLostReason>,
    is_granted: AtomicBool,
    is_ready: AtomicBool,
    token: AtomicU64,
    min_read_ts: AtomicU64,
    /// The newest fenced commit that is to be durable.
    unsynced_commit_ts: AtomicU64,
    lease: Option<Box<Mutex<Lease>>>,
    /// Whether the row of the lease may be on the disk.
    has_lease_row: AtomicBool,
    cold: OnceLock<Box<ColdFields>>,
}

/// What few grants have.
#[derive(Default)]
struct ColdFields {
    /// Woken when it is granted.
    waiter: OnceLock<Arc<Waiter>>,
    /// Woken when it ends.
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
            why_ended: OnceLock::new(),
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

    /// Whether it has come through all that lies between being granted and being a guard's.
    pub fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    pub fn set_ready(&self) {
        self.is_ready.store(true, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.state.load(Ordering::SeqCst) & ENDED_BIT != 0
    }

    /// Ends the grant; the answer is whether it was this call.
    pub(super) fn end(&self, why: LockLostReason) -> bool {
        // Before the word: where the end is seen the reason is there.
        let first = self.why_ended.set(why).is_ok();
        self.state.fetch_or(ENDED_BIT, Ordering::SeqCst);
        first
    }

    /// Whether fenced commits are under way, or its row may be on the disk.
    pub fn has_leftovers(&self) -> bool {
        self.in_flight_commits() > 0 || self.has_lease_row()
    }

    pub(super) fn state(&self) -> &AtomicU64 {
        &self.state
    }

    pub(super) fn why_ended(&self) -> Option<LockLostReason> {
        self.why_ended.get().copied()
    }

    /// Notes a fenced commit that the next conflicting grant has to find durable.
    pub(super) fn note_fenced_commit(&self, commit_ts: Timestamp) {
        self.unsynced_commit_ts.fetch_max(commit_ts.to_u64(), Ordering::AcqRel);
    }

    /// How many fenced commits are under way.
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

    pub fn set_min_read_ts(&self, floor: Timestamp) {
        self.min_read_ts.store(floor.to_u64(), Ordering::Release);
    }

    /// The newest fenced commit that the next conflicting grant has to find durable.
    pub fn unsynced_commit_ts(&self) -> Timestamp {
        Timestamp::from_u64(self.unsynced_commit_ts.load(Ordering::Acquire))
    }

    pub fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    pub fn lease(&self) -> Option<Lease> {
        self.with_lease(|lease| lease.clone())
    }

    /// Changes the lease; nothing where there is none.
    pub fn with_lease<T>(&self, change: impl FnOnce(&mut Lease) -> T) -> Option<T> {
        self.lease.as_ref().map(|lease| change(&mut lease.lock()))
    }

    /// Ends the time of a lease that is over, so that it is not renewed any more; the answer is whether it is over.
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

    /// Whether its time is over, by the runtime's clock.
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
        let _ = self.cold().waiter.set(waiter);
    }

    pub fn waiter(&self) -> Option<&Arc<Waiter>> {
        self.cold.get()?.waiter.get()
    }

    /// Why it is over; `None` while it stands, as far as this process knows.
    pub fn end_reason_at(&self, now: Duration) -> Option<LockLostReason> {
        if self.has_ended() {
            return Some(self.why_ended.get().copied().unwrap_or(LockLostReason::Closed));
        }
        self.is_lease_expired(now).then_some(LockLostReason::Expired)
    }

    /// [`Grant::end_reason_at`] at this moment. Only a lease takes a look at the clock.
    pub fn end_reason_now(&self, runtime: &dyn Env) -> Option<LockLostReason> {
        self.end_reason_at(if self.has_lease() { runtime.elapsed() } else { Duration::ZERO })
    }

    /// What is said of it when it is over.
    pub fn lost_error(&self, reason: LockLostReason) -> LockLost {
        LockLost { target: self.target(), token: self.token(), reason }
    }

    /// Has `watcher` woken when the grant ends, but not when it has ended before.
    pub fn watch(&self, watcher: &Arc<Waiter>) {
        self.cold().watchers.lock().push(Arc::clone(watcher));
        // A change of the word, so that an end after it finds the watcher without a lock taken for nothing.
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
