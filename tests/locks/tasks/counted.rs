//! Compares the lock statistics of random requests of tasks with the counts of a model. The test
//! polls all futures itself, so each step has one result.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use LockMode::{Exclusive, Semaphore, Shared};
use percolite::{
    AsyncLockGuard, AsyncStore, CancelToken, ErrorKind, LockEntry, LockMode, LockModeStats, LockOptions, LockState,
    LockStats, LockWaitPolicy, Result,
};

use super::common::{Steps, both_runtimes};
use crate::hooked_store::Dice;
use crate::support::clocks::Clocks;

const NAMES: [&str; 5] = ["one", "two", "permits", "leased", "leased and shared"];
const SEMAPHORE: usize = 2;
/// The names from this index on have leases: `leased` has exclusive leases, and `leased and shared`
/// has shared ones.
const LEASED: usize = 3;
const LEASE: Duration = Duration::from_secs(60);
const REQUESTS: u64 = 1000;

struct Held {
    at: usize,
    mode: LockMode,
    guard: AsyncLockGuard,
    leased: bool,
    /// The lease has expired; the next request ends the grant.
    has_expired: bool,
}

struct Waiting {
    at: usize,
    mode: LockMode,
    leased: bool,
    id: u64,
    cancel: CancelToken,
    steps: Steps<'static, Result<AsyncLockGuard>>,
}

struct Upgrading {
    at: usize,
    id: u64,
    steps: Steps<'static, (AsyncLockGuard, Result<()>)>,
}

struct Script {
    store: AsyncStore,
    clocks: Arc<Clocks>,
    dice: Dice,
    held: Vec<Held>,
    /// Guards whose leases end in this step.
    lost: Vec<Held>,
    waiting: Vec<Waiting>,
    upgrading: Vec<Upgrading>,
    requests: u64,
    expected: LockStats,
    /// The number of requests that were granted after a wait, by mode.
    granted_later: [u64; 3],
    /// For each name, whether rows of expired leases are left for the next exclusive holder to
    /// delete.
    left: [bool; NAMES.len()],
}

async fn lock(store: AsyncStore, name: &'static str, options: LockOptions) -> Result<AsyncLockGuard> {
    store.lock_with(name, options).await
}

async fn upgrade(mut guard: AsyncLockGuard, wait: LockWaitPolicy) -> (AsyncLockGuard, Result<()>) {
    let upgraded = guard.upgrade(wait).await;
    (guard, upgraded)
}

fn place(mode: LockMode) -> usize {
    match mode {
        Exclusive => 0,
        Shared => 1,
        _ => 2,
    }
}

impl Script {
    fn of(&mut self, mode: LockMode) -> &mut LockModeStats {
        let LockStats { exclusive, shared, semaphore, .. } = &mut self.expected;
        [exclusive, shared, semaphore].into_iter().nth(place(mode)).unwrap()
    }

    fn below(&mut self, end: usize) -> usize {
        self.dice.below(end as u64) as usize
    }

    fn entries(&self) -> Vec<LockEntry> {
        self.store.store().lock_table().unwrap().entries
    }

    fn is_free(&self, at: usize, mode: LockMode) -> bool {
        let waits =
            self.waiting.iter().any(|other| other.at == at) || self.upgrading.iter().any(|other| other.at == at);
        let held: Vec<LockMode> = self.held.iter().filter(|held| held.at == at).map(|held| held.mode).collect();
        !waits
            && match mode {
                Shared => held.iter().all(|other| *other == Shared),
                Semaphore(most) => held.iter().all(|other| *other == mode) && held.len() < most as usize,
                _ => held.is_empty(),
            }
    }

