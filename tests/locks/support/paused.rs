//! A set that a lock alone protects, and holders that are paused until their lease is over and the next one has the lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use percolite::engine::sim::SimStorage;
use percolite::{LockOptions, Timestamp};

use super::clocks::Clocks;
use crate::stops::{Dice, World};
use crate::tap::Act;

const LEASE: Duration = Duration::from_millis(100);
/// The most runs that are made until enough holders were refused.
const RUNS: usize = 20;

/// What takes the lock away from its holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A lease whose time is over while its holder is paused.
    ByTime,
    /// An operator, at any moment; there are no leases.
    ByForce,
}

/// The set, of which each holder adds members, and how far all of them are.
pub struct Set {
    pub world: World,
    pub fenced: bool,
    taken: Taken,
    clocks: Arc<Clocks>,
    /// The newest token that a holder has.
    newest: AtomicU64,
    /// How many holders may take the lock once more.
    running: AtomicU64,
}

/// What a holder does between reading the set and writing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    No,
    /// Before its transaction.
    Early,
    /// In its transaction, which is fenced by then.
    Late,
}

/// What has become of the rounds of one holder, or of all.
#[derive(Debug, Default)]
pub struct Tally {
    /// Members that were acknowledged, by who has added them.
    pub added: BTreeMap<u64, u64>,
    pub refused: u64,
    /// Rounds in which the next holder had the lock before this one wrote.
    pub outlived: u64,
    /// Those of them that have written all the same.
    pub late: u64,
}

impl Set {
    pub fn new(holders: u64, taken: Taken, fenced: bool) -> Arc<Self> {
        let clocks = Clocks::new();
        let world = World::open_at(&SimStorage::new(), clocks.builder());
        // Commits that are decided and not visible are there to be met.
        world.tap.on_write(|_| {
            std::thread::yield_now();
            Act::Pass
        });
        Arc::new(Self { world, fenced, taken, clocks, newest: AtomicU64::new(0), running: AtomicU64::new(holders) })
    }

    pub fn options(&self) -> LockOptions {
        let options = LockOptions::exclusive();
        if self.taken == Taken::ByTime { options.lease(LEASE).once() } else { options }
    }

    /// What to do in this round.
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

    /// A holder has had all of its rounds.
    pub fn ends(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// The holder's lease runs out, and it comes back when the next one has the lock, unless there is none. The answer is whether there
    /// was.
    pub fn pause(&self, token: Timestamp) -> bool {
        self.clocks.pass(LEASE);
        let began = Instant::now();
        let is_outlived = || self.newest.load(Ordering::SeqCst) > token.to_u64();
        while !is_outlived() && self.running.load(Ordering::SeqCst) > 1 {
            assert!(began.elapsed() < super::LIMIT, "the lease is over, and the next one does not get the lock");
            // One more that asks; a task in the queue goes by the system's timer.
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

    /// The set as it was read, with one more of this holder.
    pub fn with_one_more(&self, of: u64) -> String {
        let mut set = self.read();
        *set.entry(of).or_default() += 1;
        set.iter().map(|(holder, members)| format!("{holder}={members} ")).collect()
    }

    /// Takes the lock away from whatever holds it, at any moment, until all holders have had their rounds. To be run beside them.
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

    /// How many members were acknowledged and are not in the set.
    pub fn missing(&self, tally: &Tally) -> u64 {
        let left = self.read();
        tally.added.iter().map(|(holder, added)| added.abs_diff(left.get(holder).copied().unwrap_or(0))).sum()
    }
}

impl Tally {
    /// Notes what has become of a round.
    pub fn note(&mut self, holder: u64, outlived: bool, written: percolite::Result<()>) {
        self.outlived += u64::from(outlived);
        match written {
            Ok(()) => {
                *self.added.entry(holder).or_default() += 1;
                self.late += u64::from(outlived);
            }
            Err(why) => {
                assert!(crate::stops::is_lost(&why), "{why}");
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

/// Without a fence, what holders have added is lost, above all where they were paused.
#[track_caller]
pub fn assert_undone(run: impl Fn(Taken) -> (Tally, u64)) {
    for taken in [Taken::ByTime, Taken::ByForce] {
        let (tally, missing) = run(taken);
        assert!(missing > 0, "nothing is lost, so nothing is tested: {taken:?} {tally:?}");
        assert_eq!(tally.refused, 0, "{taken:?} {tally:?}");
        assert_eq!((tally.late, tally.outlived > 0), (tally.outlived, taken == Taken::ByTime), "{tally:?}");
    }
}

/// With a fence nothing is, and no holder that was paused until the next one had the lock has written.
#[track_caller]
pub fn assert_nothing_is_undone(rounds: u64, run: impl Fn(Taken) -> (Tally, u64)) {
    for taken in [Taken::ByTime, Taken::ByForce] {
        let mut refused = 0;
        // On a busy machine the operator has little of the time.
        for _ in 0..RUNS {
            let (tally, missing) = run(taken);
            assert_eq!((missing, tally.late), (0, 0), "{taken:?} {tally:?}");
            assert!(tally.refused >= tally.outlived, "{taken:?} {tally:?}");
            assert!(tally.acknowledged() > 1000, "too few were let alone: {taken:?} {tally:?}");
            if taken == Taken::ByTime {
                assert!(tally.outlived > rounds / 8, "too few were paused: {tally:?}");
            }
            refused += tally.refused;
            if refused > 10 {
                break;
            }
        }
        assert!(refused > 10, "{taken:?}: {refused}");
    }
}
