//! Fences and tokens of tasks, and transactions that lose their lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{
    AsyncStore, Commit, CommitProtocol, Error, ErrorKind, Fence, LockLostReason, LockOptions, Result, Store, Txn,
    TxnOptions,
};

use super::common::{Steps, TIMEOUT, beside_worlds, both_runtimes, in_worlds, until};
use crate::hooked_store::{Dice, Rounds, World, assert_lost, buffered, eventually, some, spawn};

fn fenced_put(world: &World, fence: Fence, key: &'static str) -> impl FnMut(&mut Txn) -> Result<()> + Send + 'static {
    let rows = world.rows.clone();
    move |txn| {
        txn.fence(&fence)?;
        txn.put(&rows, key, "v")
    }
}

#[test]
fn a_lock_forced_away_in_the_closure_commits_nothing() {
    in_worlds(|world, store| async move {
        let guard = store.lock("n").await.unwrap();
        let (token, with) = (guard.token(), world.clone());
        let attempts = Arc::<AtomicU64>::default();
        let (counts, mut put) = (Arc::clone(&attempts), fenced_put(&world, guard.fence(), "by a guard"));
        let forced = store.transact(move |txn| {
            counts.fetch_add(1, Ordering::SeqCst);
            put(txn)?;
            assert!(with.store.force_unlock("n", token)?);
            Ok::<_, Error>(())
        });
        assert_lost(forced.await, token, LockLostReason::Forced);

        let (with, counts) = (world.clone(), Arc::clone(&attempts));
        let tokens = Arc::<AtomicU64>::default();
        let noted = Arc::clone(&tokens);
        let call = store.transact_with_lock("n", LockOptions::exclusive(), TxnOptions::default(), move |txn| {
            counts.fetch_add(1, Ordering::SeqCst);
            let token = with.token_of("n");
            noted.store(token.to_u64(), Ordering::SeqCst);
            txn.put(&with.rows, "by a call", "v")?;
            assert!(with.store.force_unlock("n", token)?);
            Ok::<_, Error>(())
        });
        let forced = call.await;
        let token = percolite::Timestamp::from_u64(tokens.load(Ordering::SeqCst));
        assert_lost(forced, token, LockLostReason::Forced);
        assert_eq!(attempts.load(Ordering::SeqCst), 2, "a lost lock was retried");
        assert_eq!((world.get("by a guard"), world.get("by a call"), world.row_locks()), (None, None, 0));
    });
}

#[test]
fn commit_decided_before_the_end_is_seen_by_next_holder() {
    beside_worlds(|world, store| {
        for protocol in [CommitProtocol::Auto, CommitProtocol::TwoPhase] {
            let key = if protocol == CommitProtocol::Auto { "one" } else { "two" };
            let guard = Steps::new(store.lock("n")).end().unwrap();
            let gate = world.stop_commit(key);
            let options = buffered(protocol);
            let mut commit = Steps::waiting(store.transact_with(options, fenced_put(world, guard.fence(), key)));
            gate.wait_for_arrival();
            drop(guard);
            let mut next = Steps::waiting(store.lock("n"));
            assert!(
                !next.is_woken_within(Duration::from_millis(50)),
                "the next holder has not waited for the decided commit"
            );
            gate.open();
            let guard = next.end().unwrap();
            assert_eq!(world.get(key), some("v"));
            commit.end().unwrap();
            drop(guard);
        }
    });
}

/// Commits under the fence. Sets `begun` to `round` before the commit begins.
async fn commit(world: World, store: AsyncStore, fence: Fence, round: u64, begun: Arc<AtomicU64>) -> Result<Commit> {
    let work = move |store: &Store| {
        let protocol = if round.is_multiple_of(2) { CommitProtocol::Auto } else { CommitProtocol::TwoPhase };
        let mut txn = store.begin_with(buffered(protocol))?;
        let fenced = txn.fence(&fence).and_then(|()| txn.put(&world.rows, "k", round.to_string()));
        begun.store(round, Ordering::SeqCst);
        fenced.and_then(|()| txn.commit())
    };
    store.run_blocking(work).await
}

#[test]
fn a_token_is_never_below_a_commit_of_the_previous_holder() {
    beside_worlds(|world, store| grants_end_during_decided_commits(world, store, 10_000));
    in_worlds(|world, store| grants_end_at_random_during_commits(world, store, 10_000));
}

/// In each round the grant ends while a commit is decided but not visible: the commit must succeed,
/// and the next task must wait for it.
fn grants_end_during_decided_commits(world: &World, store: &AsyncStore, rounds: u64) {
    let mut history = Rounds::default();
    let mut guard = Steps::new(store.lock("n")).end().unwrap();
    for round in 1..=rounds {
        let token = guard.token();
        let gate = world.stop_commit("k");
        let commit = commit(world.clone(), store.clone(), guard.fence(), round, Arc::default());
        let mut commit = Steps::waiting(commit);
        gate.wait_for_arrival();
        if round % 4 < 2 {
            assert!(world.store.force_unlock("n", token).unwrap());
        }
        drop(guard);
        let mut next = Steps::waiting(store.lock("n"));
        assert_eq!(world.store.lock_table().unwrap().held, 1);
        assert_eq!(next.wakes(), 0, "round {round}: the next holder has not waited for the decided commit");
        gate.open();
        guard = next.end().unwrap();
        history.check(round, commit.end(), [token, guard.token()], world.get("k"));
    }
    assert_eq!(history.committed, rounds, "each commit decided before the end must succeed");
    world.hooks.no_hooks();
}

async fn grants_end_at_random_during_commits(world: World, store: AsyncStore, rounds: u64) {
    let mut dice = Dice::new();
    let under_way = world.watch_commits("k");
    let begun = Arc::<AtomicU64>::default();
    let (mut met, mut history) = (0, Rounds::default());
    let mut guard = store.lock("n").await.unwrap();
    for round in 1..=rounds {
        let token = guard.token();
        let task = tokio::spawn(commit(world.clone(), store.clone(), guard.fence(), round, Arc::clone(&begun)));
        while begun.load(Ordering::SeqCst) < round {
            tokio::task::yield_now().await;
        }
        (0..dice.below(8)).for_each(|_| std::thread::yield_now());
        drop(guard);
        // Counts the grants that ended while a commit was decided but not visible.
        met += u64::from(under_way.load(Ordering::SeqCst));
        guard = store.lock("n").await.unwrap();
        let seen = world.get("k");
        history.check(round, task.await.unwrap(), [token, guard.token()], seen);
    }
    assert!(met > 0, "no grant ended during a commit");
    world.hooks.no_hooks();
}

#[test]
fn a_snapshot_from_before_the_grant_is_refused() {
    in_worlds(|world, store| async move {
        let (stop, written) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let writer = |number: u64| {
            let (store, rows, stop, written) =
                (store.clone(), world.rows.clone(), Arc::clone(&stop), Arc::clone(&written));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let rows = rows.clone();
                    let put = move |txn: &mut Txn| txn.put(&rows, format!("writer {number}"), "");
                    store.transact_with::<_, Error, _>(buffered(CommitProtocol::Auto), put).await.unwrap();
                    written.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        let writers: Vec<_> = (0..16).map(writer).collect();
        // The current commit of each of the 16 writers may have begun before the count was read.
        let enough = |before: u64, written: &AtomicU64| written.load(Ordering::SeqCst) > before + 16;

        let mut old = store.run_blocking(|store| store.begin()).await.unwrap();
        let before = written.load(Ordering::SeqCst);
        until("other writers commit", || enough(before, &written)).await;
        let guard = store.lock("n").await.unwrap();
        let error = old.fence(&guard.fence()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::SnapshotTooOld(_)), "{error}");
        drop((old, guard));

        let attempts = Arc::<AtomicU64>::default();
        let (counts, with, count) = (Arc::clone(&attempts), world.clone(), Arc::clone(&written));
        let inside = store.transact(move |txn| {
            counts.fetch_add(1, Ordering::SeqCst);
            let before = count.load(Ordering::SeqCst);
            eventually("other writers commit", || enough(before, &count));
            let guard = with.store.lock("n")?;
            txn.fence(&guard.fence())?;
            txn.put(&with.rows, "inside", "")
        });
        let error: Error = inside.await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains("transact_with_lock"), "{error}");
        assert_eq!((attempts.load(Ordering::SeqCst), world.get("inside")), (1, None));
        stop.store(true, Ordering::SeqCst);
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

/// The closure of a task, stopped after its work.
struct Stopped {
    arrived: std::sync::mpsc::Receiver<()>,
    resumes: std::sync::mpsc::Sender<()>,
}

fn stopped(
    mut work: impl FnMut(&mut Txn) -> Result<()> + Send + 'static,
) -> (Stopped, impl FnMut(&mut Txn) -> Result<()> + Send + 'static) {
    let [(arrives, arrived), (resumes, resume)] = [std::sync::mpsc::channel(), std::sync::mpsc::channel()];
    let work = move |txn: &mut Txn| {
        work(txn)?;
        arrives.send(()).unwrap();
        resume.recv_timeout(TIMEOUT).expect("the test does not let the closure continue");
        Ok(())
    };
    (Stopped { arrived, resumes }, work)
}

impl Stopped {
    /// Calls `act` while the closure is stopped.
    fn meanwhile(&self, act: impl FnOnce()) {
        self.arrived.recv_timeout(TIMEOUT).expect("the closure does not run");
        act();
        self.resumes.send(()).unwrap();
    }
}

#[test]
fn a_reader_that_lost_its_lock_fails_at_its_end() {
    beside_worlds(|world, store| {
        world.put("k", "before").unwrap();
        for loses in [true, false] {
            let guard = Steps::new(store.lock("n")).end().unwrap();
            let (token, fence, rows) = (guard.token(), guard.fence(), world.rows.clone());
            let (stop, work) = stopped(move |txn| {
                txn.fence(&fence)?;
                assert!(txn.get(&rows, "k")?.is_some());
                Ok(())
            });
            let mut read = Steps::waiting(store.transact(work));
            let mut guard = Some(guard);
            stop.meanwhile(|| {
                if loses {
                    guard.take();
                }
            });
            let answer = read.end();
            if loses {
                assert_lost(answer, token, LockLostReason::Released);
            } else {
                answer.unwrap();
            }
        }
    });
}

#[test]
fn a_two_phase_commit_that_loses_its_lock_leaves_nothing() {
    beside_worlds(|world, store| {
        let guard = Steps::new(store.lock("n")).end().unwrap();
        let gate = world.stop_prewrite("a");
        let (fence, rows) = (guard.fence(), world.rows.clone());
        let options = TxnOptions::default().commit_protocol(CommitProtocol::TwoPhase);
        let mut two = Steps::waiting(store.transact_with(options, move |txn| {
            txn.fence(&fence)?;
            ["a", "b", "c"].iter().try_for_each(|key| txn.put(&rows, key, "v"))
        }));
        gate.wait_for_arrival();
        let token = guard.token();
        drop(guard);
        gate.open();
        assert_lost(two.end(), token, LockLostReason::Released);
        assert_eq!((["a", "b", "c"].map(|key| world.get(key)), world.row_locks()), ([None, None, None], 0));
    });
}

#[test]
fn a_large_transaction_that_loses_its_lock_leaves_nothing() {
    for runtime in both_runtimes(8) {
        let _inside = runtime.enter();
        let world = World::open_at(&SimStorage::new(), Store::builder().large_transaction_bytes(1));
        let store = AsyncStore::from(world.store.clone());
        let guard = Steps::new(store.lock("n")).end().unwrap();
        let (fence, rows) = (guard.fence(), world.rows.clone());
        let (stop, work) = stopped(move |txn| {
            txn.fence(&fence)?;
            (0..100).try_for_each(|number| txn.put(&rows, format!("row {number}"), "v"))
        });
        let mut large = Steps::waiting(store.transact(work));
        let token = guard.token();
        stop.meanwhile(|| {
            assert!(world.row_locks() > 0, "no row is locked in the store");
            drop(guard);
        });
        assert_lost(large.end(), token, LockLostReason::Released);
        assert!((0..100).all(|number| world.get(&format!("row {number}")).is_none()));
        eventually("no row is locked", || world.row_locks() == 0);
    }
}

#[test]
fn a_queued_commit_that_loses_its_lock_is_not_applied() {
    for runtime in both_runtimes(40) {
        let _inside = runtime.enter();
        let world = World::open();
        let store = AsyncStore::from(world.store.clone());
        let guard = Steps::new(store.lock("n")).end().unwrap();
        let gate = world.stop_commit("first");
        let (writer, rows) = (world.store.clone(), world.rows.clone());
        let first = spawn(move || writer.transact(|txn| txn.put(&rows, "first", "written")));
        gate.wait_for_arrival();
        let mut late = Steps::waiting(store.transact(fenced_put(&world, guard.fence(), "late")));
        assert!(!late.is_woken_within(Duration::from_millis(100)));
        let token = guard.token();
        drop(guard);
        gate.open();
        first.join().unwrap();
        assert_lost(late.end(), token, LockLostReason::Released);
        assert_eq!((world.get("late"), world.row_locks()), (None, 0));
    }
}

#[test]
fn losing_the_lock_before_the_commit_point_leaves_nothing() {
    beside_worlds(|world, store| {
        loses_it_before_its_commit_point(world, store);
        loses_it_between_two_attempts(world, store);
    });
}

fn loses_it_before_its_commit_point(world: &World, store: &AsyncStore) {
    let options = TxnOptions::default().commit_protocol(CommitProtocol::TwoPhase);
    for forced in [false, true] {
        let guard = Steps::new(store.lock("n")).end().unwrap();
        let gate = world.stop_prewrite("a");
        let mut task = Steps::waiting(store.transact_with(options, fenced_put(world, guard.fence(), "a")));
        gate.wait_for_arrival();
        let token = guard.token();
        if forced {
            assert!(world.store.force_unlock("n", token).unwrap());
        } else {
            Steps::new(guard.release()).end().unwrap();
        }
        gate.open();
        assert_lost(task.end(), token, if forced { LockLostReason::Forced } else { LockLostReason::Released });
    }
    let gate = world.stop_prewrite("b");
    let rows = world.rows.clone();
    let put = move |txn: &mut Txn| txn.put(&rows, "b", "");
    let mut task = Steps::waiting(store.transact_with_lock::<_, Error, _>("n", LockOptions::exclusive(), options, put));
    gate.wait_for_arrival();
    let token = world.token_of("n");
    assert!(world.store.force_unlock("n", token).unwrap());
    gate.open();
    assert_lost(task.end(), token, LockLostReason::Forced);
    world.hooks.no_hooks();
    assert_eq!((world.get("a"), world.get("b"), world.row_locks()), (None, None, 0));
    assert!(world.store.is_free_lock("n").unwrap());
}

/// The lost lock ends the call without another attempt.
fn loses_it_between_two_attempts(world: &World, store: &AsyncStore) {
    let guard = Steps::new(store.lock("n")).end().unwrap();
    let (token, fence, rows) = (guard.token(), guard.fence(), world.rows.clone());
    let attempts = Arc::<AtomicU64>::default();
    let counts = Arc::clone(&attempts);
    let (stop, work) = stopped(move |txn| {
        counts.fetch_add(1, Ordering::SeqCst);
        txn.fence(&fence)?;
        txn.get(&rows, "k")?;
        txn.put(&rows, "k", "the call's own")
    });
    let task = Steps::waiting(store.transact(work));
    stop.meanwhile(|| {
        world.put("k", "another writer's").unwrap();
    });
    // The first commit conflicts, and the second attempt is in its closure.
    let mut task = std::cell::RefCell::new(task);
    eventually("the call retries", || {
        let task = &mut *task.borrow_mut();
        assert!(!task.is_woken_within(Duration::ZERO) || task.poll().is_pending());
        stop.arrived.try_recv().is_ok()
    });
    assert!(world.store.force_unlock("n", token).unwrap());
    stop.resumes.send(()).unwrap();
    assert_lost(task.get_mut().end(), token, LockLostReason::Forced);
    assert_eq!((attempts.load(Ordering::SeqCst), world.get("k")), (2, some("another writer's")));
}
