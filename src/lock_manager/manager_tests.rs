//! What integration tests cannot reach: polls and wake-ups in every order, and whether the lock
//! manager removes the entry of an unused name.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::super::cancel::CancelToken;
use super::super::grant::RequestOrigin;
use super::super::request::{LockWait, RequestHandle, WaitPoll};
use super::*;
use crate::env::{Env, JoinHandle, Parker, SystemEnv};
use crate::observe::Metrics;
use LockMode::{Exclusive, Semaphore, Shared};

/// A longer wait means that a wake-up was lost.
const LIMIT: Duration = Duration::from_secs(60);

fn manager() -> Arc<LockManager> {
    Arc::new(LockManager::new(7, LockMetrics::new(Arc::new(Metrics::new(0)))))
}

fn owner() -> Requester {
    Requester {
        origin: RequestOrigin::Here { thread: std::thread::current(), task: None },
        reason: None,
        requested_at: Duration::ZERO,
    }
}

fn wait_of(
    manager: &Arc<LockManager>,
    mode: LockMode,
    at_most: Option<Duration>,
    cancel: Option<&CancelToken>,
) -> LockWait {
    let waiter = || Arc::new(Waiter::new(&SystemEnv::default()));
    let grant = manager.request("name", mode, owner, None, (Duration::ZERO, Some(&waiter))).unwrap();
    LockWait::new(RequestHandle::new(manager, grant, false), Duration::ZERO, at_most, cancel)
}

/// A grant with token 5 and a lease that expires at `ends`.
fn leased(manager: &Arc<LockManager>, mode: LockMode, ends: Duration) -> RequestHandle {
    let lease = Lease {
        duration: ends,
        expires_at: ends,
        renewed_at_ms: 0,
        auto_renew: false,
        has_guard: true,
        row_writes_in_flight: 0,
        last_explicit_renewal_ts: Timestamp::ZERO,
    };
    let grant = manager.request("name", mode, owner, Some(lease), (Duration::ZERO, None)).unwrap();
    grant.set_token(Timestamp::from_u64(5));
    grant.set_ready();
    RequestHandle::new(manager, grant, false)
}

fn conversion_of(manager: &Arc<LockManager>, request: &RequestHandle) -> LockWait {
    let before = request.grant();
    let lease = before.lease().map(|lease| Lease { expires_at: Duration::MAX, row_writes_in_flight: 1, ..lease });
    let next = Arc::new(Grant::new(Arc::clone(&before.name), before.id, Exclusive, owner(), lease));
    let waiter = || Arc::new(Waiter::new(&SystemEnv::default()));
    assert!(matches!(manager.upgrade(before, &next, &waiter), UpgradeResult::Waiting));
    LockWait::new(RequestHandle::new(manager, next, true), Duration::ZERO, None, None)
}

#[test]
fn a_new_first_waiter_arms_the_lease_timer() {
    const SECOND: Duration = Duration::from_secs(1);
    // Two requests wait behind an exclusive lease. The first has a timer for the lease's expiry.
    // When the first leaves the queue, the next one gets such a timer.
    let manager = manager();
    let held = leased(&manager, Exclusive, SECOND);
    let (front, next) = (wait_of(&manager, Exclusive, None, None), wait_of(&manager, Exclusive, None, None));
    assert!(matches!(front.poll(Duration::ZERO), WaitPoll::Wait(_, Some(SECOND))));
    assert!(matches!(next.poll(Duration::ZERO), WaitPoll::Wait(_, None)));
    drop(front);
    assert!(is_woken(&next));
    assert!(matches!(next.poll(Duration::ZERO), WaitPoll::Wait(_, Some(SECOND))));
    drop((held, next));

    // One of two shared leases waits to be converted, so the first waiter waits for the conversion,
    // without a timer. When the conversion is cancelled, the first waiter gets a timer.
    let (converted, other) = (leased(&manager, Shared, SECOND), leased(&manager, Shared, SECOND));
    let conversion = conversion_of(&manager, &converted);
    let queued = wait_of(&manager, Exclusive, None, None);
    assert!(matches!(queued.poll(Duration::ZERO), WaitPoll::Wait(_, None)));
    drop(conversion);
    assert!(is_woken(&queued));
    assert!(matches!(queued.poll(Duration::ZERO), WaitPoll::Wait(_, Some(SECOND))));
    drop((converted, other, queued));

    // An exclusive lease is downgraded. This grants the first waiter, and the next gets a timer.
    let held = leased(&manager, Exclusive, SECOND);
    let (front, next) = (wait_of(&manager, Shared, None, None), wait_of(&manager, Exclusive, None, None));
    assert!(matches!(front.poll(Duration::ZERO), WaitPoll::Wait(_, Some(SECOND))));
    assert!(matches!(next.poll(Duration::ZERO), WaitPoll::Wait(_, None)));
    let lease = held.grant().lease();
    let shared = Arc::new(Grant::new(Arc::clone(&held.grant().name), held.grant().id, Shared, owner(), lease));
    assert!(manager.downgrade(held.grant(), &shared).unwrap());
    assert!(is_granted(&front) && is_woken(&next));
    assert!(matches!(next.poll(Duration::ZERO), WaitPoll::Wait(_, Some(SECOND))));
    // Once `front` is dropped, `next` waits only for the lease, and at this poll it has expired.
    drop(front);
    assert!(matches!(next.poll(SECOND), WaitPoll::Granted));
}

