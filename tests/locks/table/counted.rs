//! Compares the lock statistics of random requests with the counts of a model.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use LockMode::{Exclusive, Semaphore, Shared};
use percolite::{
    CancelToken, Error, ErrorKind, LockGuard, LockMode, LockModeStats, LockOptions, LockStats, LockTable,
    LockWaitPolicy, Result, Store,
};

use crate::support::clocks::Clocks;
use crate::support::{Asking, LIMIT, Random, asks, asks_with, until};

const NAMES: [&str; 6] = ["one", "two", "three", "permits", "leased", "leased and shared"];
const SEMAPHORE: usize = 3;
/// The names from this index on have leases: `leased` has exclusive leases, and `leased and shared`
/// has shared ones.
const LEASED: usize = 4;
const LEASE: Duration = Duration::from_secs(60);
const REQUESTS: u32 = 1000;
const PERMITS: u32 = 2;

struct Guarded {
    at: usize,
    mode: LockMode,
    guard: LockGuard,
    lease: Lease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    None,
    Runs,
    /// The lease has expired. The next request, or the first waiting one, ends the grant.
    Expired,
}

struct Waiting {
    at: usize,
    mode: LockMode,
    leased: bool,
    asking: Asking,
    cancel: CancelToken,
    since: Duration,
}

/// A guard that is moved to a thread, which upgrades it and sends it back.
struct Upgrading {
    at: usize,
    back: Receiver<(LockGuard, Result<()>)>,
    since: Duration,
}

/// A store, a model of its grants and waiting requests, and the expected statistics.
struct Script {
    store: Store,
    clocks: Arc<Clocks>,
    random: Random,
    guards: Vec<Guarded>,
    /// Guards whose leases end in this step.
    lost: Vec<Guarded>,
    waiting: Vec<Waiting>,
    upgrading: Vec<Upgrading>,
    requests: u32,
    expected: LockStats,
    /// For each mode, the longest wait that ended with a grant. It is measured around the request,
    /// so the real wait was not longer.
    longest: [Duration; 3],
    granted_later: [u64; 3],
    /// For each name, whether rows of expired leases are left for the next exclusive holder to
    /// delete.
    left: [bool; NAMES.len()],
}

fn place(mode: LockMode) -> usize {
    match mode {
        Exclusive => 0,
        Shared => 1,
        _ => 2,
    }
}

fn options(mode: LockMode) -> LockOptions {
    match mode {
        Shared => LockOptions::shared(),
        Semaphore(most) => LockOptions::semaphore(most),
        _ => LockOptions::exclusive(),
    }
}

impl Script {
    fn of(&mut self, mode: LockMode) -> &mut LockModeStats {
        match mode {
            Exclusive => &mut self.expected.exclusive,
            Shared => &mut self.expected.shared,
            _ => &mut self.expected.semaphore,
        }
    }

    /// Whether the model grants a request immediately.
    fn is_free(&self, at: usize, mode: LockMode) -> bool {
        let held: Vec<LockMode> = self.guards.iter().filter(|held| held.at == at).map(|held| held.mode).collect();
        let no_waiters =
            self.waiting.iter().all(|other| other.at != at) && self.upgrading.iter().all(|other| other.at != at);
        no_waiters
            && match mode {
                Shared => held.iter().all(|other| *other == Shared),
                Semaphore(most) => held.iter().all(|other| *other == mode) && held.len() < most as usize,
                _ => held.is_empty(),
            }
    }

    fn draw(&mut self) -> (usize, LockMode, bool) {
        let at = self.random.below(NAMES.len());
        let mode = match (at, self.random.below(5)) {
            (SEMAPHORE, 0) | (0..3, 0..2) | (LEASED, _) | (_, 0) => Exclusive,
            (SEMAPHORE, _) => Semaphore(PERMITS),
            _ => Shared,
        };
        let may_be_leased = if mode == Exclusive { at == LEASED } else { at > LEASED };
        (at, mode, may_be_leased && self.random.below(3) > 0)
    }

