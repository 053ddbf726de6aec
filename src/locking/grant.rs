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

use super::entry::{LockHolder, LockLost, LockTarget, TakenOver};
use super::mode::LockMode;
use crate::runtime::Runtime;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

const ENDED: u64 = 1 << 63;

/// Why a grant is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LostReason {
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
    NotHeld,
}

/// What a request says of its caller.
#[derive(Clone, Debug)]
pub struct Owner {
    pub by: Asker,
    pub why: Option<Box<str>>,
    /// When, by the runtime's clock.
    pub asked: Duration,
}

/// A thread or task of this process, or what the row of a lease says.
#[derive(Clone, Debug)]
pub enum Asker {
    Here { thread: std::thread::Thread, task: Option<Box<str>> },
    EarlierLife(Box<LockHolder>),
}

/// How long a grant lasts at most.
#[derive(Clone, Debug)]
pub struct Lease {
    pub time: Duration,
    /// By the runtime's clock, which does not go back.
    pub ends: Duration,
    /// The wall clock at the grant or the last renewal, in milliseconds since 1970.
    pub since_ms: u64,
    /// Whether a guard of this process has it renewed.
    pub renews: bool,
    /// Whether there is a guard.
    pub has_guard: bool,
    /// While its row is being written the lease does not expire.
    pub writing: u32,
    /// The commit of the newest renewal with a time of its own.
    pub asked: Timestamp,
}

/// See the [module](self).
pub struct Grant {
    pub name: Arc<str>,
    /// The request's number, which grows in the order of asking. A conversion keeps it.
    pub id: u64,
    pub mode: LockMode,
    pub owner: Owner,
    /// Whether nothing was there of its name when it was granted, which was at once: nothing of earlier grants concerns it.
    pub is_first: bool,
    /// [`ENDED`], and how many fenced commits are under way.
    word: AtomicU64,
    why_ended: OnceLock<LostReason>,
    is_granted: AtomicBool,
    is_settled: AtomicBool,
    token: AtomicU64,
    floor: AtomicU64,
    /// The newest fenced commit that is to be durable.
    debt: AtomicU64,
    lease: Option<Box<Mutex<Lease>>>,
    /// Whether the row of the lease may be on the disk.
    has_row: AtomicBool,
    rest: OnceLock<Box<Rest>>,
}

/// What few grants have.
#[derive(Default)]
struct Rest {
    /// Woken when it is granted.
    waiter: OnceLock<Arc<Waiter>>,
    /// Woken when it ends.
    watchers: Mutex<Vec<Arc<Waiter>>>,
    taken_over: OnceLock<TakenOver>,
}

impl Grant {
    pub fn new(name: Arc<str>, id: u64, mode: LockMode, owner: Owner, lease: Option<Lease>) -> Self {
        Self {
            name,
            id,
            mode,
            owner,
            is_first: false,
            word: AtomicU64::new(0),
            why_ended: OnceLock::new(),
            is_granted: AtomicBool::new(false),
            is_settled: AtomicBool::new(false),
            token: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            debt: AtomicU64::new(0),
            lease: lease.map(|lease| Box::new(Mutex::new(lease))),
            has_row: AtomicBool::new(false),
            rest: OnceLock::new(),
        }
    }