    fn ask(&mut self) {
        let at = self.below(NAMES.len());
        let mode = match (at, self.below(5)) {
            (SEMAPHORE, 0) | (0..2, 0..2) | (LEASED, _) | (_, 0) => Exclusive,
            (SEMAPHORE, _) => Semaphore(2),
            _ => Shared,
        };
        let leased = at >= LEASED && (mode == Exclusive) == (at == LEASED) && self.below(3) > 0;
        let wait = [
            LockWaitPolicy::NoWait,
            LockWaitPolicy::Timeout(Duration::ZERO),
            LockWaitPolicy::Forever,
            LockWaitPolicy::Forever,
        ][self.below(4)];
        self.requests += 1;
        self.ends(at);
        let (free, cancel) = (self.is_free(at, mode), CancelToken::default());
        let options = match mode {
            Shared => LockOptions::shared(),
            Semaphore(most) => LockOptions::semaphore(most),
            _ => LockOptions::exclusive(),
        };
        let options = if leased { options.lease(LEASE).auto_renew(false) } else { options };
        let mut steps = Steps::new(lock(self.store.clone(), NAMES[at], options.wait(wait).cancel_token(&cancel)));
        if free {
            self.of(mode).acquired += 1;
            return self.holds(at, mode, leased, steps.end().unwrap());
        }
        self.of(mode).waits += u64::from(wait != LockWaitPolicy::NoWait);
        match (steps.poll(), wait) {
            (Poll::Pending, LockWaitPolicy::Forever) => {
                let id = self.entries().iter().map(|entry| entry.id).max().unwrap();
                self.waiting.push(Waiting { at, mode, leased, id, cancel, steps });
            }
            (Poll::Ready(Err(error)), LockWaitPolicy::NoWait | LockWaitPolicy::Timeout(_)) => {
                assert!(matches!(error.kind(), ErrorKind::LockNotAvailable(_)), "{error}");
                self.of(mode).timeouts += 1;
            }
            (other, wait) => panic!("{mode} of {}, {wait:?}: {other:?}", NAMES[at]),
        }
    }

    fn holds(&mut self, at: usize, mode: LockMode, leased: bool, guard: AsyncLockGuard) {
        let takes_over = mode == Exclusive && std::mem::take(&mut self.left[at]);
        self.expected.leases_taken_over += u64::from(takes_over);
        assert_eq!(guard.entry().took_over.is_some(), takes_over, "{}", NAMES[at]);
        self.held.push(Held { at, mode, guard, leased, has_expired: false });
    }

