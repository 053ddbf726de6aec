//! F3, F4: holders that are paused for longer than they hold.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::runtime::{Joined, Parker, Runtime, System};
use percolite::{CommitProtocol, Fence, LockGuard, LockOptions, Result, Store, Timestamp};

use crate::stops::{Dice, PATIENCE, World, buffered, is_lost, spawn};
use crate::tap::Act;

const HOLDERS: u64 = 4;
const LEASE: Duration = Duration::from_millis(100);

/// What has become of a run.
#[derive(Debug, Default)]
struct Tally {
    /// Members that were acknowledged, by who has added them.
    added: BTreeMap<u64, u64>,
    /// How many more of them there are than the set has.
    missing: u64,
    refused: u64,
    /// Holders that were paused for longer than their lease.
    outlived: u64,
}

/// A set that the lock alone protects: it is read in one transaction and written in another, and says how many members each
/// holder has added.
#[derive(Clone)]
struct Set {
    world: World,
    fenced: bool,
}

impl Set {
    fn read(&self) -> BTreeMap<u64, u64> {
        let text = self.world.get("set").unwrap_or_default();
        let pairs = text.split_terminator(' ').map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(holder, members)| (holder.parse().unwrap(), members.parse().unwrap())).collect()
    }

    /// `pause` comes between what is read under the lock and the commit.
    fn write(&self, set: &BTreeMap<u64, u64>, fence: &Fence, pause: impl Fn()) -> Result<()> {
        let text: String = set.iter().map(|(holder, members)| format!("{holder}={members} ")).collect();
        self.world.store.transact_with(buffered(CommitProtocol::Auto), |txn| {
            if self.fenced {
                txn.fence(fence)?;
            }
            pause();
            txn.put(&self.world.rows, "set", &text)
        })
    }

    fn lock(&self, leased: bool) -> LockGuard {
        loop {
            let options = LockOptions::exclusive();
            let options = if leased { options.lease(LEASE).once() } else { options };
            match self.world.store.lock_with("n", options) {
                Ok(guard) => return guard,
                // The operator was quick.
                Err(why) => assert!(is_lost(&why), "{why}"),
            }
        }
    }

    /// Adds a member in each round, and is paused now and then: the lock is taken away meanwhile, or its lease is over.
    fn add(&self, holder: u64, rounds: u64, leases: u64, dice: &mut Dice) -> Tally {
        let mut tally = Tally::default();
        for round in 0..rounds {
            let leased = round % (rounds / leases) == 0;
            let guard = self.lock(leased);
            let mut set = self.read();
            *set.entry(holder).or_default() += 1;
            let (is_late, yields) = (dice.below(2) == 0, dice.below(8));
            let pause = || {
                if leased {
                    assert!(guard.wait_lost(PATIENCE), "its lease is never over");
                    // Somebody else has it by now.
                    std::thread::sleep(Duration::from_millis(1));
                }
                (0..yields).for_each(|_| std::thread::yield_now());
            };
            if !is_late {
                pause();
            }
            let written = self.write(&set, &guard.fence(), || {
                if is_late {
                    pause();
                }
            });
            tally.outlived += u64::from(leased);
            match written {
                Ok(()) => *tally.added.entry(holder).or_default() += 1,
                Err(why) if is_lost(&why) => tally.refused += 1,
                Err(why) => panic!("{why}"),
            }
        }
        tally
    }
}

/// Takes the lock away from whoever has it, at any moment, until it is told to stop.
fn operate(world: World, stop: Arc<AtomicBool>, mut dice: Dice) {
    while !stop.load(Ordering::SeqCst) {
        for holder in world.store.lock_holders("n").unwrap() {
            if let Some(token) = holder.token {
                world.store.force_unlock("n", token).unwrap();
            }
        }
        (0..dice.below(64)).for_each(|_| std::thread::yield_now());
    }
}

fn run(fenced: bool, rounds: u64, leases: u64) -> Tally {
    let mut dice = Dice::new();
    let set = Set { world: World::open(), fenced };
    // Commits that are decided and not visible are there to be met.
    set.world.tap.on_write(|_| {
        std::thread::yield_now();
        Act::Pass
    });
    let stop = Arc::<AtomicBool>::default();
    let operator = {
        let (world, stop, dice) = (set.world.clone(), Arc::clone(&stop), dice.fork());
        spawn(move || operate(world, stop, dice))
    };
    let add = |holder| {
        let (set, mut dice) = (set.clone(), dice.fork());
        spawn(move || set.add(holder, rounds / HOLDERS, leases, &mut dice))
    };
    let holders: Vec<_> = (0..HOLDERS).map(add).collect();
    let mut tally = Tally::default();
    for holder in holders {
        let Tally { added, refused, outlived, .. } = holder.join();
        tally.added.extend(added);
        tally.refused += refused;
        tally.outlived += outlived;
    }
    stop.store(true, Ordering::SeqCst);
    operator.join();
    let left = set.read();
    tally.missing =
        tally.added.iter().map(|(holder, added)| added.abs_diff(left.get(holder).copied().unwrap_or(0))).sum();
    tally
}