    fn rest(&self) -> &Rest {
        self.rest.get_or_init(Box::default)
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
    pub fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Acquire)
    }

    pub fn set_settled(&self) {
        self.is_settled.store(true, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.word.load(Ordering::SeqCst) & ENDED != 0
    }

    /// Ends the grant; the answer is whether it was this call.
    pub(super) fn end(&self, why: LostReason) -> bool {
        // Before the word: where the end is seen the reason is there.
        let first = self.why_ended.set(why).is_ok();
        self.word.fetch_or(ENDED, Ordering::SeqCst);
        first
    }

    /// Whether fenced commits are under way, or its row may be on the disk.
    pub fn is_open(&self) -> bool {
        self.under_way() > 0 || self.has_row()
    }

    pub(super) fn word(&self) -> &AtomicU64 {
        &self.word
    }

    pub(super) fn why_ended(&self) -> Option<LostReason> {
        self.why_ended.get().copied()
    }

    /// Notes a fenced commit that the next conflicting grant has to find durable.
    pub(super) fn owe(&self, commit_ts: Timestamp) {
        self.debt.fetch_max(commit_ts.to_u64(), Ordering::AcqRel);
    }

    /// How many fenced commits are under way.
    pub fn under_way(&self) -> u64 {
        self.word.load(Ordering::SeqCst) & !ENDED
    }

    pub fn token(&self) -> Timestamp {
        Timestamp::from_u64(self.token.load(Ordering::Acquire))
    }

    pub fn set_token(&self, token: Timestamp) {
        self.token.store(token.to_u64(), Ordering::Release);
    }

    /// The smallest `read_ts` that a fenced transaction may have.
    pub fn floor(&self) -> Timestamp {
        Timestamp::from_u64(self.floor.load(Ordering::Acquire))
    }

    pub fn set_floor(&self, floor: Timestamp) {
        self.floor.store(floor.to_u64(), Ordering::Release);
    }

    /// The newest fenced commit that the next conflicting grant has to find durable.
    pub fn debt(&self) -> Timestamp {
        Timestamp::from_u64(self.debt.load(Ordering::Acquire))
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
    pub(super) fn expire(&self, now: Duration) -> bool {
        let expired = self.with_lease(|lease| {
            let over = lease.writing == 0 && lease.ends <= now;
            if over {
                lease.ends = Duration::ZERO;
            }
            over
        });
        expired.unwrap_or(false)
    }

    /// Whether its time is over, by the runtime's clock.
    pub fn is_over(&self, now: Duration) -> bool {
        self.with_lease(|lease| lease.writing == 0 && lease.ends <= now).unwrap_or(false)
    }

    pub fn has_row(&self) -> bool {
        self.has_row.load(Ordering::Acquire)
    }

    pub fn set_row(&self, there: bool) {
        self.has_row.store(there, Ordering::Release);
    }

    pub fn taken_over(&self) -> Option<TakenOver> {
        self.rest.get()?.taken_over.get().cloned()
    }

    pub fn set_taken_over(&self, taken: TakenOver) {
        let _ = self.rest().taken_over.set(taken);
    }

    pub(super) fn set_waiter(&self, waiter: Arc<Waiter>) {
        let _ = self.rest().waiter.set(waiter);
    }

    pub fn waiter(&self) -> Option<&Arc<Waiter>> {
        self.rest.get()?.waiter.get()
    }

    /// Why it is over; `None` while it stands, as far as this process knows.
    pub fn lost(&self, now: Duration) -> Option<LostReason> {
        if self.has_ended() {
            return Some(self.why_ended.get().copied().unwrap_or(LostReason::Closed));
        }
        self.is_over(now).then_some(LostReason::Expired)
    }

    /// [`Grant::lost`] at this moment. Only a lease takes a look at the clock.
    pub fn lost_by(&self, runtime: &dyn Runtime) -> Option<LostReason> {
        self.lost(if self.has_lease() { runtime.elapsed() } else { Duration::ZERO })
    }

    /// What is said of it when it is over.
    pub fn loss(&self, reason: LostReason) -> LockLost {
        LockLost { target: self.target(), token: self.token(), reason }
    }

    /// Has `watcher` woken when the grant ends, but not when it has ended before.
    pub fn watch(&self, watcher: &Arc<Waiter>) {
        self.rest().watchers.lock().push(Arc::clone(watcher));
        // A change of the word, so that an end after it finds the watcher without a lock taken for nothing.
        self.word.fetch_or(0, Ordering::SeqCst);
    }

    pub fn unwatch(&self, watcher: &Arc<Waiter>) {
        self.rest().watchers.lock().retain(|other| !Arc::ptr_eq(other, watcher));
    }

    pub(super) fn watchers(&self) -> Vec<Arc<Waiter>> {
        self.rest.get().map(|rest| rest.watchers.lock().clone()).unwrap_or_default()
    }

    pub(super) fn take_watchers(&self) -> Vec<Arc<Waiter>> {
        self.rest.get().map(|rest| std::mem::take(&mut *rest.watchers.lock())).unwrap_or_default()
    }
}
