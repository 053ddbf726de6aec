//! What cannot be seen from outside: looks and wakes in every order, and that nothing is kept.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::super::cancel::Cancel;
use super::super::grant::Asker;
use super::super::request::{LockWait, Request, WaitStep};
use super::*;
use crate::observe::Counters;
use crate::runtime::{Joined, Parker, Runtime, System};
use LockMode::{Exclusive, Semaphore, Shared};

/// Whatever waits longer has missed its wake.
const LIMIT: Duration = Duration::from_secs(10);

fn heads() -> Arc<Heads> {
    Arc::new(Heads::new(7, LockCounters::new(Arc::new(Counters::new(0)))))
}

fn owner() -> Owner {
    Owner { by: Asker::Here { thread: std::thread::current(), task: None }, why: None, asked: Duration::ZERO }
}

fn wait_of(heads: &Arc<Heads>, mode: LockMode, at_most: Option<Duration>, cancel: Option<&Cancel>) -> LockWait {
    let waiter = || Arc::new(Waiter::new(&System::default()));
    let grant = heads.ask("name", mode, owner, None, (Duration::ZERO, Some(&waiter))).unwrap();
    LockWait::new(Request::new(heads, grant, false), Duration::ZERO, at_most, cancel)
}

fn is_granted(wait: &LockWait) -> bool {
    wait.request.grant().is_granted()
}

fn is_woken(wait: &LockWait) -> bool {
    wait.request.grant().waiter().is_some_and(|waiter| waiter.is_notified())
}

fn wakes(heads: &Heads) -> u64 {
    heads.counters.read().wakes
}

#[test]
fn m2_d_a_waiter_that_is_granted_and_does_not_know_passes_the_lock_on_or_has_it() {
    let heads = heads();
    // It leaves: the others as if it had never been.
    let held = wait_of(&heads, Exclusive, None, None);
    let queue: Vec<_> = [Shared, Shared, Exclusive].map(|mode| wait_of(&heads, mode, None, None)).into();
    assert!(queue.iter().all(|wait| matches!(wait.step(Duration::ZERO), WaitStep::Wait(..))));
    drop(held);
    let granted = |queue: &[LockWait]| queue.iter().map(|wait| (is_granted(wait), is_woken(wait))).collect::<Vec<_>>();
    assert_eq!(granted(&queue), [(true, true), (true, true), (false, false)]);
    let mut queue = queue.into_iter();
    drop(queue.next());
    assert_eq!(granted(queue.as_slice()), [(true, true), (false, false)]);
    drop(queue.next());
    assert_eq!(granted(queue.as_slice()), [(true, true)]);
    assert_eq!(wakes(&heads), 3);
    drop(queue);
    assert!(heads.is_empty());

    // Its patience is over, or it is cancelled: it has the lock.
    let cancel = Cancel::default();
    let held = wait_of(&heads, Exclusive, None, None);
    let late = wait_of(&heads, Shared, Some(Duration::from_secs(1)), None);
    let cancelled = wait_of(&heads, Shared, None, Some(&cancel));
    let next = wait_of(&heads, Exclusive, None, None);
    drop(held);
    cancel.cancel();
    assert!(matches!(late.step(Duration::from_secs(2)), WaitStep::Granted));
    assert!(matches!(cancelled.step(Duration::ZERO), WaitStep::Granted));
    assert!(!is_granted(&next));
    drop((late, cancelled));
    assert!(is_granted(&next) && is_woken(&next));
    drop(next);
    assert!(heads.is_empty());
    let stats = heads.counters.read();
    assert_eq!((stats.wakes, stats.shared.cancelled, stats.shared.timed_out), (6, 0, 0));
}

type Hook = Box<dyn Fn() + Send + Sync>;

/// A thread's parker that says when it parks, and when it is woken.
struct Told {
    parker: Arc<dyn Parker>,
    parks: Hook,
    woken: Hook,
}

impl Parker for Told {
    fn park(&self, at_most: Option<Duration>) {
        (self.parks)();
        self.parker.park(at_most);
    }

    fn unpark(&self) {
        (self.woken)();
        self.parker.unpark();
    }
}

struct Telling {
    system: System,
    parker: Arc<dyn Parker>,
}

impl Runtime for Telling {
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

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn Joined>> {
        self.system.spawn(name, work)
    }
}

/// When the holder ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    BeforeAsking,
    BeforeLooking,
    BeforeWaiting,
    /// The waiter has found that nothing has come, and is about to park.
    BeforeParking,
    Parked,
}

