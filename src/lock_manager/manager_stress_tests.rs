//! Stress test of the lock manager: random requests of many threads.

use super::*;

const THREADS: u64 = 32;
const REQUESTS: u64 = 5000;
const NAMES: [&str; 4] = ["one", "two", "three", "permits"];
const PERMITS: u32 = 3;

fn unit(mode: LockMode) -> u64 {
    match mode {
        Shared => 1,
        Semaphore(_) => 1 << 16,
        Exclusive => 1 << 32,
    }
}

fn goes_beside(mode: LockMode, others: u64) -> bool {
    match mode {
        Shared => others < unit(Semaphore(PERMITS)),
        Semaphore(most) => others.is_multiple_of(unit(mode)) && others / unit(mode) < u64::from(most),
        Exclusive => others == 0,
    }
}

struct Crowd {
    manager: Arc<LockManager>,
    system: SystemEnv,
    /// Holders of each name: one packed number with a counter for each mode.
    inside: [AtomicU64; 4],
    /// Requests that waited and were granted.
    granted_later: AtomicU64,
    waits: AtomicU64,
    has_failed: AtomicBool,
}

/// Sets the flag if the thread panics, so that the others stop early.
struct PanicFlag<'a>(&'a AtomicBool);

impl Drop for PanicFlag<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32
}

fn below(limit: usize, random: &mut impl FnMut() -> u64) -> usize {
    usize::try_from(random()).unwrap_or_default() % limit
}

impl Crowd {
    fn enters(&self, at: usize, mode: LockMode) {
        let others = self.inside[at].fetch_add(unit(mode), Ordering::SeqCst);
        assert!(goes_beside(mode, others), "{mode} overlaps {others:#x} of {:?}", NAMES[at]);
    }

    fn leaves(&self, at: usize, mode: LockMode) {
        self.inside[at].fetch_sub(unit(mode), Ordering::SeqCst);
    }

    /// Waits as a thread does, or with `give_up` stops where it would wait. Returns whether the
    /// request is granted.
    fn waits_for(&self, wait: &LockWait, give_up: bool) -> bool {
        let mut woken = false;
        loop {
            match wait.poll(self.system.elapsed()) {
                WaitPoll::Granted => return true,
                WaitPoll::TimedOut { .. } => return false,
                WaitPoll::Wait(waiter, at_most) => {
                    assert!(!woken, "woken without a reason");
                    self.waits.fetch_add(1, Ordering::Relaxed);
                    if give_up {
                        return false;
                    }
                    waiter.wait_at_most(&self.system, at_most.unwrap_or(LIMIT));
                    woken = waiter.is_notified();
                    assert!(woken || at_most.is_some(), "the wake-up was lost");
                }
                WaitPoll::Cancelled | WaitPoll::GrantEnded(_) | WaitPoll::Closed(_) => unreachable!(),
            }
        }
    }