fn is_granted(wait: &LockWait) -> bool {
    wait.request.grant().is_granted()
}

fn is_woken(wait: &LockWait) -> bool {
    wait.request.grant().waiter().is_some_and(|waiter| waiter.is_notified())
}

fn wakes(manager: &LockManager) -> u64 {
    manager.metrics.snapshot().wakeups
}

#[test]
fn a_waiter_granted_while_it_leaves_passes_the_lock_on() {
    let manager = manager();
    // Two shared requests and an exclusive one wait. The shared ones are granted, and then dropped
    // one by one. The second drop grants the exclusive one.
    let held = wait_of(&manager, Exclusive, None, None);
    let queue: Vec<_> = [Shared, Shared, Exclusive].map(|mode| wait_of(&manager, mode, None, None)).into();
    assert!(queue.iter().all(|wait| matches!(wait.poll(Duration::ZERO), WaitPoll::Wait(..))));
    drop(held);
    let granted = |queue: &[LockWait]| queue.iter().map(|wait| (is_granted(wait), is_woken(wait))).collect::<Vec<_>>();
    assert_eq!(granted(&queue), [(true, true), (true, true), (false, false)]);
    let mut queue = queue.into_iter();
    drop(queue.next());
    assert_eq!(granted(queue.as_slice()), [(true, true), (false, false)]);
    drop(queue.next());
    assert_eq!(granted(queue.as_slice()), [(true, true)]);
    assert_eq!(wakes(&manager), 3);
    drop(queue);
    assert!(manager.is_empty());

    // Two waiters are granted, and poll only after the timeout of one has passed and the other is
    // cancelled. Both have the lock.
    let cancel = CancelToken::default();
    let held = wait_of(&manager, Exclusive, None, None);
    let late = wait_of(&manager, Shared, Some(Duration::from_secs(1)), None);
    let cancelled = wait_of(&manager, Shared, None, Some(&cancel));
    let next = wait_of(&manager, Exclusive, None, None);
    drop(held);
    cancel.cancel();
    assert!(matches!(late.poll(Duration::from_secs(2)), WaitPoll::Granted));
    assert!(matches!(cancelled.poll(Duration::ZERO), WaitPoll::Granted));
    assert!(!is_granted(&next));
    drop((late, cancelled));
    assert!(is_granted(&next) && is_woken(&next));
    drop(next);
    assert!(manager.is_empty());
    let stats = manager.metrics.snapshot();
    assert_eq!((stats.wakeups, stats.shared.cancelled, stats.shared.timeouts), (6, 0, 0));
}