#[test]
fn z3_a_a_holder_that_ends_around_a_look_and_a_wait_is_never_missed() {
    for end in [End::BeforeAsking, End::BeforeLooking, End::BeforeWaiting, End::BeforeParking, End::Parked] {
        let heads = heads();
        let held = Arc::new(Mutex::new(Some(wait_of(&heads, Exclusive, None, None).into_request())));
        let release = {
            let held = Arc::clone(&held);
            move || drop(held.lock().take())
        };
        let grant: Arc<OnceLock<Arc<Grant>>> = Arc::default();
        let woken_early = Arc::new(AtomicBool::new(false));
        let told = Told {
            parker: System::default().parker(),
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
        let runtime = Telling { system: System::default(), parker: Arc::new(told) };
        let ends_at = |now| {
            if end == now {
                release();
            }
        };

        ends_at(End::BeforeAsking);
        let waiter = || Arc::new(Waiter::new(&runtime));
        let asked = heads.ask("name", Exclusive, owner, None, (Duration::ZERO, Some(&waiter))).unwrap();
        assert_eq!(asked.is_granted(), end == End::BeforeAsking, "{end:?}");
        grant.set(Arc::clone(&asked)).ok().unwrap();
        let wait = LockWait::new(Request::new(&heads, asked, false), Duration::ZERO, None, None);
        ends_at(End::BeforeLooking);
        let mut waits = 0;
        while let WaitStep::Wait(waiter, at_most) = wait.step(runtime.elapsed()) {
            waits += 1;
            assert_eq!((at_most, waits), (None, 1), "{end:?}: it is woken once, and not by a timer");
            ends_at(End::BeforeWaiting);
            waiter.wait_at_most(&runtime, LIMIT);
            assert!(waiter.is_notified(), "{end:?}: nobody woke it");
        }
        assert!(is_granted(&wait) && !woken_early.load(Ordering::Relaxed), "{end:?}");
        let had_to_wait = !matches!(end, End::BeforeAsking | End::BeforeLooking);
        assert_eq!(waits == 1, had_to_wait, "{end:?}");
        assert_eq!(wakes(&heads), u64::from(end != End::BeforeAsking), "{end:?}");
        drop(wait);
        assert!(heads.is_empty());
    }
}

#[test]
fn a_conversion_ends_with_the_shared_grant_that_it_was_to_replace() {
    let heads = heads();
    let (first, _second) = (wait_of(&heads, Shared, None, None), wait_of(&heads, Shared, None, None));
    let behind = wait_of(&heads, Shared, None, None);
    assert!(is_granted(&behind));
    drop(behind);
    let shared = first.into_request();
    shared.grant().set_token(Timestamp::from_u64(5));
    let next = Arc::new(Grant::new("name".into(), shared.grant().id, Exclusive, owner(), None));
    let waiter = || Arc::new(Waiter::new(&System::default()));
    assert!(matches!(heads.upgrade(shared.grant(), &next, &waiter), Conversion::Waits));
    let conversion = LockWait::new(Request::new(&heads, next, true), Duration::ZERO, None, None);
    let queued = wait_of(&heads, Shared, None, None);
    assert!(matches!(conversion.step(Duration::ZERO), WaitStep::Wait(_, None)));
    assert!(!is_granted(&queued));

    assert!(heads.end_by_token("name", Timestamp::from_u64(5), LostReason::Forced).is_some());
    assert!(is_woken(&conversion), "nobody else would wake it");
    assert!(matches!(conversion.step(Duration::ZERO), WaitStep::Lost(LostReason::Forced)));
    assert_eq!(conversion.request.grant().token(), Timestamp::from_u64(5));
    assert!(is_granted(&queued));
    assert_eq!(wakes(&heads), 2);
    drop((conversion, shared));
    assert!(is_granted(&queued));
    assert_eq!(heads.counters.read().exclusive.cancelled, 0);
}

mod crowd {
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
        heads: Arc<Heads>,
        system: System,
        /// Who is inside, by mode.
        inside: [AtomicU64; 4],
        /// Requests that waited and were granted.
        granted_later: AtomicU64,
        waits: AtomicU64,
        has_failed: AtomicBool,
    }

    /// What one thread has found, the others need not look for.
    struct TellsOfPanic<'a>(&'a AtomicBool);

    impl Drop for TellsOfPanic<'_> {
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
            assert!(goes_beside(mode, others), "{mode} beside {others:#x} of {:?}", NAMES[at]);
        }

        fn leaves(&self, at: usize, mode: LockMode) {
            self.inside[at].fetch_sub(unit(mode), Ordering::SeqCst);
        }

        /// Waits as a thread does; the answer is whether it is granted.
        fn waits_for(&self, wait: &LockWait, give_up: bool) -> bool {
            let mut woken = false;
            loop {
                match wait.step(self.system.elapsed()) {
                    WaitStep::Granted => return true,
                    WaitStep::TimedOut { .. } => return false,
                    WaitStep::Wait(waiter, at_most) => {
                        assert!(!woken, "woken for nothing");
                        self.waits.fetch_add(1, Ordering::Relaxed);
                        if give_up {
                            return false;
                        }
                        waiter.wait_at_most(&self.system, at_most.unwrap_or(LIMIT));
                        woken = waiter.is_notified();
                        assert!(woken || at_most.is_some(), "nobody woke it");
                    }
                    WaitStep::Cancelled | WaitStep::Lost(_) | WaitStep::Closed(_) => unreachable!(),
                }
            }
        }

        /// Drops what is left of a request, and notes whether it had been granted after a wait.
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
            let patience = [None, None, Some(Duration::ZERO), Some(Duration::from_micros(random() % 200))];
            let at_most = patience[below(patience.len(), random)];
            let gives_up = random().is_multiple_of(8);
            let waiter = || Arc::new(Waiter::new(&self.system));
            let waiter: Option<&dyn Fn() -> Arc<Waiter>> = if random() % 8 == 1 { None } else { Some(&waiter) };
            let began = self.system.elapsed();
            let grant = match self.heads.ask(NAMES[at], mode, owner, None, (began, waiter)) {
                Ok(grant) => grant,
                Err(NotAsked::Busy) if waiter.is_none() => return,
                Err(why) => unreachable!("{why:?}"),
            };
            let wait = LockWait::new(Request::new(&self.heads, Arc::clone(&grant), false), began, at_most, None);
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
            // A conversion was counted when it was granted.
            if grant.owner.why.is_none() {
                self.is_over(&grant, held);
            }
        }

        fn converts(&self, at: usize, held: Request, mode: LockMode, at_most: Option<Duration>) -> (Request, LockMode) {
            let to = if mode == Shared { Exclusive } else { Shared };
            let owner = Owner { why: Some("converted".into()), ..owner() };
            let next = Arc::new(Grant::new(NAMES[at].into(), held.grant().id, to, owner, None));
            if to == Shared {
                // Others may be in as soon as it is one.
                let before = self.inside[at].fetch_sub(unit(Exclusive) - unit(Shared), Ordering::SeqCst);
                assert_eq!(before, unit(Exclusive));
                assert!(self.heads.downgrade(held.grant(), &next).unwrap());
                assert_eq!(held.grant().lost(Duration::ZERO), Some(LostReason::Converted));
                let grant = Arc::clone(held.grant());
                self.is_over(&grant, held);
                return (Request::new(&self.heads, next, false), Shared);
            }
            let waiter = || Arc::new(Waiter::new(&self.system));
            match self.heads.upgrade(held.grant(), &next, &waiter) {
                Conversion::Deadlock => return (held, Shared),
                Conversion::Unknown => unreachable!(),
                Conversion::Granted(()) | Conversion::Waits => {}
            }
            let request = Request::new(&self.heads, Arc::clone(&next), true);
            let wait = LockWait::new(request, self.system.elapsed(), at_most, None);
            if !self.waits_for(&wait, false) {
                self.is_over(&next, wait);
                return (held, Shared);
            }
            let before = self.inside[at].fetch_add(unit(Exclusive) - unit(Shared), Ordering::SeqCst);
            assert_eq!(before, unit(Shared), "it was to be alone");
            if next.waiter().is_some() {
                self.granted_later.fetch_add(1, Ordering::Relaxed);
            }
            let grant = Arc::clone(held.grant());
            self.is_over(&grant, held);
            (wait.into_request(), Exclusive)
        }
    }

    #[test]
    fn m1_f_random_requests_of_32_threads_never_overlap_and_wake_nobody_for_nothing() {
        let seed = std::env::var("PERCOLITE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| System::default().random());
        println!("m1_f: PERCOLITE_SEED={seed}");
        let crowd = Crowd {
            heads: heads(),
            system: System::default(),
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
                    let tells = TellsOfPanic(&crowd.has_failed);
                    for _ in (0..REQUESTS).take_while(|_| !crowd.has_failed.load(Ordering::Relaxed)) {
                        crowd.request(&mut random);
                    }
                    drop(tells);
                });
            }
        });
        assert!(crowd.heads.is_empty());
        assert!(crowd.inside.iter().all(|inside| inside.load(Ordering::SeqCst) == 0));
        let (waits, granted_later) = (crowd.waits.into_inner(), crowd.granted_later.into_inner());
        assert!(granted_later > 1000 && waits > granted_later, "{granted_later} of {waits}");
        assert_eq!(wakes(&crowd.heads), granted_later);

        // And one wake for each that waits at the end of the store.
        let heads = &crowd.heads;
        let queue: Vec<_> = [Shared, Shared, Exclusive, Shared].map(|mode| wait_of(heads, mode, None, None)).into();
        assert!(queue.iter().skip(2).all(|wait| matches!(wait.step(Duration::ZERO), WaitStep::Wait(..))));
        heads.close("closed");
        assert!(queue.iter().skip(2).all(is_woken));
        assert!(queue.iter().skip(2).all(|wait| matches!(wait.step(Duration::ZERO), WaitStep::Closed(_))));
        assert_eq!(wakes(heads), granted_later + 2);
        drop(queue);
        assert!(heads.is_empty());
    }
}