    fn ask(&mut self) {
        let (at, mode, leased) = self.draw();
        let options = |mode| if leased { options(mode).lease(LEASE).auto_renew(false) } else { options(mode) };
        self.requests += 1;
        self.ends(at);
        let free = self.is_free(at, mode);
        let name = NAMES[at];
        let waits = match self.random.below(6) {
            0 if mode == Exclusive && !leased => {
                let tried = self.store.try_lock(name).unwrap();
                assert_eq!(tried.is_some(), free);
                return self.answered(at, mode, leased, tried.ok_or(()), false);
            }
            0 => LockWaitPolicy::NoWait,
            1 => LockWaitPolicy::Timeout(Duration::ZERO),
            2 => LockWaitPolicy::Timeout(Duration::from_millis(1)),
            _ => LockWaitPolicy::Forever,
        };
        if waits != LockWaitPolicy::Forever {
            let answer = self.store.lock_with(name, options(mode).wait(waits)).map_err(assert_not_available);
            assert_eq!(answer.is_ok(), free, "{mode} of {name}, {waits:?}");
            return self.answered(at, mode, leased, answer, waits != LockWaitPolicy::NoWait);
        }
        let (cancel, since) = (CancelToken::default(), self.clocks.now());
        let asking = asks(&self.store, name, options(mode).cancel_token(&cancel));
        assert_eq!(asking.waits_as.is_none(), free, "{mode} of {name}");
        if free {
            return self.answered(at, mode, leased, Ok(asking.granted()), true);
        }
        self.of(mode).waits += 1;
        self.waiting.push(Waiting { at, mode, leased, asking, cancel, since });
    }

    /// Counts the result of a request. A request that was not granted counts as a timeout, and if
    /// `was_to_wait`, as a wait, too.
    fn answered(&mut self, at: usize, mode: LockMode, leased: bool, answer: Result<LockGuard, ()>, was_to_wait: bool) {
        let counted = self.of(mode);
        match answer {
            Ok(guard) => {
                counted.acquired += 1;
                self.holds(at, mode, leased, guard);
            }
            Err(()) => {
                counted.timeouts += 1;
                counted.waits += u64::from(was_to_wait);
            }
        }
    }

    fn holds(&mut self, at: usize, mode: LockMode, leased: bool, guard: LockGuard) {
        let takes_over = mode == Exclusive && std::mem::take(&mut self.left[at]);
        self.expected.leases_taken_over += u64::from(takes_over);
        assert_eq!(guard.entry().took_over.is_some(), takes_over, "{}", NAMES[at]);
        self.guards.push(Guarded { at, mode, guard, lease: if leased { Lease::Runs } else { Lease::None } });
    }

    /// Ends the expired leases of the name.
    fn ends(&mut self, at: usize) {
        let has_expired = |held: &Guarded| held.at == at && held.lease == Lease::Expired;
        let (expired, guards): (Vec<_>, Vec<_>) = std::mem::take(&mut self.guards).into_iter().partition(has_expired);
        self.guards = guards;
        let ended = expired.len() as u64;
        // `settle` drops the guards of these grants later. That must not end another grant.
        self.lost.extend(expired);
        self.expected.leases_expired += ended;
        self.expected.lost += ended;
        self.left[at] |= ended > 0;
    }

    /// All leases expire; the next request ends them. Does nothing while a request waits for a
    /// lease: the timer of that request would end the lease at a time that the model cannot
    /// predict.
    fn time_passes(&mut self) {
        if self.waiting.iter().any(|waiting| waiting.at >= LEASED) {
            return;
        }
        self.clocks.pass(LEASE);
        for held in self.guards.iter_mut().filter(|held| held.lease != Lease::None) {
            held.lease = Lease::Expired;
            assert!(!held.guard.is_held());
        }
    }

    /// Neither a successful nor a failed renewal is counted.
    fn renew(&mut self) {
        if let Some(held) = self.guards.iter().find(|held| held.lease != Lease::None) {
            let renewed = held.guard.renew(LEASE);
            assert_eq!(renewed.is_ok(), held.lease == Lease::Runs, "{renewed:?}");
        }
    }

    fn release(&mut self) {
        if !self.guards.is_empty() {
            let at = self.random.below(self.guards.len());
            let held = self.guards.swap_remove(at);
            self.drops(held);
        }
    }

    /// A lease that has expired when its guard is dropped counts as lost.
    fn drops(&mut self, held: Guarded) {
        let lost = u64::from(held.lease == Lease::Expired);
        self.expected.leases_expired += lost;
        self.expected.lost += lost;
    }