#[test]
fn a_semaphore_waits_only_for_commits_of_another_number() {
    let manager = manager();
    let commit_ts = Timestamp::from_u64(7);
    let held = wait_of(&manager, Semaphore(2), None, None);
    held.request.grant().note_fenced_commit(commit_ts);
    drop(held);
    let found = |mode| manager.predecessors_of(wait_of(&manager, mode, None, None).request.grant()).unsynced_commit_ts;
    assert_eq!(found(Semaphore(2)), Timestamp::ZERO);
    assert_eq!(found(Semaphore(3)), commit_ts);
    // The line above has requested and dropped a `Semaphore(3)`. Once the number of permits has
    // changed, a request of any mode waits for the earlier commit, even one with the old number.
    assert_eq!(found(Semaphore(2)), commit_ts);

    // While the commit is in flight, a request with another number of permits waits for it, and one
    // with the same number does not.
    let held = wait_of(&manager, Semaphore(2), None, None).into_request();
    let before = Arc::clone(held.grant());
    before.state().fetch_add(1, Ordering::SeqCst);
    drop(held);
    let finds = |mode| manager.predecessors_of(wait_of(&manager, mode, None, None).request.grant()).has_in_flight;
    assert_eq!((finds(Semaphore(2)), finds(Semaphore(3))), (false, true));
    before.state().fetch_sub(1, Ordering::SeqCst);
    manager.prune("name", commit_ts);
    assert!(manager.is_empty());
}

type Hook = Box<dyn Fn() + Send + Sync>;

struct RecordedParker {
    parker: Arc<dyn Parker>,
    parks: Hook,
    woken: Hook,
}

impl Parker for RecordedParker {
    fn park(&self, at_most: Option<Duration>) {
        (self.parks)();
        self.parker.park(at_most);
    }

    fn unpark(&self) {
        (self.woken)();
        self.parker.unpark();
    }
}

struct RecordingEnv {
    system: SystemEnv,
    parker: Arc<dyn Parker>,
}

impl Env for RecordingEnv {
    fn unix_millis(&self) -> u64 {
        self.system.unix_millis()
    }

    fn elapsed(&self) -> Duration {
        self.system.elapsed()
    }

    fn random(&self) -> u64 {
        self.system.random()
    }

    fn sleep(&self, duration: Duration) {
        self.system.sleep(duration);
    }

    fn parker(&self) -> Arc<dyn Parker> {
        Arc::clone(&self.parker)
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        self.system.spawn(name, work)
    }
}

/// When the holder releases.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    BeforeAsking,
    BeforeLooking,
    BeforeWaiting,
    /// The waiter has found no notification, and is about to park.
    BeforeParking,
    Parked,
}

#[test]
fn a_release_between_poll_and_park_is_never_missed() {
    for end in [End::BeforeAsking, End::BeforeLooking, End::BeforeWaiting, End::BeforeParking, End::Parked] {
        let manager = manager();
        let held = Arc::new(Mutex::new(Some(wait_of(&manager, Exclusive, None, None).into_request())));
        let release = {
            let held = Arc::clone(&held);
            move || drop(held.lock().take())
        };
        let grant: Arc<OnceLock<Arc<Grant>>> = Arc::default();
        let woken_early = Arc::new(AtomicBool::new(false));
        let parker = RecordedParker {
            parker: SystemEnv::default().parker(),
            parks: {
                let release = release.clone();
                Box::new(move || match end {
                    End::BeforeParking => release(),
                    End::Parked => {
                        let release = release.clone();
                        std::thread::spawn(move || {
                            std::thread::sleep(Duration::from_millis(20));
                            release();
                        });
                    }
                    _ => {}
                })
            },
            woken: {
                let (grant, early) = (Arc::clone(&grant), Arc::clone(&woken_early));
                Box::new(move || early.store(grant.get().is_some_and(|grant| !grant.is_granted()), Ordering::Relaxed))
            },
        };
        let env = RecordingEnv { system: SystemEnv::default(), parker: Arc::new(parker) };
        let ends_at = |now| {
            if end == now {
                release();
            }
        };

        ends_at(End::BeforeAsking);
        let waiter = || Arc::new(Waiter::new(&env));
        let asked = manager.request("name", Exclusive, owner, None, (Duration::ZERO, Some(&waiter))).unwrap();
        assert_eq!(asked.is_granted(), end == End::BeforeAsking, "{end:?}");
        grant.set(Arc::clone(&asked)).ok().unwrap();
        let wait = LockWait::new(RequestHandle::new(&manager, asked, false), Duration::ZERO, None, None);
        ends_at(End::BeforeLooking);
        let mut waits = 0;
        while let WaitPoll::Wait(waiter, at_most) = wait.poll(env.elapsed()) {
            waits += 1;
            assert_eq!((at_most, waits), (None, 1), "{end:?}: woken more than once, or by a timer");
            ends_at(End::BeforeWaiting);
            waiter.wait_at_most(&env, LIMIT);
            assert!(waiter.is_notified(), "{end:?}: the wake-up was lost");
        }
        assert!(is_granted(&wait) && !woken_early.load(Ordering::Relaxed), "{end:?}");
        let had_to_wait = !matches!(end, End::BeforeAsking | End::BeforeLooking);
        assert_eq!(waits == 1, had_to_wait, "{end:?}");
        assert_eq!(wakes(&manager), u64::from(end != End::BeforeAsking), "{end:?}");
        drop(wait);
        assert!(manager.is_empty());
    }
}