    /// Ends the expired leases of the name.
    fn ends(&mut self, at: usize) -> bool {
        let has_expired = |held: &Held| held.at == at && held.has_expired;
        let (expired, held): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held).into_iter().partition(has_expired);
        self.held = held;
        let ended = expired.len() as u64;
        // `settle` drops the guards of these grants later. That must not end another grant.
        self.lost.extend(expired);
        self.expected.leases_expired += ended;
        self.expected.lost += ended;
        self.left[at] |= ended > 0;
        ended > 0
    }

    /// All leases expire. Where tasks wait for one, a request of this test ends it, so that the
    /// first waiting task takes over in this step.
    fn time_passes(&mut self) {
        self.clocks.pass(LEASE);
        for held in self.held.iter_mut().filter(|held| held.leased) {
            held.has_expired = true;
            assert!(!held.guard.is_held());
        }
        for (at, name) in NAMES.iter().enumerate().skip(LEASED) {
            if self.waiting.iter().any(|waiting| waiting.at == at) && self.ends(at) {
                assert!(Steps::new(self.store.try_lock(*name)).end().unwrap().is_none());
                self.expected.exclusive.timeouts += 1;
            }
        }
    }

    fn release(&mut self) {
        if !self.held.is_empty() {
            let at = self.below(self.held.len());
            let held = self.held.swap_remove(at);
            self.drops(held);
        }
    }

    /// A lease that has expired when its guard is dropped counts as lost.
    fn drops(&mut self, held: Held) {
        self.expected.leases_expired += u64::from(held.has_expired);
        self.expected.lost += u64::from(held.has_expired);
    }

    fn force(&mut self) {
        if !self.held.is_empty() {
            let at = self.below(self.held.len());
            let held = &self.held[at];
            let forced = self.store.store().force_unlock(NAMES[held.at], held.guard.token()).unwrap();
            assert_eq!(forced, !held.has_expired);
            if forced {
                self.held.swap_remove(at);
                self.expected.force_unlocked += 1;
                self.expected.lost += 1;
            }
        }
    }

    /// Cancels a waiting request by its [`CancelToken`], or drops its future.
    fn cancel(&mut self) {
        if !self.waiting.is_empty() {
            let at = self.below(self.waiting.len());
            let mut waiting = self.waiting.swap_remove(at);
            self.of(waiting.mode).cancelled += 1;
            if self.below(2) == 0 {
                waiting.cancel.cancel();
                let error = waiting.steps.end().unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Cancelled(_)), "{error}");
            }
        }
    }

    fn downgrade(&mut self) {
        if let Some(held) = self.held.iter_mut().find(|held| held.mode == Exclusive && held.at < SEMAPHORE) {
            Steps::new(held.guard.downgrade()).end().unwrap();
            held.mode = Shared;
            self.expected.shared.acquired += 1;
        }
    }

    fn upgrade(&mut self) {
        let Some(found) = self.held.iter().position(|held| held.mode == Shared && held.at < SEMAPHORE) else { return };
        let held = self.held.swap_remove(found);
        let (at, id) = (held.at, held.guard.entry().id);
        self.requests += 1;
        let alone = self.held.iter().all(|other| other.at != at);
        let deadlock = self.upgrading.iter().any(|other| other.at == at);
        let mut steps = Steps::new(upgrade(held.guard, LockWaitPolicy::Forever));
        if !alone && !deadlock {
            assert!(steps.poll().is_pending());
            self.expected.exclusive.waits += 1;
            return self.upgrading.push(Upgrading { at, id, steps });
        }
        let (guard, upgraded) = steps.end();
        let mode = if deadlock { Shared } else { Exclusive };
        match upgraded {
            Ok(()) => self.expected.exclusive.acquired += u64::from(!deadlock),
            Err(error) => {
                assert!(deadlock && matches!(error.kind(), ErrorKind::Deadlock(_)), "{error}");
                self.expected.deadlocks += 1;
            }
        }
        self.held.push(Held { at, mode, guard, leased: false, has_expired: false });
    }

    fn granted_later(&mut self, mode: LockMode) {
        self.of(mode).acquired += 1;
        self.expected.wakeups += 1;
        self.granted_later[place(mode)] += 1;
    }

    /// Receives the grants of the last step.
    fn settle(&mut self) {
        self.lost.clear();
        let holds = |entry: &LockEntry| entry.state == LockState::Held;
        let held: HashSet<u64> = self.entries().into_iter().filter(holds).map(|entry| entry.id).collect();
        let (granted, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| held.contains(&waiting.id));
        self.waiting = waiting;
        for Waiting { at, mode, leased, mut steps, .. } in granted {
            self.granted_later(mode);
            self.holds(at, mode, leased, steps.end().unwrap());
        }
        let (granted, upgrading): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.upgrading).into_iter().partition(|upgrading| held.contains(&upgrading.id));
        self.upgrading = upgrading;
        for Upgrading { at, mut steps, .. } in granted {
            let (guard, upgraded) = steps.end();
            upgraded.unwrap();
            self.granted_later(Exclusive);
            self.holds(at, Exclusive, false, guard);
        }
    }

    /// Closes the store, which ends all remaining requests, and compares the statistics.
    fn close(self) {
        let Self { store, held, waiting, upgrading, mut expected, granted_later, .. } = self;
        expected.wakeups += (waiting.len() + upgrading.len()) as u64;
        store.store().clone().close().unwrap();
        for mut waiting in waiting {
            assert!(matches!(waiting.steps.end().unwrap_err().kind(), ErrorKind::Closed(_)));
        }
        for mut upgrading in upgrading {
            assert!(matches!(upgrading.steps.end().1.unwrap_err().kind(), ErrorKind::Closed(_)));
        }
        drop(held);
        let stats = store.store().lock_stats();
        let waits = [&stats.exclusive, &stats.shared, &stats.semaphore].map(|mode| mode.wait_time.clone());
        assert_eq!(waits.each_ref().map(percolite::LatencyHistogram::count), granted_later);
        assert!(granted_later.iter().all(|waits| *waits > 0) && stats.deadlocks > 0, "{granted_later:?} {stats:?}");
        assert!(
            stats.force_unlocked > 0 && stats.leases_taken_over > 0 && stats.leases_expired > stats.leases_taken_over,
            "{stats:?}"
        );
        [expected.exclusive.wait_time, expected.shared.wait_time, expected.semaphore.wait_time] = waits;
        assert_eq!(stats, expected);
        assert_eq!(store.store().status().lock_stats, expected);
    }
}

#[test]
fn lock_stats_match_an_independent_count() {
    for runtime in both_runtimes(8) {
        let _inside = runtime.enter();
        // The sweep does not run: it would delete rows of expired leases before they are taken
        // over.
        let clocks = Clocks::new().without("percolite-bg");
        let mut script = Script {
            store: clocks.builder().in_memory().unwrap().into(),
            clocks,
            dice: Dice::new(),
            held: Vec::new(),
            lost: Vec::new(),
            waiting: Vec::new(),
            upgrading: Vec::new(),
            requests: 0,
            expected: LockStats::default(),
            granted_later: [0; 3],
            left: [false; NAMES.len()],
        };
        while script.requests < REQUESTS {
            match script.below(16) {
                0..7 => script.ask(),
                7..11 => script.release(),
                11 => script.force(),
                12 => script.cancel(),
                13 => script.downgrade(),
                14 => script.time_passes(),
                _ => script.upgrade(),
            }
            script.settle();
        }
        script.close();
    }
}