    /// Drops `rest`, the wait or handle of a request, and counts the request if it was granted
    /// after a wait.
    fn is_over<T>(&self, grant: &Arc<Grant>, rest: T) {
        drop(rest);
        if grant.waiter().is_some() && grant.is_granted() {
            self.granted_later.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn request(&self, random: &mut impl FnMut() -> u64) {
        let at = below(NAMES.len(), random);
        let mode = match (at, random() % 10) {
            (3, 0) | (0..3, 0..4) => Exclusive,
            (3, _) => Semaphore(PERMITS),
            _ => Shared,
        };
        let timeouts = [None, None, Some(Duration::ZERO), Some(Duration::from_micros(random() % 200))];
        let at_most = timeouts[below(timeouts.len(), random)];
        let gives_up = random().is_multiple_of(8);
        let waiter = || Arc::new(Waiter::new(&self.system));
        let waiter: Option<&dyn Fn() -> Arc<Waiter>> = if random() % 8 == 1 { None } else { Some(&waiter) };
        let began = self.system.elapsed();
        let grant = match self.manager.request(NAMES[at], mode, owner, None, (began, waiter)) {
            Ok(grant) => grant,
            Err(RequestError::WouldBlock) if waiter.is_none() => return,
            Err(error) => unreachable!("{error:?}"),
        };
        let wait = LockWait::new(RequestHandle::new(&self.manager, Arc::clone(&grant), false), began, at_most, None);
        if !self.waits_for(&wait, gives_up) {
            return self.is_over(&grant, wait);
        }
        self.enters(at, mode);
        let (mut held, mut mode) = (wait.into_request(), mode);
        if at < 3 && random().is_multiple_of(4) {
            (held, mode) = self.converts(at, held, mode, at_most);
        }
        if random().is_multiple_of(4) {
            std::thread::yield_now();
        }
        self.leaves(at, mode);
        assert!(held.release());
        let grant = Arc::clone(held.grant());
        // A grant with a reason is from `converts`, which has counted it if it was granted after a
        // wait.
        if grant.requester.reason.is_none() {
            self.is_over(&grant, held);
        }
    }

    fn converts(
        &self,
        at: usize,
        held: RequestHandle,
        mode: LockMode,
        at_most: Option<Duration>,
    ) -> (RequestHandle, LockMode) {
        let to = if mode == Shared { Exclusive } else { Shared };
        let owner = Requester { reason: Some("converted".into()), ..owner() };
        let next = Arc::new(Grant::new(NAMES[at].into(), held.grant().id, to, owner, None));
        if to == Shared {
            // The new mode is counted before the downgrade, because other shared holders may enter
            // as soon as the downgrade is done.
            let before = self.inside[at].fetch_sub(unit(Exclusive) - unit(Shared), Ordering::SeqCst);
            assert_eq!(before, unit(Exclusive));
            assert!(self.manager.downgrade(held.grant(), &next).unwrap());
            assert_eq!(held.grant().end_reason_at(Duration::ZERO), Some(LockLostReason::Converted));
            let grant = Arc::clone(held.grant());
            self.is_over(&grant, held);
            return (RequestHandle::new(&self.manager, next, false), Shared);
        }
        let waiter = || Arc::new(Waiter::new(&self.system));
        match self.manager.upgrade(held.grant(), &next, &waiter) {
            UpgradeResult::Deadlock => return (held, Shared),
            UpgradeResult::NoSuchGrant => unreachable!(),
            UpgradeResult::Granted(()) | UpgradeResult::Waiting => {}
        }
        let request = RequestHandle::new(&self.manager, Arc::clone(&next), true);
        let wait = LockWait::new(request, self.system.elapsed(), at_most, None);
        if !self.waits_for(&wait, false) {
            self.is_over(&next, wait);
            return (held, Shared);
        }
        let before = self.inside[at].fetch_add(unit(Exclusive) - unit(Shared), Ordering::SeqCst);
        assert_eq!(before, unit(Shared), "an upgrade was granted beside another holder");
        if next.waiter().is_some() {
            self.granted_later.fetch_add(1, Ordering::Relaxed);
        }
        let grant = Arc::clone(held.grant());
        self.is_over(&grant, held);
        (wait.into_request(), Exclusive)
    }
}

#[test]
fn random_requests_of_32_threads_never_overlap() {
    let seed = std::env::var("PERCOLITE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| SystemEnv::default().random());
    println!("random_requests_of_32_threads: PERCOLITE_SEED={seed}");
    let crowd = Crowd {
        manager: manager(),
        system: SystemEnv::default(),
        inside: [0; 4].map(AtomicU64::new),
        granted_later: AtomicU64::new(0),
        waits: AtomicU64::new(0),
        has_failed: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let crowd = &crowd;
            scope.spawn(move || {
                let mut state = seed ^ (thread << 32);
                let mut random = || random(&mut state);
                let flag = PanicFlag(&crowd.has_failed);
                for _ in (0..REQUESTS).take_while(|_| !crowd.has_failed.load(Ordering::Relaxed)) {
                    crowd.request(&mut random);
                }
                drop(flag);
            });
        }
    });
    assert!(crowd.manager.is_empty());
    assert!(crowd.inside.iter().all(|inside| inside.load(Ordering::SeqCst) == 0));
    let (waits, granted_later) = (crowd.waits.into_inner(), crowd.granted_later.into_inner());
    assert!(granted_later > 1000 && waits > granted_later, "{granted_later} of {waits}");
    assert_eq!(wakes(&crowd.manager), granted_later);

    // Of these four requests the two shared ones in front are granted. Closing the lock manager
    // wakes each of the others once.
    let manager = &crowd.manager;
    let queue: Vec<_> = [Shared, Shared, Exclusive, Shared].map(|mode| wait_of(manager, mode, None, None)).into();
    assert!(queue.iter().skip(2).all(|wait| matches!(wait.poll(Duration::ZERO), WaitPoll::Wait(..))));
    manager.close("closed");
    assert!(queue.iter().skip(2).all(is_woken));
    assert!(queue.iter().skip(2).all(|wait| matches!(wait.poll(Duration::ZERO), WaitPoll::Closed(_))));
    assert_eq!(wakes(manager), granted_later + 2);
    drop(queue);
    assert!(manager.is_empty());
}
