//! A set that only a named lock protects. In some rounds the holder of the lock is paused until its
//! lease has expired and the next holder has the lock, or another thread forces the lock away from
//! it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use percolite::engine::sim::SimStorage;
use percolite::{LockOptions, Timestamp};

use super::clocks::Clocks;
use crate::hooked_engine::Act;
use crate::hooked_store::{Dice, World};

const LEASE: Duration = Duration::from_millis(100);
/// The maximum number of runs until enough holders are refused.
const RUNS: usize = 20;

/// How the lock is taken away from its holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The lease expires while its holder is paused.
    ByTime,
    /// Another thread forces the lock away at random. There are no leases.
    ByForce,
}

/// The set to which each holder adds members, and the progress of all holders.
pub struct Set {
    pub world: World,
    pub fenced: bool,
    taken: Taken,
    clocks: Arc<Clocks>,
    /// The newest token that any holder has got.
    newest: AtomicU64,
    /// The number of holders that have not finished all of their rounds.
    running: AtomicU64,
}

/// What a holder does between reading the set and writing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    No,
    /// Before its transaction.
    Early,
    /// In its transaction, after the fence.
    Late,
}

/// The results of the rounds of one holder, or of all.
#[derive(Debug, Default)]
pub struct Tally {
    /// Acknowledged members, by holder.
    pub added: BTreeMap<u64, u64>,
    pub refused: u64,
    /// Rounds in which the next holder had the lock before this one wrote.
    pub outlived: u64,
    /// The rounds of `outlived` in which the write of this holder succeeded.
    pub late: u64,
}

impl Set {
    pub fn new(holders: u64, taken: Taken, fenced: bool) -> Arc<Self> {
        let clocks = Clocks::new();
        let world = World::open_at(&SimStorage::new(), clocks.builder());
        // A yield before each write makes it likely that a grant ends during a decided commit.
        world.hooks.on_write(|_| {
            std::thread::yield_now();
            Act::Pass
        });
        Arc::new(Self { world, fenced, taken, clocks, newest: AtomicU64::new(0), running: AtomicU64::new(holders) })
    }

    pub fn options(&self) -> LockOptions {
        let options = LockOptions::exclusive();
        if self.taken == Taken::ByTime { options.lease(LEASE).auto_renew(false) } else { options }
    }

    /// Chooses the pause of a round.
    pub fn draw(&self, dice: &mut Dice) -> Pause {
        match dice.below(8) {
            0 if self.taken == Taken::ByTime => Pause::Early,
            1 if self.taken == Taken::ByTime => Pause::Late,
            _ => Pause::No,
        }
    }

    pub fn begins(&self, token: Timestamp) {
        self.newest.fetch_max(token.to_u64(), Ordering::SeqCst);
    }

    /// Called when a holder has finished all of its rounds.
    pub fn ends(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// Lets the holder's lease expire and waits until the next holder has the lock. Returns whether
    /// there was a next holder.
    pub fn pause(&self, token: Timestamp) -> bool {
        self.clocks.pass(LEASE);
        let began = Instant::now();
        let is_outlived = || self.newest.load(Ordering::SeqCst) > token.to_u64();
        while !is_outlived() && self.running.load(Ordering::SeqCst) > 1 {
            assert!(began.elapsed() < super::LIMIT, "the lease has expired, and the next holder does not get the lock");
            // This request ends the expired lease. A waiting task would end it later, by its timer,
            // which follows the system's clock.
            drop(self.world.store.try_lock("n"));
            std::thread::sleep(Duration::from_micros(20));
        }
        is_outlived()
    }

    pub fn read(&self) -> BTreeMap<u64, u64> {
        let text = self.world.get("set").unwrap_or_default();
        let pairs = text.split_terminator(' ').map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(holder, members)| (holder.parse().unwrap(), members.parse().unwrap())).collect()
    }

    /// The set as it is read, with one more member of this holder.
    pub fn with_one_more(&self, of: u64) -> String {
        let mut set = self.read();
        *set.entry(of).or_default() += 1;
        set.iter().map(|(holder, members)| format!("{holder}={members} ")).collect()
    }

    /// Forces the lock away at random until all holders have finished their rounds. Runs
    /// concurrently with them.
    pub fn operate(&self, dice: &mut Dice) {
        while self.taken == Taken::ByForce && self.running.load(Ordering::SeqCst) > 0 {
            for holder in self.world.store.lock_holders("n").unwrap() {
                if let Some(token) = holder.token {
                    self.world.store.force_unlock("n", token).unwrap();
                }
            }
            (0..dice.below(64)).for_each(|_| std::thread::yield_now());
        }
    }

    /// The number of members that are acknowledged but not in the set, or in the set but not
    /// acknowledged.
    pub fn missing(&self, tally: &Tally) -> u64 {
        let left = self.read();
        tally.added.iter().map(|(holder, added)| added.abs_diff(left.get(holder).copied().unwrap_or(0))).sum()
    }
}

impl Tally {
    /// Records the result of a round.
    pub fn note(&mut self, holder: u64, outlived: bool, written: percolite::Result<()>) {
        self.outlived += u64::from(outlived);
        match written {
            Ok(()) => {
                *self.added.entry(holder).or_default() += 1;
                self.late += u64::from(outlived);
            }
            Err(error) => {
                assert!(crate::hooked_store::is_lost(&error), "{error}");
                self.refused += 1;
            }
        }
    }

    pub fn and(mut self, other: Self) -> Self {
        self.added.extend(other.added);
        self.refused += other.refused;
        self.outlived += other.outlived;
        self.late += other.late;
        self
    }

    fn acknowledged(&self) -> u64 {
        self.added.values().sum()
    }
}

/// Without a fence members are lost, mostly in rounds with a pause.
#[track_caller]
pub fn assert_undone(run: impl Fn(Taken) -> (Tally, u64)) {
    for taken in [Taken::ByTime, Taken::ByForce] {
        let (tally, missing) = run(taken);
        assert!(missing > 0, "no update is lost, so the test shows nothing: {taken:?} {tally:?}");
        assert_eq!(tally.refused, 0, "{taken:?} {tally:?}");
        assert_eq!((tally.late, tally.outlived > 0), (tally.outlived, taken == Taken::ByTime), "{tally:?}");
    }
}

/// With a fence the set has exactly the acknowledged members. A holder that was paused until the
/// next holder had the lock cannot write any more.
#[track_caller]
pub fn assert_nothing_is_undone(rounds: u64, run: impl Fn(Taken) -> (Tally, u64)) {
    for taken in [Taken::ByTime, Taken::ByForce] {
        let mut refused = 0;
        // On a busy machine the forcing thread runs rarely, so that several runs are needed.
        for _ in 0..RUNS {
            let (tally, missing) = run(taken);
            assert_eq!((missing, tally.late), (0, 0), "{taken:?} {tally:?}");
            assert!(tally.refused >= tally.outlived, "{taken:?} {tally:?}");
            assert!(tally.acknowledged() > 1000, "too few rounds were undisturbed: {taken:?} {tally:?}");
            if taken == Taken::ByTime {
                assert!(tally.outlived > rounds / 8, "too few holders were paused: {tally:?}");
            }
            refused += tally.refused;
            if refused > 10 {
                break;
            }
        }
        assert!(refused > 10, "{taken:?}: {refused}");
    }
}