    fn force(&mut self) {
        if !self.guards.is_empty() {
            let at = self.random.below(self.guards.len());
            let held = self.guards.swap_remove(at);
            if held.lease == Lease::Expired {
                assert!(!self.store.force_unlock(NAMES[held.at], held.guard.token()).unwrap());
                return self.guards.push(held);
            }
            assert!(self.store.force_unlock(NAMES[held.at], held.guard.token()).unwrap());
            assert!(!held.guard.is_held());
            // A forced unlock of an ended grant is not counted.
            assert!(!self.store.force_unlock(NAMES[held.at], held.guard.token()).unwrap());
            self.expected.force_unlocked += 1;
            self.expected.lost += 1;
        }
    }

    fn cancel(&mut self) {
        if !self.waiting.is_empty() {
            let at = self.random.below(self.waiting.len());
            let waiting = self.waiting.swap_remove(at);
            waiting.cancel.cancel();
            assert!(matches!(waiting.asking.refused().kind(), ErrorKind::Cancelled(_)));
            self.of(waiting.mode).cancelled += 1;
        }
    }

    fn downgrade(&mut self) {
        let waits_for_permit = |at| self.waiting.iter().any(|other| other.at == at && other.mode == Semaphore(PERMITS));
        let found = self.guards.iter().position(|held| held.mode == Exclusive && !waits_for_permit(held.at));
        if let Some(found) = found.filter(|found| self.guards[*found].at < SEMAPHORE) {
            self.requests += 1;
            let held = &mut self.guards[found];
            held.guard.downgrade().unwrap();
            held.mode = Shared;
            self.expected.shared.acquired += 1;
        }
    }

    fn upgrade(&mut self) {
        let Some(found) = self.guards.iter().position(|held| held.mode == Shared && held.at < SEMAPHORE) else {
            return;
        };
        self.requests += 1;
        let mut held = self.guards.swap_remove(found);
        let alone = self.guards.iter().all(|other| other.at != held.at);
        if self.upgrading.iter().any(|other| other.at == held.at) {
            let error = held.guard.upgrade(LockWaitPolicy::Timeout(LIMIT)).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Deadlock(_)), "{error}");
            self.expected.deadlocks += 1;
            return self.guards.push(held);
        }
        if alone || self.random.below(2) == 0 {
            let answer =
                held.guard.upgrade(LockWaitPolicy::Timeout(Duration::from_millis(1))).map_err(assert_not_available);
            assert_eq!(answer.is_ok(), alone);
            self.expected.exclusive.acquired += u64::from(alone);
            self.expected.exclusive.waits += u64::from(!alone);
            self.expected.exclusive.timeouts += u64::from(!alone);
            held.mode = if alone { Exclusive } else { Shared };
            return self.guards.push(held);
        }
        let (Guarded { at, mut guard, .. }, (returns, back), since) = (held, channel(), self.clocks.now());
        let before = self.table().waiting;
        std::thread::spawn(move || {
            let upgraded = guard.upgrade(LockWaitPolicy::Forever);
            returns.send((guard, upgraded))
        });
        until("the conversion", || self.table().waiting == before + 1);
        self.expected.exclusive.waits += 1;
        self.upgrading.push(Upgrading { at, back, since });
    }

    fn table(&self) -> LockTable {
        self.store.lock_table().unwrap()
    }

    fn granted_later(&mut self, (at, mode): (usize, LockMode), leased: bool, since: Duration, guard: LockGuard) {
        self.of(mode).acquired += 1;
        self.expected.wakeups += 1;
        self.granted_later[place(mode)] += 1;
        let longest = &mut self.longest[place(mode)];
        *longest = self.clocks.now().saturating_sub(since).max(*longest);
        self.holds(at, mode, leased, guard);
    }

    /// Receives the grants of the last step.
    fn settle(&mut self) {
        self.lost.clear();
        let still = self.table().waiting;
        let began = Instant::now();
        while self.waiting.len() + self.upgrading.len() != still {
            assert!(began.elapsed() < LIMIT, "a granted request has not returned");
            let (answered, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
                .into_iter()
                .map(|waiting| (waiting.asking.answer(), waiting))
                .partition(|(answer, _)| answer.is_some());
            self.waiting = waiting.into_iter().map(|(_, waiting)| waiting).collect();
            for (answer, Waiting { at, mode, leased, since, .. }) in answered {
                self.granted_later((at, mode), leased, since, answer.unwrap().unwrap());
            }
            for upgrading in std::mem::take(&mut self.upgrading) {
                match upgrading.back.try_recv() {
                    Ok((guard, upgraded)) => {
                        upgraded.unwrap();
                        self.granted_later((upgrading.at, Exclusive), false, upgrading.since, guard);
                    }
                    Err(error) => {
                        assert_eq!(error, TryRecvError::Empty);
                        self.upgrading.push(upgrading);
                    }
                }
            }
        }
    }
}

