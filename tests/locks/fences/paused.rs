//! Holders that are paused beyond the end of their grant: lost updates without a fence, none with
//! one, and fencing tokens for a resource outside of the store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{CommitProtocol, LockOptions, Timestamp};

use crate::hooked_store::{Dice, Worker, World, buffered, is_lost, spawn};
use crate::support::clocks::{Clocks, THEN};
use crate::support::paused::{Pause, Set, Taken, Tally, assert_nothing_is_undone, assert_undone};

const HOLDERS: u64 = 4;

/// Adds a member to the set in each round.
fn add(set: &Set, holder: u64, rounds: u64, dice: &mut Dice) -> Tally {
    let mut tally = Tally::default();
    for _ in 0..rounds {
        let guard = loop {
            match set.world.store.lock_with("n", set.options()) {
                Ok(guard) => break guard,
                // Another thread forced the lock away, or another pause let the lease expire.
                Err(error) => assert!(is_lost(&error), "{error}"),
            }
        };
        let token = guard.token();
        set.begins(token);
        let text = set.with_one_more(holder);
        let (mut pause, yields) = (set.draw(dice), dice.below(8));
        let mut outlived = false;
        if pause == Pause::Early {
            outlived = set.pause(token);
        }
        (0..yields).for_each(|_| std::thread::yield_now());
        let written = set.world.store.transact_with(buffered(CommitProtocol::Auto), |txn| {
            if set.fenced {
                txn.fence(&guard.fence())?;
            }
            if std::mem::replace(&mut pause, Pause::No) == Pause::Late {
                outlived = set.pause(token);
            }
            txn.put(&set.world.rows, "set", &text)
        });
        tally.note(holder, outlived, written);
    }
    set.ends();
    tally
}

fn run(taken: Taken, fenced: bool, rounds: u64) -> (Tally, u64) {
    let (mut dice, set) = (Dice::new(), Set::new(HOLDERS, taken, fenced));
    let operator = {
        let (set, mut dice) = (Arc::clone(&set), dice.fork());
        spawn(move || set.operate(&mut dice))
    };
    let begin = |holder| {
        let (set, mut dice) = (Arc::clone(&set), dice.fork());
        spawn(move || add(&set, holder, rounds / HOLDERS, &mut dice))
    };
    let holders: Vec<_> = (0..HOLDERS).map(begin).collect();
    let tally = holders.into_iter().map(Worker::join).fold(Tally::default(), Tally::and);
    operator.join();
    let missing = set.missing(&tally);
    (tally, missing)
}

#[test]
fn without_a_fence_a_paused_holder_loses_updates() {
    assert_undone(|taken| run(taken, false, 1000));
}

#[test]
fn with_a_fence_paused_holders_lose_no_update() {
    assert_nothing_is_undone(10_000, |taken| run(taken, true, 10_000));
}

/// A file outside of the store that refuses each token below the last accepted one.
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

/// One lock name across many incarnations of its store.
struct Restarts {
    memory: SimStorage,
    clocks: Arc<Clocks>,
    file: Register,
    dice: Dice,
    /// The tokens of all grants, in order. Each holder has written to the file with its token.
    tokens: Vec<Timestamp>,
    /// A lease that continues in the next incarnation.
    kept: Option<Timestamp>,
}

impl Restarts {
    fn run_once(&mut self) {
        // The wall clock is set back as often as forward, so it does not order the holders.
        self.clocks.set_wall(THEN + self.dice.below(86_400_000));
        let world = World::open_at(&self.memory, self.clocks.builder());
        self.end_remaining_grants(&world);
        for more in (0..1 + self.dice.below(4)).rev() {
            self.hold(&world, more == 0);
        }
        match self.dice.below(3) {
            0 => return,
            1 => self.memory.crash(0),
            _ => self.memory.crash(self.dice.below(100)),
        };
    }

    fn end_remaining_grants(&mut self, world: &World) {
        if let Some(kept) = self.kept.take() {
            assert_eq!(world.token_of("n"), kept);
            if self.dice.below(2) == 0 {
                let guard = world.store.attach_lock("n", kept).unwrap();
                assert!(self.file.take(guard.token()), "the attached holder writes with the same token");
            }
        }
        // If the power was cut just after a guard was dropped, the deletion of the lease's row may
        // be lost, and the holder is back.
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
        assert!(self.file.take(token), "the write of the current holder is refused: {token}");
        for _ in 0..self.tokens.len().min(8) {
            let paused = self.tokens[usize::try_from(self.dice.below(self.tokens.len() as u64)).unwrap()];
            assert!(!self.file.take(paused), "a stale write is accepted: {paused}, after {token}");
        }
        self.tokens.push(token);
        match self.dice.below(4) {
            _ if leased && last => self.kept = Some(guard.detach().unwrap()),
            0 => guard.release().unwrap(),
            1 => assert!(world.store.force_unlock("n", token).unwrap()),
            2 if leased => {
                // The next holder gets the lock in memory before the row of the dropped lease is
                // deleted.
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
fn fencing_tokens_stop_stale_writers_across_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let mut restarts = Restarts {
        memory: SimStorage::new(),
        clocks: Clocks::new(),
        file: Register(directory.path().join("token")),
        dice: Dice::new(),
        tokens: Vec::new(),
        kept: None,
    };
    for _ in 0..100 {
        restarts.run_once();
    }
}