#[test]
fn an_upgrade_ends_with_its_shared_grant() {
    let manager = manager();
    let (first, _second) = (wait_of(&manager, Shared, None, None), wait_of(&manager, Shared, None, None));
    let behind = wait_of(&manager, Shared, None, None);
    assert!(is_granted(&behind));
    drop(behind);
    let shared = first.into_request();
    shared.grant().set_token(Timestamp::from_u64(5));
    let next = Arc::new(Grant::new("name".into(), shared.grant().id, Exclusive, owner(), None));
    let waiter = || Arc::new(Waiter::new(&SystemEnv::default()));
    assert!(matches!(manager.upgrade(shared.grant(), &next, &waiter), UpgradeResult::Waiting));
    let conversion = LockWait::new(RequestHandle::new(&manager, next, true), Duration::ZERO, None, None);
    let queued = wait_of(&manager, Shared, None, None);
    assert!(matches!(conversion.poll(Duration::ZERO), WaitPoll::Wait(_, None)));
    assert!(!is_granted(&queued));

    assert!(manager.release_by_token("name", Timestamp::from_u64(5), LockLostReason::Forced, Duration::ZERO).is_some());
    assert!(is_woken(&conversion), "nothing else would wake it");
    assert!(matches!(conversion.poll(Duration::ZERO), WaitPoll::GrantEnded(LockLostReason::Forced)));
    assert_eq!(conversion.request.grant().token(), Timestamp::from_u64(5));
    assert!(is_granted(&queued));
    assert_eq!(wakes(&manager), 2);
    drop((conversion, shared));
    assert!(is_granted(&queued));
    assert_eq!(manager.metrics.snapshot().exclusive.cancelled, 0);
}

#[path = "manager_stress_tests.rs"]
mod crowd;

/// A name whose counts are wrong may be in any state: no thread may go on with its locks.
#[test]
fn a_broken_invariant_closes_the_manager() {
    let manager = manager();
    let held = leased(&manager, Exclusive, LIMIT);
    let next = wait_of(&manager, Exclusive, None, None);
    manager.shard("name").get_mut("name").unwrap().leased_grants = 0;
    let released = || manager.release(held.grant(), Duration::ZERO);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(released)).expect_err("the count is too low");
    let text = panic.downcast_ref::<String>().expect("the text of an assertion");
    assert!(text.contains("invariant: a lease that ends was counted when it was granted: name"), "{text}");
    assert!(manager.closed().is_some() && is_woken(&next), "the manager goes on");
}

#[test]
#[should_panic(expected = "invariant: a write of a lease row that ends was counted when it began")]
fn a_row_write_that_never_began_breaks_an_invariant() {
    leased(&manager(), Exclusive, LIMIT).grant().with_lease(Lease::end_row_write);
}

#[test]
#[should_panic(expected = "invariant: a request has one waiter")]
fn a_second_waiter_breaks_an_invariant() {
    let manager = manager();
    let held = leased(&manager, Exclusive, LIMIT);
    (0..2).for_each(|_| held.grant().set_waiter(Arc::new(Waiter::new(&SystemEnv::default()))));
}

/// Without the entry, the new grant would wait for nothing.
#[test]
#[should_panic(expected = "invariant: a name has an entry while it has a grant")]
fn a_grant_without_an_entry_breaks_an_invariant() {
    let manager = manager();
    let held = [Shared, Shared].map(|mode| leased(&manager, mode, LIMIT));
    manager.shard("name").clear();
    manager.predecessors_of(held[1].grant());
}