#[test]
fn f3_a_without_a_fence_a_paused_holder_undoes_what_the_next_one_has_done() {
    let tally = run(false, 400, 2);
    assert!(tally.missing > 0, "nothing is lost, so nothing is tested: {tally:?}");
    assert_eq!((tally.refused, tally.outlived), (0, 2 * HOLDERS), "{tally:?}");
}

#[test]
fn f3_b_with_a_fence_nothing_is_lost_however_long_holders_are_paused() {
    let tally = run(true, 10_000, 5);
    assert_eq!(tally.missing, 0, "{tally:?}");
    // Of those that were paused for longer than their lease none has written.
    assert!(tally.refused >= tally.outlived && tally.outlived > 0, "{tally:?}");
    assert!(tally.added.values().sum::<u64>() > 1000, "too few were let alone: {tally:?}");
}

/// A file outside of the store that takes only tokens at least as great as the last one it took.
struct Register(PathBuf);

impl Register {
    fn take(&self, token: Timestamp) -> bool {
        let last = std::fs::read_to_string(&self.0).map_or(0, |last| last.parse().unwrap());
        let taken = token.to_u64() >= last;
        if taken {
            std::fs::write(&self.0, token.to_u64().to_string()).unwrap();
        }
        taken
    }
}

/// The system, with a clock on the wall that a test sets.
#[derive(Default)]
struct Clock {
    system: System,
    unix_millis: AtomicU64,
}

impl Runtime for Clock {
    fn unix_millis(&self) -> u64 {
        self.unix_millis.load(Ordering::SeqCst)
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
        self.system.parker()
    }
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn Joined>> {
        self.system.spawn(name, work)
    }
}

/// One name, over many lives of its store.
struct Lives {
    memory: SimStorage,
    clock: Arc<Clock>,
    file: Register,
    dice: Dice,
    /// Every token that was handed out. The last one has written to the file.
    tokens: Vec<Timestamp>,
    /// A lease that goes on beyond its life.
    kept: Option<Timestamp>,
}

impl Lives {
    fn live(&mut self) {
        // The clock on the wall is set back as often as forward, so it is of no help.
        self.clock.unix_millis.store(1_700_000_000_000 + self.dice.below(86_400_000), Ordering::SeqCst);
        let world = World::open_at(&self.memory, Store::builder().runtime(Arc::<Clock>::clone(&self.clock)));
        self.end_what_was_left(&world);
        for more in (0..1 + self.dice.below(4)).rev() {
            self.hold(&world, more == 0);
        }
        match self.dice.below(3) {
            0 => return,
            1 => self.memory.crash(0),
            _ => self.memory.crash(self.dice.below(100)),
        };
    }

    fn end_what_was_left(&mut self, world: &World) {
        if let Some(kept) = self.kept.take() {
            assert_eq!(world.token_of("n"), kept);
            if self.dice.below(2) == 0 {
                let guard = world.store.resume_lock("n", kept).unwrap();
                assert!(self.file.take(guard.token()), "the holder goes on with the token that it had");
            }
        }
        // Whoever was released when the power went may still have its row.
        for left in world.store.lock_holders("n").unwrap() {
            assert!(world.store.force_unlock("n", left.token.unwrap()).unwrap());
        }
    }

    fn hold(&mut self, world: &World, last: bool) {
        let options = LockOptions::exclusive();
        let leased = self.dice.below(3) == 0;
        let lease = Duration::from_secs(10 * 86_400);
        let guard = world.store.lock_with("n", if leased { options.lease(lease) } else { options }).unwrap();
        let token = guard.token();
        assert!(self.file.take(token), "a holder is taken for one that was paused: {token}");
        for _ in 0..self.tokens.len().min(8) {
            let paused = self.tokens[usize::try_from(self.dice.below(self.tokens.len() as u64)).unwrap()];
            assert!(!self.file.take(paused), "a stale write is accepted: {paused}, after {token}");
        }
        self.tokens.push(token);
        match self.dice.below(4) {
            _ if leased && last => self.kept = Some(guard.into_token().unwrap()),
            0 => guard.release().unwrap(),
            1 => assert!(world.store.force_unlock("n", token).unwrap()),
            2 if leased => {
                // Handed on in memory, with a row that goes later.
                drop(guard);
                drop(world.store.lock("n").map(|next| {
                    assert!(self.file.take(next.token()) && !self.file.take(token));
                    self.tokens.push(next.token());
                }));
            }
            _ => drop(guard),
        }
    }
}

#[test]
fn f4_outside_where_tokens_may_only_grow_no_stale_write_is_taken_over_restarts_and_power_cuts() {
    let folder = tempfile::tempdir().unwrap();
    let mut lives = Lives {
        memory: SimStorage::new(),
        clock: Arc::default(),
        file: Register(folder.path().join("token")),
        dice: Dice::new(),
        tokens: Vec::new(),
        kept: None,
    };
    for _ in 0..100 {
        lives.live();
    }
}
