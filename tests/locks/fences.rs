//! Fences and tokens: a fenced transaction commits only while its grant is valid, and tokens are
//! above the commits of earlier holders.

mod lost;
mod paused;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use percolite::engine::sim::SimStorage;
use percolite::{
    Commit, CommitProtocol, ErrorKind, Fence, LockGuard, LockLostReason, LockOptions, Result, Store, Timestamp, Txn,
    TxnOptions,
};

use crate::hooked_engine::{Act, Gate, commits};
use crate::hooked_store::{Dice, Rounds, TIMEOUT, Worker, World, assert_lost, buffered, eventually, some, spawn};

const PROTOCOLS: [CommitProtocol; 2] = [CommitProtocol::Auto, CommitProtocol::TwoPhase];

#[test]
fn a_lock_forced_away_in_the_closure_commits_nothing() {
    let world = World::open();
    let World { store, rows, .. } = &world;
    let guard = store.lock("n").unwrap();
    let (mut attempts, mut token) = (0, guard.token());
    let answer: Result<()> = store.transact(|txn| {
        attempts += 1;
        txn.fence(&guard.fence())?;
        txn.put(rows, "under a guard", "")?;
        assert!(store.force_unlock("n", token)?);
        Ok(())
    });
    assert_lost(answer, token, LockLostReason::Forced);
    let answer: Result<()> = store.transact_with_lock("n", LockOptions::exclusive(), TxnOptions::default(), |txn| {
        attempts += 1;
        token = world.token_of("n");
        txn.put(rows, "under the call", "")?;
        assert!(store.force_unlock("n", token)?);
        Ok(())
    });
    assert_lost(answer, token, LockLostReason::Forced);
    assert_eq!(attempts, 2, "a lost lock was retried");
    assert_eq!((world.get("under a guard"), world.get("under the call"), world.row_locks()), (None, None, 0));
    assert!(store.lock("n").unwrap().token() > token);
}

#[test]
fn commit_decided_before_the_end_is_seen_by_next_holder() {
    for protocol in PROTOCOLS {
        decided_before_the_end(protocol, false);
        decided_before_the_end(protocol, true);
    }
}

fn decided_before_the_end(protocol: CommitProtocol, forced: bool) {
    let world = World::open();
    let guard = world.store.lock("n").unwrap();
    let (token, fence) = (guard.token(), guard.fence());
    let gate = world.stop_commit("k");
    let commit = {
        let World { store, rows, .. } = world.clone();
        spawn(move || -> Result<Commit> {
            let mut txn = store.begin_with(buffered(protocol))?;
            txn.fence(&fence)?;
            txn.put(&rows, "k", "first")?;
            txn.commit()
        })
    };
    gate.wait_for_arrival();
    if forced {
        assert!(world.store.force_unlock("n", token).unwrap());
    }
    drop(guard);
    let next = next_holder(&world);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!next.holder.is_finished(), "the next holder has not waited for the decided commit");
    gate.open();
    next.check(token, commit.join().unwrap());
}

/// The next holder, which made its request while a commit of the previous holder was decided but
/// not visible.
struct Next {
    holder: Worker<(Option<String>, LockGuard)>,
    /// A transaction that began before the next holder's grant. Its snapshot lacks the commit.
    old: Txn,
}

fn next_holder(world: &World) -> Next {
    let old = world.store.begin().unwrap();
    let holder = {
        let world = world.clone();
        spawn(move || {
            let guard = world.store.lock("n").unwrap();
            (world.get("k"), guard)
        })
    };
    let granted = || holder.is_finished() || world.store.lock_table().unwrap().held == 1;
    eventually("the next holder has the lock in memory", granted);
    Next { holder, old }
}

impl Next {
    fn check(mut self, before: Timestamp, Commit { commit_ts: ts, .. }: Commit) {
        let (seen, guard) = self.holder.join();
        assert_eq!(seen, some("first"));
        assert!(before < ts && ts < guard.token(), "{before} {ts} {}", guard.token());
        let error = self.old.fence(&guard.fence()).expect_err("its snapshot does not contain the decided commit");
        assert!(matches!(error.kind(), ErrorKind::SnapshotTooOld(_)), "{error}");
    }
}