fn assert_not_available(error: Error) {
    assert!(matches!(error.kind(), ErrorKind::LockNotAvailable(_)), "{error}");
}

#[test]
fn lock_stats_match_an_independent_count() {
    // The sweep does not run: it would delete rows of expired leases before they are taken over.
    let clocks = Clocks::new().without("percolite-bg");
    let mut script = Script {
        store: clocks.builder().in_memory().unwrap(),
        clocks,
        random: Random::new("lock stats"),
        guards: Vec::new(),
        lost: Vec::new(),
        waiting: Vec::new(),
        upgrading: Vec::new(),
        requests: 0,
        expected: LockStats::default(),
        longest: [Duration::ZERO; 3],
        granted_later: [0; 3],
        left: [false; NAMES.len()],
    };
    while script.requests < REQUESTS {
        match script.random.below(18) {
            0..7 => script.ask(),
            7..11 => script.release(),
            11 => script.force(),
            12 => script.cancel(),
            13 => script.downgrade(),
            14 => script.time_passes(),
            15 => script.renew(),
            _ => script.upgrade(),
        }
        script.settle();
    }
    // One more wait, which takes at least 80 ms: the recorded maximum must not be below that.
    let (long, name) = (Duration::from_millis(80), "long");
    let held = script.store.lock(name).unwrap();
    let since = script.clocks.now();
    let asking = asks_with(&script.store, name, LockOptions::exclusive());
    script.of(Exclusive).acquired += 1;
    script.of(Exclusive).waits += 1;
    script.clocks.pass(long);
    drop(held);
    let guard = asking.granted();
    script.granted_later((0, Exclusive), false, since, guard);
    ends_as_counted(script, long);
}

/// Closes the store, which ends all remaining requests, and compares the statistics.
fn ends_as_counted(script: Script, long: Duration) {
    let Script { store, guards, waiting, upgrading, mut expected, longest, granted_later, .. } = script;
    expected.wakeups += (waiting.len() + upgrading.len()) as u64;
    store.clone().close().unwrap();
    for waiting in waiting {
        assert!(matches!(waiting.asking.refused().kind(), ErrorKind::Closed(_)));
    }
    for upgrading in upgrading {
        let (_guard, upgraded) = upgrading.back.recv_timeout(LIMIT).expect("the upgrade does not return");
        assert!(matches!(upgraded.unwrap_err().kind(), ErrorKind::Closed(_)));
    }
    drop(guards);
    let stats = store.lock_stats();
    let waits = [&stats.exclusive, &stats.shared, &stats.semaphore].map(|mode| &mode.wait_time);
    assert_eq!(waits.map(percolite::LatencyHistogram::count), granted_later);
    assert!(granted_later.iter().all(|waits| *waits > 0) && stats.deadlocks > 0, "{granted_later:?} {stats:?}");
    assert!(stats.force_unlocked > 0 && stats.leases_taken_over > 0 && stats.leases_expired > 0, "{stats:?}");
    for (wait, longest) in waits.iter().zip(longest) {
        // The histogram returns the upper bound of a bucket, which may be above the measured time.
        assert!(wait.percentile(50.0) <= longest * 2 && wait.max() <= longest * 2, "{:?} {longest:?}", wait.max());
    }
    assert!(waits[0].max() >= long);
    expected.exclusive.wait_time = waits[0].clone();
    expected.shared.wait_time = waits[1].clone();
    expected.semaphore.wait_time = waits[2].clone();
    assert_eq!(stats, expected);
    assert_eq!(store.status().lock_stats, expected);
}