/// A thread that receives work and returns results.
struct WorkerThread<Work, Answer> {
    works: Sender<Work>,
    answers: Receiver<Answer>,
    thread: Worker<()>,
}

impl<Work: Send + 'static, Answer: Send + 'static> WorkerThread<Work, Answer> {
    fn new(mut does: impl FnMut(Work) -> Answer + Send + 'static) -> Self {
        let ((works, work), (sends, answers)) = (channel(), channel());
        let thread = spawn(move || while work.recv().is_ok_and(|work| sends.send(does(work)).is_ok()) {});
        Self { works, answers, thread }
    }

    fn begin(&self, work: Work) {
        self.works.send(work).unwrap();
    }

    fn answer(&self) -> Answer {
        self.answers.recv_timeout(TIMEOUT).expect("the worker does not answer")
    }

    fn end(self) {
        drop(self.works);
        self.thread.join();
    }
}

type Committer = WorkerThread<(Fence, u64), Result<Commit>>;

/// A thread that makes one fenced commit in each round of a test, and the number of its round. The
/// thread sets that number just before it calls `commit`.
fn committer(world: &World) -> (Committer, Arc<AtomicU64>) {
    let begun = Arc::new(AtomicU64::new(0));
    let (World { store, rows, .. }, begins) = (world.clone(), Arc::clone(&begun));
    let commit = move |(fence, round): (Fence, u64)| {
        let mut txn = store.begin_with(buffered(PROTOCOLS[round as usize % 2]))?;
        let fenced = txn.fence(&fence).and_then(|()| txn.put(&rows, "k", round.to_string()));
        begins.store(round, Ordering::SeqCst);
        fenced.and_then(|()| txn.commit())
    };
    (WorkerThread::new(commit), begun)
}

/// Stops a fenced commit that is decided but has no commit timestamp. The leader cannot check the
/// commit's row in memory. So it first writes the commits that it has checked before this one, and
/// is stopped in that write. Returns `false` if the commit was not stopped there.
fn decided_without_timestamp() -> bool {
    let world = World::open_at(&SimStorage::new(), Store::builder().conflict_set_rows(1));
    let guard = world.store.lock("n").unwrap();
    let mut txn = world.store.begin_with(buffered(CommitProtocol::Auto)).unwrap();
    txn.fence(&guard.fence()).unwrap();
    txn.put(&world.rows, "k", "first").unwrap();
    // The conflict set has one slot, and the second of these commits evicts the first. So memory
    // cannot prove that `k` has no newer commit, and the engine must read that row.
    for key in ["x", "y"] {
        world.put(key, "").unwrap();
    }
    let [(first, leads), (second, follows)] = [Gate::closed(), Gate::closed()];
    let [a, b] = ["a", "b"].map(|key| world.rows.row_key(key));
    world.hooks.on_write(move |groups| {
        for (row, barrier) in [(&a, &leads), (&b, &follows)] {
            if commits(groups, row) {
                barrier.pass();
            }
        }
        Act::Pass
    });
    let put = |key: &'static str| {
        let world = world.clone();
        spawn(move || world.put(key, "").map(drop))
    };
    let others = put("a");
    first.wait_for_arrival();
    let others = [others, put("b")];
    std::thread::sleep(Duration::from_millis(20));
    let commit = spawn(move || txn.commit());
    std::thread::sleep(Duration::from_millis(20));
    first.open();
    second.wait_for_arrival();
    let token = guard.token();
    drop(guard);
    let stopped = world.get("k").is_none();
    let next = stopped.then(|| next_holder(&world));
    second.open();
    for other in others {
        other.join().unwrap();
    }
    match (commit.join(), next) {
        (Ok(commit), Some(next)) => next.check(token, commit),
        // The commit was not stopped where this test needs it. Either it was decided after the
        // guard was dropped, and failed; or it was visible already, and no next holder was started.
        (_, _) => return false,
    }
    true
}

#[test]
fn a_token_is_never_below_a_commit_of_the_previous_holder() {
    assert!((0..20).any(|_| decided_without_timestamp()), "the commit was never stopped at this point");
    grants_end_during_decided_commits(10_000);
    grants_end_at_random_during_commits(10_000);
}

/// In each round the grant ends while a commit is decided but not visible: the commit must succeed,
/// and the next holder must wait for it.
fn grants_end_during_decided_commits(rounds: u64) {
    let world = World::open();
    let (committer, _) = committer(&world);
    let next = {
        let world = world.clone();
        WorkerThread::new(move |()| {
            let guard = world.store.lock("n").unwrap();
            (world.get("k"), guard)
        })
    };
    let mut guard = world.store.lock("n").unwrap();
    let mut history = Rounds::default();
    for round in 1..=rounds {
        let token = guard.token();
        let gate = world.stop_commit("k");
        committer.begin((guard.fence(), round));
        gate.wait_for_arrival();
        if round % 4 < 2 {
            assert!(world.store.force_unlock("n", token).unwrap());
        }
        drop(guard);
        next.begin(());
        let began = Instant::now();
        while world.store.lock_table().unwrap().held == 0 {
            assert!(began.elapsed() < TIMEOUT, "the next holder is not granted in memory");
            std::thread::yield_now();
        }
        assert!(
            next.answers.try_recv().is_err(),
            "round {round}: the next holder has not waited for the decided commit"
        );
        gate.open();
        let seen;
        (seen, guard) = next.answer();
        history.check(round, committer.answer(), [token, guard.token()], seen);
    }
    assert_eq!(history.committed, rounds, "each commit decided before the end must succeed");
    world.hooks.no_hooks();
    next.end();
    committer.end();
}

fn grants_end_at_random_during_commits(rounds: u64) {
    let (world, mut dice) = (World::open(), Dice::new());
    let under_way = world.watch_commits("k");
    let (committer, begun) = committer(&world);
    let (mut met, mut history) = (0, Rounds::default());
    let mut guard = world.store.lock("n").unwrap();
    for round in 1..=rounds {
        let token = guard.token();
        committer.begin((guard.fence(), round));
        while begun.load(Ordering::SeqCst) < round && !committer.thread.is_finished() {
            std::thread::yield_now();
        }
        (0..dice.below(8)).for_each(|_| std::thread::yield_now());
        drop(guard);
        // Counts the grants that ended while a commit was decided but not visible.
        met += u64::from(under_way.load(Ordering::SeqCst));
        guard = world.store.lock("n").unwrap();
        let seen = world.get("k");
        history.check(round, committer.answer(), [token, guard.token()], seen);
    }
    assert!(met > 0, "no grant ended during a commit");
    committer.end();
}

/// Threads that write other rows until this value is dropped.
struct Writers {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
}

impl Writers {
    fn begin(world: &World, count: usize) -> Self {
        let this = Self { stop: Arc::default(), written: Arc::default() };
        for number in 0..count {
            let (world, stop, written) = (world.clone(), Arc::clone(&this.stop), Arc::clone(&this.written));
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    world.put(&format!("writer {number}"), "").unwrap();
                    written.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        this
    }

    /// Waits until a commit that began after this call is visible.
    fn write(&self) {
        let before = self.written.load(Ordering::SeqCst);
        // The current commit of each of the 16 writers may have begun before this call.
        eventually("other writers commit", || self.written.load(Ordering::SeqCst) > before + 16);
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_snapshot_from_before_the_grant_is_refused() {
    let world = World::open();
    let World { store, rows, .. } = &world;
    let writers = Writers::begin(&world, 16);

    let mut old = store.begin().unwrap();
    writers.write();
    let guard = store.lock("n").unwrap();
    let error = old.fence(&guard.fence()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SnapshotTooOld(_)), "{error}");
    let mut new = store.begin().unwrap();
    new.fence(&guard.fence()).unwrap();
    drop((guard, new));

    let mut attempts = 0;
    let error = store
        .transact(|txn| -> Result<()> {
            attempts += 1;
            writers.write();
            let guard = store.lock("n")?;
            txn.fence(&guard.fence())?;
            txn.put(rows, "inside", "")
        })
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
    assert!(error.to_string().contains("transact_with_lock"), "{error}");
    assert_eq!((attempts, world.get("inside")), (1, None));
}
